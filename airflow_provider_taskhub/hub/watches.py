"""Read and write watch rows. Each row says which Airflow task waits for which instance.

A loop that is called the sweep reads these rows and terminates instances whose Airflow task does not wait any more. An
Airflow task that starts an instance writes the watch row first. The rows are in the table ``{Hub}Completions``, under
their own PartitionKey, beside the completion hints. The sweep or a purge deletes a row that is not needed any more.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_taskhub.codec import Timestamp
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
"""PartitionKey of the watch rows. The PartitionKey of completion hints is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A watch row: one Airflow task instance that waits for one instance of the hub.

    :param instance_id: id of the instance that the Airflow task waits for.
    :param deployment: name of the Airflow deployment. Two deployments may share a hub.
    :param map_index: Airflow's map index; -1 for a task that is not mapped.
    :param owner: value of the instance's tag ``taskhub.owner``. It identifies the start of the instance.
    :param generation: generation of the Airflow task. A clear of the task raises it, unless the instance goes on.
    :param waiter: id of the task instance whose try waits, new for every try. Another try must not end the instance.
        "": the row does not say which try waits.
    :param cleared_continues: True: after a clear, the Airflow task waits for the same instance again, as a task that
        rewinds an instance does. False: a clear ends the instance, because the task then starts another one.
    :param etag: ETag of the row, as it was read.
    """

    instance_id: str
    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    owner: str
    generation: int
    waiter: str = ""
    cleared_continues: bool = False
    etag: str = ""


async def write(store: Store, names: HubNames, watch: Watch, *, replaces: Watch | bool = True) -> bool:
    """Store the watch row, and return whether it is stored.

    :param replaces: True: any row of the same instance id is replaced. False: such a row stays, and nothing is stored.
        A watch: only this row is replaced, and only if it has not changed since it was read.
    """
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
            "Waiter": watch.waiter,
            "ClearedContinues": watch.cleared_continues,
        },
    )
    if isinstance(replaces, Watch):
        row = RowOperation(verb=RowVerb.REPLACE, entity=entity, etag=replaces.etag)
    else:
        row = RowOperation(verb=RowVerb.UPSERT_REPLACE if replaces else RowVerb.INSERT, entity=entity)
    try:
        await store.execute(Transact(table=names.completions, rows=(row,)))
    except (Conflict, NotFound):
        if replaces is True:
            raise
        return False
    return True


async def read(store: Store, names: HubNames, deployment: str) -> tuple[Watch, ...]:
    """Read the watch rows of one Airflow deployment. A damaged row is omitted, and a warning is logged."""
    wanted = And((Compare("PartitionKey", "eq", PARTITION), Compare("Deployment", "eq", deployment)))
    found = [_watch(names, entity) async for entity in store.rows(names.completions, wanted)]
    return tuple(watch for watch in found if watch is not None)


async def read_one(store: Store, names: HubNames, instance_id: str) -> Watch | None:
    """Read the watch row of an instance. None: there is no such row, or it is damaged, and a warning is logged."""
    entity = await store.get(names.completions, PARTITION, escape(instance_id))
    return _watch(names, entity) if entity is not None else None


async def delete(store: Store, names: HubNames, watch: Watch) -> None:
    """Delete the watch row if it has not changed since it was read. The row of a newer start stays."""
    entity = Entity(partition_key=PARTITION, row_key=escape(watch.instance_id))
    row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag=watch.etag)
    with suppress(Conflict, NotFound):
        await store.execute(Transact(table=names.completions, rows=(row,)))


async def delete_older(store: Store, names: HubNames, instance_id: str, *, owner: str, than: Timestamp | None) -> None:
    """Delete the watch row of an instance if the row is of this start, and was not written after the time ``than``.

    :param than: a time of the store's clock; None: nothing is deleted.
    """
    entity = await store.get(names.completions, PARTITION, escape(instance_id))
    if entity is None or entity.timestamp is None or than is None or entity.timestamp > than:
        return
    if entity.properties.get("Owner") == owner:
        row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag=entity.etag)
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
        map_index=int(numbers["MapIndex"]),  # type: ignore[arg-type]  # the loop above has checked the type
        owner=str(texts["Owner"]),
        generation=int(numbers["Generation"]),  # type: ignore[arg-type]  # the loop above has checked the type
        waiter=str(entity.properties.get("Waiter") or ""),
        cleared_continues=entity.properties.get("ClearedContinues") is True,
        etag=entity.etag,
    )
