"""Finds the instances of a hub that have ended since some time, for Airflow's asset watchers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.history.queries import query_filter
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact

PAGE = 500
"""The largest number of ends that :meth:`Ends.since` returns at once."""
CLOCK = "clock"
"""PartitionKey of the row whose Timestamp is the present time of the store, in the table ``{Hub}Completions``."""
_FINAL = tuple(status for status in Status if status.is_final)
_COLUMNS = ("ExecutionId", "Name", "RuntimeStatus", "CompletedTime", "Tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of an instance.

    :param instance_id: id of the instance.
    :param execution_id: execution id of the instance. A new start with the same instance id has another one.
    :param name: name of the orchestrator.
    :param status: the final status.
    :param completed: when the instance ended, by the clock of its worker; None: the row does not say it.
    :param tags: tags that the instance was started with.
    :param written: when the row was written, by the clock of the store.
    """

    instance_id: str
    execution_id: str | None
    name: str
    status: Status
    completed: Timestamp | None
    tags: Mapping[str, str]
    written: Timestamp


class Ends:
    """Reads the ends of instances, and the clock of the store, by which they are found.

    :param connection: the open hub.
    """

    def __init__(self, connection: Connection) -> None:
        self._hub = connection.hub

    async def now(self) -> Timestamp:
        """Return the present time by the clock of the store: the time at which the store writes a row. Two requests."""
        store, table = self._hub.store, self._hub.names.completions
        row = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=Entity(partition_key=CLOCK, row_key=""))
        await store.execute(Transact(table=table, rows=(row,)))
        entity = await store.get(table, CLOCK, "")
        if entity is None or entity.timestamp is None:
            raise StorageError(f"the row {CLOCK!r} of table {table} was deleted while it was read: try again")
        return entity.timestamp

    async def since(self, moment: Timestamp) -> AsyncIterator[tuple[End, ...]]:
        """Yield the ended instances whose rows the store has written after a time, in pages. A page may be empty.

        The store looks into all instances to find them: on Azure one request for each 1,000 rows at most, without the
        rows' data. An instance that was purged or started again since its end is not found.

        :param moment: a time by the clock of the store, from :meth:`now`.
        """
        where = query_filter(statuses=_FINAL, changed_since=moment)
        continuation: str | None = None
        while True:
            page = await self._hub.store.query(
                self._hub.names.instances, where, select=_COLUMNS, limit=PAGE, continuation=continuation
            )
            yield tuple([self._end(row, row.timestamp) for row in page.entities if row.row_key == "" and row.timestamp])
            continuation = page.continuation
            if continuation is None:
                return

    def _end(self, row: Entity, written: Timestamp) -> End:
        state = self._hub.state_of(row)
        return End(
            instance_id=state.instance_id,
            execution_id=state.execution_id,
            name=state.name,
            status=state.status,
            completed=state.completed,
            tags=state.tags or {},
            written=written,
        )
