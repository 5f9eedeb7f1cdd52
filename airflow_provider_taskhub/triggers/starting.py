"""What the triggers that start a task have in common, for the operator (:mod:`.start`) and the sensor (:mod:`.sensor`).

The scheduler puts such a task into the triggerer at once (Airflow's ``start_from_trigger``). If anything goes wrong
before the trigger has started its work, a worker starts the task, so that the user sees the same error on both ways.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.links.taskhub import TaskHubInstanceLink, page_in_dag
from airflow_provider_taskhub.triggers.airflow_tasks import index_of
from airflow_provider_taskhub.triggers.mapped_row import row_of
from airflow_provider_taskhub.triggers.rendering import CHECKED, PythonTexts
from airflow_provider_taskhub.triggers.task_end import INSTANCE_KEY, WAITED, WORKER_STARTS, place_of
from airflow_provider_taskhub.triggers.upstream_outputs import put_outputs

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

    from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger


class StartingTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Base of the triggers that start a task.

    Airflow renders the Jinja templates in the arguments that are templated in the operator too.

    :param end_from_trigger: True: end the task in the triggerer when it succeeds.
    :param fail_from_trigger: True: end the task in the triggerer when it fails.
    :param push_output: True: when the task ends in the triggerer, push the output as the task's XCom.
    :param outputs: where the outputs of other tasks belong in the arguments, as :func:`.without_outputs` returns it.
    """

    clock: Clock = SYSTEM_CLOCK
    timeout_after: Any = None
    """The time at which Airflow ends the wait. Airflow sets it."""
    _later_try: ClassVar[str]
    """Why a worker starts each try but the first."""

    def __init__(
        self,
        *,
        end_from_trigger: bool = True,
        fail_from_trigger: bool = True,
        push_output: bool = True,
        outputs: Sequence[Mapping[str, Any]] = (),
        **_of_other_versions: Any,
    ) -> None:
        super().__init__()
        self.end_from_trigger = end_from_trigger
        self.fail_from_trigger = fail_from_trigger
        self.push_output = push_output
        self.outputs = list(outputs)
        self._context: Context | None = None
        self._unrendered: Exception | None = None
        self._python_text: str | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and the arguments from which Airflow creates the trigger again."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments() | {
            "end_from_trigger": self.end_from_trigger,
            "fail_from_trigger": self.fail_from_trigger,
            "push_output": self.push_output,
            "outputs": self.outputs,
        }

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the class itself, without those of this base."""

    def get_template_env(self, dag: Any = None) -> Environment:
        """Return Airflow's Jinja environment, in which an unknown name is an error, as in a worker."""
        from jinja2 import StrictUndefined

        environment: Environment = super().get_template_env(dag)
        environment.undefined = StrictUndefined
        return environment

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Render the arguments. After an error a worker renders them again, and the task's log shows its error.

        :param context: Airflow's context of the task.
        :param jinja_env: the Jinja environment; None: :meth:`get_template_env`.
        """
        self._context = context
        try:
            self._take_row()
            texts, given = PythonTexts(), {name: getattr(self, name, None) for name in CHECKED}
            super().render_template_fields(context, texts.seen_by(jinja_env or self.get_template_env()))
            self._python_text = texts.first_error(self, given)
        except Exception as error:
            self._unrendered = error

    def _take_row(self) -> None:
        """Take the arguments of this row, if the task is mapped. :raises InputError: they are not in the DAG."""
        ti = self.task_instance
        if (mapped := getattr(ti.task, "expand_input", None)) is not None:
            row = row_of(mapped, index_of(ti))
            for name, value in row.items():
                setattr(self, name, value)
            self.outputs = [place for place in self.outputs if place["at"][0] not in row]

    async def _needs_worker(self) -> str | None:
        """Read the outputs of other tasks. Return why the trigger cannot start the task; None: it can."""
        ti = self.task_instance
        if ti is None or self._context is None:
            return "Airflow has not given the task to the trigger"
        if self._unrendered is not None:
            return f"the triggerer cannot render the templates: {self._unrendered}"
        if ti.try_number > 1:
            return f"this is try {ti.try_number}, and {self._later_try}"
        try:
            await put_outputs(self, self.outputs, place_of(ti))
        except InputError as error:
            return str(error)
        except Exception as error:  # an error of Airflow
            return f"the triggerer cannot read the outputs of other tasks: {type(error).__name__}: {error}"
        return None

    async def _push(self, instance_id: str, **more: str) -> bool:
        """Push the XComs that say for which instance the task waits. Without them a worker ends the task.

        Airflow's triggerer handles one request of a trigger at a time, and each takes longer than the start of an
        instance. So the link is pushed only if Airflow's API server cannot make it from the stored DAG.

        :param instance_id: the instance.
        :param more: other XComs.
        :returns: False: Airflow has not taken the XComs.
        """
        from airflow.sdk.execution_time.xcom import XCom

        values = {INSTANCE_KEY: instance_id, **more}
        if page_in_dag(self.task_instance.task, self.task_instance) is None:
            link = TaskHubInstanceLink()
            values[link.xcom_key] = link.get_link(self, ti_key=self.task_instance)
        try:
            for name, value in values.items():
                await XCom.aset(key=name, value=value, **place_of(self.task_instance))
        except Exception as error:
            self.log.warning("cannot push the XComs of the instance: %s: %s", type(error).__name__, error)
            return False
        return True

    def _handed_over(self, waiting: TaskHubTrigger, *, owner_named: bool) -> TaskHubTrigger:
        """Give the task of this trigger to the trigger that waits, and return that trigger.

        :param waiting: the trigger that waits.
        :param owner_named: True: an XCom names the owner of the instance.
        """
        waiting.clock = self.clock
        waiting.task_instance = self.task_instance
        waiting.trigger_id = self.trigger_id
        waiting.task_end.owner_named = owner_named
        return waiting

    def _left_to_worker(self, why: str, *, waited: bool = False) -> TriggerEvent:
        """Return the event with which a worker starts the task.

        :param why: the reason, for the task's log.
        :param waited: True: the trigger has waited for room in the hub, so the worker must not wait for it again.
        """
        if self._unrendered is not None:  # the worker fails with the same error before it can write the reason
            self.log.info("a worker starts this task: %s", why)
        event = self._event(WORKER_STARTS, None, why)
        return TriggerEvent({**event.payload, WAITED: True}) if waited else event

    def _event(self, reason: str, instance_id: str | None, message: str) -> TriggerEvent:
        waited: Mapping[str, Any] = {
            "instance_id": instance_id,
            "owner": str(getattr(self.task_instance, "id", "")),
            "status": None,
        }
        return TriggerEvent({"reason": reason, **waited, "message": message})
