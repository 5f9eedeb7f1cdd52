"""Sorting a batch: each message is judged (``admission``) by what is known of its instance, read where it is not known.

What is decided stands in ``admission``, which is pure. This module reads what the rules ask for. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from airflow_provider_taskhub.codec import Timestamp, ticks_of
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
)
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.admission.facts import STEERING, Facts, Incoming, Judged, Row, Verdict
from airflow_provider_taskhub.hub.admission.table import judge
from airflow_provider_taskhub.hub.history.load import lock_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState, Suspension
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.workers.orchestrations.commit import Aborted
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance, start_from_row
from airflow_provider_taskhub.workers.orchestrations.sessions import Session

LOOK_TIMES = 10
LOOK_PAUSE = 0.1
"""A start whose row is not there is looked for again for a second."""
DOUBLE = Judged(verdict=Verdict.DISCARD, reason="its double is in the same batch")


@dataclass(slots=True, kw_only=True)
class TriagedBatch:
    """A batch, judged.

    :param facts: what the last of it was judged by.
    :param later: to be deferred, or given back as failed.
    :param record: suspensions and resumes for a run that has not begun, each with the run's execution id.
    :param made: the start of a run that is terminated before it began: the first event of its only episode.
    """

    facts: Facts
    process: list[Delivery] = field(default_factory=list)
    discard: list[tuple[Delivery, Judged]] = field(default_factory=list)
    later: list[tuple[Delivery, Judged]] = field(default_factory=list)
    record: list[tuple[Delivery, str]] = field(default_factory=list)
    made: ExecutionStarted | None = None

    @property
    def start(self) -> ExecutionStarted | None:
        """The start with which that which is processed begins, if it begins with one."""
        if self.made is not None or not self.process:
            return self.made
        first = self.process[0].message.event
        return first if isinstance(first, ExecutionStarted) else None

    def suspension(self, stored: Suspension | None) -> Suspension | None:
        """The suspension with which the started run begins. :param stored: as the sentinel has it."""
        if stored is None or self.start is None or self.made is not None:
            return None
        return stored if same_start(stored.run, self.start.instance.execution_id) else None


async def unchanged(hub: Hub, instance_id: str, etag: str | None) -> Timestamp | None:
    """When the last checkpoint was, read again: it is valid together with a row that was read before it.

    :param etag: as the session has it. :raises Aborted: when the partition's former owner has committed since.
    """
    lock = await lock_of(hub.store, hub.names, instance_id)
    if (lock.etag if lock else None) != etag:
        raise Aborted("another owner has committed since the history was loaded")
    return lock.timestamp if lock else None


class Triage:
    """Judges batches. Keeps nothing in mind between two of them."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def judge_batch(
        self, session: Session[LoadedInstance], live: LoadedInstance, batch: Sequence[Delivery], facts: Facts
    ) -> TriagedBatch:
        """:param facts: what is known of the instance.

        :raises Aborted: when the partition's former owner has committed since.
        """
        hidden = ticks_of(session.reader.visibility)
        found = TriagedBatch(facts=facts)
        instance_id, etag = session.instance_id, live.stored.sentinel_etag
        taken: set[str] = set()
        for held in batch:
            if held.identity in taken:  # put twice, since an answer was lost: one of the two is enough
                found.discard.append((held, DOUBLE))
                continue
            message = incoming(held, hidden)
            judged = judge(message, found.facts)
            if judged.verdict is Verdict.NEEDS_ROW:
                found.facts = await self._look(instance_id, message.event, found.facts, etag)
                judged = judge(message, found.facts)
            match judged.verdict:
                case Verdict.PROCESS:
                    taken.add(held.identity)
                    self._process(found, held)
                case Verdict.DISCARD:
                    found.discard.append((held, judged))
                case Verdict.RECORD:
                    taken.add(held.identity)
                    found.record.append((held, _run_of(message, found.facts)))
                    found.facts = replace(found.facts, steered=held.stamp)
                case Verdict.END:
                    taken.add(held.identity)
                    await self._end(found, held, _run_of(message, found.facts))
                case _:
                    found.later.append((held, judged))
        return found

    def _process(self, found: TriagedBatch, held: Delivery) -> None:
        event = held.message.event
        found.process.append(held)
        if isinstance(event, ExecutionStarted):
            found.facts = _begun(found.facts, event)
        elif isinstance(event, STEERING):
            found.facts = replace(found.facts, steered=held.stamp)

    async def _end(self, found: TriagedBatch, held: Delivery, run: str) -> None:
        """The run has not begun. What came for it earlier in the batch goes into its only episode."""
        event, now = held.message.event, self._hub.clock.utc_now()
        assert isinstance(event, ExecutionTerminated)
        instance = OrchestrationInstance(instance_id=held.message.instance.instance_id, execution_id=run)
        row = await self._hub.instance(instance.instance_id, payloads=("input",))
        if row is not None and same_start(row.execution_id, run):
            found.made = start_from_row(instance, row, now)
        elif event.taskhub_child is not None:
            found.made = ExecutionStarted(timestamp=now, instance=instance, name=event.taskhub_child)
        else:
            raise Aborted("the instance row was changed meanwhile")
        found.process += [*(earlier for earlier, _ in found.record), held]
        found.record = []
        found.facts = _begun(found.facts, found.made)

    async def _look(self, instance_id: str, event: HistoryEvent, facts: Facts, etag: str | None) -> Facts:
        """Read what a live session does not keep: the instance row, and when the last checkpoint was.

        :raises Aborted: when the partition's former owner has committed since: what the session holds is old.
        """
        if isinstance(event, ExecutionStarted):
            row = await self._row_of_start(instance_id, event.instance.execution_id)
        else:
            row = await self._hub.instance(instance_id)
            facts = replace(facts, checkpointed=await unchanged(self._hub, instance_id, etag))
        return replace(facts, row=row_facts(row))

    async def _row_of_start(self, instance_id: str, wanted: str | None) -> InstanceState | None:
        """A .NET client puts the start first and writes the row after it: look again for a second."""
        row = None
        for turn in range(LOOK_TIMES):
            row = await self._hub.instance(instance_id)
            if row is not None and row.execution_id == wanted:
                break
            if turn + 1 < LOOK_TIMES:
                await self._hub.clock.sleep(LOOK_PAUSE)
        return row


def _begun(facts: Facts, start: ExecutionStarted) -> Facts:
    """What is known once a start is processed."""
    return Facts(
        execution_id=start.instance.execution_id,
        ended=facts.ended_with(facts.execution_id),
        parent=start.parent,
        seen=facts.seen,
        steered=facts.steered,
    )


def _run_of(message: Incoming, facts: Facts) -> str:
    """The run that a message is for that names it, or else the one that the row tells of."""
    run = message.run or (facts.row.execution_id if facts.row else None)
    assert run is not None
    return run


def row_facts(row: InstanceState | None) -> Row:
    """What the rules ask of an instance row."""
    if row is None:
        return Row()
    return Row(execution_id=row.execution_id, status=row.status, generation=row.generation, due=row.scheduled_start)


def incoming(held: Delivery, hidden: int) -> Incoming:
    """A message as the rules see it.

    :param hidden: ticks for which a message is claimed: so long before the end of its receipt that was asked for.
    """
    sender = held.envelope.sender
    return Incoming(
        event=held.message.event,
        execution_id=held.message.instance.execution_id,
        identity=held.identity,
        stamp=held.stamp,
        now=Timestamp(held.receipt.next_visible.ticks - hidden),
        sender=sender if sender is not None and sender.instance_id else None,
        deliveries=held.deliveries,
        failures=held.envelope.failures,
        spent=held.envelope.failures >= quarantine.MAX_FAILURES,
    )
