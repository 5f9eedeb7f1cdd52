"""What becomes of the records of attempts in the store of a simulation, beside the table of the engine."""

from __future__ import annotations

from airflow_provider_taskhub.engine.lifecycle import ACTIVITY, ActivityReaction, ActivityState
from airflow_provider_taskhub.storage.primitives import Operation, Result, RowVerb, Transact

MOVES = frozenset(
    (state, move.state)
    for state, row in ACTIVITY.items()
    for move in row.values()
    if move.state is not state or move.reaction in (ActivityReaction.REFRESH, ActivityReaction.REQUEUE)
)
"""Each state of an attempt with the state after it that a write of its record can have, as the table says."""


class Moves:
    """What the store has carried out on the records of attempts. :ivar seen: each state with the one that follows."""

    def __init__(self) -> None:
        self.seen: set[tuple[ActivityState, ActivityState]] = set()
        self._states: dict[tuple[str, str, str], ActivityState] = {}

    def note(self, operation: Operation, result: Result) -> None:
        """A record that is inserted was queued before. What a record that is replaced was, its ETag tells."""
        if not isinstance(operation, Transact) or not operation.table.endswith("Activities"):
            return
        assert isinstance(result, tuple)
        for row, etag in zip(operation.rows, result, strict=True):
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
    def strange(self) -> set[tuple[ActivityState, ActivityState]]:
        """What the table of the engine does not know."""
        return self.seen - MOVES
