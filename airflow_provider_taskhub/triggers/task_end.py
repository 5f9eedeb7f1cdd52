"""Ends a task in the triggerer, without a worker.

This saves a worker slot, and avoids a race of Airflow: the scheduler fails a task that is resumed before the scheduler
knows that the process that deferred it has ended ("finished with state success, but the task instance's state attribute
is queued", apache/airflow#67287). A task that ends in the triggerer is never queued again, so the race cannot strike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_taskhub.hooks.identity import OWNER_TAG
from airflow_provider_taskhub.triggers.airflow_tasks import index_of, key, state_of
from airflow_provider_taskhub.triggers.outcome import plain

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState

INSTANCE_KEY, OWNER_KEY = "instance_id", "taskhub_owner"
"""Keys of the XComs that say which instance, of which start, a try waits for."""
LARGEST_OUTPUT = 256 * 1024
"""Characters of an output that a triggerer pushes: all its triggers share one process."""


def needs_worker(operator: Any) -> bool:
    """Whether Airflow must do something after success that it does only in a worker."""
    from airflow.sdk.listener import get_listener_manager

    return bool(
        operator.outlets
        or operator.on_success_callback
        or operator.multiple_outputs
        or operator._post_execute_hook
        or type(operator).post_execute is not BaseOperator.post_execute
        or getattr(operator, "returns_dag_result", False)
        or getattr(operator, "map_index_template", None)
        or (operator.has_dag() and next(operator.iter_mapped_dependants(), None) is not None)
        or get_listener_manager().has_listeners
    )


async def end(ti: Any, state: InstanceState, *, owner: str | None, push: bool) -> bool:
    """Push the output as the task's XCom, if the task still waits for this instance; whether the task may end now.

    Airflow on SQLite reuses the number of a deleted trigger. The old trigger may still run, and Airflow would take its
    end for the end of another task. So the task must be deferred, by a try that waits for this start.

    :param ti: of the trigger. :param owner: of the start that the trigger waits for.
    :raises Exception: Airflow cannot be asked, or refuses the XCom.
    """
    from airflow.sdk.execution_time.xcom import XCom

    if owner is None or (state.tags or {}).get(OWNER_TAG) != owner or len(state.output or "") > LARGEST_OUTPUT:
        return False
    states = await state_of(ti)
    found = states.get(ti.run_id, {}).get(key(ti.task_id, index_of(ti)))
    if str(getattr(found, "value", found)) != "deferred":
        return False
    place = {"dag_id": ti.dag_id, "task_id": ti.task_id, "run_id": ti.run_id, "map_index": index_of(ti)}
    waits_for = [await XCom.aget_one(key=name, **place) for name in (INSTANCE_KEY, OWNER_KEY)]
    if waits_for != [state.instance_id, owner]:
        return False
    if push and (value := plain(state.output)) is not None:
        await XCom.aset(key=XCom.XCOM_RETURN_KEY, value=value, **place)
    return True
