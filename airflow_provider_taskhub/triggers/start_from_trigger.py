"""Tells Airflow which tasks the triggerer starts, and with which trigger.

Airflow reads two attributes of an operator for this when it serializes the DAG. They are descriptors here, because the
answer depends on the whole DAG, which is not known yet when the operator is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.no_input import storable
from airflow_provider_taskhub.triggers.upstream_outputs import without_outputs

if TYPE_CHECKING:
    from airflow.triggers.base import StartTriggerArgs

    from airflow_provider_taskhub.triggers.placement import Placement

NEXT_METHOD = "execute_started"
"""The method of the operator and of the sensor with which a worker continues what the trigger has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTrigger:
    """The trigger that starts a task.

    :param path: the dotted path of its class.
    :param arguments: its arguments that come from the arguments of the operator.
    :param timeout: Airflow's own time limit of the wait, from the start of the task; None: only ``execution_timeout``.
    """

    path: str
    arguments: Mapping[str, Any]
    timeout: timedelta | None = None


class StartFromTrigger:
    """``BaseOperator.start_from_trigger``: whether the triggerer starts the task.

    A mapped task has its own answer (``triggers.mapping``).
    """

    def __get__(self, operator: Any, owner: type) -> bool:
        # Airflow also reads it, several times, while it makes the operator: the answer is not known then, and to find
        # it would slow down the parse of the DAG file
        made = operator is not None and getattr(operator, "_BaseOperator__instantiated", False)
        return made and not operator.placement().start


class StartTriggerArguments:
    """``BaseOperator.start_trigger_args``: the trigger and its arguments; None: a worker starts the task."""

    def __get__(self, operator: Any, owner: type) -> Any:
        if operator is None or not operator.start_from_trigger:
            return None
        return trigger_arguments(operator, operator.placement(), instead={})


def trigger_arguments(operator: Any, placement: Placement, *, instead: Mapping[str, Any]) -> StartTriggerArgs:
    """Return the trigger that starts a task, and its arguments.

    :param operator: the operator of the task, or of one row of a mapped task.
    :param placement: where the task ends.
    :param instead: values that replace arguments of the operator.
    """
    from airflow.triggers.base import StartTriggerArgs

    first: FirstTrigger = operator.first_trigger()
    given, outputs = without_outputs({**first.arguments, **instead})
    return StartTriggerArgs(
        trigger_cls=first.path,
        trigger_kwargs={
            **{name: storable(value) for name, value in given.items()},
            "end_from_trigger": not placement.success,
            "fail_from_trigger": not placement.failure,
            "push_output": operator.do_xcom_push,
            "outputs": outputs,
        },
        next_method=NEXT_METHOD,
        timeout=first.timeout,
    )
