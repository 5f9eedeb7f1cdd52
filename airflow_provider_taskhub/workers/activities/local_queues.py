"""Delivers a message in memory if its sender and its reader are the same worker.

A checkpoint puts messages into queues: work items, responses, events for other instances. Often this worker itself
reads the queue. Then the worker claims the message when it puts the message, so that the message is never visible to
other workers. After the commit the worker hands the message to its own reader in memory. That saves a receive and the
wait for the receive. The response of an activity may even reach its instance without a message.

If the worker dies, nothing is lost. A claimed message becomes visible when its claim ends. A response without a message
leaves the work item in the queue until the response is in the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.hub.queues.delivery import Delivery, LocalResponse
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage
from airflow_provider_taskhub.hub.queues.reader import ControlReader, Reader
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.work_items import WorkItems

POLLS_WHILE_BUSY = 80
"""Limit of the extra receives per second, over all partitions, that :meth:`LocalQueues.poll_soon` causes. A worker
with four partitions polls each of them every 50 ms at most."""
FRESH = 0.5
"""The part of the visibility timeout in which a claimed message may be handed over. The first renewal follows after
another quarter of the timeout at most."""


class LocalQueues:
    """Has the readers of all queues that this worker reads: its partitions' control queues and those of work items.

    :param work_items: for each queue of work items, those that this worker has claimed.
    :param takes_work: True if this worker runs activities.
    :param supervisor: runs the task that gives messages back.
    """

    def __init__(
        self,
        work_items: Sequence[WorkItems],
        *,
        takes_work: bool,
        settings: Settings,
        clock: Clock,
        supervisor: Supervisor,
    ) -> None:
        self._work_items = {items.reader.queue: items for items in work_items}
        self._visibility, self._takes_work = work_items[0].visibility, takes_work
        self._limit, self._limit_bytes = settings.buffer, settings.buffer_bytes
        self._clock, self._supervisor = clock, supervisor
        self._readers: dict[str, ControlReader] = {}
        self._polled_all = float("-inf")

    def __iter__(self) -> Iterator[ControlReader]:
        return iter(tuple(self._readers.values()))

    def get(self, queue: str) -> ControlReader | None:
        """Return the reader of a control queue; None if this worker does not serve the partition of the queue."""
        return self._readers.get(queue)

    def add(self, reader: ControlReader) -> None:
        self._readers[reader.queue] = reader

    def remove(self, reader: ControlReader) -> bool:
        """Forget a reader.

        :returns: True if the reader was known. False if the queue has no reader, or the reader of a later stay of the
            partition with this worker; that reader is not forgotten.
        """
        if self._readers.get(reader.queue) is not reader:
            return False
        del self._readers[reader.queue]
        return True

    @property
    def buffered(self) -> int:
        """Number of messages of control queues that wait in the memory of this worker until an episode takes them.

        Messages and responses that came in memory count too. Work items do not count.
        """
        return sum(reader.buffered for reader in self)

    @property
    def oldest_poll(self) -> float:
        """Seconds since the last poll of the queue that was polled least recently; 0 if there is no queue."""
        now = self._clock.monotonic()
        return max((now - reader.last_poll for reader in self), default=0.0)

    def poll_soon(self) -> None:
        """Poll all partitions now, because a message was found in one of them.

        Azure does not tell a reader about a message that another machine puts. Each queue is polled more and more
        rarely while it is empty, up to every 30 s. A client that starts one orchestration after another may send each
        start to another queue, which has been empty for some time. Without this method each start would wait for
        seconds, as it does in DurableTask.
        """
        now, pace = self._clock.monotonic(), len(self._readers) / POLLS_WHILE_BUSY
        if now - self._polled_all >= pace:
            self._polled_all = now
            for reader in self:
                reader.poll_soon(pace)

    def claimable(self, queue: str) -> tuple[int, timedelta]:
        """Return how many messages this worker may claim when it puts them into ``queue``, and for how long."""
        if (items := self._work_items.get(queue)) is not None:
            return items.claimable if self._takes_work else 0, self._visibility
        reader = self._readers.get(queue)
        if reader is None or reader.stopping or reader.starved:
            return 0, self._visibility
        return max(0, self._limit - reader.buffered), self._visibility

    def reserved(self, messages: Sequence[OutboundMessage]) -> AbstractContextManager[object]:
        """Keep room for the messages that a commit claims, until the end of the ``with`` block."""
        claimed = Counter(made.queue for made in messages if made.claim is not None and made.queue in self._work_items)
        stack = ExitStack()
        for queue, count in claimed.items():
            stack.enter_context(self._work_items[queue].reserved(count))
        return stack

    def hand_over(self, claimed: Sequence[Delivery]) -> None:
        """Give claimed messages to their readers after the commit.

        Messages whose queue has no reader in this worker, or no room, are given back to their queue. So are messages
        whose claim has ended or ends soon, because the commit took long: perhaps another worker has received them, or
        does so before this worker has renewed the claim. If another worker has received them, the store refuses to give
        them back, and nothing happens.
        """
        back = []
        oldest = self._clock.monotonic() - self._visibility.total_seconds() * FRESH
        for held in claimed:
            reader = self._reader_for(held)
            if reader is None or reader.stopping or held.claimed < oldest:
                back.append(held)
            else:
                reader.adopt(held)
        if back:
            any_reader = next(iter(self._work_items.values())).reader
            self._supervisor.spawn(any_reader.give_back(back, begun=False), name="give back")

    def _reader_for(self, held: Delivery) -> Reader | None:
        if (items := self._work_items.get(held.queue)) is not None:
            # The slot may have been taken since the claim.
            return items.reader if items.slots.free > 0 else None
        return self._readers.get(held.queue)

    def offer(self, response: LocalResponse) -> bool:
        """Hand the response of an activity to its instance in memory, without a message.

        :returns: True if the response was handed over; False if this worker does not serve the instance or has no room.
        """
        reader = self._readers.get(response.queue)
        full = reader is not None and reader.buffered_bytes >= self._limit_bytes
        if reader is None or reader.stopping or reader.starved or full:
            return False
        reader.offer(response)
        return True
