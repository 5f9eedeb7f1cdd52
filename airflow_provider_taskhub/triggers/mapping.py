"""Mapped tasks of ``TaskHubOperator`` and ``TaskHubSensor`` whose rows the triggerer starts and ends.

Airflow decides for all rows of a mapped task together whether the triggerer starts them, and gives all rows the same
arguments of the trigger. So the trigger takes the arguments of its row from the stored DAG (``triggers.mapped_row``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import MappedOperator, OperatorPartial

from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.triggers.arguments import time_text
from airflow_provider_taskhub.triggers.instance_limits import check_others
from airflow_provider_taskhub.triggers.mapped_row import literals, row_of, rows, samples
from airflow_provider_taskhub.triggers.placement import Placement, argument_reasons
from airflow_provider_taskhub.triggers.start_from_trigger import trigger_arguments
from airflow_provider_taskhub.triggers.upstream_outputs import without_outputs

if TYPE_CHECKING:
    from airflow.triggers.base import StartTriggerArgs


MOST_CHECKED = 20
"""Most rows that are checked when Airflow parses the DAG file, at about 1 ms each. The others are checked when they
begin."""
_DEFAULTS: dict[str, Any] = {"input": NO_INPUT, "taskhub_conn_id": DEFAULT_CONNECTION, "version": "", "statuses": []}
"""The defaults of templated arguments that are not None."""


class TaskHubPartial(OperatorPartial):  # type: ignore[misc]  # Airflow is not followed by mypy
    """What ``partial()`` of the operator and of the sensor returns.

    Its ``expand`` methods return a :class:`TaskHubMappedOperator`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, partial: OperatorPartial) -> TaskHubPartial:
        """Return the same as Airflow's own object. :param partial: this object; it is not expanded any more."""
        partial._expand_called = True  # else Airflow warns that it was never expanded
        return cls(operator_class=partial.operator_class, kwargs=partial.kwargs, params=partial.params)

    def _expand(self, expand_input: Any, *, strict: bool) -> MappedOperator:
        mapped = super()._expand(expand_input, strict=strict)
        mapped.__class__ = TaskHubMappedOperator
        mapped.check()
        return mapped


class TaskHubMappedOperator(MappedOperator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """A mapped task that says, when Airflow serializes the DAG, whether the triggerer starts its rows.

    The answer depends on the whole DAG, which is not known yet when the task is expanded.
    """

    __slots__ = ()

    def check(self) -> None:
        """Check the arguments that are in the DAG file, when Airflow parses it, as those of an unmapped task.

        What is the result of another task is not known yet. The rows check it when they begin.

        :raises InputError: if an argument is wrong.
        """
        for row in islice(samples(self.expand_input, {*self.template_fields, "activity"}), MOST_CHECKED):
            if not without_outputs({"row": [*row.values()]})[1]:
                self.unmap(row)
        check_others(f"{self.task_type} {self.task_id!r}", self)

    def placement(self) -> Placement:
        """Return why a worker starts the rows of this task, and why a worker ends them."""
        given = literals(self.expand_input)
        if given is None:
            return _worker("the task is mapped over the result of another task")
        values = list(rows(given))
        if without_outputs({"mapped": [value for _, value in values]})[1]:
            return _worker("a mapped argument has the result of another task")
        if not values:
            return _worker("the task is mapped over nothing")
        if odd := next((name for name, _ in values if name not in self.template_fields), None):
            return _worker(f"argument {odd!r} is mapped, and only a worker can apply it")
        row = self.unmap(row_of(self.expand_input, 0))
        placement: Placement = row.placement()
        if placement.start:
            return placement
        texts = [(name, time_text(value) if name == "start_at" else value) for name, value in values]
        return replace(placement, start=tuple(reason.text for reason in argument_reasons(row, texts)))

    @property
    def start_from_trigger(self) -> bool:
        """Whether the triggerer starts the rows."""
        return not self.placement().start

    @property
    def start_trigger_args(self) -> StartTriggerArgs | None:
        """The trigger of all rows, and its arguments; None: a worker starts the rows."""
        placement = self.placement()
        if placement.start:
            return None
        mapped = {name for name, _ in rows(literals(self.expand_input) or ())}
        # a row of expand_kwargs() need not have each name that another row has
        instead = {name: self.partial_kwargs.get(name, _DEFAULTS.get(name)) for name in mapped}
        return trigger_arguments(self.unmap(row_of(self.expand_input, 0)), placement, instead=instead)


def row_placement(row: Any) -> Placement:
    """Return where a row of a mapped task, or a task of a mapped task group, starts and ends.

    :param row: the operator of the row.
    """
    task: Any = row.dag.task_dict.get(row.task_id) if row.has_dag() else None
    placement: Placement = task.placement() if hasattr(task, "placement") else _worker("it is mapped")
    return placement


def _worker(reason: str) -> Placement:
    return Placement(start=(reason,), success=(reason,), failure=(reason,))
