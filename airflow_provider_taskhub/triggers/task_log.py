"""Makes the lines in the log of a task that waits: which workers serve the hub, and one line for each change.

Each class remembers what it has logged, compares it with the newest state, and yields the new lines. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_taskhub.engine.failures import headline
from airflow_provider_taskhub.engine.identity import generation_of, same_start
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.model import ORCHESTRATOR, WATCHER, Need, RecordState
from airflow_provider_taskhub.hub.partitions.capabilities import able, described, listed
from airflow_provider_taskhub.hub.waiting.reasons import LACKING, START_WORKER, Reason, way_out

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, Member
    from airflow_provider_taskhub.hub.waiting.reasons import Why
    from airflow_provider_taskhub.triggers.attempt_output import TaskOutput
    from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger

PROGRESS_EVERY = 60.0
"""The shortest time between two lines about progress, in seconds."""
_MOST_NAMES = 10
_LONGEST_STATUS = 500
_LONGEST_MESSAGE = 100


def task_output(trigger: TaskHubTrigger) -> TaskOutput | None:
    """Return what follows the output of an instance's running attempts; None: the output is not followed.

    :param trigger: waits for the instance. A trigger without an owner, as that of a sensor, follows nothing: workers
        announce the growth of logs only for the task that has started the instance.
    """
    from airflow_provider_taskhub.hooks.outputs import most_running_output
    from airflow_provider_taskhub.triggers.attempt_output import TaskOutput

    most = 0 if trigger.owner is None else most_running_output()
    return TaskOutput(trigger.instance_id, most=most) if most > 0 else None


def execution(record: ActivityRecord) -> str:
    """Return the execution id of the generation to which an attempt belongs.

    A start and each ``continue_as_new`` begin a new generation of the instance, with a new execution id. In each
    generation the task ids of the activities begin again.
    """
    return record.instance.execution_id or ""


def of_execution(state: InstanceState, records: Sequence[ActivityRecord]) -> tuple[ActivityRecord, ...]:
    """Return the attempts of the instance's current generation, without those of earlier generations."""
    return tuple(record for record in records if execution(record) == (state.execution_id or ""))


def workers(members: Sequence[Member]) -> list[Member]:
    """Return the live workers among the members. Triggerers are left out, because they only watch instances."""
    return [member for member in members if member.alive and WATCHER not in member.roles]


def known(members: Sequence[Member], orchestrator: str) -> bool:
    """Return whether a live worker knows an orchestrator. :param orchestrator: its name."""
    return bool(able(workers(members), Need(ORCHESTRATOR, orchestrator)))


def served_by(members: Sequence[Member], orchestrator: str) -> str:
    """Return a sentence with the live workers' names and apps, and how many of them know the orchestrator."""
    live = workers(members)
    if not live:
        return "no worker of the hub is alive"
    knows = len(able(live, Need(ORCHESTRATOR, orchestrator)))
    names = listed(map(described, live), _MOST_NAMES)
    if len(live) == 1:
        return f"hub served by 1 live worker: {names}; it {'knows' if knows else 'does not know'} {orchestrator!r}"
    known = "none of them knows" if not knows else "1 of them knows" if knows == 1 else f"{knows} of them know"
    return f"hub served by {len(live)} live workers: {names}; {known} {orchestrator!r}"


def no_worker(members: Sequence[Member], orchestrator: str, seconds: float | None) -> str:
    """Return the error text of a task that gives up because no live worker knows its orchestrator.

    The text names the live workers and their orchestrators.

    :param seconds: how long the task has waited for such a worker; None: it does not wait.
    """
    live = workers(members)
    head = f"no live worker has known orchestrator {orchestrator!r} for {seconds or 0:g} s"
    if seconds is None:
        head = f"no live worker knows orchestrator {orchestrator!r}, so the instance waits until one does"
    if not live:
        return f"{head}: no worker is alive. {START_WORKER}"
    names = sorted({name for member in live for name in member.orchestrators})
    known = listed(names, _MOST_NAMES) or "no orchestrator"
    if any(orchestrator in member.activities for member in live):
        remedy = f"{orchestrator!r} is an activity: declare it with standalone=True to start it by itself"
    else:
        remedy = way_out([orchestrator], names)
    return f"{head}. Alive: {listed(map(described, live), _MOST_NAMES)}; they know: {known}. {remedy}"


def lacking(whys: Sequence[Why], seconds: float) -> str | None:
    """Return the error text of a task that gives up because no worker can run its instance; None: workers can run it.

    :param whys: why the instance makes no progress.
    :param seconds: how long the task has waited.
    """
    lacks = [why for why in whys if why.reason in LACKING]
    return f"it could not run for {seconds:g} s: {'; '.join(map(str, lacks))}" if lacks else None


class WaitsLog:
    """Logs the reasons for which an instance makes no progress, each change once.

    Some reasons are not logged. Timers end by themselves. Running activities and children have their own line
    (:class:`ProgressLog`). A missing triggerer cannot be the reason, because this process is a triggerer, even if the
    hub does not list it yet.
    """

    def __init__(self) -> None:
        self._logged = ""

    def lines(self, name: str, whys: Sequence[Why]) -> Iterator[str]:
        """Yield the lines that are new since the last call.

        :param name: the orchestrator's name, or the instance id.
        :param whys: why the instance makes no progress now.
        """
        logged = [why for why in whys if why.reason not in _NOT_LOGGED]
        same = "; ".join(str(replace(why, turn=None)) for why in logged)  # not a line for each that comes before it
        if same != self._logged:
            text = "; ".join(map(str, logged))
            yield f"{name} waits: {masked(text)}" if text else f"{name} continues"
            self._logged = same


_WORK = frozenset({Reason.ACTIVITIES, Reason.CHILDREN})
_NOT_LOGGED = _WORK | {Reason.TIMER, Reason.NO_TRIGGERER}


class ProgressLog:
    """Logs the progress of an instance: each change once, and at most one line in :data:`PROGRESS_EVERY` seconds.

    The first line comes at the earliest :data:`PROGRESS_EVERY` seconds after the first call, because the other lines
    say enough about an instance that ends sooner.
    """

    def __init__(self) -> None:
        self._logged = ""
        self._due: float | None = None

    def lines(
        self, state: InstanceState, records: Sequence[ActivityRecord], whys: Sequence[Why], now: float
    ) -> Iterator[str]:
        """Yield the lines that are new since the last line. :param now: the monotonic time in seconds."""
        if self._due is None:
            self._due = now + PROGRESS_EVERY
        if now < self._due:
            return
        of_run, work = of_execution(state, records), [why for why in whys if why.reason in _WORK]
        text = _progress(of_run, [why.text for why in work])  # not a line for each change of a number
        if text not in ("", self._logged):
            yield f"progress of {state.name}: {_progress(of_run, [why.line for why in work])}"
            self._logged, self._due = text, now + PROGRESS_EVERY


def _progress(records: Sequence[ActivityRecord], awaited: Sequence[str]) -> str:
    """Return the number of recorded activities in each state, with the reported progress of those that run.

    If no recorded activity runs, the text names the activities and children that the instance awaits. Activities
    without a record are not counted, because that would need a reading of the whole history.

    :param awaited: texts about the activities and children that the instance awaits.
    """
    last = {record.task_id: record for record in sorted(records, key=lambda record: record.attempt)}
    counts = Counter(record.state for record in last.values())
    parts = [f"{counts[state]} {state}" for state in RecordState if counts[state] and state is not RecordState.RUNNING]
    running = [_reported(record) for _, record in sorted(last.items()) if record.state is RecordState.RUNNING]
    if running:
        parts.append(f"{len(running)} running ({listed(running, _MOST_NAMES)})")
    awaited = [] if running else awaited
    recorded = f"recorded activities: {', '.join(parts)}" if parts else ""
    return "; ".join(part for part in (recorded, f"awaits {' and '.join(awaited)}" if awaited else "") if part)


def _reported(record: ActivityRecord) -> str:
    """Return one running activity with its reported progress, for example ``clean #3 50 % loads May``."""
    share = "" if record.progress is None else f"{record.progress * 100:.0f} %"
    message = masked(" ".join((record.message or "").split()))[:_LONGEST_MESSAGE]
    return " ".join(part for part in (record.name, f"#{record.task_id}", share, message) if part)


class Presence:
    """Logs whether the instance exists, for a wait that may begin before the instance is started."""

    def __init__(self) -> None:
        self._missing: bool | None = None

    def lines(self, instance_id: str, *, there: bool) -> Iterator[str]:
        """Yield a line if the instance was missing at the first call, or has appeared or disappeared since the last."""
        before, self._missing = self._missing, not there
        if self._missing and before is None:
            yield f"no such instance yet: {instance_id} is not in the hub; waiting until it appears"
        elif self._missing and not before:
            yield f"instance {instance_id} is not in the hub any more; waiting until it appears again"
        elif there and before:
            yield f"instance {instance_id} is there now"


class TaskLog:
    """Logs the status, the custom status and the activities of an instance, each change once.

    Activities of generations that had ended before the first call are left out, because an earlier try of the task has
    logged them. A line separates the generations that begin later.
    """

    def __init__(self) -> None:
        self._status = ""
        self._custom: str | None = None
        self._execution: str | None = None
        self._earlier: set[str] = set()
        self._logged: dict[tuple[str, int, int], RecordState] = {}

    def lines(
        self, state: InstanceState, records: Sequence[ActivityRecord], output: TaskOutput | None = None
    ) -> Iterator[str]:
        """Yield the lines that are new since the last call.

        Changes of earlier generations come before those of the current one. The line about the status comes first while
        the instance has not ended, and last when it has ended. The output of attempts comes after the lines about the
        attempts, so that the first line of an attempt names its worker; when the instance has ended, it comes before.

        :param output: the output of the running attempts, of which the new lines are taken; None: there is none.
        """
        written = [] if output is None else map(masked, output.take(ended=state.status.is_final))
        if state.status.is_final:
            yield from written
        yield from self._news(state, records)
        if not state.status.is_final:
            yield from written

    def _news(self, state: InstanceState, records: Sequence[ActivityRecord]) -> Iterator[str]:
        if not state.status.is_final:
            yield from self._status_of(state)
        current = state.execution_id or ""
        if self._execution is None:
            self._execution = current
            self._earlier = {execution(record) for record in records}
            if before := generation_of(current):
                yield f"{state.name} continued as new before this wait began: this is execution {before + 1}"
        self._earlier.discard(current)
        ours = sorted(
            (record for record in records if execution(record) not in self._earlier),
            key=lambda r: (r.claimed.ticks, r.task_id, r.attempt),
        )
        yield from self._changes(record for record in ours if execution(record) != current)
        if current != self._execution:
            begun = generation_of(current) - generation_of(self._execution)
            known = f" ({begun} since the last check)" if begun > 1 and same_start(current, self._execution) else ""
            self._execution = current
            yield f"{state.name} has begun a new execution{known}: numbers of activities and attempts begin again"
        yield from self._changes(record for record in ours if execution(record) == current)
        self._logged = {_key(record): record.state for record in ours}
        if state.custom_status not in (None, "", "null", self._custom):
            self._custom = state.custom_status
            yield f"custom status of {state.name}: {masked(state.custom_status)[:_LONGEST_STATUS]}"
        if state.status.is_final:
            yield from self._status_of(state)

    def _status_of(self, state: InstanceState) -> Iterator[str]:
        if state.status != self._status:
            self._status = state.status
            yield f"{state.name} is {state.status}"

    def _changes(self, records: Iterable[ActivityRecord]) -> Iterator[str]:
        for record in records:
            if self._logged.get(_key(record)) is not record.state:
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
        line += ": its worker is silent; the next attempt waits for a free slot"
    return line
