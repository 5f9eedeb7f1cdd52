"""The readers of queues: receive messages, decode them, and keep them invisible to other workers.

A reader receives messages in advance, renews their visibility, and makes messages receivable again. A reader never
decides what a message means: it delivers messages in the order in which they arrive.

The module has more than 400 lines because receiving, waiting and quarantine share the state of :class:`Reader`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.engine.lifecycle import HAPPENINGS
from airflow_provider_taskhub.errors import AccessDenied, InputError, LeaseLost, NotFound, StorageError, Throttled
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.message_envelope import MessageError, blob_of, decode, unspill
from airflow_provider_taskhub.hub.model import Failover, HubNames, Tenure
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import (
    GIVE_BACK_PARALLEL,
    Delivery,
    LocalResponse,
    VisibilityRenewer,
)
from airflow_provider_taskhub.hub.queues.left_messages import LeftMessages
from airflow_provider_taskhub.hub.queues.pacing import Load, PollingBackoff, admit, batching_delay
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, Message, Store
from airflow_provider_taskhub.storage.rules import check_key
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

STARVED_AFTER = 0.5
"""A queue counts as starved if its reader has received nothing for this many seconds because the buffer has no room."""
_RECEIVES = Retries(after=(StorageError,), first=1.0, factor=1.0)
"""The reader pauses after an error of the store: 1 s, or as long as the store asks for."""
RETRY_DELAY = timedelta(seconds=1)
"""Delay before a message is delivered again if it could not be processed or could not be put into quarantine."""
MAX_LEFT = 1000
"""The most messages that a reader remembers because the store has refused their deletion."""
CONTROL_EVENTS = frozenset(HAPPENINGS)
"""Types of the events that a control queue carries: events for orchestrations."""
WORK_EVENTS = frozenset({EventType.TaskScheduled})
"""Types of the events that the work-item queue carries."""
_WRAPPED = '"TaskMessage":null'
"""The text of a message contains this if the payload of the message is stored in a blob."""


async def decode_message(store: Store, names: HubNames, queue: str, message: Message, claimed: float) -> Delivery:
    """Decode a received message. Read its payload from the blob if the payload was moved to a blob.

    :param queue: name of the queue that the message was received from.
    :param claimed: monotonic time, in seconds, at which the receive request was sent.
    :raises MessageError: the message cannot be decoded, its blob does not exist, or its instance id is not valid.
    :raises StorageError: the blob cannot be read at the moment. The message itself may be valid.
    """
    envelope = decode(message.text)
    name = blob_of(envelope)
    if name is not None:
        try:
            text = await store.get_text(names.large_messages, name)
        except InputError as error:
            raise MessageError(f"its payload blob {name!r} cannot be read: {error}") from error
        if text is None:
            raise MessageError(f"its payload blob {name!r} does not exist")
        envelope = unspill(envelope, text)
    assert envelope.message is not None
    instance_id = envelope.message.instance.instance_id
    try:  # a .NET client may use instance ids that are too long to be a key of a table
        check_key("its PartitionKey", escape(instance_id))
    except InputError as error:
        raise MessageError(f"its instance id is not valid: {error}") from error
    if not instance_id:
        raise MessageError("its instance id is empty")
    return Delivery(
        queue=queue,
        envelope=envelope,
        receipt=message.receipt,
        inserted=message.inserted,
        dequeue_count=message.dequeue_count,
        size=len(message.text),
        claimed=claimed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderContext:
    """What all readers of one worker share.

    :param store: the store of the queues.
    :param names: names of the hub's tables, queues and containers.
    :param clock: the worker's clock.
    :param visibility: how long a received message stays invisible to other readers without a renewal.
    :param max_polling: the longest pause between two polls of an empty queue.
    :param quarantined: called once for each message that a reader has put into quarantine.
    :param deleted: called with each message that a reader has released after its deletion.
    :param supervisor: runs the loops that renew the visibility of held messages. None: each reader makes its own
        supervisor.
    """

    store: Store
    names: HubNames
    clock: Clock
    visibility: timedelta
    max_polling: timedelta
    quarantined: Callable[[], None] = lambda: None
    deleted: Callable[[Delivery], None] = lambda held: None
    supervisor: Supervisor | None = None


class Reader:
    """Receive the messages of a queue, decode them, and keep them invisible until they are deleted or given back.

    :param context: what all readers of this worker share.
    :param queue: name of the queue.
    :param carries: types of the events that this queue may carry. A message with another event goes to quarantine.
    :param room: returns how many messages may be received now. After 0 the reader waits for :meth:`freed` or
        :meth:`wake`.
    :param deliver: called with each new message. It is not called if a message is received again while this reader
        still holds it: then only the pop receipt is replaced.
    :param check: called before each receive. It raises ``LeaseLost`` if this worker must not read the queue any more.
    :param polled: called after each receive that the store has answered.
    :param failed: called after each other receive.
    :param runs: returns whether this worker can run a message. A receive that brings only messages that this worker
        cannot run does not shorten the pause between polls. Otherwise this worker would receive these messages again
        and again, and a worker that can run them would never receive them.
    """

    def __init__(
        self,
        context: ReaderContext,
        *,
        queue: str,
        carries: Collection[EventType],
        room: Callable[[], int],
        deliver: Callable[[Delivery], None],
        check: Callable[[], None] = lambda: None,
        polled: Callable[[], None] = lambda: None,
        failed: Callable[[], None] = lambda: None,
        runs: Callable[[Delivery], bool] = lambda held: True,
    ) -> None:
        store, clock, visibility = context.store, context.clock, context.visibility
        self.queue = self.name = queue
        self.queues: tuple[str, ...] = (queue,)
        """All queues that it reads."""
        self._supervisor = context.supervisor or Supervisor(clock)
        self._carries = carries
        self.stopping = False
        self._store, self._names, self._clock = store, context.names, clock
        self.visibility = visibility
        self._room, self._deliver, self._check, self._runs = room, deliver, check, runs
        self._polled, self._failed = polled, failed
        self._count, self._deleted = context.quarantined, context.deleted
        self._renewer = VisibilityRenewer(store, clock, visibility)
        self._last_place = 0
        self._left = OrderedDict[str, Delivery]()
        """Messages whose work is done, and whose deletion the store has refused, by message id."""
        self._backoff = PollingBackoff(ceiling=context.max_polling.total_seconds())
        # For jitter; it does no harm if somebody can predict it. A simulation seeds the generator of the module.
        self._draw = random.Random(random.getrandbits(64))
        self._space = asyncio.Event()
        self._woken = False
        self._wait_timeout: asyncio.Timeout | None = None
        self._pause_timeout: asyncio.Timeout | None = None
        self._stopped = asyncio.Event()
        self.last_poll = clock.monotonic()
        """Monotonic time at which the last receive was sent that the store has answered and not refused. Before the
        first receive: when the reader was made."""
        self._failing = False
        """Whether the last receive has failed."""
        self.refused = False
        """Whether the store has refused the last receive."""
        self._waiting: float | None = None
        """Monotonic time since which the reader has not received because there is no room. None: there was room."""
        self.emptied: float | None = None
        """Monotonic time at which the last receive was sent, if the queue had no more messages then. None: it had."""
        self.signalled = False
        """Whether a wake-up of the store announced the newest messages. False: the reader found them by polling."""

    def held(self) -> tuple[Delivery, ...]:
        """Return the messages that this reader keeps invisible."""
        return self._renewer.held()

    @property
    def waits_for_room(self) -> bool:
        """Whether the queue may have messages for which there was no room. False while it cannot be read."""
        return self._waiting is not None and not self._failing

    @property
    def starved(self) -> bool:
        """Whether the queue was not read for half a second because there was no room for more messages.

        A worker can claim a message of its own at the moment when the worker puts the message into the queue. While a
        queue is starved the worker must not do so. Otherwise its own new messages would always take the free room, and
        the messages in the queue would never be read.
        """
        waits = self._waiting is not None and self._clock.monotonic() - self._waiting >= STARVED_AFTER
        return waits and self._room() <= 0

    def adopt(self, held: Delivery) -> None:
        """Deliver a message that this worker claimed when it put the message, as if the message had been received."""
        self._put_last(held, held.inserted)
        self._renewer.add(held)
        self._deliver(held)

    def _put_last(self, held: Delivery, now: Timestamp) -> None:
        """Give a message its place behind those that came before it. A message that comes again keeps its place.

        :param now: present time, by the clock of the storage service. Readers before this one, in other processes, had
            earlier times.
        """
        self._last_place = max(self._last_place + 1, now.ticks)
        held.place = held.envelope.place or self._last_place

    def release(self, messages: Iterable[Delivery]) -> None:
        """Stop renewing the visibility of messages that were deleted or are given back. This makes room for others.

        If the store has refused to delete a message, the message comes again, although its work is done. This reader
        then deletes it, and does not deliver it.
        """
        for held in messages:
            self._renewer.remove(held)
            if held.deleted:
                self._deleted(held)
            elif held.deleted is False:
                self._left[held.message_id] = held
                if len(self._left) > MAX_LEFT:
                    self._left.popitem(last=False)
                self._supervisor.spawn(self._delete_again(held), name=f"delete {held.message_id}")
            held.settle(True)
        self.freed()

    async def _delete_again(self, held: Delivery) -> None:
        """Delete a message whose deletion the store has refused, with the newest receipt.

        The receipt is newer if this reader has received the message again meanwhile. If it is not newer, the store
        refuses again. Then either another worker has received the message, or the answer of a renewal was lost, and
        with it the valid receipt. The message becomes visible again in both cases.
        """
        work = self._carries == WORK_EVENTS
        try:
            async with held.changing:
                await self._store.execute(DeleteMessage(queue=held.queue, message=held.receipt))
        except NotFound:
            pass
        except StorageError as error:
            log.log(
                logging.WARNING if work else logging.INFO,
                "deletion_refused",
                queue=held.queue,
                message_id=held.message_id,
                instance_id=held.message.instance.instance_id,
                error=str(error),
            )
            return
        self._left.pop(held.message_id, None)
        self._deleted(held)

    def freed(self) -> None:
        """Tell the reader that there may be room again.

        This ends only a wait for room. A reader that waits because the queue is empty goes on waiting.
        """
        self._space.set()

    def wake(self) -> None:
        """Poll the queue now, and reset the polling back-off, because new messages are likely."""
        self._backoff.received()
        self._wake()
        self._space.set()

    def poll_soon(self, pace: float) -> None:
        """Poll the queue now and again soon: it may contain a message that no wake-up announced.

        :param pace: seconds until the second poll, if the polling back-off would make it later.
        """
        self._backoff.hasten(pace)
        self._wake()

    async def stop(self) -> None:
        """Stop receiving. Return when the messages of a running receive are delivered.

        The reader goes on renewing the messages that it holds.
        """
        self.stopping = True
        if self._pause_timeout is not None:
            self._pause_timeout.reschedule(asyncio.get_running_loop().time())
        self.wake()
        await self._stopped.wait()

    async def give_back(
        self,
        messages: Iterable[Delivery],
        *,
        delay: timedelta = timedelta(0),
        failed: bool = False,
        begun: bool = True,
        waiting_since: Timestamp | None = None,
        signal: bool = True,
    ) -> None:
        """Make messages receivable again after ``delay``, and stop renewing their visibility.

        A local response has no message in a queue. The activity that made the response is told to put it as a message.

        An error of the store is logged and not raised: the message becomes visible when its visibility timeout is over.
        Each message is updated by an operation of its own. Rejected: one unit for all messages. One outdated pop
        receipt would make the store refuse the whole unit.

        :param failed: True: add one to the failed processings that the message counts.
        :param begun: False: no work was begun, and this delivery does not count.
        :param waiting_since: new value of :attr:`Envelope.waiting_since`. None: the value does not change.
        :param signal: False: send no wake-up to this worker when the messages become visible, because another worker is
            to receive them.
        """
        messages = tuple(messages)
        for held in messages:
            held.settle(False)
        self.release(messages)
        gate = asyncio.Semaphore(GIVE_BACK_PARALLEL)

        async def one(held: Delivery) -> None:
            # The gate limits how many updates run at the same time. It is taken last: while this code waits for the end
            # of a slow renewal of this message (``changing``), other messages can use the gate.
            async with held.changing, gate:
                update = held.returning(
                    delay=delay, failed=failed, begun=begun, waiting_since=waiting_since, signal=signal
                )
                if held.gone or update is None:
                    return
                try:
                    await self._store.execute(update)
                    held.gone = True
                except StorageError as error:
                    log.info("give_back_failed", queue=held.queue, message_id=held.message_id, error=str(error))

        await asyncio.gather(*(one(held) for held in messages))

    async def move_to_quarantine(self, held: Delivery, item: quarantine.Quarantined) -> None:
        """Move a message from its queue to quarantine. If that fails, the message is delivered again after a second.

        :param item: the same message with the reason why it goes to quarantine.
        """
        if await self._quarantine(item, held.deletion()):
            self.release([held])
        else:
            await self.give_back([held], delay=RETRY_DELAY)

    async def run(self) -> None:
        """Poll the queue until :attr:`stopping` is set. Renew the visibility of the held messages until this task is
        cancelled.

        An error of the store does not end the polling. If another error ends this method, the caller can call it again:
        the reader still has its messages.
        """
        renewing = self._supervisor.keep(f"renew {self.name}", self._renewer.run)
        prepared = False
        outage = Outage(log.bind(queue=self.name), "receive_failed", self._clock.monotonic)
        self._stopped.clear()
        try:
            while not self.stopping:
                try:
                    if not prepared:
                        await self._prepare()
                        prepared = True
                    await self._turn()
                    outage.over()
                except NotFound:
                    log.error("queue_missing", queue=self.queue)
                    await self._pause(1.0)
                except LeaseLost:  # the owner of the partition logs the loss and cancels this reader
                    await self._pause(1.0)
                except StorageError as error:  # retries.retry is not used: a stop must end the pause
                    outage.failed(error)
                    await self._pause(_RECEIVES.pause(outage.failures, error))
            self._stopped.set()
            await asyncio.Future()  # the held messages are renewed until the caller cancels this task
        finally:
            self._stopped.set()
            renewing.cancel()

    async def _prepare(self) -> None:
        """Read what the reader needs before the first receive. This class needs nothing; a subclass may need more."""

    async def _turn(self) -> None:
        """Receive messages once and deliver them. Then wait if the queue has no more messages."""
        room = self._room()
        if room <= 0:
            self._waiting = self._clock.monotonic() if self._waiting is None else self._waiting
            self._space.clear()
            if self._room() <= 0 and not self.stopping:
                await self._space.wait()
            return
        self._check()
        sent = self._clock.monotonic()
        self._woken = False  # reset before the receive: a stop or wake during the receive must end the wait below
        asked, messages = min(room, MAX_RECEIVE), None
        try:
            messages = await self._store.receive(self.queue, limit=asked, visibility=self.visibility)
        except NotFound:  # another worker would get the same answer: the queue counts as polled
            self.last_poll, self._waiting, self.refused = sent, None, False
            raise
        except (Throttled, AccessDenied):  # the owner of the partition compares this with the polls of other workers
            self._waiting, self.refused = None, True
            raise
        finally:
            self._failing = messages is None
            if self._failing:
                self._failed()
        self.last_poll, self.refused = sent, False
        if len(messages) < asked or (self._waiting is not None and sent - self._waiting >= 2 * STARVED_AFTER):
            self._waiting = None
        self.emptied = sent if len(messages) < asked else None
        self._polled()
        if not messages:
            await self._wait()
            return
        took = self._clock.monotonic() - sent
        if any(_WRAPPED in message.text for message in messages):  # payloads in blobs are read in parallel
            outcomes = await asyncio.gather(*(self._take_safely(message, sent) for message in messages))
        else:  # nothing to read: a task for each message would cost as much as decoding the message
            outcomes = [await self._take_safely(message, sent) for message in messages]
        if any(outcome is None or self._runs(outcome) for outcome in outcomes):
            self._backoff.received()
        else:
            self._backoff.shift()
        for outcome in outcomes:
            if outcome is not None:
                self._put_last(outcome, outcome.received(self.visibility))
                await self._deliver_safely(outcome)
        if len(messages) < asked:  # the queue had no more messages
            await self._pause(batching_delay(took))
            await self._wait()

    async def _pause(self, seconds: float) -> None:
        """Wait, so that more messages can be received together. Only :meth:`stop` ends the pause early."""
        if seconds <= 0 or self.stopping:
            return
        try:
            async with asyncio.timeout(None) as self._pause_timeout:
                await self._clock.sleep(seconds)
        except TimeoutError:
            if not self.stopping:
                raise
        finally:
            self._pause_timeout = None

    async def _wait(self) -> None:
        """Wait until the back-off is over, the store announces a new message, or :meth:`wake` is called."""
        self.signalled = False
        if not self._woken and await self._arrival([self.queue], self._backoff.next(self._draw)):
            self._backoff.received()

    async def _arrival(self, queues: Sequence[str], seconds: float) -> Sequence[str]:
        """Wait until the store announces a new message in a queue, the time is over, or :meth:`wake` is called.

        :returns: the queues in which the store has announced a message.
        """
        announced: Sequence[str] = ()
        try:
            async with asyncio.timeout(None) as self._wait_timeout:
                announced = await self._store.arrival(queues, seconds)
        except TimeoutError:
            if not self._woken:
                raise
        finally:
            self._wait_timeout, self.signalled = None, bool(announced)
        return announced

    def _wake(self) -> None:
        """End the running :meth:`_wait`. If none is running, the next one ends at once.

        Rejected: a second task that waits for an event. It needs six more turns of the event loop for each message.
        """
        if not self._woken and self._wait_timeout is not None:
            self._wait_timeout.reschedule(asyncio.get_running_loop().time())
        self._woken = True

    async def _take_safely(self, message: Message, sent: float) -> Delivery | None:
        """Call :meth:`_take`, and catch its errors, so that one bad message does not stop the other messages.

        The bad message is received again later, and goes to quarantine after too many deliveries.
        """
        try:
            return await self._take(message, sent)
        except Exception as error:
            log.exception("message_defect", queue=self.queue, message_id=message.receipt.message_id)
            if message.dequeue_count > quarantine.MAX_DELIVERIES:
                deletion = DeleteMessage(queue=self.queue, message=message.receipt, quiet=True)
                item = quarantine.of_message(self.queue, message, f"it cannot be processed: {error!r}")
                await self._quarantine(item, deletion)
            return None

    async def _deliver_safely(self, held: Delivery) -> None:
        """Deliver a message. If that fails, make the message receivable again."""
        try:
            self._deliver(held)
        except Exception:  # an error with one message must not stop the reader
            log.exception("message_defect", queue=self.queue, message_id=held.message_id)
            await self.give_back([held], delay=RETRY_DELAY, failed=True)

    async def _take(self, message: Message, sent: float) -> Delivery | None:
        """Decode a received message, and renew its visibility from now on. None: there is nothing new to deliver."""
        known = self._renewer.known(message.receipt.message_id)
        if known is not None:
            known.receipt, known.claimed, known.gone = message.receipt, sent, False
            return None
        left = self._left.get(message.receipt.message_id)
        if left is not None:
            left.receipt = message.receipt
            await self._delete_again(left)
            return None
        try:
            held = await decode_message(self._store, self._names, self.queue, message, sent)
        except MessageError as error:
            deletion = DeleteMessage(queue=self.queue, message=message.receipt, quiet=True)
            await self._quarantine(quarantine.of_message(self.queue, message, str(error)), deletion)
            return None
        except StorageError as error:  # the message is received again when its visibility timeout is over
            log.warning("payload_unreadable", queue=self.queue, message_id=message.receipt.message_id, error=str(error))
            return None
        cause = self._unprocessable(held)
        if cause is not None:
            item = quarantine.of_message(self.queue, message, cause)
            await self._quarantine(replace(item, instance_id=held.message.instance.instance_id), held.deletion())
            return None
        self._renewer.add(held)
        return held

    def _unprocessable(self, held: Delivery) -> str | None:
        """Return why a decoded message must go to quarantine. None: the message can be delivered."""
        event_type = held.message.event.event_type
        if event_type not in self._carries:
            return f"its event is {event_type.name}, which queue {self.queue} does not carry"
        if held.deliveries > quarantine.MAX_DELIVERIES or held.envelope.failures > quarantine.MAX_FAILURES:
            return f"{held.envelope.failures} failed processings, {held.deliveries} deliveries"
        return None

    async def _quarantine(self, item: quarantine.Quarantined, deletion: DeleteMessage) -> bool:
        """Put a message into quarantine and delete it from its queue.

        :returns: False if the store failed. The message is then still in its queue, and its next delivery tries again.
        """
        known = {"instance_id": item.instance_id} if item.instance_id else {}
        log.error("quarantined", queue=item.queue, message_id=item.message_id, cause=item.cause, **known)
        try:
            await quarantine.keep(self._store, self._names, item, deletion)
        except StorageError as error:
            log.warning("quarantine_failed", message_id=item.message_id, error=str(error))
            return False
        self._count()
        return True


class ControlReader(Reader):
    """The reader of a control queue while this worker owns the partition. It counts the messages in a bounded buffer.

    :param context: what all readers of this worker share.
    :param tenure: the time for which this worker owns the partition.
    :param limit: the most messages that may be delivered but not yet taken into an episode.
    :param limit_bytes: the most bytes of such messages.
    :param deliver: called with this reader and each new message.
    """

    def __init__(
        self,
        context: ReaderContext,
        *,
        tenure: Tenure,
        limit: int,
        limit_bytes: int,
        deliver: Callable[[ControlReader, Delivery], None],
    ) -> None:
        super().__init__(
            context,
            queue=tenure.queue,
            carries=CONTROL_EVENTS,
            room=lambda: (
                0
                if self.stopping
                else admit(
                    buffered=self.buffered, buffered_bytes=self.buffered_bytes, limit=limit, limit_bytes=limit_bytes
                )
            ),
            deliver=self._buffer,
            check=tenure.check,  # a paused process may continue here after its lease has expired
        )
        self.tenure = tenure
        self.load = Load(context.clock.monotonic())
        lost, began = tenure.failover, context.clock.monotonic()
        self._left_messages = None if lost is None else LeftMessages(lost, began=began, visibility=context.visibility)
        self._moved = context.clock.monotonic()
        self.buffered = 0
        self.buffered_bytes = 0
        self.stuck: set[tuple[str, str]] = set()
        """Instance ids and execution ids of the instances in quarantine, as this reader last read them."""
        self._forward = deliver

    async def _prepare(self) -> None:
        self.stuck = await quarantine.stuck(self._store, self._names, self.queue)

    async def is_quarantined(self, instance_id: str, execution_id: str | None) -> bool:
        """Return whether an instance is in quarantine as a whole. Before this returns True, it asks the store again.

        :param execution_id: execution id of the generation that is asked about.
        :raises StorageError: the store does not answer.
        """
        if (instance_id, execution_id) not in self.stuck:
            return False
        found = await quarantine.stuck(self._store, self._names, self.queue, instance_id)
        self.stuck = {one for one in self.stuck if one[0] != instance_id} | found
        return (instance_id, execution_id) in found

    @property
    def failover(self) -> Failover | None:
        """The loss of the former owner with which the tenure began, and what this reader has found of it so far."""
        return None if self._left_messages is None else self._left_messages.failover

    @property
    def progressed(self) -> float:
        """Monotonic time of the last progress: a receive that the store has not refused, or messages that left the
        buffer."""
        return max(self.last_poll, self._moved)

    def offer(self, held: LocalResponse) -> None:
        """Deliver an activity's response that has no message in a queue.

        The caller keeps the activity's work item invisible until the response is processed or given back.
        """
        self._buffer(held)

    def _buffer(self, held: Delivery) -> None:
        self.load.count += 1
        if self._left_messages is not None and held.in_queue and held.dequeue_count:
            self._left_messages.note(held)
        self.buffered += 1
        self.buffered_bytes += held.size
        self._forward(self, held)

    def untaken(self, messages: Iterable[Delivery]) -> None:
        """Add messages to the buffer's counts again: they wait for another episode now."""
        for held in messages:
            self.buffered += 1
            self.buffered_bytes += held.size

    def taken(self, messages: Iterable[Delivery]) -> None:
        """Remove messages from the buffer's counts: an episode has taken them, or they went back to the queue."""
        for held in messages:
            self.buffered -= 1
            self.buffered_bytes -= held.size
        self._moved = self._clock.monotonic()
        self.freed()
