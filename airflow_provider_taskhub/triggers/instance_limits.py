"""The limit of instances of a task: the parameters ``max_active_instances`` and ``limit_name`` of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from airflow.sdk import conf

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.at_parse import is_template
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION
from airflow_provider_taskhub.instance_limit import LONGEST_NAME, MOST, MOST_PRIORITY, InstanceLimit

BACKFILL = 1000
"""By how much the priority of a run of a backfill is lower: about six weeks."""


def check(where: str, most: Any, name: Any) -> None:
    """Check the two parameters.

    :param where: the operator and its task id, for the error.
    :param most: ``max_active_instances``.
    :param name: ``limit_name``.
    :raises InputError: if a parameter is wrong, or there is a name without a number.
    """
    if most is None and name is not None:
        raise InputError(
            f"{where}: limit_name is {name!r}, but max_active_instances is not given: "
            "say how many instances may run at once, e.g. max_active_instances=2"
        )
    if most is not None and (type(most) is not int or not 1 <= most <= MOST):
        raise InputError(
            f"{where}: max_active_instances is {most!r}: give a whole number from 1 to {MOST:,}, or None for no limit"
        )
    if most is not None and name is not None:
        if is_template(name):
            raise InputError(
                f"{where}: limit_name is {name!r}, which Airflow does not render: give the name itself, e.g. 'db'. "
                "The rows of a mapped task may have a name each: expand(limit_name=['a', 'b'])"
            )
        try:
            InstanceLimit(name=name, instances=most)
        except InputError as error:
            raise InputError(f"{where}: limit_name: {error}") from None


def check_others(where: str, task: Any) -> None:
    """Check that the tasks of a DAG that share a limit by its name give the same number, when Airflow parses the DAG.

    :param where: the operator and its task id, for the error.
    :param task: the task, mapped or not. Numbers and names that differ from row to row are not compared.
    :raises InputError: if a task that is in the DAG already gives another number.
    """
    name, most, conn_id = _given(task)
    if not isinstance(name, str) or not isinstance(most, int) or not task.has_dag():
        return
    for other in task.dag.tasks:
        its_name, its_most, its_conn_id = _given(other)
        if (its_name, its_conn_id) == (name, conn_id) and isinstance(its_most, int) and its_most != most:
            raise InputError(
                f"{where}: max_active_instances is {most} for the limit {name!r}, and {its_most} at the task "
                f"{other.task_id!r} of the same DAG: give both the same number, or each limit its own name"
            )


def _given(task: Any) -> tuple[Any, Any, Any]:
    """Return the name and the number of the limit that a task gives, and its connection."""
    names = ("limit_name", "max_active_instances", "taskhub_conn_id")
    mapped = getattr(task, "partial_kwargs", None)  # a mapped task has no attributes of its operator
    name, most, conn_id = (mapped.get(one) if mapped is not None else getattr(task, one, None) for one in names)
    return name, most, conn_id or DEFAULT_CONNECTION


def limit_of(operator: Any) -> InstanceLimit | None:
    """Return the limit with which an operator starts its instance; None: no limit.

    Airflow counts a task against ``max_active_tasks`` of its DAG only while a worker runs it, and a task that waits for
    an orchestration is deferred. So the hub counts the instances instead, if the DAG sets this number.
    """
    if operator.max_active_instances is not None:
        name = operator.limit_name or _short(f"{operator.dag_id}:{operator.task_id}")  # no id contains a colon
        return InstanceLimit(name=name, instances=operator.max_active_instances)
    if not operator.has_dag():
        return None
    most = operator.dag.max_active_tasks
    if most == conf.getint("core", "max_active_tasks_per_dag") or not 1 <= most <= MOST:
        return None
    return InstanceLimit(name=_short(f"DAG {operator.dag_id}"), instances=most)


def priority_of(operator: Any) -> int:
    """Return the priority with which an operator starts its instance: from its ``priority_weight``, 1 by default."""
    weight: int = operator.priority_weight
    return max(-MOST_PRIORITY, min(MOST_PRIORITY, weight - 1))


def of_run(priority: int, limit: InstanceLimit | None, run_id: str, dag_run: Any) -> int:
    """Return the priority of a task in a run of its DAG. A run of a backfill comes after all others.

    :param priority: that of the task.
    :param limit: its limit. Without one, no priority is above 0.
    :param dag_run: the run; None: Airflow has not given it, and its id decides.
    """
    kind = getattr(dag_run, "run_type", None) or run_id.partition("__")[0]
    if kind == "backfill":
        priority = max(-MOST_PRIORITY, min(-1, priority - BACKFILL))
    return priority if limit is not None else min(0, priority)


def _short(name: str) -> str:
    """Return a name that is not too long for a limit, with a digest in place of its end."""
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 17]}-{sha256(name.encode()).hexdigest()[:16]}"
    )


def stored(limit: InstanceLimit | None) -> list[Any] | None:
    """Return a limit as a trigger stores it."""
    if limit is None:
        return None
    return [limit.name, limit.instances]


def restored(limit: Sequence[Any] | None) -> InstanceLimit | None:
    """Return the limit that a trigger has stored."""
    return None if limit is None else InstanceLimit(name=limit[0], instances=limit[1])
