"""Decides which executor runs which waiting activity.

The module holds the queue of the requests, and the seats: the places of the executors of a pool. It starts no process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.scheduling import (
    ExecutorKind,
    FairQueue,
    Need,
    choose,
    place_for_another,
)

STARTS = Retries(after=(ExecutorError,), first=1.0, longest=30.0)
"""Pauses before an executor is started again in a seat, from the second failure in a row on (:attr:`Seat.backoff`)."""


class Leave(StrEnum):
    """Why an executor leaves its seat although it is well. The values are for its log."""

    IDLE = "it had no activity for a long time"
    MAKES_PLACE = "its place is for another Spark application"


class Leaving(NamedTuple):
    """An executor that has left its seat and has not ended yet."""

    executor: Executor
    why: Leave


class Ticket:
    """A request that waits for an executor.

    :param need: what the request needs: a plain executor, or a Spark executor with certain settings.
    :param key: the id of the calling instance; requests of different instances take turns.
    :param alone: True if the request needs an executor that runs nothing else meanwhile.
    :ivar failed_starts: number of executor starts that failed while the request waited.
    :ivar failing_since: monotonic time of the first failed start during the wait; 0 while no start has failed.
    :ivar executor: a future; its result is the executor that the request gets.
    """

    def __init__(self, need: Need, key: str, *, alone: bool) -> None:
        self.need, self.key, self.alone = need, key, alone
        self.failed_starts = 0
        self.failing_since = 0.0
        self.executor: asyncio.Future[Executor] = asyncio.get_running_loop().create_future()


class Seat:
    """The place of one executor in a pool. If the executor dies, a new executor takes the same seat.

    :param kind: the kind of executor: plain or Spark.
    :param need: what the executor is started for; None: nothing yet.
    :ivar next: the need that gets this seat as soon as no attempt runs here. Until then the seat takes no attempts.
    :ivar starting: True while an executor is being started.
    :ivar leaving: the executor that was here before and has to end first.
    :ivar served: False until an executor is ready in the turn of the need.
    :ivar changed: set when the seat was given to another need.
    :ivar since: monotonic time, in seconds, at which the turn of its need began.
    :ivar used: monotonic time, in seconds, at which the last attempt here ended. If the executor has run no attempt
        yet: the time at which it became ready.
    :ivar wanted: set while an executor is to run in this seat.
    :ivar worn: set when another executor is to take the place of the one in this seat.
    :ivar broken: True if the last start of an executor in this seat failed.
    :ivar starts: number of executors that were started in this seat.
    :ivar failures: number of deaths and failed starts of executors in a row. The count returns to 0 when an activity
        ends in this seat without a crash.
    :ivar executor: the executor that is ready in this seat, or None.
    """

    def __init__(self, kind: ExecutorKind, need: Need | None, now: float) -> None:
        self.kind, self.need = kind, need
        self.next: Need | None = None
        self.starting = False
        self.leaving: Leaving | None = None
        self.changed = asyncio.Event()
        self.since = self.used = now
        self.served = False
        self.wanted = asyncio.Event()
        self.worn = asyncio.Event()
        self.broken = False
        self.starts = 0
        self.failures = 0
        self.executor: Executor | None = None

    @property
    def load(self) -> int:
        return self.executor.load if self.executor is not None else 0

    @property
    def open(self) -> bool:
        return self.executor is not None and self.executor.eligible

    @property
    def alone(self) -> bool:
        return self.executor is not None and self.executor.alone and self.executor.load > 0

    @property
    def ready(self) -> bool:
        return self.executor is not None

    def filled(self, executor: Executor, now: float) -> None:
        """Put an executor into this seat that is ready for attempts."""
        self.executor, self.broken, self.used = executor, False, now
        if not self.served:
            self.served, self.since = True, now  # its turn does not begin before

    def vacate(self, why: Leave) -> None:
        """Let the executor, if there is one, leave this seat. No attempt may run in it."""
        if self.executor is not None:
            self.leaving, self.executor = Leaving(self.executor, why), None
        self.rest()

    def rest(self) -> None:
        """Start no executor here until somebody waits for one."""
        self.served = False
        self.wanted.clear()

    def change(self, now: float) -> None:
        """Give this seat to its next need. No attempt may run here, and no executor may be starting."""
        self.vacate(Leave.MAKES_PLACE)
        self.need, self.next = self.next, None
        self.since, self.failures, self.broken = now, 0, False
        self.worn.clear()
        self.changed.set()
        self.wanted.set()

    @property
    def backoff(self) -> float:
        """Seconds to wait before the next executor is started in this place of the pool.

        The value is 0 after one failure, then 1, 2, 4, 8 and 16 after two to six failures in a row, and 30 after more.
        """
        return 0.0 if self.failures < 2 else STARTS.pause(self.failures - 1)


class Assignment:
    """Gives waiting requests to the executors of a pool.

    :param seats: the places of all executors of the pool.
    :param sizes: for each kind the largest number of activities that run at the same time.
    :ivar loads: for each kind the number of requests that have an executor now.
    :ivar idle: set while no request has or waits for an executor.
    :ivar unplaced: set while a request waits for a Spark application that no seat is for, or a seat is about to change.
    """

    def __init__(self, seats: Sequence[Seat], sizes: Mapping[ExecutorKind, int], clock: Clock) -> None:
        self._seats, self._sizes, self._clock = seats, sizes, clock
        self._queues: dict[bool, FairQueue[Ticket]] = {True: FairQueue(), False: FairQueue()}
        """Two queues: True has the suspects (activities that may cause crashes and run alone), False all others."""
        self.loads = Counter[ExecutorKind]()
        self.idle = asyncio.Event()
        self.idle.set()
        self.unplaced = asyncio.Event()

    @property
    def busy(self) -> int:
        """The number of requests that have an executor now."""
        return self.loads.total()

    @property
    def free(self) -> int:
        """Number of further plain requests that could start now, without waiting for other requests to end."""
        return max(0, self._sizes[ExecutorKind.PLAIN] - self.loads[ExecutorKind.PLAIN] - self._waiting)

    @property
    def _waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def waits(self, need: Need | None) -> bool:
        """Return whether a request waits for an executor for this need."""
        return any(need in queue.needs for queue in self._queues.values())

    async def executor_for(self, ticket: Ticket) -> Executor:
        """Wait until the request gets an executor, and return the executor.

        The request counts as work of this executor until the caller calls :meth:`release`.

        :raises ExecutorError: if :meth:`refuse` or :meth:`give_up` ends the wait.
        """
        self._queues[ticket.alone].put(ticket.need, ticket.key, ticket)
        self.idle.clear()
        for seat in self._seats:
            if seat.need == ticket.need:
                seat.wanted.set()
        if self._is_unplaced(ticket.need):
            self.unplaced.set()
        self.assign()
        try:
            return await ticket.executor
        except BaseException:
            self._queues[ticket.alone].discard(ticket.need, ticket.key, ticket)
            if ticket.executor.done() and not ticket.executor.cancelled() and ticket.executor.exception() is None:
                # The request got an executor, but the task that waits here was cancelled before it could go on: give
                # the executor's free place back.
                self.release(ticket.executor.result(), ticket.need.kind)
            else:
                self.settle()
            raise

    def assign(self) -> None:
        """Give waiting requests to executors until no request waits or no executor has room."""
        self._serve(alone=True)
        self._serve(alone=False)

    def arrange(self) -> Sequence[Need]:
        """Decide for which Spark applications the seats are. It is to be called from time to time while
        :attr:`unplaced` is set.

        :returns: what requests need and no seat can be spared for.
        """
        now = self._clock.monotonic()
        waiting = [need for queue in self._queues.values() for need in queue.needs]
        for seat in self._seats:
            if seat.next is not None and seat.next not in waiting:
                seat.next = None  # nobody waits for it any more
                seat.wanted.set()
        for need in waiting:
            if self._is_unplaced(need) and self._has_room(need):
                staying = [seat for seat in self._seats if seat.kind is need.kind and seat.next is None]
                seat_for_it = place_for_another(staying, waiting, now)
                if seat_for_it is not None:
                    seat_for_it.next = need
        for seat in self._seats:
            if seat.next is not None and seat.load:
                self._move_to_idle(seat, waiting, now)
        for seat in self._seats:
            if seat.next is not None and not seat.load and not seat.starting:
                seat.change(now)
        without = [need for need in waiting if self._is_unplaced(need)]
        if not without and all(seat.next is None for seat in self._seats):
            self.unplaced.clear()
        self.assign()
        return without

    def _move_to_idle(self, busy: Seat, waiting: Sequence[Need], now: float) -> None:
        """If a seat is idle by now, give it to the need that waits for a seat in which attempts still run."""
        unused = [seat for seat in self._seats if seat.kind is busy.kind and seat.next is None and not seat.load]
        if seat := place_for_another([one for one in unused if one.need not in waiting], waiting, now):
            seat.next, busy.next = busy.next, None

    def _is_unplaced(self, need: Need) -> bool:
        return all(need not in {seat.need, seat.next} for seat in self._seats)

    def _serve(self, *, alone: bool) -> None:
        queue = self._queues[alone]
        while ticket := queue.take(lambda need: self._has_room(need) and self._place(need, alone=alone) is not None):
            executor = self._place(ticket.need, alone=alone)
            if ticket.executor.done() or executor is None:
                continue  # the task that waited for the executor was just cancelled, so the request needs none
            self.loads[ticket.need.kind] += 1
            executor.load += 1
            executor.unloaded.clear()
            executor.alone = alone
            ticket.executor.set_result(executor)

    def _has_room(self, need: Need) -> bool:
        return self.loads[need.kind] < self._sizes[need.kind]

    def _place(self, need: Need, *, alone: bool) -> Executor | None:
        """Return the executor that takes the next attempt of this need; None if no executor can take an attempt now."""
        coming = [seat for seat in self._seats if seat.executor or (seat.wanted.is_set() and not seat.broken)]
        seats = [seat for seat in coming if seat.need == need and seat.next is None]
        seat = choose(seats, alone=alone, suspects=alone or need in self._queues[True].needs)
        return seat.executor if seat is not None else None

    def release(self, executor: Executor, kind: ExecutorKind) -> None:
        """Note that a request has ended in its executor, and give the free room to a waiting request."""
        self.loads[kind] -= 1
        executor.load -= 1
        for seat in self._seats:
            if seat.executor is executor:
                seat.used = self._clock.monotonic()
        if not executor.load:
            executor.unloaded.set()
        self.settle()

    def settle(self) -> None:
        """Give waiting requests to executors that have room now, and set ``idle`` if there is no request left."""
        self.assign()
        if not self.busy and not self._waiting:
            self.idle.set()

    def refuse(self, error: ExecutorError) -> None:
        """Fail all waiting requests with ``error``."""
        for queue in self._queues.values():
            for need in queue.needs:
                for ticket in queue.drain(need):
                    if not ticket.executor.done():
                        ticket.executor.set_exception(error)

    def give_up(self, need: Need, error: ExecutorError, *, patience: float, worker: str) -> None:
        """Note a failed start of an executor, and fail the requests that have waited too long. All others wait on.

        If an executor does not start, the cause is its app, Spark or the machine, never the activity that waits for the
        executor. So a request first stays in the queue, and the failed start does not count as an attempt of its
        activity.

        :param need: the need for which the worker could not start an executor.
        :param error: the error of the last start.
        :param patience: seconds after which a request fails, counted from the first failed start during its wait.
        :param worker: name of the worker, for the error text.
        """
        now = self._clock.monotonic()
        for queue in self._queues.values():
            for ticket in queue.drain(need):
                ticket.failing_since = ticket.failing_since if ticket.failed_starts else now
                ticket.failed_starts += 1
                if ticket.executor.done():
                    continue
                if now - ticket.failing_since < patience:
                    queue.put(need, ticket.key, ticket)
                    continue
                ticket.executor.set_exception(
                    ExecutorError(
                        f"the worker could not start an executor for {now - ticket.failing_since:.0f} s "
                        f"({ticket.failed_starts} tries; see executor_failed_to_start in the log of worker {worker}): "
                        f"{error}",
                        error.stack_trace,
                    )
                )
