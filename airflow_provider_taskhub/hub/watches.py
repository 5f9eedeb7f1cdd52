"""Watch rows: which Airflow task waits for which instance. They are how the sweep finds instances without a task.

A start by Airflow writes the row before the instance. The rows are in ``{Hub}Completions``, in a partition of their
own, beside the hints of ended instances. The sweep, or a purge, deletes a row that is not needed any more.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

PARTITION = "watch"
"""PartitionKey of the watch rows. Hints have the empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One Airflow task instance that waits for one instance.

    :param deployment: name of the Airflow deployment: two of them may share a hub.
    :param map_index: -1 for a task that is not mapped.
    :param owner: value of the instance's tag ``taskhub.owner``: the start that this row is about.
    :param generation: of the task; a clear raises it. :param etag: as read.
    """

    instance_id: str
    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    owner: str
    generation: int
    etag: str = ""


async def write(store: Store, names: HubNames, watch: Watch) -> None:
    """Insert the row, or replace the one of an older start with the same instance id."""
    entity = Entity(
        partition_key=PARTITION,
        row_key=escape(watch.instance_id),
        properties={
            "Deployment": watch.deployment,
            "DagId": watch.dag_id,
            "RunId": watch.run_id,
            "TaskId": watch.task_id,
            "MapIndex": watch.map_index,
            "Owner": watch.owner,
            "Generation": watch.generation,
        },
    )
    row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
    await store.execute(Transact(table=names.completions, rows=(row,)))


async def read(store: Store, names: HubNames, deployment: str) -> tuple[Watch, ...]:
    """The rows of one Airflow deployment. A damaged row is left out with a warning."""
    wanted = And((Compare("PartitionKey", "eq", PARTITION), Compare("Deployment", "eq", deployment)))
    found = [_watch(names, entity) async for entity in store.rows(names.completions, wanted)]
    return tuple(watch for watch in found if watch is not None)


async def delete(store: Store, names: HubNames, watch: Watch) -> None:
    """Delete the row as it was read; one that a newer start has replaced stays."""
    entity = Entity(partition_key=PARTITION, row_key=escape(watch.instance_id))
    row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag=watch.etag)
    with suppress(Conflict, NotFound):
        await store.execute(Transact(table=names.completions, rows=(row,)))


def _watch(names: HubNames, entity: Entity) -> Watch | None:
    texts = {name: entity.properties.get(name) for name in ("Deployment", "DagId", "RunId", "TaskId", "Owner")}
    numbers = {name: entity.properties.get(name) for name in ("MapIndex", "Generation")}
    for name, value in texts.items():
        if not isinstance(value, str):
            unreadable(names.completions, f"{PARTITION}/{entity.row_key}", f"{name} is {value!r}")
            return None
    for name, value in numbers.items():
        if not isinstance(value, int):
            unreadable(names.completions, f"{PARTITION}/{entity.row_key}", f"{name} is {value!r}")
            return None
    return Watch(
        instance_id=unescape(entity.row_key),
        deployment=str(texts["Deployment"]),
        dag_id=str(texts["DagId"]),
        run_id=str(texts["RunId"]),
        task_id=str(texts["TaskId"]),
        map_index=int(numbers["MapIndex"]),  # type: ignore[arg-type]  # checked above
        owner=str(texts["Owner"]),
        generation=int(numbers["Generation"]),  # type: ignore[arg-type]  # checked above
        etag=entity.etag,
    )
