"""What a worker does not have: for how long nobody could run it, and what its partitions need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance, TimerFired
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.formats.message_envelope import Envelope, TaskMessage
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import Member, Need
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.primitives import Receipt
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run
from airflow_provider_taskhub.workers.demand import RECENT, Demand
from airflow_provider_taskhub.workers.missing_functions import FORGET, MissingFunctions, wait_of

WORK = Need("orchestrator", "work", "2")
LIMIT = timedelta(seconds=60)
PAUSE = timedelta(seconds=0.5)
HOUR = timedelta(hours=1)
VISIBILITY = timedelta(seconds=30)


def worker(*orchestrators: str, accepts: dict[str, tuple[str, ...]] | None = None) -> Member:
    return Member(
        worker="w@host/1",
        started=START,
        roles=("orchestrator",),
        apps={"orders": "3"},
        orchestrators=orchestrators,
        activities=(),
        accepts=accepts or {},
    )


class Table:
    """The members, as long as the store answers."""

    def __init__(self, *members: Member) -> None:
        self.members: Sequence[Member] = members
        self.answers = True
        self.looks = 0

    async def live(self) -> Sequence[Member]:
        self.looks += 1
        if not self.answers:
            raise Unavailable("no answer")
        return self.members


def play(table: Table, drive: Any) -> Any:
    async def main() -> Any:
        clock = VirtualClock()
        absences = MissingFunctions(cast(Hub, SimpleNamespace(clock=clock)), table.live, LIMIT, PAUSE)
        task = asyncio.ensure_future(absences.run())
        try:
            return await drive(absences, clock)
        finally:
            task.cancel()

    return run(main())


async def asking(
    absences: MissingFunctions, clock: VirtualClock, seconds: float, *, waited: timedelta = HOUR
) -> str | None:
    """A message that needs it comes again every ten seconds."""
    text = None
    for _ in range(int(seconds / 10)):
        text = absences.gave_up(WORK, waited)
        await clock.sleep(10.0)
    return text


@pytest.mark.rows("K43")
def test_what_nobody_has_had_for_the_limit_is_given_up_naming_who_was_alive() -> None:
    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        return await asking(absences, clock, 50.0), await asking(absences, clock, 40.0)

    before, after = play(Table(worker("other")), drive)
    assert before is None
    assert after.startswith("no live worker has had orchestrator 'work' of version '2' for ")
    assert after.endswith("Alive: w@host/1 (orders 3) has other")


@pytest.mark.parametrize(
    ("pool_of", "pools", "of_pool", "pool"),
    [({"clean": "nowhere"}, ("default",), " of pool 'nowhere'", "nowhere"), ({}, ("heavy", "huge"), "", "default")],
    ids=["named", "default"],
)
def test_what_is_given_up_for_its_pool_names_the_pools_and_the_way_out(
    pool_of: dict[str, str], pools: tuple[str, ...], of_pool: str, pool: str
) -> None:
    member = replace(worker(), roles=("activity",), activities=("clean",), pool_of=pool_of, pools=pools)

    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        absences.gave_up(Need("activity", "clean"), HOUR)
        await clock.sleep(90.0)
        return absences.gave_up(Need("activity", "clean"), HOUR)

    text = play(Table(member), drive)
    assert text.startswith(f"no live worker has had activity 'clean'{of_pool} for ")
    assert f"Start a worker of the pool '{pool}', with --pools {pool}. Alive: " in text
    assert text.endswith(f"w@host/1 (orders 3) has clean (pools {', '.join(pools)})")


@pytest.mark.rows("K43")
@pytest.mark.parametrize("wait", [timedelta(0), LIMIT - timedelta(seconds=1), LIMIT])
def test_one_that_has_not_waited_for_the_limit_itself_goes_on_waiting(wait: timedelta) -> None:
    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        return await asking(absences, clock, 300.0, waited=wait)

    text = play(Table(), drive)
    if wait < LIMIT:
        assert text is None
    else:
        assert "and this instance has waited for it for 60 s. Alive" in text


def held(*, waiting_since: Timestamp | None, received: timedelta) -> Delivery:
    """A message that was inserted an hour before, as a timer is."""
    visible = START + received + VISIBILITY
    event = TimerFired(timestamp=START, fire_at=START, timer_id=1)
    message = TaskMessage(event=event, instance=OrchestrationInstance(instance_id="i"))
    return Delivery(
        queue="q",
        envelope=Envelope(activity_id=UUID(int=1), message=message, waiting_since=waiting_since),
        receipt=Receipt(message_id="m", pop_receipt="r", next_visible=visible),
        inserted=START + -HOUR,
        dequeue_count=1,
        size=1,
        claimed=0.0,
    )


@pytest.mark.rows("K43")
def test_messages_wait_since_the_first_of_them_was_received_by_the_clock_of_the_storage_service() -> None:
    second = timedelta(seconds=1)
    new = held(waiting_since=None, received=second)
    old = held(waiting_since=START + -9 * second, received=2 * second)
    assert wait_of([new], VISIBILITY) == (START + second, timedelta(0))
    assert wait_of([new, old], VISIBILITY) == (START + -9 * second, 11 * second)


@pytest.mark.rows("K43", "K50")
def test_a_worker_with_another_version_does_not_count() -> None:
    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        return await asking(absences, clock, 90.0)

    assert play(Table(worker("work", accepts={"work": ("3",)})), drive) is not None
    assert play(Table(worker("work", accepts={"work": ("2", "3")})), drive) is None
    assert play(Table(worker("work")), drive) is None


@pytest.mark.rows("K43")
def test_the_limit_begins_when_the_last_one_that_has_it_is_gone() -> None:
    table = Table(worker("work"))

    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        await asking(absences, clock, 300.0)
        table.members = ()
        return await asking(absences, clock, 50.0), await asking(absences, clock, 40.0)

    before, after = play(table, drive)
    assert before is None
    assert after.endswith("Alive: none")


@pytest.mark.rows("K43")
def test_a_time_in_which_nobody_could_look_proves_nothing() -> None:
    table = Table()
    table.answers = False

    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        blind = await asking(absences, clock, 300.0)
        table.answers = True
        return blind, await asking(absences, clock, 50.0), await asking(absences, clock, 40.0)

    blind, before, after = play(table, drive)
    assert (blind, before) == (None, None)
    assert after is not None


@pytest.mark.rows("K43", "D83")
def test_what_another_worker_could_run_comes_back_soon() -> None:
    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        await asking(absences, clock, 10.0)
        return absences.delay(WORK, 1), absences.delay(WORK, 9)

    assert play(Table(worker("work")), drive) == (PAUSE, PAUSE)
    assert play(Table(), drive) == (timedelta(seconds=2), timedelta(seconds=15))


def activity_pauses(counts: Sequence[int], *, having: int, lacking: int) -> list[float]:
    """For how long a worker gives an activity back that it has received so many times, in seconds."""
    need = Need("activity", "clean")

    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        absences.gave_up(need, HOUR)
        await clock.sleep(1.0)
        return [absences.delay(need, count).total_seconds() for count in counts]

    able, other = (replace(worker(), roles=("activity",), activities=names) for names in (("clean",), ("other",)))
    return list(play(Table(*[able] * having, *[other] * lacking, worker()), drive))


@pytest.mark.rows("K43")
def test_an_activity_of_another_worker_comes_back_at_once_and_later_where_that_one_is_busy() -> None:
    assert activity_pauses([0, 1, 2, 6, 12, 999], having=1, lacking=1) == [0.5, 0.5, 0.5, 0.5, 1.0, 5.0]


@pytest.mark.rows("K43")
@pytest.mark.parametrize("lacking", [1, 2, 9])
def test_an_activity_that_chance_brings_to_wrong_workers_does_not_wait_ever_longer(lacking: int) -> None:
    """Three times as often in a row as is likely: it has waited for less than a second each time."""
    counts = range(1, 3 * (lacking + 1) + 1)
    assert sum(activity_pauses(counts, having=1, lacking=lacking)) < len(counts)


def test_nobody_is_looked_for_once_nothing_asks_any_more() -> None:
    table = Table()

    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        await clock.sleep(60.0)
        before = table.looks
        await asking(absences, clock, 10.0)
        await clock.sleep(FORGET + 10.0)
        looks = table.looks
        await clock.sleep(600.0)
        return before, looks > 0, table.looks - looks

    assert play(table, drive) == (0, True, 0)


# what a partition's instances need


@pytest.mark.rows("K43")
def test_needs_are_kept_by_partition_for_a_minute_the_longest_waiting_first() -> None:
    async def main() -> None:
        clock = VirtualClock()
        demand = Demand(clock)
        a, b, c = (Need("orchestrator", name) for name in "abc")
        now = clock.utc_now()
        demand.ran(1, a)
        demand.lacks(1, b, now)
        demand.lacks(1, c, now + timedelta(seconds=-5))
        demand.lacks(1, b, now + timedelta(seconds=-9))
        assert demand.of(1) == ((a,), (b, c))
        assert demand.of(2) == ((), ())
        await clock.sleep(RECENT / 2)
        demand.ran(1, a)
        demand.lacks(1, c, now)
        await clock.sleep(RECENT / 2 + 1)
        assert demand.of(1) == ((a,), (c,))
        demand.begin(1)
        assert demand.of(1) == ((), ())
        demand.ran(1, a)
        demand.end(1)
        assert demand.of(1) == ((), ())

    run(main())


def test_people_are_told_once_a_minute_of_each_need() -> None:
    async def drive(absences: MissingFunctions, clock: VirtualClock) -> Any:
        told = []
        for _ in range(13):
            told.append((absences.is_log_due(WORK), absences.is_log_due(Need("activity", "other"))))
            await clock.sleep(10.0)
        return told

    told = play(Table(), drive)
    assert [index for index, (tell, _) in enumerate(told) if tell] == [0, 6, 12]
    assert [index for index, (_, tell) in enumerate(told) if tell] == [0, 6, 12]
