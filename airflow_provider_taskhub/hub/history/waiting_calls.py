"""The calls that wait for a place of a limit with a key: rows of the hub's table of controls, in their order.

The calls of an activity share a queue, and each value of the key has places of its own. A call whose value has no free
place must not hold up those behind it. So it leaves the queue for a row. Nothing reads the rows of a value until one of
its places is free.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import field

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.history.places import BETWEEN
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    Property,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

MOST_COUNTED = 1000
"""How many rows :func:`count` counts at most: one request on Azure."""
_LAST = BETWEEN[:-1] + chr(ord(BETWEEN[-1]) + 1)
"""All partition keys of a limit come before this text in place of what is between the limit and the value."""
_CHARACTERS = 30_000
"""Characters in one column. Azure allows 32,768, and a message can have about twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that waits for a place.

    :param limit: name of the limit.
    :param value: the value of the key.
    :param instance: the instance that called the activity, with its execution id.
    :param task_id: number of the call.
    :param since: when the call was put into a queue first, by the clock of the store.
    :param queue: the queue of its activity.
    :param text: its message, as it stands in the queue.
    :param etag: the ETag of its row; None: it has none yet.
    """

    limit: str
    value: str
    instance: OrchestrationInstance
    task_id: int
    since: Timestamp
    queue: str = field(compare=False)
    text: str = field(compare=False, repr=False)
    etag: str | None = field(default=None, compare=False)

    @property
    def row_key(self) -> str:
        """The key of its row. The smallest key comes first."""
        run = f"{self.instance.instance_id} {self.instance.execution_id or ''}"
        return f"{self.since.ticks:020d}-{escape(run)}-{self.task_id}"


def _prefix(limit: str) -> str:
    return f"waiting-calls:{escape(limit)}{BETWEEN}"


def stored(names: HubNames, waiting: WaitingCall) -> Transact:
    """Return the write that lets a call wait. A repetition for the same call changes nothing that counts."""
    parts = [waiting.text[at : at + _CHARACTERS] for at in range(0, len(waiting.text), _CHARACTERS)]
    columns: dict[str, Property | None] = {
        "InstanceId": waiting.instance.instance_id,
        "ExecutionId": waiting.instance.execution_id or "",
        "TaskId": waiting.task_id,
        "Queue": waiting.queue,
        **{f"Message{number}": part for number, part in enumerate(parts)},
    }
    return _written(names, waiting, RowVerb.UPSERT_REPLACE, columns)


def removed(names: HubNames, waiting: WaitingCall) -> Transact:
    """Return the write that deletes the row. The store refuses it if the row was changed or deleted since the read."""
    return _written(names, waiting, RowVerb.DELETE, {})


def _written(names: HubNames, waiting: WaitingCall, verb: RowVerb, columns: dict[str, Property | None]) -> Transact:
    key = _prefix(waiting.limit) + escape(waiting.value)
    row = Entity(partition_key=key, row_key=waiting.row_key, properties=columns)
    etag = waiting.etag if verb is RowVerb.DELETE else None
    return Transact(table=names.controls, rows=(RowOperation(verb=verb, entity=row, etag=etag),))


async def first(store: Store, names: HubNames, limit: str, value: str, most: int) -> list[WaitingCall]:
    """Read the calls of a value that come first. Cost: one query.

    :param most: how many to read at most.
    """
    where = Compare("PartitionKey", "eq", _prefix(limit) + escape(value))
    page = await store.query(names.controls, where, limit=most)
    return [_decoded(limit, value, row) for row in page.entities]


async def values(store: Store, names: HubNames, limit: str) -> AsyncIterator[str]:
    """Find the values of which calls wait. Cost: one query for each, and one more."""
    prefix = _prefix(limit)
    after = prefix[:-1]  # an empty value comes first
    while found := await _keys(store, names, limit, after, 1):
        after = found[0].partition_key
        yield unescape(after.removeprefix(prefix))


async def count(store: Store, names: HubNames, limit: str) -> int:
    """Count the calls that wait for places of a limit, up to :data:`MOST_COUNTED`. Cost: one query."""
    return len(await _keys(store, names, limit, _prefix(limit)[:-1], MOST_COUNTED))


async def _keys(store: Store, names: HubNames, limit: str, after: str, most: int) -> list[Entity]:
    """Read the keys of rows whose partition keys come after one, at most so many."""
    last, found, continuation = f"{_prefix(limit)[: -len(BETWEEN)]}{_LAST}", list[Entity](), None
    within = And((Compare("PartitionKey", "gt", after), Compare("PartitionKey", "lt", last)))
    while len(found) < most:
        page = await store.query(
            names.controls,
            within,
            select=("PartitionKey", "RowKey"),
            limit=most - len(found),
            continuation=continuation,
        )
        found += page.entities
        if (continuation := page.continuation) is None:
            break
    return found


def _decoded(limit: str, value: str, row: Entity) -> WaitingCall:
    texts = {name: text for name, text in row.properties.items() if isinstance(text, str)}
    parts = [texts.get(f"Message{number}", "") for number in range(len(texts))]
    task_id = row.properties.get("TaskId")
    return WaitingCall(
        limit=limit,
        value=value,
        instance=OrchestrationInstance(
            instance_id=texts.get("InstanceId", ""), execution_id=texts.get("ExecutionId") or None
        ),
        task_id=task_id if isinstance(task_id, int) else 0,
        since=Timestamp(int(row.row_key.partition("-")[0])),
        queue=texts.get("Queue", ""),
        text="".join(parts),
        etag=row.etag,
    )
