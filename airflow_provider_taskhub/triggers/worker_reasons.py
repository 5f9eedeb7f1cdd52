"""Names why only an Airflow worker can end a successful task, and what a user may choose instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow.sdk import BaseOperator


class Where(StrEnum):
    """The values of the operator's parameters ``start_on`` and ``complete_on``."""

    TRIGGER = "trigger"
    WORKER = "worker"
    AUTO = "auto"


PLACES = (Where.AUTO, Where.TRIGGER, Where.WORKER)
"""The same values, the default first."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a task needs an Airflow worker.

    :param text: the reason, as a part of a sentence.
    :param forces: True: the task would do something else in the triggerer. False: only a side effect would be missing,
        and the user may do without it by ``start_on`` or ``complete_on``.
    """

    text: str
    forces: bool = True


def after_success(operator: Any) -> Iterator[Reason]:
    """Yield each consequence of the task's success that Airflow handles only in a worker, except listeners."""
    if operator.outlets:
        yield Reason("outlets")
    if operator.multiple_outputs:
        yield Reason("multiple_outputs")
    if getattr(operator, "returns_dag_result", False):
        yield Reason("the task returns the result of its DAG")
    if getattr(operator, "map_index_template", None):
        yield Reason("map_index_template")
    if _mapped_over(operator):
        yield Reason("another task is mapped over the output")
    if operator.on_success_callback:
        yield Reason("on_success_callback", forces=False)
    if operator._post_execute_hook or type(operator).post_execute is not BaseOperator.post_execute:
        yield Reason("post_execute", forces=False)


def needs_whole_output(operator: Any) -> bool:
    """Return whether Airflow itself reads the output, so that the task cannot return a reference to it."""
    return bool(operator.multiple_outputs) or _mapped_over(operator)


def _mapped_over(operator: Any) -> bool:
    return operator.has_dag() and next(operator.iter_mapped_dependants(), None) is not None


def task_listener() -> str | None:
    """Return the name of an installed listener that has a hook for tasks; None: there is none.

    Airflow calls these hooks only in workers.
    """
    from airflow.sdk.listener import get_listener_manager

    hooks = get_listener_manager().hook
    for name in dir(hooks):
        if name.startswith("on_task_instance_"):
            for found in getattr(hooks, name).get_hookimpls():
                return getattr(found.plugin, "__name__", None) or type(found.plugin).__qualname__
    return None


def needs_worker(operator: Any) -> bool:
    """Return whether the success of a task has consequences that Airflow handles only in a worker."""
    return task_listener() is not None or next(after_success(operator), None) is not None
