"""Counts the messages that a lost owner has left in the queue of a partition. For people: no decision depends on it.

The new owner counts only what it receives anyway, so the count costs no request.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import ExecutionStarted, HistoryEvent, TimerFired
from airflow_provider_taskhub.hub.model import MOST_LEFT, Failover
from airflow_provider_taskhub.hub.queues.delivery import Delivery

_WINDOW = 2.0
"""Messages are counted for at least this many visibility timeouts. What the lost owner had received can be received
again after one of them."""


class LeftMessages:
    """The messages that were due in a queue when this worker took the partition, and the instances that they are for.

    A message counts once, however often it is given back. A message of a timer that was not due yet does not count. The
    count ends with the first newer message after the window, so a message that is given back for longer is not counted
    late.

    :param failover: the loss of the former owner.
    :param began: monotonic time, in seconds, at which this worker took the partition.
    :param visibility: the visibility timeout of received messages.
    """

    def __init__(self, failover: Failover, *, began: float, visibility: timedelta) -> None:
        self._began, self._visibility = began, visibility
        self._messages, self._instances = set[int](), set[int]()
        self._over = False
        self.failover = replace(failover, messages=0, instances=0)
        """The loss, with the numbers so far. Any thread may read it."""

    def note(self, held: Delivery) -> None:
        """Count a message that was just received from the queue."""
        if self._over:
            return
        # The time at which this worker took the partition, by the clock of the store, which gives the messages' times.
        taken = held.received(self._visibility) + timedelta(seconds=self._began - held.claimed)
        if held.inserted > taken:
            if held.claimed - self._began > _WINDOW * self._visibility.total_seconds():
                self._end()
            return
        due = _due(held.message.event)
        if due is not None and due > taken:
            return
        self._messages.add(hash(held.message_id))  # a number needs less memory than the text
        self._instances.add(hash(held.message.instance.instance_id))
        messages, instances = len(self._messages), len(self._instances)
        self.failover = replace(self.failover, messages=messages, instances=instances)
        if messages >= MOST_LEFT:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._messages.clear()
        self._instances.clear()


def _due(event: HistoryEvent) -> Timestamp | None:
    if isinstance(event, TimerFired):
        return event.fire_at
    return event.scheduled_start_time if isinstance(event, ExecutionStarted) else None
