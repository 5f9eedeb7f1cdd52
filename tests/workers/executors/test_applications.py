"""Spark applications with settings of their own: started on demand, side by side, in turn, ended when they are idle.

Time is virtual, and no process is started: the pool's executors are stand-ins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.settings import Settings, SparkSettings
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from airflow_provider_taskhub.workers.executors.assignment import Seat
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.pool import OWN_IDLE, ExecutorConfig, ExecutorLimits, ExecutorPool
from airflow_provider_taskhub.workers.executors.protocol import Configure
from airflow_provider_taskhub.workers.executors.scheduling import SPARK, TURN
from tests.workers.conftest import Logs, request

START = 5.0
"""Seconds that a start of Spark takes here."""
LARGE, JARS = {"spark.driver.memory": "4g"}, {"spark.jars": "a.jar"}


class StandIn:
    """An executor whose attempts take the seconds of their input."""

    def __init__(self, configure: Configure, clock: VirtualClock) -> None:
        self.name, self.conf, self._clock = configure.name, configure.conf, clock
        self.ended, self.unloaded = asyncio.Event(), asyncio.Event()
        self.load = self.begun = 0
        self.alone = False
        self.pid: int | None = None

    @property
    def eligible(self) -> bool:
        return not self.ended.is_set()

    async def run(self, request: ActivityRequest, *_: object) -> ActivityOutcome:
        self.begun += 1
        await self._clock.sleep(float((request.input or "[0]").strip("[]")))
        assert not self.ended.is_set(), "it was ended while it had an attempt"
        return ActivityOutcome(executor=self.name)

    async def kill(self, reason: str) -> None:
        self.ended.set()


class Pool(ExecutorPool):
    """A pool of stand-ins. ``running``: those that have not ended. ``most``: their largest number."""

    def __init__(self, applications: int, *, master: str = "local[2]", **more: Any) -> None:
        config = ExecutorConfig(apps=("none:app",), spark=SparkSettings(master=master, conf={"spark.a": "1"}))
        clock = VirtualClock()
        super().__init__(config, size=4, processes=1, applications=applications, logs=Logs(), clock=clock, **more)
        self.clock, self.made, self.most = clock, list[StandIn](), 0
        self.fails: dict[str, str] | None = None

    @property
    def running(self) -> list[StandIn]:
        return [one for one in self.made if not one.ended.is_set()]

    async def _start_executor(self, seat: Seat) -> Any:
        seat.starts += 1
        configure = self._configure(seat, f"{seat.kind}-{self._seats.index(seat) + 1}.{seat.starts}", None)
        await self.clock.sleep(START)
        if self.fails is not None and self.fails.items() <= configure.conf.items():
            raise ExecutorError("Spark does not start")
        executor: Any = StandIn(configure, self.clock)
        self.made.append(executor)
        self.most = max(self.most, len(self.running))
        seat.executor, seat.broken = executor, False
        return executor

    async def took(self, seconds: float = 1.0, application: dict[str, str] | None = None) -> tuple[str, float]:
        """Run an attempt. Return the name of its executor, and the time at which it ended."""
        outcome = await self.run(request("any", seconds, spark=True, application=application))
        assert outcome.failure is None, outcome.failure
        return outcome.executor or "", self.clock.monotonic()

    async def within(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something while the pool keeps its Spark executors."""
        for number, seat in enumerate(self._seats[1:]):
            self.supervisor.keep(f"seat {number}", partial(self._keep, seat))
        try:
            await work
        finally:
            await self.supervisor.close()


def test_attempts_with_other_settings_run_beside_each_other_each_in_its_application() -> None:
    async def main() -> None:
        pool = Pool(2)

        async def work() -> None:
            began = pool.clock.monotonic()
            ended = await asyncio.gather(pool.took(100), pool.took(100, LARGE), pool.took(100, LARGE), pool.took(100))
            assert [executor for executor, _ in ended] == ["spark-2.1", "spark-3.1", "spark-3.1", "spark-2.1"]
            assert {at - began for _, at in ended} == {START + 100}
            own, large = (one.conf for one in pool.running)
            assert large == {**own, **LARGE, "spark.app.name": "taskhub worker spark-3.1"}
            assert own["spark.a"] == "1"

        await pool.within(work())

    run(main())


def test_an_idle_application_makes_place_and_the_workers_own_only_if_no_other_can() -> None:
    async def main() -> None:
        pool = Pool(2)

        async def work() -> None:
            await pool.took()
            await pool.took(1, LARGE)
            assert (await pool.took(1, JARS))[0] == "spark-3.2"
            assert [one.name for one in pool.running] == ["spark-2.1", "spark-3.2"]
            long = asyncio.create_task(pool.took(1000, JARS))
            await pool.clock.sleep(1)
            assert (await pool.took(1, LARGE))[0] == "spark-2.2", "the worker's own runs nothing"
            assert (await pool.took(1))[0] == "spark-2.3"
            await long

        with capture_logs() as logs:
            await pool.within(work())
        assert [one["executor"] for one in logs if one["event"] == "executor_makes_place"] == [
            "spark-3.1",
            "spark-2.1",
            "spark-2.2",
        ]
        assert pool.most == 2

    run(main())


def test_only_one_application_is_started_for_attempts_with_the_same_settings() -> None:
    async def main() -> None:
        pool = Pool(3)

        async def work() -> None:
            await asyncio.gather(*(pool.took(1, LARGE) for _ in range(4)))
            assert [one.name for one in pool.made] == ["spark-3.1"]
            await pool.took(1, JARS)
            await pool.took(1, LARGE)
            assert (await pool.took(1, {"spark.files": "a"}))[0] == "spark-4.2", "the one that is unused for longest"
            assert (await pool.took(1, {"spark.files": "b"}))[0] == "spark-3.2"

        await pool.within(work())

    run(main())


def test_applications_take_turns_if_all_have_work() -> None:
    async def main() -> None:
        pool = Pool(1)
        ended: list[tuple[str, float]] = []

        async def ask(application: dict[str, str] | None) -> None:
            ended.append(await pool.took(10, application))

        async def work() -> None:
            needs = [None, LARGE] * 40
            await asyncio.gather(*(ask(one) for one in needs))
            assert pool.most == 1
            assert len(ended) == len(needs)
            assert [one.name for one in pool.made] == ["spark-2.1", "spark-2.2", "spark-2.3", "spark-2.4"]
            names = [name for name, _ in ended]
            turns = [names.count(executor.name) for executor in pool.made]
            assert turns == [24, 24, 16, 16], "6 times 4 attempts of 10 s in a turn of a minute, then what is left"

        await pool.within(work())

    run(main())


@pytest.mark.parametrize(("limit", "own", "large"), [(None, True, False), (timedelta(seconds=30), False, False)])
def test_an_application_of_its_own_ends_when_it_is_idle(limit: timedelta | None, own: bool, large: bool) -> None:
    async def main() -> None:
        pool = Pool(2, limits=ExecutorLimits(idle=limit))

        async def work() -> None:
            await asyncio.gather(pool.took(), pool.took(1, LARGE))
            await pool.clock.sleep(20)
            assert len(pool.running) == 2
            await pool.clock.sleep(OWN_IDLE)
            assert [seat.executor is not None for seat in pool._seats[1:]] == [own, large]
            assert (await pool.took(1, LARGE))[0] == "spark-3.2"

        await pool.within(work())

    run(main())


def test_an_application_that_does_not_start_holds_up_no_other_one() -> None:
    async def main() -> None:
        pool = Pool(1)
        pool.fails = JARS

        async def work() -> None:
            broken = asyncio.create_task(pool.run(request("any", 1, spark=True, application=JARS)))
            await pool.clock.sleep(TURN + 3 * START)
            assert pool._seats[1].backoff > START, "it is not being started now"
            asked = pool.clock.monotonic()
            assert await pool.took(1, LARGE) == ("spark-2.8", asked + START + 1)
            failure = (await broken).failure
            assert failure is not None
            assert "Spark does not start" in failure.error_message

        await pool.within(work())

    run(main())


def test_an_application_that_does_not_start_and_is_not_wanted_any_more_makes_place() -> None:
    async def main() -> None:
        pool = Pool(1)
        pool.fails = JARS

        async def work() -> None:
            broken = asyncio.create_task(pool.run(request("any", 1, spark=True, application=JARS)))
            await pool.clock.sleep(1)
            other = asyncio.create_task(pool.took(1, LARGE))
            await pool.clock.sleep(1)
            broken.cancel()
            assert await other == ("spark-2.2", 2 * START + 1)

        await pool.within(work())

    run(main())


@pytest.mark.parametrize("first", [True, False])
def test_an_application_that_makes_place_while_it_ends_because_it_is_idle(first: bool) -> None:
    async def main() -> None:
        pool = Pool(1, limits=ExecutorLimits(idle=timedelta(seconds=30)))

        async def ask_in(seconds: float) -> None:
            await pool.clock.sleep(seconds)
            await pool.took(1, LARGE)

        async def work() -> None:
            if first:
                later = asyncio.create_task(ask_in(START + 1 + 30))
            await pool.took()
            if not first:
                later = asyncio.create_task(ask_in(30))
            await later
            assert pool.most == 1

        await pool.within(work())

    run(main())


def test_a_worker_that_stops_also_ends_an_application_that_makes_place() -> None:
    async def main() -> None:
        pool = Pool(1)

        async def work() -> None:
            long = asyncio.create_task(pool.took(1000))
            await pool.clock.sleep(TURN + START)
            waiting = asyncio.create_task(pool.run(request("any", 1, spark=True, application=LARGE)))
            await pool.clock.sleep(10 * START)
            assert pool._seats[1].executor is None, "it takes no more attempts"
            assert [one.load for one in pool.made] == [1], "the memory is for one"
            await pool.stop(timedelta(0))
            assert pool.running == []
            assert (await waiting).crashed
            long.cancel()

        await pool.within(work())

    run(main())


def test_a_worker_of_a_spark_connect_server_names_settings_that_its_server_needs() -> None:
    async def main() -> None:
        pool = Pool(2, master="sc://localhost:1")
        failure = (await pool.run(request("any", 1, spark=True, application=LARGE))).failure
        assert failure is not None
        assert "it asks for spark.driver.memory, and a Spark Connect server has such settings from its start" in (
            failure.error_message
        )

    run(main())


def test_only_the_workers_own_application_is_kept_warm() -> None:
    async def main() -> None:
        pool = Pool(3)
        pool._activities = {"a": True}
        pool.warm()
        assert [seat.wanted.is_set() for seat in pool._seats if seat.need == SPARK] == [True]
        assert sum(seat.wanted.is_set() for seat in pool._seats) == 1

    run(main())


@pytest.mark.parametrize(("memory", "applications"), [("1g", 1), ("8g", 2), ("64g", 4)])
def test_a_worker_has_as_many_applications_as_its_memory_allows(memory: str, applications: int) -> None:
    assert Settings(memory=memory).spark_executors == applications
    assert Settings(memory=memory, spark_applications=7).spark_executors == 7
