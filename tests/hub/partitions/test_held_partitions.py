"""What one worker holds, over a lease store whose answers the test decides: from when a lease's age is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_taskhub.errors import Conflict, Unavailable
from airflow_provider_taskhub.hub.model import Tenure, WorkerIdentity
from airflow_provider_taskhub.hub.partitions.held_partitions import HeldPartitions
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.lease import Lease
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.hub.partitions.tenure import LeaseTenure
from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run

GIVE_UP = AZURE_LEASE.give_up.total_seconds()


ME = WorkerIdentity(name="a", host="h", incarnation="1")


class OneRow:
    """A store of one lease. ``answer`` is awaited after each write that was carried out, and may raise."""

    def __init__(self) -> None:
        self.row = Lease(queue="hub-control-00", etag="0")
        self.reads = self.writes = 0
        self.answer: Callable[[], Awaitable[None]] = _at_once
        self.reading: Callable[[], Awaitable[None]] = _at_once

    async def write(self, lease: Lease) -> Lease:
        if lease.etag != self.row.etag:
            raise Conflict("it has changed")
        self.writes += 1
        self.row = replace(lease, etag=str(self.writes))
        written = self.row
        await self.answer()
        return written

    mark = write

    async def read(self, queue: str) -> Lease:
        self.reads += 1
        await self.reading()
        return self.row

    async def scan(self) -> tuple[Lease, ...]:
        return (self.row,)

    async def asked(self, me: str, queues: Collection[str]) -> tuple[Lease, ...]:
        return ()

    async def insert(self, queue: str) -> bool:
        return False


async def _at_once() -> None:
    return


class Told:
    def __init__(self) -> None:
        self.lost_at: list[float] = []

    def taken(self, tenure: Tenure) -> None: ...

    def asked(self, tenure: Tenure) -> None: ...

    def lost(self, tenure: Tenure, reason: str) -> None:
        self.lost_at.append(asyncio.get_running_loop().time())


async def held(row: OneRow, told: Told) -> tuple[HeldPartitions, LeaseTenure]:
    """Claimed at 0 s."""
    holding = HeldPartitions(
        row,
        PartitionHost(me=ME, listener=told),
        times=AZURE_LEASE,
        deadline=5.0,
        clock=VirtualClock(),
        metrics=LeaseMetrics(),
        began=lambda: None,
    )
    tenure = holding.take_up(await row.write(row.row.claimed(str(ME), START, AZURE_LEASE.take)), 0.0)
    assert tenure is not None
    return holding, tenure


async def renew(holding: HeldPartitions) -> bool:
    (done,) = await asyncio.gather(*holding.attempts({}))
    return done


async def lose() -> None:
    raise Unavailable("its answer was lost")


@pytest.mark.rows("T14", "T15", "T16")
def test_a_write_that_was_carried_out_is_no_renewal_until_its_answer_comes() -> None:
    """The row is as fresh as ever, and reading it again shows that: its age is that of the last answered write."""

    async def play() -> None:
        row, told = OneRow(), Told()
        holding, tenure = await held(row, told)
        row.answer = lose
        for at in (10.0, 12.5, 15.0, 17.5):
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            assert not await renew(holding)
            assert tenure.left() == pytest.approx(GIVE_UP - at)
        assert (row.writes, row.reads) == (5, 3), "from the second on each reads its own write first"
        await asyncio.sleep(GIVE_UP - 17.5)
        holding.expire()
        assert told.lost_at == [GIVE_UP]
        row.answer = _at_once
        await asyncio.gather(*holding.attempts({}))
        assert row.writes == 5, "what is no longer served is not renewed (T15)"

    run(play(), limit=timedelta(minutes=5))


@pytest.mark.rows("T14", "T16")
def test_after_a_lost_answer_the_age_counts_from_the_sending_that_was_confirmed() -> None:
    """The row is read again, which takes a second, and written again, which takes two: neither makes it younger."""

    async def play() -> None:
        row, told = OneRow(), Told()
        holding, tenure = await held(row, told)
        row.answer = lose
        await asyncio.sleep(10.0)
        assert not await renew(holding)

        async def second() -> None:
            await asyncio.sleep(1.0)

        async def two() -> None:
            await asyncio.sleep(2.0)

        row.reading, row.answer = second, two
        await asyncio.sleep(2.5)
        assert await renew(holding)
        assert asyncio.get_running_loop().time() == 15.5
        assert tenure.left() == pytest.approx(GIVE_UP - 2.0), "sent at 13.5, answered at 15.5"

    run(play(), limit=timedelta(minutes=5))


@pytest.mark.rows("T16")
def test_of_two_answers_the_later_sending_counts_in_whatever_order_they_come() -> None:
    async def play() -> None:
        row, told = OneRow(), Told()
        _, tenure = await held(row, told)
        await asyncio.sleep(12.0)
        tenure.renewed(row.row, 11.0)
        tenure.renewed(row.row, 4.0)
        assert tenure.left() == pytest.approx(GIVE_UP - 1.0)

    run(play(), limit=timedelta(minutes=5))
