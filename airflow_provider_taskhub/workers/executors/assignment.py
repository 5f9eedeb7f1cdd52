"""Which executor runs which waiting activity: the queue of a pool, and the places of its executors.

Starts no process and awaits nothing but an executor for a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.retries import Retries
from airflow_provider_taskhub.workers.executors.executor import Executor, ExecutorError
from airflow_provider_taskhub.workers.executors.scheduling import FairQueue, Lane, choose

STARTS = Retries(after=(ExecutorError,), first=1.0, longest=30.0)
"""Pauses before an executor is started again: none after the first death, then these."""


class Ticket:
    """A request that waits for an executor.

    :param key: requests of one key take turns with those of others. :param alone: it wants nothing beside it.
    :ivar failed_starts: starts of executors that failed while it waited. :ivar failing_since: when the first one did.
    """

    def __init__(self, lane: Lane, key: str, *, alone: bool) -> None:
        self.lane, self.key, self.alone = lane, key, alone
        self.failed_starts = 0
        self.failing_since = 0.0
        self.executor: asyncio.Future[Executor] = asyncio.get_running_loop().create_future()


class Seat:
    """The place of one executor, taken by one process after another.

    :ivar wanted: set while there shall be one. :ivar broken: its last start failed.
    :ivar failures: deaths and failed starts in a row; an activity that ends in an executor of this seat resets it.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.wanted = asyncio.Event()
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
    def backoff(self) -> float:
        """Seconds before the next start: none after the first death, then 1, 2, 4 … 30."""
        return 0.0 if self.failures < 2 else STARTS.pause(self.failures - 1)


class Assignment:
    """Gives waiting requests to the executors of a pool.

    :param size: activities at once.
    :ivar idle: set while nothing runs and nothing waits.
    """

    def __init__(self, seats: Sequence[Seat], size: int, clock: Clock) -> None:
        self._seats, self._size, self._clock = seats, size, clock
        self._queues: dict[bool, FairQueue[Ticket]] = {True: FairQueue(), False: FairQueue()}
        """By whether they hold suspects, which run alone."""
        self.busy = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def free(self) -> int:
        """Requests that would not have to wait for others."""
        return max(0, self._size - self.busy - self._waiting)

    @property
    def _waiting(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def waits(self, lane: Lane) -> bool:
        """Whether a request waits for an executor of this lane."""
        return any(queue.has(lane) for queue in self._queues.values())

    async def executor_for(self, ticket: Ticket) -> Executor:
        """Wait for an executor, and count the request as assigned to it until :meth:`release`.

        :raises ExecutorError: from :meth:`refuse` or :meth:`give_up`.
        """
        self._queues[ticket.alone].put(ticket.lane, ticket.key, ticket)
        self.idle.clear()
        for seat in self._seats:
            if seat.lane is ticket.lane:
                seat.wanted.set()
        self.assign()
        try:
            return await ticket.executor
        except BaseException:
            self._queues[ticket.alone].discard(ticket.lane, ticket.key, ticket)
            if ticket.executor.done() and not ticket.executor.cancelled() and ticket.executor.exception() is None:
                self.release(ticket.executor.result())  # cancelled in the very turn in which it got one
            else:
                self.settle()
            raise

    def assign(self) -> None:
        """Give waiting requests to executors, as long as there is room."""
        self._serve(alone=True)
        self._serve(alone=False)

    def _serve(self, *, alone: bool) -> None:
        queue = self._queues[alone]
        while self.busy < self._size and (
            ticket := queue.take(lambda lane: self._place(lane, alone=alone) is not None)
        ):
            executor = self._place(ticket.lane, alone=alone)
            if ticket.executor.done() or executor is None:
                continue  # its task was cancelled a moment ago
            self.busy += 1
            executor.load += 1
            executor.alone = alone
            ticket.executor.set_result(executor)

    def _place(self, lane: Lane, *, alone: bool) -> Executor | None:
        """The executor that takes the next attempt, if any does now."""
        coming = [seat for seat in self._seats if seat.executor or (seat.wanted.is_set() and not seat.broken)]
        seats = [seat for seat in coming if seat.lane is lane]
        seat = choose(seats, alone=alone, suspects=alone or self._queues[True].has(lane))
        return seat.executor if seat is not None else None

    def release(self, executor: Executor) -> None:
        """A request no longer needs its executor."""
        self.busy -= 1
        executor.load -= 1
        self.settle()

    def settle(self) -> None:
        """Something has changed: assign what can be assigned."""
        self.assign()
        if not self.busy and not self._waiting:
            self.idle.set()

    def refuse(self, error: ExecutorError) -> None:
        """Fail everything that waits."""
        for lane in Lane:
            for ticket in (*self._queues[True].drain(lane), *self._queues[False].drain(lane)):
                if not ticket.executor.done():
                    ticket.executor.set_exception(error)

    def give_up(self, lane: Lane, error: ExecutorError, *, patience: float, worker: str) -> None:
        """Fail the requests for which no executor could be started for too long; the others wait on.

        If an executor does not start, the cause is its app, Spark or the machine, never the activity that waits for it.
        So no attempt of the activity is used up.

        :param error: of the last start. :param patience: seconds. :param worker: its name, for the text.
        """
        now = self._clock.monotonic()
        for queue in self._queues.values():
            for ticket in queue.drain(lane):
                ticket.failing_since = ticket.failing_since if ticket.failed_starts else now
                ticket.failed_starts += 1
                if ticket.executor.done():
                    continue
                if now - ticket.failing_since < patience:
                    queue.put(lane, ticket.key, ticket)
                    continue
                ticket.executor.set_exception(
                    ExecutorError(
                        f"its worker could start none for {now - ticket.failing_since:.0f} s ({ticket.failed_starts} "
                        f"tries; see executor_failed_to_start in the log of worker {worker}): {error}",
                        error.stack_trace,
                    )
                )
