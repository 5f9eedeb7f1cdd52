"""Held messages, tenures and stored facts by hand."""

from __future__ import annotations

import itertools
from datetime import timedelta
from uuid import UUID, uuid4

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventRaised, ExecutionStarted, HistoryEvent, OrchestrationInstance
from airflow_provider_taskhub.errors import LeaseLost
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage
from airflow_provider_taskhub.hub.model import Failover, HubNames
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Receipt

NAMES = HubNames("Unit")
NOW = Timestamp.parse("2026-03-01T12:00:00Z")
GEN0 = "a" * 32
"""Execution id of a start."""
_numbers = itertools.count(1)


def later(seconds: float) -> Timestamp:
    return NOW + timedelta(seconds=seconds)


def start(execution_id: str = GEN0, **fields: object) -> ExecutionStarted:
    instance = OrchestrationInstance(instance_id="i", execution_id=execution_id)
    return ExecutionStarted(timestamp=NOW, instance=instance, name="Hello", **fields)  # type: ignore[arg-type]


def raised(name: str = "go") -> EventRaised:
    return EventRaised(timestamp=NOW, name=name, input="1")


def held(
    event: HistoryEvent,
    *,
    instance_id: str = "i",
    execution_id: str | None = None,
    at: float = 0.0,
    queue: str = "unit-control-00",
    activity_id: UUID | None = None,
    size: int = 100,
) -> Delivery:
    """A message, enqueued ``at`` seconds after NOW."""
    number = next(_numbers)
    instance = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
    envelope = Envelope(
        activity_id=activity_id or uuid4(),
        message=TaskMessage(event=event, instance=instance),
        sequence_number=number,
        sender=instance,
    )
    return Delivery(
        queue=queue,
        envelope=envelope,
        receipt=Receipt(message_id=f"m{number}", pop_receipt=f"p{number}", next_visible=later(30)),
        inserted=later(at),
        dequeue_count=1,
        size=size,
        claimed=0.0,
    )


class Stay:
    """A tenure."""

    partition, epoch, draining = 0, 1, False
    failover: Failover | None = None

    def __init__(self, queue: str = "unit-control-00") -> None:
        self.queue, self.lost, self.over = queue, False, False

    def check(self) -> None:
        if self.lost:
            raise LeaseLost("lost")

    def drained(self) -> None:
        self.over = True
