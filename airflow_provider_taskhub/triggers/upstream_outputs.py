"""Outputs of other tasks among the arguments of a task that the triggerer starts.

Airflow stores the arguments of such a task's trigger with the DAG, where an ``XComArg`` cannot be. So the trigger gets
None in its place, and beside the arguments the list of these places. It reads the outputs when it starts the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.identity import UNMAPPED
from airflow_provider_taskhub.hooks.outputs import reference_in
from airflow_provider_taskhub.triggers.task_end import LARGEST_OUTPUT


def only_worker_reads(output: XComArg) -> str | None:
    """Return what a worker must read; None: the triggerer can read it, because it is the output of one task instance.

    :param output: an output among the arguments of a task.
    """
    if type(output) is not PlainXComArg:
        return f"a value of type {type(output).__name__}"
    upstream = output.operator
    if upstream.is_mapped:
        return f"the outputs of the mapped task {upstream.task_id!r}"
    if upstream.get_closest_mapped_task_group() is not None:
        return f"the output of {upstream.task_id!r}, which is in a mapped task group"
    return None


def without_outputs(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the arguments with None in place of each output, and the places of the outputs.

    :param arguments: arguments of a trigger, by name.
    :returns: beside the arguments, the places as JSON can express them: ``{"at": [argument, key or index, ...],
        "task_id": ..., "key": ...}``.
    """
    places: list[dict[str, Any]] = []

    def plain(value: Any, at: list[str | int]) -> Any:
        if isinstance(value, XComArg):
            places.append({"at": at, "task_id": value.operator.task_id, "key": value.key})
            return None
        if type(value) is dict:
            return {key: plain(item, [*at, key]) for key, item in value.items()}
        if type(value) is list:
            return [plain(item, [*at, index]) for index, item in enumerate(value)]
        return value

    return {name: plain(value, [name]) for name, value in arguments.items()}, places


async def put_outputs(trigger: Any, places: Sequence[Mapping[str, Any]], place_of_task: Mapping[str, Any]) -> None:
    """Read the outputs of other tasks, and put each of them into the arguments of a trigger.

    :param trigger: the trigger. Its arguments are attributes, and are rendered.
    :param places: the places of the outputs, as :func:`without_outputs` returns them.
    :param place_of_task: the arguments with which Airflow's XCom class finds the XComs of the trigger's own task.
    :raises InputError: if only a worker can find or pass on an output.
    :raises Exception: if Airflow does not answer.
    """
    from airflow.sdk.execution_time.xcom import XCom

    read: dict[tuple[str, str], Any] = {}
    for place in places:
        task_id, key = place["task_id"], place["key"]
        if (task_id, key) not in read:
            where = {**place_of_task, "task_id": task_id, "map_index": UNMAPPED}
            read[task_id, key] = _passed_on(task_id, key, await XCom.aget_one(key=key, **where))
        _put(trigger, place["at"], read[task_id, key])


def _passed_on(task_id: str, key: str, output: Any) -> Any:
    """Return an output that a worker would pass on unchanged too. :raises InputError: if a worker must read it."""
    from airflow.sdk.bases.xcom import BaseXCom

    from airflow_provider_taskhub.codec import dumps

    what = f"output {key!r} of task {task_id!r}"
    if output is None and key != BaseXCom.XCOM_RETURN_KEY:
        raise InputError(f"{what} is None or missing, and only a worker can tell which")
    if len(dumps(output, what=what)) > LARGEST_OUTPUT:
        raise InputError(f"{what} is longer than {LARGEST_OUTPUT:,} characters")
    if any(reference_in(part) is not None for part in _parts(output)):
        raise InputError(f"{what} has a part that is in a task hub, and only a worker reads it from there")
    return output


def _parts(value: Any) -> Iterator[Any]:
    yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield from _parts(item)


def _put(trigger: Any, at: Sequence[str | int], output: Any) -> None:
    name, *rest = at
    if not rest:
        setattr(trigger, str(name), output)
        return
    *inner, last = rest
    container = getattr(trigger, str(name))
    for step in inner:
        container = container[step]
    container[last] = output
