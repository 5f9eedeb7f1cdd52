"""Decides when calls of activities with a limit are received and begin.

The activities of one limit share its places, and each has a queue. When a place becomes free, the queue in which calls
may wait and of which none has begun for longest is read first. Activities of other pools run in other workers: a worker
that has freed a place leaves it to them for a moment. So none starves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import ActivityRecord, WorkerIdentity
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.hub.queues.reader import Reader
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.supervision import Supervisor
from airflow_provider_taskhub.workers.activities.begins import Unasked
from airflow_provider_taskhub.workers.activities.divided_limits import DividedLimits
from airflow_provider_taskhub.workers.activities.hub_places import FIRST_LOOK, HubPlaces
from airflow_provider_taskhub.workers.activities.limits import ActivityLimit
from airflow_provider_taskhub.workers.activities.rates import ActivityRate
from airflow_provider_taskhub.workers.peers import Peers

REST = 2 * FIRST_LOOK
"""Seconds for which a worker leaves a place that it has freed to those that run other activities of the limit."""


def limits_of(activity: ActivityDefinition) -> Iterator[Limit]:
    """Return the limit and the rate that the code of an activity declares."""
    if activity.limit is not None:
        yield Limit(name=activity.limit_name, places=activity.limit, key_tag=activity.limit_key)
    if (rate := activity.rate) is not None:
        yield Limit(
            name=activity.limit_name,
            places=rate.starts,
            seconds=rate.seconds,
            kind=LimitKind.RATE,
            key_tag=activity.limit_key,
        )


def declared_limits(registry: Registry) -> dict[str, str]:
    """Return the limits and rates that the code of activities declares: the number by kind and name.

    :param registry: has the activities.
    """
    limits = (limit for activity in registry.activities.values() for limit in limits_of(activity))
    return {f"{limit.kind} {limit.name}": limit.shown for limit in limits}


Admission: TypeAlias = "ActivityLimits | DividedLimits"
"""What decides when the calls of activities with a limit are received and begin."""


def shared_limits(
    hub: Hub,
    registry: Registry,
    runnable: Collection[str],
    *,
    me: WorkerIdentity,
    peers: Peers,
    times: LeaseTimes,
    end_sessions: Callable[[tuple[str, ...]], Awaitable[None]],
    taken_over: Callable[[str], None],
) -> dict[str, Admission]:
    """Return the limits of the activities that a worker runs, by the names of the activities.

    :param runnable: the activities that the worker can run.
    :param me: the identity of the worker.
    :param peers: tells which other workers are proven dead.
    :param end_sessions: ends Spark Connect sessions that lost attempts have left running.
    :param taken_over: see :class:`.ActivityLimit`.
    """

    def places_of(limit: Limit) -> HubPlaces:
        if limit.kind is LimitKind.RATE:
            return ActivityRate(hub, limit, me=me, times=times)
        return ActivityLimit(
            hub, limit, me=me, peers=peers, times=times, end_sessions=end_sessions, taken_over=taken_over
        )

    found: dict[str, Admission] = {}
    made: dict[str, Admission] = {}
    for name, activity in registry.activities.items():
        if activity.limited and name in runnable:
            shared = activity.limit_name
            if shared not in made:
                others = any(
                    one.limited and one.limit_name == shared and other not in runnable
                    for other, one in registry.activities.items()
                )
                limits = [*limits_of(activity)]
                if activity.limit_key:
                    sharing = [one for one in runnable if registry.activities[one].limit_name == shared]
                    made[shared] = DividedLimits(
                        hub, shared, activity.limit_key, sharing, limits, places_of, me=me, peers=peers
                    )
                else:
                    made[shared] = ActivityLimits(shared, [*map(places_of, limits)], hub.clock, others=others)
            found[name] = made[shared]
    return found


class ActivityLimits:
    """The limit and the rate that some activities share. An attempt needs a place of each.

    :param name: name of the limit.
    :param places: the places of the limit, then those of the rate.
    :param others: whether activities share the limit that this worker cannot run, such as those of another pool.
    """

    def __init__(self, name: str, places: Sequence[HubPlaces], clock: Clock, *, others: bool) -> None:
        self.name, self._places, self._clock = name, tuple(places), clock
        self._others, self._took, self._rests = others, False, float("-inf")
        """Whether other workers share the limit; whether this worker has taken a place since it left one to them; and
        the monotonic time until which it reads nothing."""
        if others:
            for one in places:
                one.longest_look = FIRST_LOOK
        self._open = asyncio.Event()
        self._undecided: dict[Delivery, Reader] = {}
        """The calls that this worker has received, and for which it has not taken a place yet, with their readers."""
        self._readers: dict[Reader, Callable[[], bool]] = {}
        """The readers of the queues, and whether each may read. First comes the one whose last call has begun before
        those of the others."""

    def join(self, reader: Reader, may: Callable[[], bool]) -> None:
        """Let a reader share the places. :param may: tells whether it may read as far as others than this limit say."""
        self._readers[reader] = may

    @property
    def begins_within(self) -> float:
        """Seconds within which an attempt must begin after :meth:`confirm`."""
        return min(places.begins_within for places in self._places)

    def open(self) -> None:
        """Begin to look for free places: a queue exists."""
        self._open.set()
        self.freed()

    def start(self, supervisor: Supervisor) -> None:
        """Keep looking at the places."""
        for places in self._places:
            supervisor.keep(f"{places.limit.kind} limit {self.name}", partial(self._run, places))

    async def _run(self, places: HubPlaces) -> None:
        await self._open.wait()
        await places.run(self._pass_on)

    def freed(self) -> None:
        """Let the readers read on: a place may have become free, or another reader may have found its queue empty."""
        for reader in self._readers:
            reader.freed()

    def _pass_on(self) -> None:
        """Let the readers read on, because a place may have become free. Workers that run the others come first: they
        cannot see when this worker frees a place, and so would never get one while this worker has calls."""
        if self._others and self._took:
            self._took, self._rests = False, self._clock.monotonic() + REST
            asyncio.get_running_loop().call_later(REST, self.freed)
        self.freed()

    # receiving

    def room(self, reader: Reader) -> int:
        """Return how many calls a reader may receive now."""
        free = min(places.free for places in self._places)
        if not free or self._clock.monotonic() < self._rests:
            return 0
        held = {reader: frozenset(reader.held()) for reader in set(self._undecided.values())}
        self._undecided = {call: its for call, its in self._undecided.items() if call in held[its]}
        for earlier, may in self._readers.items():
            if earlier is reader:
                break
            if earlier.waits_for_room and may():
                return 0
        return max(0, free - len(self._undecided))

    def expect(self, held: Delivery, reader: Reader) -> None:
        """Note that a reader has received a call, which may need a place."""
        self._undecided[held] = reader

    def decided(self, held: Delivery) -> None:
        """Note that a received call has a place, or does not ask for one any more."""
        if self._undecided.pop(held, None) is not None:
            self.freed()

    # attempts

    async def take(self, record: ActivityRecord, held: Delivery) -> bool:
        """Take a place of each for an attempt whose record this worker claims next.

        :param held: the work item of the call.
        :returns: False if no place is free.
        :raises Unasked: if the store does not answer, or refuses the request.
        """
        taken: list[HubPlaces] = []
        reader = self._undecided.get(held)
        try:
            for places in self._places:
                if not await places.take(record):
                    break
                taken.append(places)
            else:
                self._took = True
                if reader is not None:  # the others come first now
                    self._readers[reader] = self._readers.pop(reader)
                return True
        except Unasked:
            await self._undo(record, taken)
            raise
        finally:
            self.decided(held)
        await self._undo(record, taken)
        return False

    async def turn_away(self, held: Delivery, reader: Reader) -> None:
        """Give back a call for which no place is free."""
        await reader.give_back([held], begun=False)

    async def dropped(self, held: Delivery) -> None:
        """Note that a call does not begin, because its instance has ended."""
        self.decided(held)

    async def confirm(self, record: ActivityRecord, held: Delivery) -> bool:
        """Return True if the attempt still has its places. Call this after its record was claimed, before it runs.

        :raises Unasked: if the store does not answer, or refuses the request.
        """
        for places in self._places:
            if not await places.confirm(record):
                return False
        return True

    def forget(self, record: ActivityRecord, held: Delivery) -> None:
        """Note that this worker has not claimed the record of an attempt for which it has taken places."""
        for places in self._places:
            places.forget(record)

    async def leave(self, record: ActivityRecord, held: Delivery) -> None:
        """Note that an attempt has ended. Others may begin."""
        for places in self._places:
            await places.leave(record)
        self._pass_on()

    async def _undo(self, record: ActivityRecord, taken: Sequence[HubPlaces]) -> None:
        for places in taken:
            await places.undo(record)
