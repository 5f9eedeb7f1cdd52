"""What a waiting task's log says: who serves the hub, and one line per change. Pure: snapshots in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_taskhub.hub.contract import RecordState

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.contract import ActivityRecord, InstanceState, Member

_MOST_NAMES = 10
_LONGEST_STATUS = 500


def able(members: Sequence[Member], orchestrator: str) -> tuple[Member, ...]:
    """Live workers that know an orchestrator."""
    return tuple(
        member
        for member in members
        if member.alive and "orchestrator" in member.roles and orchestrator in member.orchestrators
    )


def served_by(members: Sequence[Member], orchestrator: str) -> str:
    """Who is alive, with their apps, and who of them knows the orchestrator."""
    live = [member for member in members if member.alive]
    if not live:
        return "no worker is alive"
    knows = able(live, orchestrator)
    count = f"{len(live)} live worker{'s' if len(live) > 1 else ''}"
    known = f"{len(knows)} of them know {orchestrator!r}" if knows else f"none of them knows {orchestrator!r}"
    return f"{count}: {_few([_described(member) for member in live])}; {known}"


def nobody(members: Sequence[Member], orchestrator: str, seconds: float) -> str:
    """Why a task gives up waiting for a worker, naming who is there and what they know (K43)."""
    live = [member for member in members if member.alive]
    head = f"no live worker has known orchestrator {orchestrator!r} for {seconds:g} s"
    if not live:
        return f"{head}: no worker is alive. Start one: taskhub worker --app MODULE:APP"
    names = sorted({name for member in live for name in member.orchestrators})
    return (
        f"{head}. Alive: {_few([_described(member) for member in live])}; "
        f"they know: {_few(names) or 'no orchestrator'}. Load the app that declares it, or correct the name"
    )


class Journal:
    """Remembers what was said, so that every change is said once."""

    def __init__(self) -> None:
        self._status = ""
        self._custom: str | None = None
        self._records: dict[tuple[int, int], RecordState] = {}

    def lines(self, state: InstanceState, records: Sequence[ActivityRecord]) -> Iterator[str]:
        """What is new since the last call, in the order of the activities."""
        for record in sorted(records, key=lambda r: (r.claimed.ticks, r.task_id, r.attempt)):
            key = record.task_id, record.attempt
            if self._records.get(key) is not record.state:
                self._records[key] = record.state
                yield _activity(record)
        if state.custom_status not in (None, "", "null", self._custom):
            self._custom = state.custom_status
            yield f"{state.name} says: {(state.custom_status or '')[:_LONGEST_STATUS]}"
        if state.status != self._status:
            self._status = state.status
            yield f"{state.name} is {state.status}"


def _activity(record: ActivityRecord) -> str:
    line = f"{record.name} #{record.task_id}, attempt {record.attempt}, {record.state} on {record.worker}"
    if record.ended is not None:
        line += f" after {(record.ended - record.claimed).total_seconds():.1f} s"
    if record.state is RecordState.RUNNING and record.application_id:
        line += f", Spark application {record.application_id}"
    if record.failure is not None:
        line += f": {record.failure.error_type}: {record.failure.error_message[:_LONGEST_STATUS]}"
    elif record.state is RecordState.LOST:
        line += ": its worker fell silent, another attempt runs"
    return line


def _described(member: Member) -> str:
    apps = ", ".join(f"{name} {version}".strip() for name, version in sorted(member.apps.items()))
    return f"{member.worker} ({apps or 'no app'})"


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
