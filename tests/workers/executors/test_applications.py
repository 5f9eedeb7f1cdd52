"""Spark applications with settings of their own: started on demand, side by side, in turn, ended when they are idle.

Time is virtual, and no process is started: the pool's executors are stand-ins. Like a worker, a test asks again for an
attempt that came too late to begin.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.hub.model import BEGINS_WITHIN
from airflow_provider_taskhub.settings import Settings, SparkSettings
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from airflow_provider_taskhub.workers.executors.assignment import Seat
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.keeping import OWN_IDLE
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorLimits, ExecutorPool
from airflow_provider_taskhub.workers.executors.protocol import Configure
from airflow_provider_taskhub.workers.executors.scheduling import IDLE, SPARK, TURN
from tests.workers.conftest import Logs, PoolMaker, request

START = 7.0
"""Seconds that a start of Spark takes here, longer than an attempt may wait to begin."""
BEFORE = 1000.0
"""The monotonic time of a machine does not begin with its worker."""
LARGE, JARS = {"spark.driver.memory": "4g"}, {"spark.jars": "a.jar"}
COMMON = {"spark.a", "spark.app.name"}
"""Settings that each application has."""
Took = tuple[str, float]


class StandIn:
    """An executor whose attempts take the seconds of their input."""

    def __init__(self, configure: Configure, clock: VirtualClock) -> None:
        self.name, self.conf, self._clock = configure.name, configure.conf, clock
        self.ended, self.unloaded = asyncio.Event(), asyncio.Event()
        self.load = self.begun = 0
        self.alone = False
        self.pid: int | None = None
        self.takes = 1.0
        """Seconds that its end takes."""

    @property
    def eligible(self) -> bool:
        return not self.ended.is_set()

    async def run(self, request: ActivityRequest, *_: object) -> ActivityOutcome:
        assert not self.ended.is_set()
        own = {name: value for name, value in self.conf.items() if name not in COMMON}
        asked = {name: value for name, value in (request.application or {}).items() if name not in COMMON}
        assert own == asked, "it was started with other settings"
        if request.begin_by is not None and self._clock.monotonic() > request.begin_by:
            return ActivityOutcome(too_late=True)
        self.begun += 1
        seconds = float((request.input or "[0]").strip("[]"))
        over = asyncio.create_task(self._clock.sleep(seconds))
        ended = asyncio.create_task(self.ended.wait())
        await asyncio.wait((over, ended), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        ended.cancel()
        return ActivityOutcome(executor=self.name, crashed=self.ended.is_set())

    async def kill(self, reason: str) -> None:
        if not self.ended.is_set():
            await self._clock.sleep(self.takes)
        self.ended.set()


class Pool(ExecutorPool):
    """A pool of stand-ins. ``most``: the largest number of Spark executors that there were at once."""

    def __init__(self, applications: int, *, master: str = "local[2]", start: float = START, **more: Any) -> None:
        conf = {"spark.a": "1"}
        config = ExecutorConfig(apps=("none:app",), spark=SparkSettings(master=master, conf=conf))
        clock = VirtualClock()
        super().__init__(config, size=4, processes=1, applications=applications, logs=Logs(), clock=clock, **more)
        self.clock, self.made, self.most, self._start = clock, list[StandIn](), 0, start
        self.fails: dict[str, str] | None = None
        self._configure = self._keeper._starter.configure
        self._keeper._starter.start = self._started  # type: ignore[method-assign]

    @property
    def now(self) -> float:
        """Seconds since the beginning of the test."""
        return self.clock.monotonic() - BEFORE

    @property
    def running(self) -> list[StandIn]:
        return [one for one in self.made if not one.ended.is_set()]

    @property
    def spark(self) -> list[Seat]:
        return self._seats[1:]

    async def _started(self, seat: Seat, name: str) -> Any:
        configure = self._configure(seat, name, None)
        await self.clock.sleep(self._start)
        if self.fails is not None and self.fails.items() <= configure.conf.items():
            raise ExecutorError("Spark does not start")
        executor: Any = StandIn(configure, self.clock)
        self.made.append(executor)
        self.most = max(self.most, len(self.running))
        seat.filled(executor, self.clock.monotonic())
        return executor

    async def ask(self, seconds: float, application: dict[str, str] | None, **more: Any) -> ActivityOutcome:
        """Run an attempt as a worker does: if it was too late to begin, ask the hub again."""
        asked = request("any", seconds, spark=True, application=application, **more)
        while True:
            begin_by = self.clock.monotonic() + BEGINS_WITHIN.total_seconds()
            outcome = await self.run(replace(asked, begin_by=begin_by))
            if not outcome.too_late:
                return outcome
            await self.clock.sleep(0.5)

    async def took(self, seconds: float = 1.0, application: dict[str, str] | None = None) -> Took:
        """Run an attempt. Return the name of its executor, and the time at which it ended."""
        outcome = await self.ask(seconds, application)
        assert outcome.failure is None, outcome.failure
        return outcome.executor or "", self.now


def kept(work: Callable[[Pool], Awaitable[None]], applications: int, *, most: int | None = None, **more: Any) -> None:
    """Do something while a pool keeps its Spark executors. :param most: how many there may be; None: applications."""

    async def main() -> None:
        await asyncio.sleep(BEFORE)
        pool = Pool(applications, **more)
        for number, seat in enumerate(pool.spark):
            pool.supervisor.keep(f"seat {number}", partial(pool._keeper.keep, seat))
        pool.supervisor.keep("places", pool._arrange)
        try:
            await work(pool)
        finally:
            await pool.supervisor.close()
        assert pool.most <= (most or applications)

    run(main())


def test_attempts_with_other_settings_run_beside_each_other_each_in_its_application() -> None:
    async def work(pool: Pool) -> None:
        asked = (pool.took(100, one) for one in (None, LARGE, LARGE, None))
        ended = await asyncio.gather(*asked)
        assert [executor for executor, _ in ended] == ["spark-2.1", "spark-3.1", "spark-3.1", "spark-2.1"]
        assert {at for _, at in ended} == {START + 0.5 + 100}
        own, large = (one.conf for one in sorted(pool.running, key=lambda one: one.name))
        assert large == {**own, **LARGE, "spark.app.name": "taskhub worker spark-3.1"}
        assert own["spark.a"] == "1"
        assert (await pool.took(1, {"spark.a": "1"}))[0] == "spark-2.1", "the worker's own has this setting"

    kept(work, 2)


def test_an_idle_application_makes_place_and_the_workers_own_only_if_no_other_can() -> None:
    async def work(pool: Pool) -> None:
        await pool.took()
        await pool.took(1, LARGE)
        assert (await pool.took(1, JARS))[0] == "spark-3.2"
        assert [one.name for one in pool.running] == ["spark-2.1", "spark-3.2"]
        long = asyncio.create_task(pool.took(1000, JARS))
        await pool.clock.sleep(IDLE)
        assert (await pool.took(1, LARGE))[0] == "spark-2.2", "the worker's own runs nothing"
        assert (await pool.took(1))[0] == "spark-2.3"
        await long

    with capture_logs() as logs:
        kept(work, 2)
    made_place = [one["executor"] for one in logs if one["event"] == "executor_makes_place"]
    assert made_place == ["spark-3.1", "spark-2.1", "spark-2.2"]


def test_one_application_is_started_for_all_attempts_with_the_same_settings() -> None:
    async def work(pool: Pool) -> None:
        await asyncio.gather(*(pool.took(1, LARGE) for _ in range(4)))
        assert [one.name for one in pool.made] == ["spark-3.1"]
        await pool.took(1, JARS)
        await pool.took(1, LARGE)
        assert (await pool.took(1, {"spark.files": "a"}))[0] == "spark-2.1", "no executor is there"
        assert (await pool.took(1, {"spark.files": "b"}))[0] == "spark-4.2", "it is unused for longest"

    kept(work, 3)


@pytest.mark.parametrize("start", [START, TURN + 10])
def test_an_attempt_that_waited_for_its_application_finds_it_when_it_asks_again(start: float) -> None:
    """Before it begins it asks the hub again, and nothing waits meanwhile."""

    async def work(pool: Pool) -> None:
        await asyncio.gather(pool.took(1), pool.took(1, LARGE))
        assert [one.name for one in pool.made] == ["spark-2.1", "spark-2.2"]
        assert [one.begun for one in pool.made] == [1, 1]

    kept(work, 1, start=start)


def test_applications_take_turns_if_all_have_work() -> None:
    async def work(pool: Pool) -> None:
        ended = []

        async def ask(application: dict[str, str] | None) -> None:
            ended.append(await pool.took(10, application))

        with capture_logs() as logs:
            await asyncio.gather(*(ask(one) for one in [None, LARGE] * 40))
        names = [name for name, _ in ended]
        assert [one.name for one in pool.made] == ["spark-2.1", "spark-2.2", "spark-2.3", "spark-2.4"]
        turns = [names.count(executor.name) for executor in pool.made]
        assert sum(turns) == 80
        assert min(turns[:2]) >= 4 * 6, "a turn of a minute"
        assert max(turns[:2]) < 4 * 8
        told = [one["settings"] for one in logs if one["event"] == "spark_application_waits"]
        assert told == [[*LARGE], [], [*LARGE]], "for each turn once: names, and no values"

    kept(work, 1)


def test_a_long_attempt_is_not_ended_for_another_application() -> None:
    async def work(pool: Pool) -> None:
        long = asyncio.create_task(pool.took(1000))
        await pool.clock.sleep(START + TURN + 1)
        large = asyncio.create_task(pool.took(1, LARGE))
        await pool.clock.sleep(1)
        own = asyncio.create_task(pool.took(1))
        assert (await long)[0] == "spark-2.1"
        assert await large == ("spark-2.2", pool.now)
        assert (await own)[0] == "spark-2.3"

    kept(work, 1)


def test_an_application_goes_on_if_nobody_waits_for_its_place_any_more() -> None:
    async def work(pool: Pool) -> None:
        long = asyncio.create_task(pool.took(1000))
        await pool.clock.sleep(START + TURN + 1)
        large = asyncio.create_task(pool.took(1, LARGE))
        await pool.clock.sleep(2)
        own = asyncio.create_task(pool.took(1))
        await pool.clock.sleep(2)
        large.cancel()
        assert (await own)[0] == "spark-2.1"
        assert pool.now < START + TURN + 10
        await long

    kept(work, 1)


def test_only_one_application_makes_place_for_another_one() -> None:
    async def work(pool: Pool) -> None:
        both = [asyncio.create_task(pool.took(300, one)) for one in (None, JARS)]
        await pool.clock.sleep(START + TURN + 1)
        large = asyncio.create_task(pool.took(1, LARGE))
        await pool.clock.sleep(10)
        assert [seat.next is None for seat in pool.spark].count(False) == 1
        await asyncio.gather(large, *both)

    kept(work, 2)


def test_an_application_that_was_started_again_has_a_turn_again() -> None:
    async def work(pool: Pool) -> None:
        await pool.took()
        await pool.clock.sleep(100)
        assert not pool.running
        again = pool.now + START
        many = asyncio.gather(*(pool.took(10) for _ in range(4 * 10)))
        await pool.clock.sleep(START + 1)
        _, ended = await pool.took(1, LARGE)
        assert ended > again + TURN
        await many

    kept(work, 1, limits=ExecutorLimits(idle=timedelta(seconds=30)))


def test_an_application_of_its_own_whose_executor_dies_is_started_again_when_it_is_needed() -> None:
    async def work(pool: Pool) -> None:
        await asyncio.gather(pool.took(), pool.took(1, LARGE))
        for one in pool.running:
            one.ended.set()
        await pool.clock.sleep(100)
        assert [one.name for one in pool.running] == ["spark-2.2"]
        assert (await pool.took(1, LARGE))[0] == "spark-3.2"

    kept(work, 2)


def test_nothing_is_started_for_an_attempt_that_was_cancelled_before() -> None:
    async def work(pool: Pool) -> None:
        own = asyncio.create_task(pool.took(20))
        await pool.clock.sleep(START + 1)
        large = asyncio.create_task(pool.took(1, LARGE))
        await pool.clock.sleep(1)
        large.cancel()
        await own
        await pool.clock.sleep(100)
        assert [one.name for one in pool.running] == ["spark-2.1"]

    kept(work, 1)


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_application_whose_executor_dies_while_another_one_waits_for_its_place(cancelled: bool) -> None:
    async def work(pool: Pool) -> None:
        lost = asyncio.create_task(pool.ask(1000, None))
        await pool.clock.sleep(START + TURN + 1)
        large = asyncio.create_task(pool.took(1, LARGE))
        await pool.clock.sleep(5)
        pool.running[0].ended.set()
        if cancelled:
            large.cancel()
        assert (await lost).crashed
        assert (await pool.ask(1, None, alone=True)).executor == ("spark-2.2" if cancelled else "spark-2.3")
        assert cancelled or (await large)[0] == "spark-2.2"

    kept(work, 1)


def test_an_application_that_is_replaced_while_another_one_waits_for_its_place() -> None:
    async def work(pool: Pool) -> None:
        long = asyncio.create_task(pool.took(TURN + 20))
        short = asyncio.create_task(pool.took(TURN + 16))
        await short
        await pool.clock.sleep(1)
        assert pool.spark[0].starting, "the second attempt was the last one of its executor"
        large = asyncio.create_task(pool.took(1, LARGE))
        await long
        assert pool.spark[0].starting
        assert await large

    kept(work, 1, limits=ExecutorLimits(activities=2), most=2)


def test_an_application_of_its_own_that_has_reached_a_limit_is_not_replaced_for_nobody() -> None:
    async def work(pool: Pool) -> None:
        await pool.took(1, LARGE)
        await pool.clock.sleep(100)
        assert [one.name for one in pool.made] == ["spark-3.1"]
        assert not pool.running
        assert (await pool.took(1, LARGE))[0] == "spark-3.2"

    kept(work, 2, limits=ExecutorLimits(activities=1))


def test_the_first_idle_application_makes_place_although_another_one_was_chosen_before() -> None:
    async def work(pool: Pool) -> None:
        long = asyncio.create_task(pool.took(3600))
        short = asyncio.create_task(pool.took(100, LARGE))
        await pool.clock.sleep(START + TURN + 5)
        jars = asyncio.create_task(pool.took(1, JARS))
        _, ended = await short
        assert (await jars)[1] <= ended + IDLE + 1 + START + 2.5
        assert (await pool.took(1))[0] == "spark-2.1"
        long.cancel()

    kept(work, 2)


def test_nothing_is_started_and_nothing_turns_while_all_slots_are_taken() -> None:
    async def work(pool: Pool) -> None:
        await pool.took(1, LARGE)
        long = asyncio.create_task(pool.took(3600))
        await pool.clock.sleep(START + 1)
        waiting = [asyncio.create_task(pool.took(1, one)) for one in (LARGE, JARS, {"spark.files": "a"})]
        await long
        assert [one.name for one in pool.made] == ["spark-3.1", "spark-2.1"]
        await asyncio.gather(*waiting)

    kept(work, 2, spark_size=1, limits=ExecutorLimits(idle=timedelta(seconds=30)))


def test_an_application_whose_executor_dies_again_and_again_makes_place_after_its_turn() -> None:
    async def work(pool: Pool) -> None:
        async def dying() -> None:
            while True:
                await pool.ask(1000, None)

        async def deaths() -> None:
            while True:
                await pool.clock.sleep(1)
                for one in pool.running:
                    if one.begun and not LARGE.items() <= one.conf.items():
                        one.ended.set()

        tasks = [asyncio.create_task(one()) for one in (dying, deaths)]
        await pool.clock.sleep(2 * TURN)
        _, ended = await pool.took(1, LARGE)
        assert ended < 10 * TURN
        for one in tasks:
            one.cancel()

    kept(work, 1, start=TURN + 10)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_asked_cancelled_and_killed_all_that_is_wanted_ends_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)
    needs = [None, *({"spark.driver.memory": f"{number}g"} for number in range(chance.choice([1, 3, 8])))]
    applications = chance.randint(1, 4)

    async def work(pool: Pool) -> None:
        slots = asyncio.Semaphore(4)

        async def ask() -> None:
            await pool.clock.sleep(chance.uniform(0, 500))
            async with slots:  # as the worker gives them
                alone = chance.random() < 0.1
                await pool.ask(chance.choice([0.1, 1, 30, 200]), chance.choice(needs), alone=alone)

        async def deaths() -> None:
            while True:
                await pool.clock.sleep(chance.expovariate(1 / 40))
                if pool.running:
                    chance.choice(pool.running).ended.set()

        killing = asyncio.create_task(deaths()) if chance.random() < 0.5 else None
        asked = [asyncio.create_task(ask()) for _ in range(40)]
        for one in chance.sample(asked, 10):
            await pool.clock.sleep(chance.uniform(0, 60))
            one.cancel()
        async with asyncio.timeout(24 * 3600):
            ended = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in ended if one is not None} <= {asyncio.CancelledError}
        if killing is not None:
            killing.cancel()
        await pool.clock.sleep(2 * OWN_IDLE)
        assert all(not LARGE.keys() & one.conf.keys() for one in pool.running)
        seated = [seat.executor for seat in pool.spark if seat.ready]
        assert {*map(id, seated)} == {*map(id, pool.running)}

    kept(work, applications, start=chance.choice([0.3, START, TURN + 10]))


@pytest.mark.parametrize(("limit", "own", "large"), [(None, True, False), (timedelta(seconds=30), False, False)])
def test_an_application_of_its_own_ends_when_it_is_idle(limit: timedelta | None, own: bool, large: bool) -> None:
    async def work(pool: Pool) -> None:
        await asyncio.gather(pool.took(), pool.took(1, LARGE))
        await pool.clock.sleep(20)
        assert len(pool.running) == 2
        await pool.clock.sleep(OWN_IDLE)
        assert [seat.ready for seat in pool.spark] == [own, large]
        assert (await pool.took(1, LARGE))[0] == "spark-3.2"

    kept(work, 2, limits=ExecutorLimits(idle=limit))


@pytest.mark.parametrize("first", [True, False])
def test_an_application_that_makes_place_at_the_moment_at_which_it_is_idle(first: bool) -> None:
    async def work(pool: Pool) -> None:
        async def large(seconds: float) -> Took:
            await pool.clock.sleep(seconds)
            return await pool.took(1, LARGE)

        later = asyncio.create_task(large(START + 1.5 + 30)) if first else None
        await pool.took()
        assert (await (later or large(30)))[0] == "spark-2.2"

    kept(work, 1, limits=ExecutorLimits(idle=timedelta(seconds=30)))


def test_an_application_that_does_not_start_holds_up_no_other_one() -> None:
    async def work(pool: Pool) -> None:
        pool.fails = JARS
        broken = asyncio.create_task(pool.ask(1, JARS))
        await pool.clock.sleep(TURN + 4)
        assert (pool.spark[0].starting, pool.spark[0].backoff) == (False, 16.0)
        asked = pool.now
        assert (await pool.took(1, LARGE))[1] <= asked + START + 2.5
        failure = (await broken).failure
        assert failure is not None
        assert "Spark does not start" in failure.error_message

    kept(work, 1)


def test_a_worker_that_stops_also_ends_an_application_that_makes_place() -> None:
    async def work(pool: Pool) -> None:
        await pool.took()
        waiting = asyncio.create_task(pool.ask(1, LARGE))
        while pool.spark[0].ready:
            await pool.clock.sleep(0.5)
        assert [one.name for one in pool.running] == ["spark-2.1"], "it is being ended"
        await pool.stop(timedelta(0))
        assert pool.running == []
        assert (await waiting).crashed

    kept(work, 1)


def test_a_worker_that_stops_ends_what_leaves_a_place_that_was_given_on_twice() -> None:
    async def work(pool: Pool) -> None:
        await pool.took()
        large = asyncio.create_task(pool.ask(1, LARGE))
        pool.made[0].takes = 30.0
        while pool.spark[0].ready:
            await pool.clock.sleep(0.5)
        large.cancel()
        jars = asyncio.create_task(pool.ask(1, JARS))
        await pool.clock.sleep(2)
        await pool.stop(timedelta(0))
        assert pool.running == []
        assert (await jars).crashed

    kept(work, 1)


def test_a_worker_of_a_spark_connect_server_names_settings_that_its_server_needs() -> None:
    async def main() -> None:
        pool = Pool(2, master="sc://localhost:1")
        failure = (await pool.run(request("any", 1, spark=True, application=LARGE))).failure
        assert failure is not None
        assert "its conf has spark.driver.memory, which a Spark Connect server can only get at its start" in (
            failure.error_message
        )

    run(main())


def test_only_the_workers_own_application_is_kept_warm() -> None:
    async def main() -> None:
        pool = Pool(3)
        pool._activities = {"a": True}
        pool.warm()
        assert [seat.wanted.is_set() for seat in pool.spark] == [True, False, False]
        assert [seat.need == SPARK for seat in pool.spark] == [True, False, False]

    run(main())


@pytest.mark.parametrize(
    ("memory", "driver", "applications"),
    [("1g", "1g", 1), ("8g", "1g", 2), ("8g", "6g", 1), ("64g", "1g", 4), ("8g", "1 GiB?", 2)],
)
def test_a_worker_has_as_many_applications_as_its_memory_allows(memory: str, driver: str, applications: int) -> None:
    spark = SparkSettings(conf={"spark.driver.memory": driver})
    assert Settings(memory=memory, spark=spark).spark_executors == applications
    assert Settings(memory=memory, spark=spark, spark_applications=7).spark_executors == 7


@pytest.mark.process
async def test_an_app_whose_activities_all_have_settings_of_their_own_keeps_no_spark_warm(make_pool: PoolMaker) -> None:
    pool = await make_pool(apps=("tests.workers.own_apps:app",), warm=True)
    assert pool._activities == {"own": False, "plain": False}
    assert not any(seat.wanted.is_set() for seat in pool._seats if seat.need == SPARK)
