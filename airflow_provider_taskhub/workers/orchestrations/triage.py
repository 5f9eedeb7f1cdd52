"""Triage: applies admission to each message of a batch. Admission decides what becomes of a message.

The rules of admission are pure functions (``hub/admission``). This module gives them the facts of the instance, and
reads the instance row and the sentinel (the last row of the history) if a rule needs them. It writes nothing but the
place of an instance that has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
)
from airflow_provider_taskhub.engine.identity import run_name, same_start
from airflow_provider_taskhub.engine.parent_response import start_of_cancelled
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.admission.facts import SUSPENSIONS, Facts, Incoming, Judged, RowFacts, Verdict
from airflow_provider_taskhub.hub.admission.rules import SHORTEST, without_place
from airflow_provider_taskhub.hub.admission.table import judge
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, lock_of, sentinel_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState, Suspension
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.event_order import is_missing, with_arrived
from airflow_provider_taskhub.tags import FIRE_AND_FORGET
from airflow_provider_taskhub.workers.orchestrations.commit import Aborted
from airflow_provider_taskhub.workers.orchestrations.instance_limits import InstanceLimits, is_stored_whole
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, start_from_row
from airflow_provider_taskhub.workers.orchestrations.sessions import Session
from airflow_provider_taskhub.workers.orchestrations.waiting_circles import Read, waiting_circle

log = structlog.get_logger(__name__)

ROW_READS = 10
"""How many times the instance row of a start is read at most, while the row is missing or belongs to another run."""
ROW_PAUSE = 0.1
"""Seconds between two reads of the instance row of a start, while the row is missing or belongs to another run."""
DUPLICATE = Judged(verdict=Verdict.DISCARD, reason="the same message is in the batch twice")


@dataclass(slots=True, kw_only=True)
class TriagedBatch:
    """The messages of a batch, sorted by the verdict of admission.

    :param facts: the facts of the instance after all messages of the batch were judged.
    :param process: messages for the next episode.
    :param discard: messages to delete, each with its verdict.
    :param hold: messages that wait in memory for another message of the instance.
    :param later: messages to give back, because they are deferred or failed, each with its verdict.
    :param record: suspensions and resumes to store in the sentinel, because they came before the first checkpoint of
        their run; each with the execution id of the run.
    :param refuse: messages about runs of children that never begin, each with its verdict and the name of the run: the
        terminate of a run that has not begun, or the start of a run whose parent waits for itself.
    :param arrived: for each process, the number of the last of its events that has arrived
        (``event_order.with_arrived``).
    :param stored: messages of an instance that waits for a place of its limit. A row of the hub has them now.
    :param has_place: whether the instance may run: it has a place of its limit, or no limit. False: nobody asked.
    :param made: the start of a run that is terminated before its first checkpoint. It was not received but built from
        the instance row or from the terminate. It is the first event of the only episode of the run. None: no such run.
    """

    facts: Facts
    process: list[Delivery] = field(default_factory=list)
    discard: list[tuple[Delivery, Judged]] = field(default_factory=list)
    hold: list[Delivery] = field(default_factory=list)
    later: list[tuple[Delivery, Judged]] = field(default_factory=list)
    record: list[tuple[Delivery, str]] = field(default_factory=list)
    refuse: list[tuple[Delivery, Judged, str]] = field(default_factory=list)
    arrived: Mapping[str, int] = field(default_factory=dict)
    stored: list[Delivery] = field(default_factory=list)
    has_place: bool = False
    made: ExecutionStarted | None = None

    @property
    def start(self) -> ExecutionStarted | None:
        """The start that is the first event of the next episode; None if the episode continues a run."""
        if self.made is not None or not self.process:
            return self.made
        first = self.process[0].message.event
        return first if isinstance(first, ExecutionStarted) else None

    def suspension(self, stored: Suspension | None) -> Suspension | None:
        """Return the suspension that was stored before the start in this batch; None if there is no such suspension.

        The new run then begins suspended.

        :param stored: the suspension in the sentinel, perhaps of another run; None: the sentinel has none.
        """
        if stored is None or self.start is None or self.made is not None:
            return None
        return stored if same_start(stored.run, self.start.instance.execution_id) else None


async def unchanged(hub: Hub, instance_id: str, etag: str | None) -> Timestamp | None:
    """Check that no worker has committed since the history was loaded, and return the time of the last checkpoint.

    Call it after reading the instance row. The check then shows that the row is not newer than the loaded history.

    :param etag: the ETag of the sentinel in the loaded history; None if there was no sentinel.
    :returns: the time, by the clock of the storage service; None if there is no sentinel.
    :raises Aborted: if another owner of the partition has committed since the history was loaded.
    """
    lock = await lock_of(hub.store, hub.names, instance_id)
    if (lock.etag if lock else None) != etag:
        raise Aborted("another owner has committed since the history was loaded")
    return lock.timestamp if lock else None


class Triage:
    """Applies admission to batches. It keeps no state between two batches."""

    def __init__(self, hub: Hub, limits: InstanceLimits) -> None:
        self._hub, self._limits = hub, limits

    async def judge_batch(
        self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery], facts: Facts
    ) -> TriagedBatch:
        """Apply admission to each message of a batch.

        :param facts: the facts of the instance before the batch.
        :raises Aborted: if the former owner of the partition has committed since the history was loaded, or if the
            instance row was changed while the batch was judged.
        """
        found = TriagedBatch(facts=facts, arrived=live.stored.arrived)
        instance_id, etag = session.instance_id, live.stored.sentinel_etag
        taken: set[str] = set()
        read = self._reader()
        for held in batch:
            if held.identity in taken:  # the sender put the message again, because the store's first answer was lost
                found.discard.append((held, DUPLICATE))
                continue
            message = incoming(held, session.reader.visibility)
            judged = judge(message, found.facts)
            if judged.verdict is Verdict.NEEDS_ROW:
                found.facts = await self._read_row(instance_id, message.event, found.facts, etag)
                judged = judge(message, found.facts)
            if judged.verdict is Verdict.DEFER and isinstance(event := message.event, ExecutionStarted):
                judged = await _refused_in_circle(event, found.facts, judged, read)
            if judged.verdict is Verdict.REFUSE and etag is None:
                # The live run begins in this batch, so there is no sentinel yet that could store the name.
                judged = replace(judged, verdict=Verdict.DEFER, pause=SHORTEST)
            match judged.verdict:
                case Verdict.PROCESS if not self._is_its_turn(found, held):
                    found.hold.append(held)
                case Verdict.PROCESS if not await self._may_run(live, found, held):
                    taken.add(held.identity)
                    if is_stored_whole(held):
                        found.stored.append(held)
                    else:
                        found.later.append((held, without_place(message)))
                case Verdict.PROCESS:
                    taken.add(held.identity)
                    self._process(found, held)
                case Verdict.HOLD:
                    found.hold.append(held)
                case Verdict.DISCARD:
                    found.discard.append((held, judged))
                    _arrives(found, held)
                case Verdict.RECORD:
                    taken.add(held.identity)
                    found.record.append((held, _run_of(message, found.facts)))
                    found.facts = replace(found.facts, suspension_stamp=held.stamp)
                case Verdict.REFUSE:
                    taken.add(held.identity)
                    name = run_name(_run_of(message, found.facts))
                    found.refuse.append((held, judged, name))
                    found.facts = replace(found.facts, ended={*found.facts.ended, name})
                case Verdict.END:
                    taken.add(held.identity)
                    await self._end(found, held, _run_of(message, found.facts))
                case _:
                    found.later.append((held, judged))
        return found

    def _reader(self) -> Read:
        """Return a function that reads sentinels. It reads the sentinel of each instance only once."""
        known: dict[str, Sentinel | None] = {}

        async def read(instance_id: str) -> Sentinel | None:
            if instance_id not in known:
                try:
                    known[instance_id] = await sentinel_of(self._hub.store, self._hub.names, instance_id)
                except HistoryUnreadable:
                    known[instance_id] = None
            return known[instance_id]

        return read

    def _is_its_turn(self, found: TriagedBatch, held: Delivery) -> bool:
        """Return False if an event must wait, because an event that its sender sent earlier has not come yet.

        The earlier event may never come, for example because it is in quarantine. So no event waits without end.
        """
        if not is_missing(held.envelope.after, held.process, found.arrived):
            return True
        if held.waited:
            log.warning("event_out_of_turn", instance_id=held.message.instance.instance_id, message_id=held.message_id)
        return held.waited

    async def _may_run(self, live: LoadedInstance, found: TriagedBatch, held: Delivery) -> bool:
        """Return False if the instance of a message has a limit and must wait for a place. A terminate needs none."""
        if found.has_place or found.start is not None or isinstance(held.message.event, ExecutionTerminated):
            return True
        found.has_place = await self._limits.admit(live, held)
        return found.has_place

    def _process(self, found: TriagedBatch, held: Delivery) -> None:
        event = held.message.event
        found.process.append(held)
        _arrives(found, held)
        if isinstance(event, ExecutionStarted):
            found.facts = _facts_after_start(found.facts, event)
        elif isinstance(event, SUSPENSIONS):
            found.facts = replace(found.facts, suspension_stamp=held.stamp)

    async def _end(self, found: TriagedBatch, held: Delivery, run: str) -> None:
        """Take a terminate for a run that has no checkpoint yet, and build the start of the run.

        The suspensions and resumes that came earlier in the batch for the same run go into its only episode too.

        :param run: the execution id of the run.
        :raises Aborted: if the instance row belongs to another run by now.
        """
        event, now = held.message.event, self._hub.clock.utc_now()
        assert isinstance(event, ExecutionTerminated)
        instance = OrchestrationInstance(instance_id=held.message.instance.instance_id, execution_id=run)
        row = await self._hub.instance(instance.instance_id, payloads=("input",))
        if row is not None and same_start(row.execution_id, run):
            found.made = start_from_row(instance, row, now)
        elif event.taskhub_child is not None:
            found.made = start_of_cancelled(event, instance, held.envelope.sender, now)
        else:
            raise Aborted("the instance row was changed while its batch was judged")
        found.process += [*(earlier for earlier, _ in found.record), held]
        found.record = []
        found.facts = _facts_after_start(found.facts, found.made)

    async def _read_row(self, instance_id: str, event: HistoryEvent, facts: Facts, etag: str | None) -> Facts:
        """Read the facts that a session does not keep: the instance row, and the time of the last checkpoint.

        :returns: ``facts`` with the new values.
        :raises Aborted: if the former owner of the partition has committed since the history was loaded, so that the
            facts of the session are old.
        """
        if isinstance(event, ExecutionStarted):
            row = await self._row_of_start(instance_id, event.instance.execution_id)
        else:
            row = await self._hub.instance(instance_id)
            facts = replace(facts, checkpointed=await unchanged(self._hub, instance_id, etag))
        return replace(facts, row=row_facts(row))

    async def _row_of_start(self, instance_id: str, wanted: str | None) -> InstanceState | None:
        """Read the instance row of a start; if it is missing or of another run, read it again for a second.

        A .NET client puts the start into the queue first and writes the row after that.
        """
        row = None
        for turn in range(ROW_READS):
            row = await self._hub.instance(instance_id)
            if row is not None and row.execution_id == wanted:
                break
            if turn + 1 < ROW_READS:
                await self._hub.clock.sleep(ROW_PAUSE)
        return row


async def _refused_in_circle(start: ExecutionStarted, facts: Facts, judged: Judged, read: Read) -> Judged:
    """Return the verdict about the start of a child that waits for a live run: REFUSE if this run waits for the sender.

    :param judged: the verdict without this rule.
    :param read: reads a sentinel.
    """
    if start.parent is None or not facts.live or FIRE_AND_FORGET in (start.tags or {}):
        return judged
    circle = await waiting_circle(start, facts.execution_id, read)
    if not circle:
        return judged
    first, *others = [repr(instance_id) for instance_id in circle]
    text = f"instance {first} waits for this caller: {' waits for '.join([first, *others, first])}"
    return Judged(verdict=Verdict.REFUSE, reason=f"{text}. Give the child another instance_id")


def _arrives(found: TriagedBatch, held: Delivery) -> None:
    """Note that the turn of an event has come, so that the next event of its sender need not wait for it."""
    if isinstance(held.message.event, EventRaised):
        found.arrived = with_arrived(found.arrived, held.process, held.envelope.sequence_number)


def _facts_after_start(facts: Facts, start: ExecutionStarted) -> Facts:
    """Return the facts of an instance after its start has been processed."""
    return Facts(
        execution_id=start.instance.execution_id,
        ended=facts.ended_with(facts.execution_id),
        parent=start.parent,
        fire_and_forget=FIRE_AND_FORGET in (start.tags or {}),
        seen=facts.seen,
        suspension_stamp=facts.suspension_stamp,
    )


def _run_of(message: Incoming, facts: Facts) -> str:
    """Return the execution id of the run that a message is for: the one it names, else the one in the instance row."""
    run = message.run or (facts.row.execution_id if facts.row else None)
    assert run is not None
    return run


def row_facts(row: InstanceState | None) -> RowFacts:
    """Return the facts of an instance row that the rules of admission use; an empty value if there is no row."""
    if row is None:
        return RowFacts()
    return RowFacts(execution_id=row.execution_id, status=row.status, restarts=row.restarts, due=row.scheduled_start)


def incoming(held: Delivery, visibility: timedelta) -> Incoming:
    """Return a message in the form that the rules of admission use.

    :param visibility: the visibility timeout with which the message was received.
    """
    sender = held.envelope.sender
    return Incoming(
        event=held.message.event,
        execution_id=held.message.instance.execution_id,
        identity=held.identity,
        stamp=held.stamp,
        now=held.received(visibility),
        sender=sender if sender is not None and sender.instance_id else None,
        deliveries=held.deliveries,
        failures=held.envelope.failures,
        spent=held.envelope.failures >= quarantine.MAX_FAILURES,
        waited=held.waited,
    )
