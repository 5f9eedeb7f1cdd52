"""Reads which calls of activities an orchestrator has cancelled, without reading the history itself.

The instance row has the number of the last cancel, so nothing is read for an instance that has cancelled nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import Cancel, HubNames, InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Store

REMEMBERED = 256
"""The most instances whose cancelled calls are kept in memory."""
NOTED = 4_096
"""The most instances of which this process remembers that they have cancelled calls. It needs to do so for a second
after each of their checkpoints."""
_COLUMNS = ("EventId", "ExecutionId", "TaskHubCancels")


class CancelledCalls:
    """The cancelled calls of instances. What was read is kept until the instance cancels another call."""

    def __init__(self, store: Store, names: HubNames) -> None:
        self._store, self._names = store, names
        self._known: OrderedDict[tuple[str, str | None], tuple[Cancel, frozenset[int]]] = OrderedDict()
        self._noted: OrderedDict[str, None] = OrderedDict()
        self.listeners: list[Callable[[str], None]] = []
        """Called with the id of an instance after this process has stored a cancel of the instance."""

    def note(self, instance_id: str, *, new: bool) -> None:
        """Note that this process has stored a checkpoint of an instance that has cancelled calls.

        :param new: whether the checkpoint has a cancel.
        """
        for listener in self.listeners if new else ():
            listener(instance_id)
        self._noted[instance_id] = None
        self._noted.move_to_end(instance_id)
        if len(self._noted) > NOTED:
            self._noted.popitem(last=False)

    def may_be(self, instance_id: str) -> bool:
        """Return whether an instance may have cancelled calls, as far as this process has stored its checkpoints."""
        return instance_id in self._noted

    async def of(self, row: InstanceState | None, execution_id: str | None) -> frozenset[int]:
        """Return the numbers of the calls that a generation of an instance has cancelled.

        :param row: the instance row, newly read; None: there is none.
        :param execution_id: the generation. If the row names another one, the result is empty.
        :raises StorageError: if the store does not answer, or refuses the request.
        """
        if row is None or row.cancel is None or row.execution_id != execution_id:
            return frozenset()
        key = row.instance_id, row.execution_id
        known = self._known.get(key)
        if known is None or known[0] != row.cancel:
            known = row.cancel, await self._read(row, row.cancel.number)
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return known[1]

    async def _read(self, row: InstanceState, last: int) -> frozenset[int]:
        """Read the cancels up to the last one of which the row tells: a later checkpoint may have been cut off."""
        wanted = (Compare("PartitionKey", "eq", escape(row.instance_id)), Compare("EventType", "eq", _SENT))
        found: set[int] = set()
        async for entity in self._store.rows(self._names.history, And(wanted), select=_COLUMNS):
            columns = entity.properties
            cancel, call = columns.get("EventId"), columns.get("TaskHubCancels")
            if columns.get("ExecutionId") != row.execution_id:
                continue  # an earlier, longer generation has left this row
            if isinstance(cancel, int) and isinstance(call, int) and cancel <= last:
                found.add(call)
        return frozenset(found)


_SENT = EventType.EventSent.name
