"""Log hints: rows that tell an Airflow triggerer how far the log of a running attempt has grown.

The worker that runs the attempt writes the row, at most once in some seconds and only while the log grows. It does so
only for instances with the tag ``taskhub.watch``, which an Airflow task waits for. So a triggerer needs one query to
find all logs that have grown, however many attempts run.

The rows are in the table ``{Hub}Completions``, under their own PartitionKey, beside the completion hints. A hint proves
nothing and may be lost. A triggerer deletes a hint that has not changed for a while, and a purge deletes the hints of
its instance.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub import hint_rows
from airflow_provider_taskhub.hub.formats.keys import escape, parts_of_log, unescape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Int64,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

PARTITION = "log"
"""PartitionKey of the log hints."""
_SEPARATOR = "^l"
"""Separates the instance from the attempt in a RowKey. An escaped id never has a ``^`` before an ASCII letter."""
_AFTER_SEPARATOR = "^m"
"""The first text that sorts behind all texts that begin with :data:`_SEPARATOR`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHint:
    """How far the log of one attempt had grown when its worker last said so.

    :param instance_id: id of the instance that called the activity.
    :param log: name of the attempt's log, for ``InstanceHandle.log``.
    :param activity: name of the activity.
    :param size: size of the log in bytes.
    :param etag: ETag of the row, as it was read.
    """

    instance_id: str
    log: str
    activity: str
    size: int
    etag: str = ""


async def write(store: Store, names: HubNames, hint: LogHint) -> None:
    """Store a hint in place of an earlier one about the same attempt."""
    entity = Entity(
        partition_key=PARTITION,
        row_key=_key(hint),
        properties={"Log": hint.log, "Activity": hint.activity, "Size": Int64(hint.size)},
    )
    row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
    await store.execute(Transact(table=names.completions, rows=(row,)))


async def read(store: Store, names: HubNames) -> tuple[LogHint, ...]:
    """Read the hints of all instances. A damaged row is omitted, and a warning is logged."""
    rows = store.rows(names.completions, Compare("PartitionKey", "eq", PARTITION))
    found = [_hint(names, entity) async for entity in rows]
    return tuple([hint for hint in found if hint is not None])


async def delete(store: Store, names: HubNames, hints: Iterable[LogHint]) -> None:
    """Delete hints. A hint that was written again after its ETag was read stays."""
    rows = {_key(hint): hint.etag for hint in hints}
    entities = [Entity(partition_key=PARTITION, row_key=key, etag=etag) for key, etag in rows.items()]
    await hint_rows.delete(store, names.completions, entities)


async def of_instance(store: Store, names: HubNames, instance_id: str) -> tuple[Entity, ...]:
    """Return the rows of an instance's hints, also damaged ones, for the purge of the instance."""
    key = escape(instance_id)
    wanted = (
        Compare("PartitionKey", "eq", PARTITION),
        Compare("RowKey", "ge", key + _SEPARATOR),
        Compare("RowKey", "lt", key + _AFTER_SEPARATOR),
    )
    return tuple([entity async for entity in store.rows(names.completions, And(wanted), select=("Log",))])


def _key(hint: LogHint) -> str:
    """Return the RowKey of a hint.

    The execution id is not in the key, because the key could become too long. So the hint of a new generation of the
    instance replaces the hint of an attempt with the same numbers.
    """
    _, task_id, attempt = parts_of_log(hint.log)
    return f"{escape(hint.instance_id)}{_SEPARATOR}{task_id:06d}-{attempt:03d}"


def _hint(names: HubNames, entity: Entity) -> LogHint | None:
    log, activity, size = (entity.properties.get(name) for name in ("Log", "Activity", "Size"))
    key, separator, _ = entity.row_key.rpartition(_SEPARATOR)
    if not (separator and _is_name(log) and isinstance(activity, str) and isinstance(size, int)):
        row, values = f"{PARTITION}/{entity.row_key}", f"Log is {log!r}, Activity is {activity!r}, Size is {size!r}"
        unreadable(names.completions, row, values)
        return None
    return LogHint(instance_id=unescape(key), log=str(log), activity=activity, size=size, etag=entity.etag)


def _is_name(log: object) -> bool:
    try:
        return isinstance(log, str) and bool(parts_of_log(log))
    except ValueError:
        return False
