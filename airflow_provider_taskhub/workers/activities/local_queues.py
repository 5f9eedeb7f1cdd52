"""The short way of a message whose sender and reader are the same worker.

A checkpoint puts messages into queues: work items, responses, events for other instances. Often this worker itself
reads the queue. Then it claims the message with the put (the message is invisible to others from its first moment), and
hands it to its own reader in memory once the commit is done: that saves a receive and the wait for it. The response of
an activity may even go to its instance without a message.

If the worker dies, nothing is lost: a claimed message becomes visible when its claim ends, and an activity whose
response had no message keeps its work item until the response is in the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.hub.queues.delivery import Delivery, LocalResponse
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage
from airflow_provider_taskhub.hub.queues.reader import ControlReader, Reader
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.work_items import WorkItems

POLLS_WHILE_BUSY = 80
"""Receives a second, over all partitions, that traffic in one of them may cost (50 ms a partition at four)."""


class LocalQueues(Protocol):
    """What the processors of orchestrations and activities know of the queues that this worker reads."""

    def claimable(self, queue: str) -> tuple[int, timedelta]:
        """How many messages this worker may claim when it puts them into this queue, and for how long."""

    def reserved(self, messages: Sequence[OutboundMessage]) -> AbstractContextManager[None]:
        """Keep room for the messages that a commit claims, until the end of the block."""

    def hand_over(self, claimed: Sequence[Delivery]) -> None:
        """Give claimed messages to their readers after the commit; those without a reader or room go back."""

    def offer(self, response: LocalResponse) -> bool:
        """Give an activity's response to its instance without a message.

        :returns: whether this worker serves the instance and has room for the response.
        """


class ServedQueues:
    """The control queues of the partitions that this worker serves, and the work-item queue.

    :param work_items: this worker's share of the work-item queue.
    :param takes_work: whether this worker runs activities.
    """

    def __init__(
        self,
        work_items: WorkItems,
        *,
        takes_work: bool,
        settings: Settings,
        clock: Clock,
        supervisor: Supervisor,
    ) -> None:
        self._work_items, self._takes_work = work_items, takes_work
        self._limit, self._limit_bytes = settings.buffer, settings.buffer_bytes
        self._clock, self._supervisor = clock, supervisor
        self._readers: dict[str, ControlReader] = {}
        self._polled_all = float("-inf")

    def __iter__(self) -> Iterator[ControlReader]:
        return iter(tuple(self._readers.values()))

    def get(self, queue: str) -> ControlReader | None:
        """The reader of a control queue, if this worker serves its partition."""
        return self._readers.get(queue)

    def add(self, reader: ControlReader) -> None:
        self._readers[reader.queue] = reader

    def remove(self, reader: ControlReader) -> bool:
        """Forget a reader; :returns: False when another tenure's reader has its place."""
        if self._readers.get(reader.queue) is not reader:
            return False
        del self._readers[reader.queue]
        return True

    @property
    def buffered(self) -> int:
        """Messages prefetched and not yet taken into an episode."""
        return sum(reader.buffered for reader in self)

    @property
    def oldest_poll(self) -> float:
        """Seconds since the least recently polled partition was polled; 0 without partitions."""
        now = self._clock.monotonic()
        return max((now - reader.last_poll for reader in self), default=0.0)

    def poll_soon(self) -> None:
        """After a message was found in one partition: poll all partitions now.

        On Azure a reader does not hear of a put on another machine, and each of P queues is polled ever more seldom, up
        to every 30 s. Clients that start one orchestration after another would each time meet a queue that has been
        quiet for P starts. DurableTask leaves it so; each start takes seconds there.
        """
        now, pace = self._clock.monotonic(), len(self._readers) / POLLS_WHILE_BUSY
        if now - self._polled_all >= pace:
            self._polled_all = now
            for reader in self:
                reader.poll_soon(pace)

    # LocalQueues

    def claimable(self, queue: str) -> tuple[int, timedelta]:
        if queue == self._work_items.reader.queue:
            return self._work_items.claimable if self._takes_work else 0, self._work_items.visibility
        reader = self._readers.get(queue)
        if reader is None or reader.stopping or reader.starved:
            return 0, self._work_items.visibility
        return max(0, self._limit - reader.buffered), self._work_items.visibility

    def reserved(self, messages: Sequence[OutboundMessage]) -> AbstractContextManager[None]:
        queue = self._work_items.reader.queue
        return self._work_items.reserved(sum(made.claim is not None and made.queue == queue for made in messages))

    def hand_over(self, claimed: Sequence[Delivery]) -> None:
        back = []
        for held in claimed:
            reader = self._reader_for(held)
            if reader is None or reader.stopping:
                back.append(held)
            else:
                reader.adopt(held)
        if back:
            self._supervisor.spawn(self._work_items.reader.give_back(back, begun=False), name="give back")

    def _reader_for(self, held: Delivery) -> Reader | None:
        if held.queue == self._work_items.reader.queue:
            return self._work_items.reader if self._work_items.slots.free > 0 else None  # fewer than there were
        return self._readers.get(held.queue)

    def offer(self, response: LocalResponse) -> bool:
        reader = self._readers.get(response.queue)
        full = reader is not None and reader.buffered_bytes >= self._limit_bytes
        if reader is None or reader.stopping or reader.starved or full:
            return False
        reader.offer(response)
        return True
