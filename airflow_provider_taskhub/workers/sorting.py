"""Sorting a batch by the races: each message is judged by what is known of its instance, read where it is not known.

What is decided stands in ``races``, which is pure; this reads what it asks for, and carries nothing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from datetime import timedelta
from weakref import WeakKeyDictionary

from airflow_provider_taskhub.codec import Timestamp, ticks_of
from airflow_provider_taskhub.engine.events import EventRaised, ExecutionStarted, HistoryEvent, Status
from airflow_provider_taskhub.hub.contract import InstanceState
from airflow_provider_taskhub.hub.history.load import lock_of
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.messages.control import ControlReader
from airflow_provider_taskhub.hub.messages.held import Held
from airflow_provider_taskhub.hub.messages.races import SOON, STEERING, Facts, Judged, Verdict, judge, newest, waits_for
from airflow_provider_taskhub.hub.messages.sessions import Session
from airflow_provider_taskhub.values import dataclass
from airflow_provider_taskhub.workers.commit import Aborted
from airflow_provider_taskhub.workers.live import Live

LOOK_TIMES = 10
LOOK_PAUSE = 0.1
"""A start whose row is not there is looked for again for a second."""
BEHIND = timedelta(milliseconds=100)
"""By so much an event comes back after the start that it waits for."""
BEHIND_AT_MOST = timedelta(minutes=2)
"""What has waited so long for a start goes to the run that is there: that may wait for it."""
MAX_REMEMBERED = 10_000
"""Instances of a partition whose waiting starts are kept in mind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A child's start that waits for the end of a run of its id.

    :param parent: who waits for the child. :param order: its place in the queue. :param back: monotonic second.
    """

    parent: str
    order: tuple[Timestamp, int]
    back: float


@dataclass(slots=True, kw_only=True)
class Sorted:
    """A batch, judged.

    :param facts: what the last of it was judged by.
    :param suspended: why the instance that starts with it is suspended at once; None: it is not.
    """

    facts: Facts
    process: list[Held] = field(default_factory=list)
    stale: list[tuple[Held, str]] = field(default_factory=list)
    later: list[tuple[Held, Judged]] = field(default_factory=list)
    cancel: list[Held] = field(default_factory=list)
    steer: list[Held] = field(default_factory=list)
    suspended: str | None = None

    @property
    def begins(self) -> bool:
        """Whether what is processed begins with a start."""
        return bool(self.process) and isinstance(self.process[0].message.event, ExecutionStarted)


async def unchanged(hub: Hub, instance_id: str, etag: str | None) -> Timestamp | None:
    """When the last checkpoint was, read again: it is valid together with a row that was read before it.

    :param etag: as the session has it. :raises Aborted: when the partition's former owner has committed since.
    """
    lock = await lock_of(hub.store, hub.names, instance_id)
    if (lock.etag if lock else None) != etag:
        raise Aborted("another owner has committed since the history was loaded")
    return lock.timestamp if lock else None


class Sorter:
    """Judges batches. Keeps in mind which starts wait: longer than what they wait for is in memory, as long as the
    tenure, within which nobody else takes them."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: WeakKeyDictionary[ControlReader, dict[str, dict[str, Waiting]]] = WeakKeyDictionary()
        """By the tenure's reader, instance id and identity of the start."""

    async def sort(self, session: Session[Live], live: Live, batch: Sequence[Held], facts: Facts) -> Sorted:
        """:param facts: what is known of the instance.

        :raises Aborted: when the partition's former owner has committed since.
        """
        hidden = ticks_of(session.reader.visibility)
        found = Sorted(facts=facts)
        instance_id, etag = session.instance_id, live.stored.sentinel_etag
        taken: set[str] = set()
        for held in batch:
            if held.identity in taken:  # put twice, since an answer was lost: one of the two is enough
                found.stale.append((held, "its double is in the same batch"))
                continue
            judged = _judged(held, found.facts, hidden)
            if judged.verdict is Verdict.LOOK:
                found.facts = await self._look(instance_id, held.message.event, found.facts, etag)
                judged = _judged(held, found.facts, hidden)
            match judged.verdict:
                case Verdict.PROCESS | Verdict.LATE if wait := self._behind_start(session, held, hidden):
                    found.later.append((held, wait))
                case Verdict.PROCESS:
                    found.process.append(held)
                    taken.add(held.identity)
                    if isinstance(held.message.event, ExecutionStarted):
                        started = held.message.event.instance.execution_id
                        found.suspended = found.facts.row_suspended
                        since = held.message.event.parent
                        steered = newest(found.facts.steered, found.facts.row_steered)
                        found.facts = Facts(execution_id=started, parent=since, seen=found.facts.seen, steered=steered)
                        self._waits_no_more(session, held)
                    elif isinstance(held.message.event, STEERING):
                        found.facts = replace(found.facts, steered=held.stamp)
                case Verdict.STALE:
                    found.stale.append((held, judged.reason))
                    self._waits_no_more(session, held)
                case Verdict.CANCEL_START:
                    found.cancel.append(held)
                case Verdict.STEER:
                    found.steer.append(held)
                    taken.add(held.identity)
                case _:
                    if judged.verdict is Verdict.EARLY:
                        self._waits(session, held, judged)
                    found.later.append((held, judged))
        return found

    def _waits(self, session: Session[Live], held: Held, judged: Judged) -> None:
        if (parent := waits_for(held.message.event)) is None:
            return
        back = self._hub.clock.monotonic() + judged.pause.total_seconds()
        waiting = self._waiting.setdefault(session.reader, {})
        starts = waiting.setdefault(session.instance_id, {})
        starts[held.identity] = Waiting(parent=parent.instance.instance_id, order=held.order, back=back)
        if len(waiting) > MAX_REMEMBERED:  # what comes behind those may be a little later: LATE, by and by
            del waiting[next(iter(waiting))]

    def _waits_no_more(self, session: Session[Live], held: Held) -> None:
        waiting = self._waiting.get(session.reader, {})
        starts = waiting.get(session.instance_id, {})
        if starts.pop(held.identity, None) is not None and not starts:
            del waiting[session.instance_id]

    def _behind_start(self, session: Session[Live], held: Held, hidden: int) -> Judged | None:
        """An event that its sender has put behind a start, still waiting, is for that, and comes right after it.

        Anybody else's goes to the run that is there: that may have to be told something before it ends at all. So
        may it by this event, after all: for ever it does not wait.
        """
        sender = held.envelope.sender
        if sender is None or not isinstance(held.message.event, EventRaised):
            return None
        starts = [
            (start.order, start.back)
            for start in self._waiting.get(session.reader, {}).get(session.instance_id, {}).values()
            if start.parent == sender.instance_id and start.order <= held.order
        ]
        if not starts or _now(held, hidden) - held.inserted > BEHIND_AT_MOST:
            return None
        left = timedelta(seconds=max(starts)[1] - self._hub.clock.monotonic())
        pause = left + BEHIND if left > timedelta(0) else SOON
        return Judged(verdict=Verdict.EARLY, reason="its instance is to be started again", pause=pause)

    async def _look(self, instance_id: str, event: HistoryEvent, facts: Facts, etag: str | None) -> Facts:
        """Read what a live session does not keep: the instance row, and when the last checkpoint was.

        :raises Aborted: when the partition's former owner has committed since: what the session holds is old.
        """
        if isinstance(event, ExecutionStarted):
            once = event.parent is not None  # a child has no row before its first checkpoint
            row = await self._row_of_start(instance_id, event.instance.execution_id, turns=1 if once else LOOK_TIMES)
        else:
            row = await self._hub.instance(instance_id)
            facts = replace(facts, checkpointed=await unchanged(self._hub, instance_id, etag))
        pending = row is not None and row.status is Status.PENDING
        return replace(
            facts,
            row_read=True,
            row_execution_id=row.execution_id if row else None,
            row_generation=row.generation if row else None,
            row_pending=pending,
            row_terminated=row is not None and row.status is Status.TERMINATED,
            row_due=row.scheduled_start if row is not None and pending else None,
            row_steered=row.steered.stamp if row is not None and pending and row.steered else None,
            row_suspended=row.steered.suspended if row is not None and pending and row.steered else None,
        )

    async def _row_of_start(self, instance_id: str, wanted: str | None, *, turns: int) -> InstanceState | None:
        """A .NET client puts the start first and writes the row after it: look again for a second."""
        row = None
        for turn in range(turns):
            row = await self._hub.instance(instance_id)
            if row is not None and row.execution_id == wanted:
                break
            if turn + 1 < turns:
                await self._hub.clock.sleep(LOOK_PAUSE)
        return row


def _now(held: Held, hidden: int) -> Timestamp:
    """:param hidden: ticks for which a message is claimed: so long before the end of its receipt that was asked for."""
    return Timestamp(held.receipt.next_visible.ticks - hidden)


def _judged(held: Held, facts: Facts, hidden: int) -> Judged:
    message = held.message
    return judge(
        message.event,
        execution_id=message.instance.execution_id,
        message_id=held.identity,
        stamp=held.stamp,
        facts=facts,
        now=_now(held, hidden),
        deliveries=held.deliveries,
        sent=bool(held.envelope.sender and held.envelope.sender.instance_id),
        again=held.dequeue_count > 1 or held.deliveries > 1,
    )
