"""Reading one partition's control queue while this worker serves it.

Owns prefetch, decoding, renewal and giving back. Never decides what a message means: it delivers, in arrival order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.engine.lifecycle import HAPPENINGS
from airflow_provider_taskhub.errors import AccessDenied, InputError, LeaseLost, NotFound, StorageError, Throttled
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.formats.message_envelope import MessageError, blob_of, decode, unspill
from airflow_provider_taskhub.hub.model import HubNames, Tenure
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.delivery import Delivery, LocalResponse, VisibilityRenewer, give_back
from airflow_provider_taskhub.hub.queues.pacing import Load, PollingBackoff, admit, batching_delay
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, DeleteMessage, Message, Store
from airflow_provider_taskhub.storage.rules import check_key
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.telemetry import Outage

log = structlog.get_logger(__name__)

TURN = 0.5
"""Seconds after which a queue is to be asked again, however much else there is to do."""
_RECEIVES = Retries(after=(StorageError,), first=1.0, factor=1.0)
"""Pauses after an error of the store: 1 s, or as long as the store asks."""
AGAIN = timedelta(seconds=1)
"""Until what could not be kept aside is delivered again."""
CONTROL_EVENTS = frozenset(HAPPENINGS)
"""Events that a control queue carries: those that happen to an instance."""
WORK_EVENTS = frozenset({EventType.TaskScheduled})
"""Events that the work-item queue carries."""
_WRAPPED = '"TaskMessage":null'
"""In the text of a message whose payload lies in a blob."""


async def decode_message(store: Store, names: HubNames, queue: str, message: Message, claimed: float) -> Delivery:
    """A received message with its spilled payload fetched.

    :raises MessageError: when it cannot be decoded, its blob is gone, or no instance can have its id.
    :raises StorageError: when the blob cannot be read now; the message is then given back, not judged.
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
    try:  # no table can be asked for what is no key; a .NET client's ids may be longer than ours
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


class Reader:
    """Claims messages of a queue, decodes them and keeps them claimed until told otherwise.

    :param carries: events that this queue carries; every other one goes to quarantine.
    :param room: how many messages may be claimed now; 0 waits for :meth:`freed` or :meth:`wake`.
    :param deliver: called with each new message; a redelivery of one that is held only replaces its receipt.
    :param check: called right before each receive; raises ``LeaseLost`` when the queue may not be read any more.
    :param runs: whether this worker can run a message. What it cannot run does not quicken its looks: it would be first
        again and again, and a worker that can run it would never receive it.
    :param quarantined: called for each of its messages that was brought into quarantine.
    :param supervisor: runs the loop that renews held messages; None: one of its own.
    """

    def __init__(
        self,
        *,
        store: Store,
        names: HubNames,
        queue: str,
        carries: Collection[EventType],
        clock: Clock,
        visibility: timedelta,
        max_polling: timedelta,
        room: Callable[[], int],
        deliver: Callable[[Delivery], None],
        check: Callable[[], None] = lambda: None,
        runs: Callable[[Delivery], bool] = lambda held: True,
        quarantined: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.queue = queue
        self._supervisor = supervisor or Supervisor(clock)
        self._carries = carries
        self.stopping = False
        self._store, self._names, self._clock = store, names, clock
        self.visibility = visibility
        self._room, self._deliver, self._check, self._runs = room, deliver, check, runs
        self._count = quarantined
        self._renewer = VisibilityRenewer(store, clock, visibility)
        self._backoff = PollingBackoff(ceiling=max_polling.total_seconds())
        self._draw = random.Random()  # jitter, not secrets
        self._space = asyncio.Event()
        self._woken = False
        self._nap: asyncio.Timeout | None = None
        self._breath: asyncio.Timeout | None = None
        self._stopped = asyncio.Event()
        self.last_poll = clock.monotonic()
        """When the last receive that was answered was sent; before the first one, when this was made."""
        self._waiting: float | None = None
        """Since when the queue waits for its turn, for want of room."""
        self.signalled = False
        """Whether the store has signalled the newest messages; False: they were found by polling."""

    def held(self) -> tuple[Delivery, ...]:
        return self._renewer.held()

    @property
    def starved(self) -> bool:
        """Whether the queue was not read for half a second because there was no room for its messages.

        Then this worker must not claim messages while it puts them: each would take the next room, and the messages in
        the queue would never be read.
        """
        waits = self._waiting is not None and self._clock.monotonic() - self._waiting >= TURN
        return waits and self._room() <= 0

    def adopt(self, held: Delivery) -> None:
        """Take over a message that a put of this worker claimed; it is delivered like a received one."""
        self._renewer.add(held)
        self._deliver(held)

    def release(self, messages: Iterable[Delivery]) -> None:
        """The messages are deleted or given back: no renewal any more, and room for others."""
        for held in messages:
            self._renewer.remove(held)
            held.settle(True)
        self.freed()

    def freed(self) -> None:
        """There may be room again. Ends only a wait for room: who found the queue empty has no reason to look again."""
        self._space.set()

    def wake(self) -> None:
        """Something changed: look at the queue again, now and then at the pace of the back-off's beginning."""
        self._backoff.received()
        self._wake()
        self._space.set()

    def poll_soon(self, pace: float) -> None:
        """Poll the queue now, and again after so many seconds: there may be a message that nothing has signalled."""
        self._backoff.hasten(pace)
        self._wake()

    async def stop(self) -> None:
        """Receive nothing more; returns when the receive under way has been delivered. What is held stays renewed."""
        self.stopping = True
        if self._breath is not None:
            self._breath.reschedule(asyncio.get_running_loop().time())
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
        """Make messages receivable again, by whoever reads the queue next; who offered a response puts it then."""
        messages = tuple(messages)
        for held in messages:
            held.settle(False)
        self.release(messages)
        await give_back(
            self._store, messages, delay=delay, failed=failed, begun=begun, waiting_since=waiting_since, signal=signal
        )

    async def keep_aside(self, held: Delivery, item: quarantine.Quarantined) -> None:
        """Nothing more is expected of a message: it is kept, with the cause. Else it comes again soon."""
        if await self._quarantine(item, held.deletion()):
            self.release([held])
        else:
            await self.give_back([held], delay=AGAIN)

    async def run(self) -> None:
        """Poll and renew until :attr:`stopping`, or cancelled. Errors of the store never end it.

        It may be started again after another error: what is held stays held.
        """
        renewing = self._supervisor.keep(f"renew {self.queue}", self._renewer.run)
        prepared = False
        outage = Outage(log.bind(queue=self.queue), "receive_failed", self._clock.monotonic)
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
                except LeaseLost:  # whoever watches the lease ends this reader: it need not be said twice
                    await self._pause(1.0)
                except StorageError as error:  # not retries.retry: a stop must end the pause
                    outage.failed(error)
                    await self._pause(_RECEIVES.pause(outage.failures, error))
            self._stopped.set()
            await asyncio.Future()  # keep renewing what is held until the owner cancels
        finally:
            self._stopped.set()
            renewing.cancel()

    async def _prepare(self) -> None:
        """What must be known before the first receive."""

    async def _turn(self) -> None:
        room = self._room()
        if room <= 0:
            self._waiting = self._clock.monotonic() if self._waiting is None else self._waiting
            self._space.clear()
            if self._room() <= 0 and not self.stopping:
                await self._space.wait()
            return
        self._check()
        sent = self._clock.monotonic()
        self._woken = False  # before the receive: a stop or a wake that comes during it must end the wait after it
        asked = min(room, MAX_RECEIVE)
        try:
            messages = await self._store.receive(self.queue, limit=asked, visibility=self.visibility)
        except (Throttled, NotFound, AccessDenied):  # the store has answered: another worker would get the same answer
            self.last_poll, self._waiting = sent, None
            raise
        self.last_poll = sent
        if len(messages) < asked or (self._waiting is not None and sent - self._waiting >= 2 * TURN):
            self._waiting = None
        if not messages:
            await self._wait()
            return
        took = self._clock.monotonic() - sent
        if any(_WRAPPED in message.text for message in messages):  # payloads are fetched side by side
            outcomes = await asyncio.gather(*(self._taken(message, sent) for message in messages))
        else:  # a task for each would cost as much as it does
            outcomes = [await self._taken(message, sent) for message in messages]
        if any(outcome is None or self._runs(outcome) for outcome in outcomes):
            self._backoff.received()
        else:
            self._backoff.shift()
        for outcome in outcomes:
            if outcome is not None:
                await self._hand_on(outcome)
        if len(messages) < asked:  # that was all
            await self._pause(batching_delay(took))
            await self._wait()

    async def _pause(self, seconds: float) -> None:
        """Whatever comes meanwhile comes together; only a stop is not kept waiting."""
        if seconds <= 0 or self.stopping:
            return
        try:
            async with asyncio.timeout(None) as self._breath:
                await self._clock.sleep(seconds)
        except TimeoutError:
            if not self.stopping:
                raise
        finally:
            self._breath = None

    async def _wait(self) -> None:
        """Until the back-off is over, the store says that something came, or :meth:`wake`."""
        self.signalled = False
        if self._woken:
            return
        try:
            async with asyncio.timeout(None) as self._nap:
                self.signalled = await self._store.arrival([self.queue], self._backoff.next(self._draw))
                if self.signalled:
                    self._backoff.received()
        except TimeoutError:
            if not self._woken:
                raise
        finally:
            self._nap = None

    def _wake(self) -> None:
        """End the nap, or the next one before it begins. Two tasks side by side would say the same in six more turns of
        the loop, in which a message waits."""
        if not self._woken and self._nap is not None:
            self._nap.reschedule(asyncio.get_running_loop().time())
        self._woken = True

    async def _taken(self, message: Message, sent: float) -> Delivery | None:
        """As :meth:`_take`. A defect in one message stops no other: it comes again, until it is quarantined."""
        try:
            return await self._take(message, sent)
        except Exception as error:
            log.exception("message_defect", queue=self.queue, message_id=message.receipt.message_id)
            if message.dequeue_count > quarantine.MAX_DELIVERIES:
                deletion = DeleteMessage(queue=self.queue, message=message.receipt, quiet=True)
                item = quarantine.of_message(self.queue, message, f"it cannot be processed: {error!r}")
                await self._quarantine(item, deletion)
            return None

    async def _hand_on(self, held: Delivery) -> None:
        try:
            self._deliver(held)
        except Exception:  # a defect that one message meets must not stop the reader of the others
            log.exception("message_defect", queue=self.queue, message_id=held.message_id)
            await self.give_back([held], delay=AGAIN, failed=True)

    async def _take(self, message: Message, sent: float) -> Delivery | None:
        known = self._renewer.known(message.receipt.message_id)
        if known is not None:
            known.receipt, known.claimed, known.gone = message.receipt, sent, False
            return None
        try:
            held = await decode_message(self._store, self._names, self.queue, message, sent)
        except MessageError as error:
            deletion = DeleteMessage(queue=self.queue, message=message.receipt, quiet=True)
            await self._quarantine(quarantine.of_message(self.queue, message, str(error)), deletion)
            return None
        except StorageError as error:  # the payload cannot be read now: it comes again when it becomes visible
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
        """Why a message goes to quarantine although it can be decoded; None: it is delivered."""
        event_type = held.message.event.event_type
        if event_type not in self._carries:
            return f"its event is {event_type.name}, which queue {self.queue} does not carry"
        if held.deliveries > quarantine.MAX_DELIVERIES or held.envelope.failures > quarantine.MAX_FAILURES:
            return f"{held.envelope.failures} failed processings, {held.deliveries} deliveries"
        return None

    async def _quarantine(self, item: quarantine.Quarantined, deletion: DeleteMessage) -> bool:
        """:returns: whether it is kept; else it stays in the queue, and is tried at its next delivery."""
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
    """The reader of one tenure's control queue, with the bounded buffer of that partition.

    :param limit, limit_bytes: of messages delivered but not yet taken into an episode.
    """

    def __init__(
        self,
        *,
        store: Store,
        names: HubNames,
        tenure: Tenure,
        clock: Clock,
        visibility: timedelta,
        max_polling: timedelta,
        limit: int,
        limit_bytes: int,
        deliver: Callable[[ControlReader, Delivery], None],
        quarantined: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(
            store=store,
            names=names,
            queue=tenure.queue,
            carries=CONTROL_EVENTS,
            clock=clock,
            visibility=visibility,
            max_polling=max_polling,
            room=lambda: (
                0
                if self.stopping
                else admit(
                    buffered=self.buffered, buffered_bytes=self.buffered_bytes, limit=limit, limit_bytes=limit_bytes
                )
            ),
            deliver=self._buffer,
            check=tenure.check,  # a process that was stopped wakes up here, before it knows that it is too late
            quarantined=quarantined,
            supervisor=supervisor,
        )
        self.tenure = tenure
        self.load = Load(clock.monotonic())
        self._moved = clock.monotonic()
        self.buffered = 0
        self.buffered_bytes = 0
        self.stuck: set[tuple[str, str]] = set()
        """Instances in quarantine, with their generations, as far as this tenure knows."""
        self._forward = deliver

    async def _prepare(self) -> None:
        self.stuck = await quarantine.stuck(self._store, self._names, self.queue)

    async def is_quarantined(self, instance_id: str, execution_id: str | None) -> bool:
        """Whether a generation of an instance is in quarantine; whoever is told so is told by the store.

        :raises StorageError: when that does not answer.
        """
        if (instance_id, execution_id) not in self.stuck:
            return False
        found = await quarantine.stuck(self._store, self._names, self.queue, instance_id)
        self.stuck = {one for one in self.stuck if one[0] != instance_id} | found
        return (instance_id, execution_id) in found

    @property
    def progressed(self) -> float:
        """When it last asked for messages and was answered; with a full buffer, when room was last made in it."""
        return max(self.last_poll, self._moved)

    def offer(self, held: LocalResponse) -> None:
        """Deliver a response that stands in no queue; who offers it keeps its work item claimed."""
        self._buffer(held)

    def _buffer(self, held: Delivery) -> None:
        self.load.count += 1
        self.buffered += 1
        self.buffered_bytes += held.size
        self._forward(self, held)

    def taken(self, messages: Iterable[Delivery]) -> None:
        """The messages left the buffer (into an episode, or back to the queue)."""
        for held in messages:
            self.buffered -= 1
            self.buffered_bytes -= held.size
        self._moved = self._clock.monotonic()
        self.freed()
