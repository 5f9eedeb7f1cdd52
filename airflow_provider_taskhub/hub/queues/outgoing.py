"""From what an episode or an activity decided to texts in queues: pure. docs/concepts/checkpoint.md has the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.episode import Episode, Outbound
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    HistoryEvent,
    OrchestrationInstance,
    TaskScheduled,
    TimerFired,
)
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage, spill
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import MAX_VISIBILITY, PutBlob, PutMessage, Receipt

NOBODY = OrchestrationInstance(instance_id="", execution_id="")
"""Sender of a client's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """A message about to be put.

    :param delay: until it may be received: a timer's, a scheduled start's.
    :param claim: how long this worker claims it with the put, to be handed over in memory; None: it does not.
    """

    queue: str
    text: str
    envelope: Envelope
    blob: PutBlob | None = None
    delay: timedelta = timedelta(0)
    claim: timedelta | None = None

    def put(self) -> PutMessage:
        visibility = self.claim or self.delay
        return PutMessage(queue=self.queue, text=self.text, visibility=visibility, claimed=self.claim is not None)

    def held(self, receipt: Receipt, *, claimed: float) -> Delivery:
        """The message as this worker's own, once it is put and the history that it stands for is committed."""
        assert self.claim is not None
        return Delivery(
            queue=self.queue,
            envelope=self.envelope,
            receipt=receipt,
            inserted=Timestamp(receipt.next_visible.ticks - int(self.claim.total_seconds() * 10_000_000)),
            dequeue_count=0,
            size=len(self.text),
            claimed=claimed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How messages find their queue, and which of them this worker may claim.

    :param control: instance id → name of its control queue.
    :param claims: queue name → how many more messages this worker may claim there now, and for how long.
    :param sequence: the process-wide count of messages.
    """

    names: HubNames
    control: Callable[[str], str]
    claims: Callable[[str], tuple[int, timedelta]]
    sequence: Callable[[], int]


def _delay(event: HistoryEvent, now: Timestamp) -> timedelta:
    if isinstance(event, TimerFired):  # its times are the instance's: this clock may be behind them
        due, now = event.fire_at, max(now, event.timestamp)
    elif isinstance(event, ExecutionStarted) and event.scheduled_start_time is not None:
        due = event.scheduled_start_time
    else:
        return timedelta(0)
    return min(max(timedelta(0), due - now), MAX_VISIBILITY)


def outbound_message(
    event: HistoryEvent,
    target: OrchestrationInstance,
    *,
    names: HubNames,
    queue: str,
    sequence: int,
    sender: OrchestrationInstance,
    now: Timestamp,
    episode: int | None = None,
    activity_id: str | None = None,
    context: Outbound | None = None,
    claim: timedelta | None = None,
) -> OutboundMessage:
    """One message, spilled if it must be. A spilled or delayed one is never claimed."""
    delay = _delay(event, now)
    if delay:
        claim = None
    envelope = Envelope(
        activity_id=UUID(activity_id) if activity_id else uuid4(),
        message=TaskMessage(event=event, instance=target, context_tags=context.context_tags if context else None),
        sequence_number=sequence,
        episode=episode,
        sender=sender,
        deliveries=1 if claim else 0,
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
    """All messages of an episode, in the order decided."""
    room: dict[str, int] = {}
    found: list[OutboundMessage] = []
    for outbound in episode.outbound:
        event = outbound.event
        is_activity = isinstance(event, TaskScheduled)
        queue = routing.names.work_items if is_activity else routing.control(outbound.target.instance_id)
        limit, claim = routing.claims(queue)
        made = outbound_message(
            event,
            outbound.target,
            names=routing.names,
            queue=queue,
            sequence=routing.sequence(),
            sender=episode.loaded,
            now=now,
            episode=episode.number,
            activity_id=outbound.action_id,
            context=outbound,
            claim=claim if room.setdefault(queue, limit) > 0 else None,
        )
        if made.claim is not None:
            room[queue] -= 1
        found.append(made)
    return tuple(found)


def claimed(found: Sequence[OutboundMessage], receipts: Sequence[object], *, sent: float) -> list[Delivery]:
    """The claimed ones among the letters just put, as held messages."""
    return [
        made.held(receipt, claimed=sent)
        for made, receipt in zip(found, receipts, strict=True)
        if made.claim is not None and isinstance(receipt, Receipt)
    ]
