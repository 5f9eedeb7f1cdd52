"""The lines in a waiting task's log: who serves the hub, and one line per change. Pure: snapshots in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_provider_taskhub.engine.failures import headline
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.contract import ORCHESTRATOR, WATCHER, Need, RecordState
from airflow_provider_taskhub.hub.partitions.needs import able, listed
from airflow_provider_taskhub.hub.waiting import LACKING, START_WORKER, Reason, described

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.contract import ActivityRecord, InstanceState, Member
    from airflow_provider_taskhub.hub.waiting import Why

_MOST_NAMES = 10
_LONGEST_STATUS = 500


def execution(record: ActivityRecord) -> str:
    """Id of the execution that an attempt belongs to. A start over and a continue-as-new begin a new execution of the
    same instance, and the numbers of its activities begin again."""
    return record.instance.execution_id or ""


def of_execution(state: InstanceState, records: Sequence[ActivityRecord]) -> tuple[ActivityRecord, ...]:
    """Attempts of the instance's current execution, without those of earlier ones."""
    return tuple(record for record in records if execution(record) == (state.execution_id or ""))


def workers(members: Sequence[Member]) -> list[Member]:
    """Live workers. Triggerers, which only watch instances, are not among them."""
    return [member for member in members if member.alive and WATCHER not in member.roles]


def served_by(members: Sequence[Member], orchestrator: str) -> str:
    """A sentence about the hub's live workers: their names and apps, and how many of them know the orchestrator."""
    live = workers(members)
    if not live:
        return "no worker of the hub is alive"
    knows = len(able(live, Need(ORCHESTRATOR, orchestrator)))
    names = listed(map(described, live), _MOST_NAMES)
    if len(live) == 1:
        return f"hub served by 1 live worker: {names}; it {'knows' if knows else 'does not know'} {orchestrator!r}"
    known = "none of them knows" if not knows else "1 of them knows" if knows == 1 else f"{knows} of them know"
    return f"hub served by {len(live)} live workers: {names}; {known} {orchestrator!r}"


def nobody(members: Sequence[Member], orchestrator: str, seconds: float) -> str:
    """Why a task gives up waiting for a worker, naming who is there and what they know (K43)."""
    live = workers(members)
    head = f"no live worker has known orchestrator {orchestrator!r} for {seconds:g} s"
    if not live:
        return f"{head}: no worker is alive. {START_WORKER}"
    names = sorted({name for member in live for name in member.orchestrators})
    known = listed(names, _MOST_NAMES) or "no orchestrator"
    return (
        f"{head}. Alive: {listed(map(described, live), _MOST_NAMES)}; "
        f"they know: {known}. Load the app that declares it, or correct the name"
    )


def lacking(whys: Sequence[Why], seconds: float) -> str | None:
    """Why a task gives up waiting for workers that can run its instance; None: they can."""
    lacks = [why for why in whys if why.reason in LACKING]
    return f"it could not run for {seconds:g} s: {'; '.join(map(str, lacks))}" if lacks else None


class Waits:
    """Remembers what was logged about why an instance waits, so that each change is logged once.

    Ordinary work is not logged: activities have lines of their own, and timers and children end by themselves. Nor is a
    missing triggerer: the process that waits here is one, whether the hub lists it yet or not.
    """

    def __init__(self) -> None:
        self._said = ""

    def lines(self, name: str, whys: Sequence[Why]) -> Iterator[str]:
        """What is new since the last call. :param name: of the orchestrator, or the instance's id."""
        told = "; ".join(str(why) for why in whys if why.reason not in _NOT_LOGGED)
        if told != self._said:
            yield f"{name} waits: {masked(told)}" if told else f"{name} goes on"
            self._said = told


_NOT_LOGGED = frozenset({Reason.ACTIVITIES, Reason.CHILDREN, Reason.TIMER, Reason.NO_TRIGGERER})


class Presence:
    """Remembers whether an instance was there, for a wait that may begin before its instance is started."""

    def __init__(self) -> None:
        self._missing: bool | None = None

    def lines(self, instance_id: str, *, there: bool) -> Iterator[str]:
        """What is new since the last call: that the instance is missing, or that it has appeared."""
        before, self._missing = self._missing, not there
        if self._missing and before is None:
            yield f"no such instance yet: {instance_id} is not in the hub; waiting until it appears"
        elif self._missing and not before:
            yield f"instance {instance_id} is not in the hub any more; waiting until it appears again"
        elif there and before:
            yield f"instance {instance_id} is there now"


class Journal:
    """Remembers what was logged, so that every change is logged once.

    Executions that were over before its first look are left out: an earlier try of the task has logged them. A line
    separates executions that begin later, by continue-as-new.
    """

    def __init__(self) -> None:
        self._status = ""
        self._custom: str | None = None
        self._execution: str | None = None
        self._earlier: set[str] = set()
        self._said: dict[tuple[str, int, int], RecordState] = {}

    def lines(self, state: InstanceState, records: Sequence[ActivityRecord]) -> Iterator[str]:
        """What is new since the last call: of earlier executions first, then in the order of the activities."""
        current = state.execution_id or ""
        if self._execution is None:
            self._execution = current
            self._earlier = {execution(record) for record in records}
        self._earlier.discard(current)
        ours = sorted(
            (record for record in records if execution(record) not in self._earlier),
            key=lambda r: (r.claimed.ticks, r.task_id, r.attempt),
        )
        yield from self._changes(record for record in ours if execution(record) != current)
        if current != self._execution:
            self._execution = current
            yield f"{state.name} has begun a new execution: numbers of activities and attempts begin again"
        yield from self._changes(record for record in ours if execution(record) == current)
        self._said = {_key(record): record.state for record in ours}
        if state.custom_status not in (None, "", "null", self._custom):
            self._custom = state.custom_status
            yield f"{state.name} says: {masked(state.custom_status)[:_LONGEST_STATUS]}"
        if state.status != self._status:
            self._status = state.status
            yield f"{state.name} is {state.status}"

    def _changes(self, records: Iterable[ActivityRecord]) -> Iterator[str]:
        for record in records:
            if self._said.get(_key(record)) is not record.state:
                yield _activity(record)


def _key(record: ActivityRecord) -> tuple[str, int, int]:
    return execution(record), record.task_id, record.attempt


def _activity(record: ActivityRecord) -> str:
    line = f"{record.name} #{record.task_id}, attempt {record.attempt}, {record.state} on {record.worker}"
    if record.ended is not None:
        line += f" after {(record.ended - record.claimed).total_seconds():.1f} s"
    if record.state is RecordState.RUNNING and record.application_id:
        line += f", Spark application {record.application_id}"
    if record.failure is not None:
        line += f": {headline(record.failure)[:_LONGEST_STATUS]}"
    elif record.state is RecordState.LOST:
        line += ": its worker fell silent, another attempt runs"
    return line
