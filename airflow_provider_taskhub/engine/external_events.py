"""The external events of a live instance: waits that have no event yet, and events that no wait has taken yet.

Upper and lower case of event names are the same, as in DurableTask.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from airflow_provider_taskhub.engine.awaitables import EventWait
from airflow_provider_taskhub.engine.events import EventRaised
from airflow_provider_taskhub.engine.pending_waits import MAX_EXAMINED, AwaitedEvent


class ExternalEvents:
    """Matches events with waits of the same name: the oldest event goes to the oldest wait."""

    __slots__ = ("_by_name", "_raised", "_unclaimed", "_waits")

    def __init__(self) -> None:
        self._waits: dict[str, deque[EventWait]] = {}
        self._unclaimed: dict[int, EventRaised] = {}
        self._by_name: dict[str, deque[int]] = {}
        self._raised = 0

    def __len__(self) -> int:
        """Return the number of event names for which there are waits."""
        return len(self._waits)

    @property
    def unclaimed(self) -> list[EventRaised]:
        """The events that no wait has taken yet, in the order in which they came."""
        return list(self._unclaimed.values())

    def wait(self, task: EventWait) -> None:
        """Give a wait the oldest unused event of its name. If there is none, the wait gets the next one that comes."""
        key = task.name.casefold()
        numbers = self._by_name.get(key)
        if numbers:
            event = self._unclaimed.pop(numbers.popleft())
            task.raised(event.input)
        else:
            self._waits.setdefault(key, deque()).append(task)

    def offer(self, event: EventRaised) -> None:
        """Give an event to the oldest wait for its name. If there is no such wait, keep the event for a later wait."""
        key = event.name.casefold()
        waits = self._waits.get(key)
        while waits:
            task = waits.popleft()
            if not task.is_complete:  # a complete wait was cancelled: the event is for the next wait
                task.raised(event.input)
                return
        self._waits.pop(key, None)
        self._unclaimed[self._raised] = event
        self._by_name.setdefault(key, deque()).append(self._raised)
        self._raised += 1

    def awaited(self) -> list[AwaitedEvent]:
        """Return the oldest open wait of each name, for at most :data:`.pending_waits.MAX_EXAMINED` names."""
        return [
            AwaitedEvent(name=task.name, since=task.since)
            for waits in islice(self._waits.values(), MAX_EXAMINED)
            if (task := next((one for one in islice(waits, MAX_EXAMINED) if not one.is_complete), None))
        ]
