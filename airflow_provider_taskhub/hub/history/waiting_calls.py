"""The calls that wait for a place of a limit with a key: rows of the hub's table of controls, in their order.

The calls of an activity share a queue, and each value of the key has places of its own. A call whose value has no free
place must not hold up those behind it. So it leaves the queue for a row. Nothing reads the rows of a value until one of
its places is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import field, replace
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.history import waiting_rows
from airflow_provider_taskhub.hub.history.places import BETWEEN, split
from airflow_provider_taskhub.hub.history.waiting_rows import MOST_COUNTED
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Property,
    PutMessage,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
)

LATER = timedelta(days=1)
"""A call of low priority waits as if it had been made so much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that waits for a place.

    :param limit: name of the limit.
    :param tag: the tag by which it is divided.
    :param value: the value of the tag.
    :param instance: the instance that called the activity, with its execution id.
    :param task_id: number of the call.
    :param since: when the call was put into a queue first, by the clock of the store.
    :param low: whether it has low priority.
    :param activity: name of the activity.
    :param text: its message, as it stands in the queue.
    :param etag: the ETag of its row; None: it has none yet.
    """

    limit: str
    tag: str = field(compare=False)
    value: str
    instance: OrchestrationInstance
    task_id: int
    since: Timestamp
    low: bool = False
    activity: str = field(compare=False)
    text: str = field(compare=False, repr=False)
    etag: str | None = field(default=None, compare=False)

    @property
    def row_key(self) -> str:
        """The key of its row. The smallest key comes first."""
        run = f"{self.instance.instance_id} {self.instance.execution_id or ''}"
        turn = self.since + LATER if self.low else self.since
        return f"{turn.ticks:020d}-{escape(run)}-{self.task_id:010d}"


_ALL = "waiting-calls:"


def _prefix(limit: str) -> str:
    return f"{_ALL}{escape(limit)}{BETWEEN}"


def stored(names: HubNames, waiting: WaitingCall) -> Transact:
    """Return the write that lets a call wait. A repetition for the same call changes nothing that counts."""
    columns: dict[str, Property | None] = {
        **waiting_rows.columns_of(waiting.instance, waiting.text),
        "TaskId": waiting.task_id,
        "Tag": waiting.tag,
        "Name": waiting.activity,
        "Low": waiting.low,
    }
    return _written(names, waiting, RowVerb.UPSERT_REPLACE, columns)


def removed(names: HubNames, waiting: WaitingCall) -> Transact:
    """Return the write that deletes the row. The store refuses it if the row was changed or deleted since the read."""
    return _written(names, waiting, RowVerb.DELETE, {})


def _written(names: HubNames, waiting: WaitingCall, verb: RowVerb, columns: dict[str, Property | None]) -> Transact:
    key = _prefix(waiting.limit) + escape(waiting.value)
    row = Entity(partition_key=key, row_key=waiting.row_key, properties=columns)
    etag = None if verb is RowVerb.UPSERT_REPLACE else waiting.etag
    return Transact(table=names.controls, rows=(RowOperation(verb=verb, entity=row, etag=etag),))


async def first(store: Store, names: HubNames, limit: str, value: str, most: int) -> list[WaitingCall]:
    """Read the calls of a value that come first. Cost: one query.

    :param most: how many to read at most.
    """
    where = Compare("PartitionKey", "eq", _prefix(limit) + escape(value))
    return [_decoded(limit, value, row) for row in await waiting_rows.first(store, names, where, most)]


async def values(store: Store, names: HubNames, limit: str) -> AsyncIterator[str]:
    """Find the values of which calls wait. Cost: one query for each, and one more."""
    prefix = _prefix(limit)
    async for key in _each(store, names, prefix):
        yield unescape(key.removeprefix(prefix))


async def everything(store: Store, names: HubNames) -> AsyncIterator[tuple[str, str]]:
    """Find the limits, and their values, of which calls wait. Cost: one query for each value, and one more."""
    async for key in _each(store, names, _ALL):
        limit, value = split(key.removeprefix(_ALL))
        yield limit, value or ""


async def in_order(store: Store, names: HubNames, limit: str) -> list[WaitingCall]:
    """Read which calls wait for places of a limit, up to :data:`MOST_COUNTED`, without their messages. Cost: one query.

    :returns: the calls, those of each value in their order.
    """
    prefix = _prefix(limit)
    found = await _rows(store, names, prefix, "", MOST_COUNTED, "Low", "InstanceId", "ExecutionId", "TaskId")
    return [_decoded(limit, unescape(row.partition_key.removeprefix(prefix)), row) for row in found]


def _since(row: Entity) -> Timestamp:
    turn = Timestamp(int(row.row_key.partition("-")[0]))
    return turn + -LATER if row.properties.get("Low") else turn


def queue_of(names: HubNames, waiting: WaitingCall) -> str:
    """Return the queue into which a call is put when its turn has come: the first one, or the lane of low priority."""
    return names.limited_lanes(waiting.activity)[-1] if waiting.low else names.limited(waiting.activity)


async def send(store: Store, names: HubNames, waiting: WaitingCall) -> bool:
    """Put a call into a queue of its activity, then delete its row.

    The row is first written: of several workers that do the same, one goes on. If it dies then, another one begins
    anew.

    :returns: False if another worker was faster.
    """
    try:
        etags = await store.execute(_written(names, waiting, RowVerb.MERGE, {"Sent": True}))
    except (Conflict, NotFound):
        return False
    assert isinstance(etags, tuple)
    put = PutMessage(queue=queue_of(names, waiting), text=waiting.text)
    await store.commit(Unit(steps=(Step(name="outbound", operations=(put,)),)))
    with suppress(Conflict, NotFound):  # it was stored once more: then it comes twice, and runs once
        await store.execute(removed(names, replace(waiting, etag=etags[0])))
    return True


async def _each(store: Store, names: HubNames, prefix: str) -> AsyncIterator[str]:
    """Yield the partition keys with a prefix."""
    after = ""
    while found := await _rows(store, names, prefix, after, 1):
        after = found[0].partition_key
        yield after


async def _rows(store: Store, names: HubNames, prefix: str, after: str, most: int, *columns: str) -> list[Entity]:
    """Read rows, at most so many.

    :param prefix: how their partition keys begin.
    :param after: the partition key after which they come; "": all.
    :param columns: what to read beside the keys.
    """
    last = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    begin = Compare("PartitionKey", "gt", after) if after else Compare("PartitionKey", "ge", prefix)
    within = And((begin, Compare("PartitionKey", "lt", last)))
    return await waiting_rows.first(store, names, within, most, "PartitionKey", "RowKey", *columns)


def _decoded(limit: str, value: str, row: Entity) -> WaitingCall:
    task_id = row.properties.get("TaskId")
    return WaitingCall(
        limit=limit,
        tag=str(row.properties.get("Tag") or ""),
        value=value,
        instance=waiting_rows.instance_of(row.properties),
        task_id=task_id if isinstance(task_id, int) else 0,
        since=_since(row),
        low=bool(row.properties.get("Low")),
        activity=str(row.properties.get("Name") or ""),
        text=waiting_rows.text_of(row.properties),
        etag=row.etag,
    )
