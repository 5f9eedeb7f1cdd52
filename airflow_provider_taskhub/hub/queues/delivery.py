"""Hold received messages, keep them invisible to other workers, and give them back to their queues.

The worker keeps a received message invisible to other workers by renewals of its visibility timeout. A worker that
stops, or that hands over its partition, makes the message visible again at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import field, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventRaised, ExecutionResumed, ExecutionSuspended
from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.message_envelope import ACTION_UUID, Envelope, TaskMessage, encode
from airflow_provider_taskhub.hub.model import Stamp
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Receipt, Store, UpdateMessage
from airflow_provider_taskhub.supervision import Supervisor, owned
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

GIVE_BACK_PARALLEL = 16
"""Messages that one call of ``Reader.give_back`` updates at the same time. The same bound holds for renewals."""
LATEST = Timestamp.parse("9999-12-31T00:00:00Z")
"""The insertion time of a local response. It is later than the insertion time of every message in a queue."""
ORDERED = (EventRaised, ExecutionSuspended, ExecutionResumed)
"""Events whose order an orchestrator sees. Their messages name the process that sent them."""


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """A received message. The object is mutable, because each renewal replaces the pop receipt.

    :param queue: name of the queue that has the message.
    :param envelope: the decoded message. If the payload is in a blob, the envelope has the payload and the blob's name.
    :param receipt: the newest pop receipt.
    :param inserted: when the message was put into the queue, by the clock of the storage service.
    :param dequeue_count: how often the queue has delivered the message, including this delivery.
    :param size: number of characters of the message's text in the queue.
    :param claimed: monotonic time, in seconds, at which the request for the newest pop receipt was sent.
    :param place: place of the message among those of its queue, in 100 ns of the storage service's clock. A worker that
        receives a message for the first time gives it a place behind those that it has received earlier. The message
        keeps this place if it goes back to the queue and comes again. 0: a message that no queue has.
    :param scheduled: monotonic time, in seconds, at which this worker sent the checkpoint that stored the call of this
        work item; None: another process may have sent it, or the message is no work item.
    :param held_since: monotonic time, in seconds, since which the message waits in memory for another message of its
        instance. None: it does not wait.
    :param waited: True if it has waited for the longest time that is allowed, so that it must be processed now.
    :param gone: True if the message is deleted or visible again. The pop receipt is then useless.
    :param deleted: the answer of the store to the deletion of the message. False: the store has not deleted the
        message. None: there is no answer.
    :param changing: a lock that allows one renewal, return or deletion of the message at a time. Each of them needs the
        pop receipt that the one before has left. Without the lock a running renewal could replace the pop receipt of a
        deletion on its way, and the message would come again.
    """

    queue: str
    envelope: Envelope
    receipt: Receipt
    inserted: Timestamp
    dequeue_count: int
    size: int
    claimed: float
    place: int = 0
    scheduled: float | None = None
    held_since: float | None = None
    waited: bool = False
    gone: bool = False
    deleted: bool | None = None
    changing: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _identity: str | None = field(default=None, init=False, repr=False)

    @property
    def message(self) -> TaskMessage:
        """The task message. A delivery always has one."""
        assert self.envelope.message is not None
        return self.envelope.message

    @property
    def deliveries(self) -> int:
        """How many deliveries of the message count, with this one.

        A delivery does not count if the worker gave the message back before it began to process it. A delivery whose
        worker crashed counts, because the worker may have begun.
        """
        return self.dequeue_count + self.envelope.deliveries

    @property
    def message_id(self) -> str:
        return self.receipt.message_id

    @property
    def first_put(self) -> Timestamp:
        """When a work item was put into its first queue, by the clock of the storage service. It may have been moved to
        another queue since, which gives it a new time of insertion."""
        since = self.envelope.waiting_since
        return self.inserted if since is None or self.inserted.ticks <= since.ticks else since

    @property
    def identity(self) -> str:
        """A text that is the same for all deliveries and all copies of this message.

        It is the id of the action that the message carries out. If the message names no action, it is the message id.
        The message id alone is not enough: if the answer to a put is lost, the sender puts the message again, and the
        copy has another message id.
        """
        if self._identity is None:
            name = self.envelope.activity_id
            self._identity = str(name) if name.int >> 76 & 0xF == ACTION_UUID else self.message_id
        return self._identity

    def received(self, visibility: timedelta) -> Timestamp:
        """Return when the newest pop receipt was given, by the clock of the storage service.

        :param visibility: the visibility timeout of the request that gave this pop receipt.
        """
        return self.receipt.next_visible + -visibility

    @property
    def in_queue(self) -> bool:
        """Whether a queue has this message. False for a local response."""
        return True

    def deletion(self) -> DeleteMessage:
        """Return the operation that deletes the message.

        The store carries it out when no renewal is under way. With an outdated pop receipt the operation does nothing;
        :meth:`Reader.release` then takes care of the message.
        """
        return DeleteMessage(queue=self.queue, message=self, quiet=True)

    def deletion_by_receipt(self) -> DeleteMessage:
        """Return the deletion with the pop receipt of this moment, for a thread whose event loop does not run.

        The lock :attr:`changing` belongs to the event loop of the worker, so no other loop can wait for it.
        """
        return DeleteMessage(queue=self.queue, message=self.receipt, quiet=True)

    def deletion_answered(self, *, deleted: bool) -> None:
        self.deleted = deleted or self.deleted is True
        self.gone = self.gone or deleted

    def returning(
        self,
        *,
        delay: timedelta,
        failed: bool = False,
        begun: bool = True,
        waiting_since: Timestamp | None = None,
        signal: bool = True,
    ) -> UpdateMessage | None:
        """Return the operation that makes the message receivable again. None: there is nothing to do.

        The parameters are those of ``Reader.give_back``.
        """
        envelope = self.envelope
        counted = replace(
            envelope,
            failures=envelope.failures + failed,
            deliveries=envelope.deliveries - (not begun),
            waiting_since=waiting_since or envelope.waiting_since,
            place=self.place if self.place and isinstance(self.message.event, ORDERED) else envelope.place,
        )
        text = None if counted == envelope else encode(counted)
        return UpdateMessage(queue=self.queue, message=self.receipt, visibility=delay, text=text, signal=signal)

    def settle(self, done: bool) -> None:
        """Note that the message is deleted or given back. Only :class:`LocalResponse` must do something here.

        :param done: True if the message is deleted, False if it is given back.
        """

    @property
    def process(self) -> str:
        """Id of the process that sent the message. Only the messages of :data:`ORDERED` that TaskHub has sent name it.

        For every other message it is "".
        """
        return getattr(self.message.event, "taskhub_process", None) or ""

    @property
    def stamp(self) -> Stamp:
        """When the message was enqueued, which process sent it, and its number among the messages of that process.

        The time is always known; that of a local response is :data:`LATEST`.
        """
        return Stamp(inserted=self.inserted, process=self.process, number=self.envelope.sequence_number)


@dataclass(slots=True, kw_only=True, eq=False)
class LocalResponse(Delivery):
    """An activity's response that this worker delivers in memory, because this worker also serves the instance.

    The checkpoint of the episode that takes the response deletes the activity's work item. This saves the put and the
    delete of a response message. If the episode gives the response back, the code that sent it (``Responses.respond``)
    puts it into the control queue as a message. A local response is processed after all messages of the queue
    (``inserted`` is :data:`LATEST`).

    :param origin: the activity's work item.
    :param fate: its result is True when the work item is deleted, False when the response must be put as a message.
    """

    origin: Delivery
    fate: asyncio.Future[bool]

    @property
    def in_queue(self) -> bool:
        return False

    def deletion(self) -> DeleteMessage:
        return self.origin.deletion()

    def deletion_by_receipt(self) -> DeleteMessage:
        return self.origin.deletion_by_receipt()

    def returning(self, **how: object) -> None:
        """Return None: the activity puts the response into the queue as a message."""

    def settle(self, done: bool) -> None:
        """Tell the activity whether its work item is deleted. Only the first call counts."""
        if not self.fate.done():
            self.fate.set_result(done)


async def renew(
    store: Store, held: Delivery, visibility: timedelta, clock: Clock, outage: Outage | None = None
) -> bool:
    """Keep a message invisible to other workers for ``visibility`` from now.

    If there is no answer in a quarter of that time, a second request is sent, because the connection may be dead. The
    first request is not cancelled: it may still succeed, and only its answer has the new pop receipt. Only one of the
    two requests can succeed.

    :param outage: collects failed renewals, so that many failures make few log lines. None: each failure is logged.
    :returns: False if the message is deleted or another worker has received it. True also if the store did not answer:
        then the caller can try again.
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
            if held.receipt is update.message:  # otherwise the message was received again, with a newer pop receipt
                # the pop receipt is stored without delay, because a deletion needs the newest one
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
        elif held.receipt is update.message:  # otherwise this worker has received the message again
            held.gone = True
        return not held.gone


class VisibilityRenewer:
    """Renew the visibility of the messages that a reader holds.

    Renewals run in parallel, at most :data:`GIVE_BACK_PARALLEL` at a time, so that a slow renewal delays no other.

    :param visibility: the visibility timeout that each renewal sets.
    """

    def __init__(self, store: Store, clock: Clock, visibility: timedelta) -> None:
        self._store, self._clock, self._visibility = store, clock, visibility
        self._held: dict[str, Delivery] = {}
        self._outage = Outage(log, "renewal_failed", clock.monotonic)
        self._gate, self._busy = asyncio.Semaphore(GIVE_BACK_PARALLEL), set[Delivery]()
        self._running = False

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
        """Renew the visibility of each message after a quarter of its timeout, until this task is cancelled.

        A renewal that fails is tried again, and does not stop the renewals of other messages.
        """
        interval = self._visibility.total_seconds() / 4
        renewals, self._running = Supervisor(self._clock), True
        try:
            while True:
                await self._clock.sleep(interval)
                due = self._clock.monotonic() - interval
                for held in self._held.values():
                    if held.claimed <= due and not held.gone and held not in self._busy:
                        self._busy.add(held)
                        renewals.spawn(self._renew(held), name=f"renew {held.message_id}")
        finally:
            self._running = False
            # A renewal that the store has carried out must bring its pop receipt, with which the message is given back.
            await renewals.close(interval)

    async def _renew(self, held: Delivery) -> None:
        try:
            async with self._gate:
                if self._running:
                    await renew(self._store, held, self._visibility, self._clock, self._outage)
        finally:
            self._busy.discard(held)
