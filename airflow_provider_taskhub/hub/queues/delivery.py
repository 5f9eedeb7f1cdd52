"""A queue message in this worker's hands, and how long it may stay there.

Owns receipts and their renewal. A message is held invisible no longer than a lease can be, renewed while it is held,
and given back at once by whoever stops, drains or abandons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import field, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage, encode
from airflow_provider_taskhub.hub.model import Stamp
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Receipt, Store, UpdateMessage
from airflow_provider_taskhub.supervision import Supervisor, owned
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

GIVE_BACK_PARALLEL = 16
LATEST = Timestamp.parse("9999-12-31T00:00:00Z")
ACTION_UUID = 5
"""Version of the UUIDs that are identities of actions; everybody else's are random."""


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """A claimed message. Mutable: a renewal replaces its receipt.

    :param envelope: with its message; of a spilled one also the blob's name, so that encoded it is the wrapper again.
    :param claimed: monotonic second at which the newest receipt was asked for.
    :param gone: somebody else has the message, or it is deleted: the receipt is worth nothing.
    :param changing: one change of the receipt at a time: a message given back under the receipt that a renewal on its
        way has just replaced would stay invisible as long as that renewal lasts.
    """

    queue: str
    envelope: Envelope
    receipt: Receipt
    inserted: Timestamp
    dequeue_count: int
    size: int
    claimed: float
    gone: bool = False
    changing: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _identity: str | None = field(default=None, init=False, repr=False)

    @property
    def message(self) -> TaskMessage:
        """The task message; an envelope without one never becomes a held message."""
        assert self.envelope.message is not None
        return self.envelope.message

    @property
    def deliveries(self) -> int:
        """How often somebody has begun to process it, or may have; this time included."""
        return self.dequeue_count + self.envelope.deliveries

    @property
    def message_id(self) -> str:
        return self.receipt.message_id

    @property
    def identity(self) -> str:
        """By what a redelivery is known: the action that the message carries out, where it names one; else its id.

        A put whose answer was lost is put again under another message id, but for the same action.
        """
        if self._identity is None:
            name = self.envelope.activity_id
            self._identity = str(name) if name.int >> 76 & 0xF == ACTION_UUID else self.message_id
        return self._identity

    def received(self, visibility: timedelta) -> Timestamp:
        """When its newest receipt was given, by the storage service's clock.

        :param visibility: for how long the receipt was asked for.
        """
        return self.receipt.next_visible + -visibility

    @property
    def in_queue(self) -> bool:
        """Whether a message stands in the queue for it."""
        return True

    def deletion(self) -> DeleteMessage:
        """The operation that deletes it. With a stale receipt it deletes nothing."""
        return DeleteMessage(queue=self.queue, message=self, quiet=True)

    def returning(
        self,
        *,
        delay: timedelta,
        failed: bool = False,
        begun: bool = True,
        waiting_since: Timestamp | None = None,
        signal: bool = True,
    ) -> UpdateMessage | None:
        """The operation that makes it receivable again; None: there is nothing to do. See :func:`give_back`."""
        envelope = self.envelope
        counted = replace(
            envelope,
            failures=envelope.failures + failed,
            deliveries=envelope.deliveries - (not begun),
            waiting_since=waiting_since or envelope.waiting_since,
        )
        text = None if counted == envelope else encode(counted)
        return UpdateMessage(queue=self.queue, message=self.receipt, visibility=delay, text=text, signal=signal)

    def settle(self, done: bool) -> None:
        """Called when this worker lets go of it. A message has nobody to tell.

        :param done: it is deleted; else it is given back.
        """

    @property
    def stamp(self) -> Stamp:
        """When it was sent, and by which process, as far as that is known."""
        process = getattr(self.message.event, "taskhub_process", None)
        return Stamp(inserted=self.inserted, process=process or "", number=self.envelope.sequence_number)

    @property
    def order(self) -> tuple[Timestamp, int]:
        """Order of processing: enqueued first, then the sender's own count."""
        return self.inserted, self.envelope.sequence_number


@dataclass(slots=True, kw_only=True, eq=False)
class LocalResponse(Delivery):
    """An activity's response in the hands of the very worker that serves its instance: no message of its own.

    The episode that takes it deletes the activity's work item with its checkpoint, which saves a message's put and
    delete. Whoever gives it back has it put as a message after all. It is younger than anything that a store has said
    (``inserted`` is :data:`LATEST`), and known by its work item, which may be delivered again.

    :param origin: the work item. :param fate: whether the work item is settled; False: the response is to be put.
    """

    origin: Delivery
    fate: asyncio.Future[bool]

    @property
    def in_queue(self) -> bool:
        return False

    def deletion(self) -> DeleteMessage:
        return self.origin.deletion()

    def returning(self, **how: object) -> None:
        """Nothing: whoever offered the response puts it into the queue as a message."""

    def settle(self, done: bool) -> None:
        """Tell whoever offered the response. Only the first call counts."""
        if not self.fate.done():
            self.fate.set_result(done)


async def renew(
    store: Store, held: Delivery, visibility: timedelta, clock: Clock, outage: Outage | None = None
) -> bool:
    """Keep a message invisible for ``visibility`` from now.

    Without an answer it is asked for once more, while there is time: a connection may be dead. The first request is not
    cut off, since it may be done yet, and nobody else has its receipt. Only one of the two can be done.

    :param outage: logs renewals without an answer, few lines for many; None: each one is logged.
    :returns: False when it is gone; a store that does not answer leaves it as it is, to be tried again.
    """
    async with held.changing:
        if held.gone:
            return False
        update = UpdateMessage(queue=held.queue, message=held.receipt, visibility=visibility, claimed=True)

        async def ask() -> StorageError | None:
            sent = clock.monotonic()
            try:
                receipt = await store.execute(update)
            except StorageError as error:
                return error
            assert isinstance(receipt, Receipt)
            if held.receipt is update.message:  # else a redelivery has brought a newer one
                # at once: what is deleted meanwhile is deleted by its receipt
                held.receipt, held.claimed = receipt, sent
            return None

        errors = []
        async with owned() as start:
            tries = [start(ask())]
            answered, _ = await asyncio.wait(tries, timeout=visibility.total_seconds() / 4)
            if not answered:
                tries.append(start(ask()))
            for answer in asyncio.as_completed(tries):
                error = await answer
                if error is None:
                    if outage is not None:
                        outage.over()
                    return True
                errors.append(error)
        stale = any(isinstance(error, Conflict | NotFound) for error in errors)
        if not stale:
            (outage or Outage(log, "renewal_failed", clock.monotonic)).failed(
                errors[0], queue=held.queue, message_id=held.message_id
            )
        elif held.receipt is update.message:  # else it came again to this worker meanwhile
            held.gone = True
        return not held.gone


async def give_back(
    store: Store,
    messages: Iterable[Delivery],
    *,
    delay: timedelta = timedelta(0),
    failed: bool = False,
    begun: bool = True,
    waiting_since: Timestamp | None = None,
    signal: bool = True,
) -> None:
    """Make messages receivable again after ``delay``. Best effort: what fails becomes visible by itself.

    Each is an operation of its own, and many are on their way at once (the embedded store commits those together): in
    one unit, a single stale receipt would refuse the others.

    :param failed: count one more failed processing in the message: failures are counted, not deliveries.
    :param begun: False: this delivery shall not count.
    :param waiting_since: see :class:`Envelope`; None: as it was.
    :param signal: False: this worker need not look at the queue when they become visible: they are for another one.
    """
    gate = asyncio.Semaphore(GIVE_BACK_PARALLEL)

    async def one(held: Delivery) -> None:
        held.settle(False)
        async with held.changing, gate:  # the gate comes second: a slow renewal of one must not keep the others waiting
            update = held.returning(delay=delay, failed=failed, begun=begun, waiting_since=waiting_since, signal=signal)
            if held.gone or update is None:
                return
            try:
                await store.execute(update)
                held.gone = True  # not ours any more
            except StorageError as error:
                log.info("give_back_failed", queue=held.queue, message_id=held.message_id, error=str(error))

    await asyncio.gather(*(one(held) for held in messages))


class VisibilityRenewer:
    """Renews what a reader holds. One loop per reader; work in parallel, bounded: none waits for one that is slow."""

    def __init__(self, store: Store, clock: Clock, visibility: timedelta) -> None:
        self._store, self._clock, self._visibility = store, clock, visibility
        self._held: dict[str, Delivery] = {}
        self._outage = Outage(log, "renewal_failed", clock.monotonic)
        self._gate, self._busy = asyncio.Semaphore(GIVE_BACK_PARALLEL), set[Delivery]()

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> tuple[Delivery, ...]:
        return tuple(self._held.values())

    def known(self, message_id: str) -> Delivery | None:
        return self._held.get(message_id)

    def add(self, held: Delivery) -> None:
        self._held[held.message_id] = held

    def remove(self, held: Delivery) -> None:
        self._held.pop(held.message_id, None)

    async def run(self) -> None:
        """Renew for ever; cancelled by its owner. A renewal that fails is tried again; it ends no other."""
        interval = self._visibility.total_seconds() / 4
        renewals = Supervisor(self._clock)
        try:
            while True:
                await self._clock.sleep(interval)
                due = self._clock.monotonic() - interval
                for held in self._held.values():
                    if held.claimed <= due and not held.gone and held not in self._busy:
                        self._busy.add(held)
                        renewals.spawn(self._renew(held), name=f"renew {held.message_id}")
        finally:
            await renewals.close()

    async def _renew(self, held: Delivery) -> None:
        try:
            async with self._gate:
                await renew(self._store, held, self._visibility, self._clock, self._outage)
        finally:
            self._busy.discard(held)
