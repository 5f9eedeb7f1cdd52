"""What the operator and the sensor have in common: the triggerer may start their tasks, and it may end them."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.triggers.mapping import TaskHubPartial, row_placement
from airflow_provider_taskhub.triggers.rendering import TextRendering
from airflow_provider_taskhub.triggers.start_from_trigger import StartFromTrigger, StartTriggerArguments
from airflow_provider_taskhub.triggers.task_end import place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_taskhub.triggers.placement import Placement
    from airflow_provider_taskhub.triggers.start_from_trigger import FirstTrigger


class PlacedTask(TextRendering):
    """Base of the operator and of the sensor, beside Airflow's own base class, which must be the second one."""

    start_from_trigger = StartFromTrigger()
    start_trigger_args = StartTriggerArguments()
    log: Any
    _placement: Placement | None = None
    _trigger_said: str | None = None
    """Why the trigger has left the start to a worker."""

    @classmethod
    def partial(cls, **kwargs: Any) -> TaskHubPartial:
        """Return the operator with the arguments that all rows of a mapped task have, as for each operator of Airflow.

        :param kwargs: arguments of the operator, also ``task_id``. ``expand`` and ``expand_kwargs`` take the others.
        """
        return TaskHubPartial.of(super().partial(**kwargs))  # type: ignore[misc]  # Airflow's base class has it

    def placement(self) -> Placement:
        """Return why a worker starts this task, and why a worker ends it."""
        return self._placement or self._place()

    @abstractmethod
    def first_trigger(self) -> FirstTrigger:
        """Return the trigger that starts this task if no worker does."""

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render the templates as Airflow does, and keep the placement, which depends on the templates."""
        self._placement = self._place()
        super().render_template_fields(context, jinja_env)  # type: ignore[misc]  # Airflow's base class has it

    @abstractmethod
    def _place(self) -> Placement:
        """Find out why a worker starts this task, and why a worker ends it."""

    def _take_over(self, ti: Any, why: str) -> None:
        """Note that a worker starts this try, because the trigger has started nothing.

        The worker writes the reason into the log: the trigger of a later wait overwrites the log of the trigger that
        has left the start to the worker, because Airflow gives both the same file.

        The result of an earlier try is deleted. Airflow does this only for a try that no trigger has started.

        :param ti: Airflow's task instance.
        :param why: why the trigger has started nothing.
        """
        from airflow.sdk.execution_time.xcom import XCom

        self._trigger_said = why
        if ti.try_number > 1:
            XCom.delete(key=XCom.XCOM_RETURN_KEY, **place_of(ti))

    def _log_why_a_worker_starts(self, ti: Any) -> None:
        mapped = ti.map_index is not None and ti.map_index >= 0
        placement = row_placement(self) if mapped else self._placement
        why = self._trigger_said or "; ".join(placement.start if placement is not None else ())
        if why:
            self.log.info("a worker starts this task: %s", why)

    def _log_why_a_worker_ends(self, reasons: Sequence[str]) -> None:
        if reasons:
            self.log.info("a worker ends this task: %s", "; ".join(reasons))
