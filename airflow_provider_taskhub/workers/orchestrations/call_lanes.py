"""Decides in which queue each call of an activity waits for a slot, so that many calls of one hold up nobody else.

The first few open calls of each caller go to the first queue of their activity. The further ones go to a lane, which is
read when the first queue is empty. So do all calls of low priority. A caller is a DAG, or an orchestrator whose
instances no DAG has started. Of activities with queues of their own, which have a limit or need memory, few can run at
once, so fewer calls go to the first queue.

What is known of the open calls is in memory, and only the order depends on it. After a partition has moved, the new
owner counts anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.hub.model import LANES, HubNames
from airflow_provider_taskhub.instance_limit import priority_of
from airflow_provider_taskhub.tags import DAG_TAG
from airflow_provider_taskhub.workers.orchestrations.loading import LoadedInstance

OF_CALLER, OF_INSTANCES = 8, 16
"""The most open calls of a caller in a first queue. The second number counts for a call whose instance has fewer than
:data:`OF_INSTANCE` calls there. Both numbers are for one partition of a hub with at most four partitions. With more
partitions they are smaller, but at least those that follow."""
FEWEST_OF_CALLER, FEWEST_OF_INSTANCES = 2, 4
"""The same numbers for the queues of an activity, and the smallest numbers for others."""
OF_INSTANCE = 2
"""The number of calls from which on an instance has many calls in a first queue."""
USUAL = 4
"""The number of partitions of a hub if nobody chose another number."""

_Share = tuple[int, str, str]
"""A partition, a caller and a first queue."""


@dataclass(slots=True)
class _Open:
    """The open calls of an instance that wait, or have waited, in a first queue: by their numbers, the queue."""

    partition: int
    caller: str
    queues: dict[int, str] = field(default_factory=dict)

    def count(self, queue: str) -> int:
        return sum(one == queue for one in self.queues.values())


class CallLanes:
    """Knows how many calls of each caller are in the first queues.

    :param partitions: the number of partitions of the hub. Each owner knows only the instances of its own.
    :param queues: by the name of an activity, the first queue of its calls, if it is not that of most activities.
    :param own: the first queues of activities with queues of their own, by the names of these.
    :param lanes: by the name of an activity, its lanes, the one of low priority last. An activity that is not here has
        none: all its calls wait in one queue.
    """

    def __init__(
        self,
        names: HubNames,
        partitions: int,
        queues: Mapping[str, str],
        own: Mapping[str, str],
        lanes: Mapping[str, Sequence[str]],
    ) -> None:
        self._names, self._queues, self._own, self._lanes = names, queues, own, lanes
        part = max(1, partitions / USUAL)
        self._most = max(FEWEST_OF_CALLER, int(OF_CALLER / part)), max(FEWEST_OF_INSTANCES, int(OF_INSTANCES / part))
        self._open: dict[str, _Open] = {}
        """By instance id."""
        self._counts = Counter[_Share]()

    def lost(self, partition: int) -> None:
        """Forget the instances of a partition that this worker does not serve any more."""
        for instance_id in [one for one, known in self._open.items() if known.partition == partition]:
            self.ended(instance_id)

    def ended(self, instance_id: str) -> None:
        """Forget an instance."""
        known = self._open.pop(instance_id, None)
        if known is None:
            return
        for queue in known.queues.values():
            share = known.partition, known.caller, queue
            self._counts[share] -= 1
            if not self._counts[share]:
                del self._counts[share]

    def place(
        self, live: LoadedInstance, partition: int, calls: Sequence[TaskScheduled]
    ) -> Sequence[tuple[str, str | None]]:
        """Return for each call that an episode sends its queue, and the lane of further calls (``Envelope.more``).

        Call this at each checkpoint, also if the episode has made no call: calls that have ended do not count any more.

        :param live: the instance after the episode. Its open calls contain the new calls.
        """
        known, low = self._follow(live, partition, calls), priority_of(live.tags) < 0
        found: list[tuple[str, str]] = []
        more: dict[str, str] = {}
        for call in calls:
            first, lanes = self._queues.get(call.name, self._names.work_items), self._lanes.get(call.name)
            if lanes is None:
                found.append((first, first))
            elif not low and self._is_first(known, first, own=call.name in self._own):
                self._add(known, live, call, first)
                found.append((first, first))
            else:
                more[first] = lanes[-1] if low else lanes[crc32(known.caller.encode()) % LANES]
                found.append((more[first], first))
        return [(queue, more.get(first) if queue == first else None) for queue, first in found]

    def _follow(self, live: LoadedInstance, partition: int, calls: Sequence[TaskScheduled]) -> _Open:
        """Return what is known of an instance, after its calls that have ended were taken away.

        :param calls: the new calls. An earlier generation, or a checkpoint that failed, may have had their numbers.
        """
        instance_id = live.execution.instance.instance_id
        known = self._open.get(instance_id)
        self.ended(instance_id)
        again = _Open(partition, live.tags.get(DAG_TAG) or live.name)
        if known is not None:
            still = live.open_tasks.keys() - {call.event_id for call in calls}
            again.queues = {number: queue for number, queue in known.queues.items() if number in still}
        if again.queues:
            self._open[instance_id] = again
            self._counts.update((partition, again.caller, queue) for queue in again.queues.values())
        return again

    def _add(self, known: _Open, live: LoadedInstance, call: TaskScheduled, queue: str) -> None:
        known.queues[call.event_id] = queue
        self._counts[known.partition, known.caller, queue] += 1
        self._open[live.execution.instance.instance_id] = known

    def _is_first(self, known: _Open, queue: str, *, own: bool) -> bool:
        """Return whether the next call of an instance goes to its first queue.

        :param own: True: the queue is that of one activity. False: it is that of all activities of a kind.
        """
        most, most_of_few = (FEWEST_OF_CALLER, FEWEST_OF_INSTANCES) if own else self._most
        of_caller = self._counts[known.partition, known.caller, queue]
        return of_caller < most or (known.count(queue) < OF_INSTANCE and of_caller < most_of_few)
