"""Make the messages that an episode or an activity has decided to send. The module does no I/O.

docs/concepts/checkpoint.md says in which order the messages are put.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Episode
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    TaskScheduled,
    TimerFired,
)
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage, spill
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues.delivery import ORDERED, Delivery
from airflow_provider_taskhub.storage.primitives import MAX_VISIBILITY, PutBlob, PutMessage, Receipt, Step

NOBODY = OrchestrationInstance(instance_id="", execution_id="")
"""The sender in messages of clients: empty ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """A message that will be put into a queue.

    :param queue: name of the queue.
    :param text: the message's text in the queue.
    :param envelope: the message before encoding.
    :param blob: the blob with the payload, to be written before the message is put. None: the payload is in the text.
    :param delay: how long the message stays invisible: until a timer fires, or until a scheduled start.
    :param claim: how long the message stays invisible because this worker claims it with the put and delivers it in
        memory. None: this worker does not claim the message.
    """

    queue: str
    text: str
    envelope: Envelope
    blob: PutBlob | None = None
    delay: timedelta = timedelta(0)
    claim: timedelta | None = None

    def put(self, now: Timestamp | None = None) -> PutMessage:
        """Return the operation that puts the message.

        :param now: the time of a later try, by the clock from whose time the message was made: a timer is due at the
            same time then. None: the first try.
        """
        message = self.envelope.message
        visibility = self.claim or (self.delay if now is None or message is None else _delay(message.event, now))
        return PutMessage(queue=self.queue, text=self.text, visibility=visibility, claimed=self.claim is not None)

    def held(self, receipt: Receipt, *, claimed: float) -> Delivery:
        """Return the message as a delivery to this worker. Call this after the message is put and the history is
        committed.

        :param receipt: the pop receipt that the put returned.
        :param claimed: monotonic time, in seconds, at which the put was sent.
        """
        assert self.claim is not None
        return Delivery(
            queue=self.queue,
            envelope=self.envelope,
            receipt=receipt,
            inserted=Timestamp(receipt.next_visible.ticks - int(self.claim.total_seconds() * 10_000_000)),
            dequeue_count=0,
            size=len(self.text),
            claimed=claimed,
            scheduled=claimed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which queue a message goes to, and which messages this worker may claim.

    :param control: returns the name of the control queue of an instance id.
    :param claims: returns, for the name of a queue, how many more messages this worker may claim there now, and the
        visibility timeout of such a claim.
    :param process: id of this process.
    :param sequence: returns the next sequence number of this process.
    :param work_items: returns for each call of an activity its queue, and see ``Envelope.more``.
    """

    names: HubNames
    control: Callable[[str], str]
    claims: Callable[[str], tuple[int, timedelta]]
    process: str
    sequence: Callable[[], int]
    work_items: Callable[[Sequence[TaskScheduled]], Sequence[tuple[str, str | None]]]


def _delay(event: HistoryEvent, now: Timestamp) -> timedelta:
    """Return how long a message must stay invisible: until its timer is due, or until its scheduled start."""
    # The timer was set by the clock of the instance. If this machine's clock is behind that clock, the event's time is
    # nearer to the present time.
    if isinstance(event, TimerFired):
        due, now = event.fire_at, max(now, event.timestamp)
    elif isinstance(event, ExecutionStarted) and event.scheduled_start_time is not None:
        due = event.scheduled_start_time
    else:
        return timedelta(0)
    return min(max(timedelta(0), due - now), MAX_VISIBILITY)


def sending(messages: Sequence[OutboundMessage]) -> tuple[Step, Step]:
    """Return the steps that put messages into their queues. Their large payloads are written first."""
    blobs = tuple([made.blob for made in messages if made.blob is not None])
    puts = tuple([made.put() for made in messages])
    return Step(name="payloads", operations=blobs), Step(name="outbound", operations=puts)


def outbound_message(
    event: HistoryEvent,
    target: OrchestrationInstance,
    *,
    names: HubNames,
    queue: str,
    process: str,
    sequence: int,
    sender: OrchestrationInstance,
    now: Timestamp,
    episode: int | None = None,
    activity_id: str | None = None,
    context_tags: Mapping[str, str] | None = None,
    claim: timedelta | None = None,
    after: int | None = None,
    more: str | None = None,
) -> OutboundMessage:
    """Make one message. Move its payload to a blob if the payload is too large for a queue message.

    A message with a delay or with a blob is never claimed, even if ``claim`` asks for it.

    :param queue: name of the queue that the message goes to.
    :param process: id of the process that sends the message. The receiver compares sequence numbers only within it.
    :param sequence: number of the message among those of this process.
    :param episode: number of the sender's episode. None: the sender is a client.
    :param activity_id: the identity of the action that the message carries out. None: the message gets a random id.
    :param context_tags: tags of the sending instance. None: no tags.
    :param claim: see :class:`OutboundMessage`.
    :param after: see ``Envelope.after``.
    :param more: see ``Envelope.more``.
    """
    delay = _delay(event, now)
    if delay:
        claim = None
    if isinstance(event, ORDERED):
        event = replace(event, taskhub_process=process)
    envelope = Envelope(
        activity_id=UUID(activity_id) if activity_id else uuid4(),
        message=TaskMessage(event=event, instance=target, context_tags=context_tags),
        sequence_number=sequence,
        episode=episode,
        sender=sender,
        deliveries=1 if claim else 0,
        after=after,
        more=more,
    )
    text, blob = spill(envelope, names.large_messages)
    return OutboundMessage(
        queue=queue,
        text=text,
        envelope=envelope,
        blob=blob,
        delay=delay,
        claim=None if blob else claim,
    )


def outbound_messages(episode: Episode, routing: Routing, now: Timestamp) -> tuple[OutboundMessage, ...]:
    """Make all messages of an episode, in the order in which the orchestrator decided them."""
    room: dict[str, int] = {}
    last: dict[str, int] = {}
    found: list[OutboundMessage] = []
    calls = iter(routing.work_items([one.event for one in episode.outbound if isinstance(one.event, TaskScheduled)]))
    for outbound in episode.outbound:
        event = outbound.event
        if isinstance(event, TaskScheduled):
            queue, more = next(calls)
        else:
            queue, more = routing.control(outbound.target.instance_id), None
        limit, claim = routing.claims(queue)
        number, after = routing.sequence(), None
        if isinstance(event, EventRaised):  # a store may put the messages of one checkpoint in any order
            after = last.get(outbound.target.instance_id)
            last[outbound.target.instance_id] = number
        made = outbound_message(
            event,
            outbound.target,
            names=routing.names,
            queue=queue,
            process=routing.process,
            sequence=number,
            # DurableTask's sender is the generation that was loaded. A child that a cancel ends before its start comes
            # knows its parent from the sender alone, and answers the generation that has cancelled it.
            sender=episode.current if _is_cancel(event) else episode.loaded,
            now=now,
            episode=episode.number,
            activity_id=outbound.action_id,
            context_tags=outbound.context_tags,
            claim=claim if room.setdefault(queue, limit) > 0 else None,
            after=after,
            more=more,
        )
        if made.claim is not None:
            room[queue] -= 1
        found.append(made)
    return tuple(found)


def _is_cancel(event: HistoryEvent) -> bool:
    """Return whether a message cancels a child."""
    return isinstance(event, ExecutionTerminated) and event.taskhub_cancels is not None


def claimed(found: Sequence[OutboundMessage], receipts: Sequence[object], *, sent: float) -> list[Delivery]:
    """Return the messages that this worker has claimed with their put.

    :param found: the messages that were put.
    :param receipts: the results of these puts, in the same order.
    :param sent: monotonic time, in seconds, at which the puts were sent.
    """
    return [
        made.held(receipt, claimed=sent)
        for made, receipt in zip(found, receipts, strict=True)
        if made.claim is not None and isinstance(receipt, Receipt)
    ]
