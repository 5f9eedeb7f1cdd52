"""Ends a successful task in the triggerer, without an Airflow worker.

This saves a worker slot and avoids a race in Airflow. A deferred task may be resumed before the scheduler knows that
the process that deferred the task has ended. The scheduler then fails the task ("finished with state success, but the
task instance's state attribute is queued", apache/airflow#67287). A task that ends in the triggerer is never queued
again, so this race cannot happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_taskhub.hooks.outputs import returned, stays_in_hub
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import index_of, key, state_of

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState

INSTANCE_KEY, OWNER_KEY = "instance_id", "taskhub_owner"
"""Keys of the XComs with the instance id and the owner tag of the instance for which a try of the task waits."""
LARGEST_OUTPUT = 256 * 1024
"""Characters of the largest output that the triggerer pushes whole as an XCom. All triggers of a triggerer share one
process, so a task with a larger output ends in an Airflow worker."""


def needs_worker(operator: Any) -> bool:
    """Return whether the success of a task has consequences that Airflow handles only in a worker."""
    from airflow.sdk.listener import get_listener_manager

    return bool(
        operator.outlets
        or operator.on_success_callback
        or operator.multiple_outputs
        or operator._post_execute_hook
        or type(operator).post_execute is not BaseOperator.post_execute
        or getattr(operator, "returns_dag_result", False)
        or getattr(operator, "map_index_template", None)
        or _mapped_over(operator)
        or get_listener_manager().has_listeners
    )


def needs_whole_output(operator: Any) -> bool:
    """Return whether Airflow itself reads the output, so that the task cannot return a reference to it."""
    return bool(operator.multiple_outputs) or _mapped_over(operator)


def _mapped_over(operator: Any) -> bool:
    return operator.has_dag() and next(operator.iter_mapped_dependants(), None) is not None


async def end(ti: Any, state: InstanceState, owner: str | None, push: bool, taskhub_conn_id: str) -> bool:
    """Push the output, or a reference to a large output, as the task's XCom, and return True.

    Return False if the task does not wait for this instance any more, or if the XCom would be larger than
    :data:`LARGEST_OUTPUT`.

    Airflow on SQLite gives the id of a deleted trigger to a new trigger. The old trigger may still run, and Airflow
    would treat its event as the event of the new trigger's task. So this function checks that the task is deferred and
    that its XComs name this instance and this owner.

    :param ti: the trigger's task instance.
    :param state: the state of the completed instance.
    :param owner: the owner tag that the instance must have; None: a sensor waits, and the instance may have any tag.
    :param push: False: do not push the output.
    :param taskhub_conn_id: the Airflow connection of the hub.
    :returns: whether the triggerer may end the task now.
    :raises Exception: if Airflow does not answer, or refuses the XCom.
    """
    from airflow.sdk.execution_time.xcom import XCom

    foreign = owner is not None and (state.tags or {}).get(OWNER_TAG) != owner
    large = push and len(state.output or "") > LARGEST_OUTPUT and not stays_in_hub(state)
    if foreign or large:
        return False
    states = await state_of(ti)
    found = states.get(ti.run_id, {}).get(key(ti.task_id, index_of(ti)))
    if str(getattr(found, "value", found)) != "deferred":
        return False
    place = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": index_of(ti)}
    waits_for = [await XCom.aget_one(key=name, **place) for name in (INSTANCE_KEY, OWNER_KEY)]
    if waits_for != [state.instance_id, owner]:
        return False
    if push and (value := returned(state, taskhub_conn_id)) is not None:
        await XCom.aset(key=XCom.XCOM_RETURN_KEY, value=value, **place)
    return True
