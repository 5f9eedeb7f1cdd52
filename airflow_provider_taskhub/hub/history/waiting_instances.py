"""The instances that wait for a place of their limit: rows of the hub's table of controls, in the order of their turn.

A row has the message that lets the instance begin, or go on after a rewind. Nothing reads the rows until a place is
free, so an instance that waits costs nothing.
"""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.history import waiting_rows
from airflow_provider_taskhub.hub.history.waiting_rows import MOST_COUNTED
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import (
    And,
    Compare,
    Entity,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)

REWOUND = Timestamp(0)
"""The turn of an instance that was rewound. It has waited for its turn before, so it comes before all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingInstance:
    """An instance that waits for a place.

    :param instance: the instance, with its execution id.
    :param text: the message that lets it begin or go on, as it stands in a queue.
    :param since: since when it waits: when its start, or the message of its rewind, was put into the queue, by the
        clock of the store, or the time of its start if it was scheduled for later.
    :param turn: the time by which it takes its turn: ``since``, moved by its priority (:func:`.instance_limit.turn`).
        Of a rewound instance :data:`REWOUND`, unless its priority is below 0.
    :param again: whether it was rewound.
    :param etag: the ETag of its row; None: it has none yet.
    """

    instance: OrchestrationInstance
    text: str
    since: Timestamp
    turn: Timestamp
    again: bool = False
    etag: str | None = None

    @property
    def row_key(self) -> str:
        """The key of its row. The smallest key comes first."""
        return f"{self.turn.ticks:020d}-{escape(self.instance.instance_id)}"


def _key(limit: str) -> str:
    return "waiting:" + escape(limit)


def stored(names: HubNames, limit: str, waiting: WaitingInstance) -> Transact:
    """Return the write that lets an instance wait. A repetition for the same message changes nothing.

    :param limit: name of the limit.
    """
    columns = {**waiting_rows.columns_of(waiting.instance, waiting.text), "Since": waiting.since}
    row = Entity(partition_key=_key(limit), row_key=waiting.row_key, properties=columns)
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row),))


def removed(names: HubNames, limit: str, waiting: WaitingInstance) -> Transact:
    """Return the write that deletes the row. The store refuses it if the row was changed or deleted since the read."""
    row = Entity(partition_key=_key(limit), row_key=waiting.row_key)
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.DELETE, entity=row, etag=waiting.etag),))


async def get(store: Store, names: HubNames, limit: str, row_key: str) -> WaitingInstance | None:
    """Read the row of one instance that waits; None: there is no such row."""
    row = await store.get(names.controls, _key(limit), row_key)
    return _decoded(row) if row is not None else None


async def of_instance(
    store: Store, names: HubNames, limit: str, instance: OrchestrationInstance
) -> list[WaitingInstance]:
    """Read the rows of a run of an instance that waits. The store looks into the rows of all that wait.

    :param instance: the instance, with the execution id of any of its generations.
    """
    where = And((Compare("PartitionKey", "eq", _key(limit)), Compare("InstanceId", "eq", instance.instance_id)))
    found = [_decoded(row) async for row in store.rows(names.controls, where)]
    return [one for one in found if same_start(one.instance.execution_id, instance.execution_id)]


async def first(store: Store, names: HubNames, limit: str, most: int) -> list[WaitingInstance]:
    """Read the instances whose turn comes first. Cost: one query.

    :param most: how many to read at most.
    """
    return [_decoded(row) for row in await _rows(store, names, limit, most)]


async def in_order(store: Store, names: HubNames, limit: str) -> list[WaitingInstance]:
    """Read which instances wait for a place of a limit, up to :data:`MOST_COUNTED`, without their messages. Cost: one
    query."""
    columns = ("PartitionKey", "RowKey", "Since", "InstanceId", "ExecutionId")
    return [_decoded(row) for row in await _rows(store, names, limit, MOST_COUNTED, *columns)]


async def _rows(store: Store, names: HubNames, limit: str, most: int, *columns: str) -> list[Entity]:
    return await waiting_rows.first(store, names, Compare("PartitionKey", "eq", _key(limit)), most, *columns)


def _decoded(row: Entity) -> WaitingInstance:
    since = row.properties.get("Since")
    assert isinstance(since, Timestamp)
    return WaitingInstance(
        instance=waiting_rows.instance_of(row.properties),
        text=waiting_rows.text_of(row.properties),
        since=since,
        turn=Timestamp(int(row.row_key.partition("-")[0])),
        etag=row.etag,
    )
