"""What becomes of instances and of the records of attempts in the store of a simulation, beside the engine's tables."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.lifecycle import ACTIVITY, INSTANCE, ActivityReaction, ActivityState
from airflow_provider_taskhub.storage.primitives import Operation, Result, RowOperation, RowVerb, Transact

MOVES = frozenset(
    (state, move.state)
    for state, row in ACTIVITY.items()
    for move in row.values()
    if move.state is not state or move.reaction in (ActivityReaction.REFRESH, ActivityReaction.REQUEUE)
)
"""Each state of an attempt with the state after it that a write of its record can have, as the table says."""


def _after(state: Status) -> frozenset[Status]:
    """The statuses that the row of an instance can have after this one: a checkpoint stores several events at once."""
    found, left = {state}, [state]
    while left:
        new = {move.state for move in INSTANCE[left.pop()].values()} - found
        found |= new
        left += new
    return frozenset(found)


REWOUND = frozenset((state, after) for state in (Status.FAILED, Status.TERMINATED) for after in _after(Status.PENDING))
"""A rewind opens an instance that has failed or was terminated. A worker may process it before its row says so."""
STATUSES = frozenset((state, after) for state in INSTANCE for after in _after(state)) | REWOUND
"""Each status of a generation with those that a write of its row can bring, as the table says."""


class Row(NamedTuple):
    """What a write of an instance's row has left."""

    execution_id: object
    status: Status


class Moves:
    """What the store has carried out on the rows of instances and on the records of attempts.

    :ivar seen: each state of an attempt with the one that follows.
    :ivar statuses: each status of an instance with the one that follows in the same generation.
    """

    def __init__(self) -> None:
        self.seen: set[tuple[ActivityState, ActivityState]] = set()
        self.statuses: set[tuple[Status, Status]] = set()
        self._states: dict[tuple[str, str, str], ActivityState] = {}
        self._rows: dict[tuple[str, str], Row] = {}

    def note(self, operation: Operation, result: Result) -> None:
        """Note what was written. What a row was that is changed, its ETag tells."""
        if isinstance(operation, Transact) and isinstance(result, tuple):
            if operation.table.endswith("Activities"):
                self._records(operation.rows, result)
            elif operation.table.endswith("Instances"):
                self._instances(operation.rows, result)

    def _instances(self, rows: Sequence[RowOperation], etags: Sequence[str]) -> None:
        for row, etag in zip(rows, etags, strict=True):
            key, columns = row.entity.partition_key, row.entity.properties
            before = None if row.verb is RowVerb.INSERT else self._rows.get((key, row.etag or ""))
            told = columns.get("RuntimeStatus", before and before.status)
            if row.verb is RowVerb.DELETE or told is None:
                continue
            execution_id = columns.get("ExecutionId", before and before.execution_id)
            after = self._rows[key, etag] = Row(execution_id, Status(str(told)))
            if before is not None and before.execution_id == after.execution_id:
                self.statuses.add((before.status, after.status))

    def _records(self, rows: Sequence[RowOperation], etags: Sequence[str]) -> None:
        """A record that is inserted was queued before."""
        for row, etag in zip(rows, etags, strict=True):
            key, told = (row.entity.partition_key, row.entity.row_key), row.entity.properties.get("State")
            if row.verb is RowVerb.DELETE or told not in tuple(ActivityState):
                continue
            state = self._states[*key, etag] = ActivityState(told)
            before = (
                self._states.get((*key, row.etag or "")) if row.verb is not RowVerb.INSERT else ActivityState.QUEUED
            )
            if before is not None:
                self.seen.add((before, state))

    @property
    def strange(self) -> Set[tuple[object, object]]:
        """What the tables of the engine do not know."""
        return (self.seen - MOVES) | (self.statuses - STATUSES)
