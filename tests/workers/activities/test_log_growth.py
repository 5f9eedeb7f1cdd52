"""The growth of the logs of watched attempts is announced: seldom, never without need, and once more at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.faults import FaultyStore, Plan, at, late, refused
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from airflow_provider_taskhub.workers.activities.log_growth import AnnouncingRunner, LogGrowth
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityRequest

INSTANCE = OrchestrationInstance(instance_id="i", execution_id="e")
REQUEST = ActivityRequest(
    name="load", instance=INSTANCE, task_id=4, action_id="a", log=log_name(INSTANCE, 4, 1), watched=True
)


class Bench:
    """An attempt that writes what a test says, when it says so."""

    def __init__(self, client: Client, clock: VirtualClock) -> None:
        self.client, self.clock = client, clock
        self.growth = LogGrowth(client.hub)

    async def run(self, *steps: tuple[float, bytes], request: ActivityRequest = REQUEST) -> ActivityOutcome:
        """Run an attempt. :param steps: seconds to work, and then the output; b"": none."""

        class Attempt:
            async def run(_, request: ActivityRequest, *, progress: Any = None, pause: Any = None) -> ActivityOutcome:
                for seconds, output in steps:
                    await self.clock.sleep(seconds)
                    if output:
                        await self.growth.append(request.log, output)
                return ActivityOutcome(executor="1")

        return await AnnouncingRunner(Attempt(), self.growth).run(request)

    async def hints(self) -> list[tuple[str, str, int]]:
        return [(hint.log, hint.activity, hint.size) for hint in await self.client.growing_logs.hints()]

    @property
    def writes(self) -> int:
        return self.client.hub.store.requests["table.upsert"]


def play(work: Callable[[Bench], Awaitable[Any]], plan: Plan | None = None) -> Any:
    async def main() -> Any:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as inner:
            await Client.over(inner, Settings(hub="Growth"), create=True, clock=clock)
            store = inner if plan is None else FaultyStore(inner, plan, clock=clock)
            client = await Client.over(store, Settings(hub="Growth"), clock=clock)
            store.requests.clear()
            return await work(Bench(client, clock))

    return virtual_time.run(main())


def test_the_hint_of_a_running_attempt_is_there_before_the_attempt_ends() -> None:
    async def work(bench: Bench) -> None:
        seen: list[list[tuple[str, str, int]]] = []

        async def look() -> None:
            await bench.clock.sleep(6)
            seen.append(await bench.hints())

        await asyncio.gather(bench.run((1, b"12345"), (9, b"")), look())
        assert seen == [[(REQUEST.log, "load", 5)]]

    play(work)


def test_an_attempt_that_ends_within_5_s_costs_no_request() -> None:
    async def work(bench: Bench) -> None:
        await bench.run((1, b"one"), (3.9, b"two"))
        assert bench.writes == 0
        assert await bench.hints() == []

    play(work)


@pytest.mark.parametrize(
    ("steps", "writes"),
    [
        ([(0.5, b"x")] * 199, 20),  # 99.5 s of steady output: one in 5 s, and the end
        ([(1, b"x"), (3_600, b"")], 1),  # one line, then an hour of silence
        ([(3_600, b"")], 0),
        ([(6, b"x"), (1, b"")], 0),  # a first line shortly before the end
        ([(1, b"x"), (6, b"x"), (1, b"")], 2),  # the end is announced if something was announced before
    ],
)
def test_a_log_is_announced_at_most_once_in_5_s_and_only_when_it_has_grown(
    steps: list[tuple[float, bytes]], writes: int
) -> None:
    async def work(bench: Bench) -> None:
        await bench.run(*steps)
        assert bench.writes == writes

    play(work)


def test_the_last_hint_has_the_whole_size() -> None:
    async def work(bench: Bench) -> None:
        await bench.run((1, b"12345"), (6, b"6789"))
        assert await bench.hints() == [(REQUEST.log, "load", 9)]

    play(work)


def test_a_second_run_of_the_same_attempt_announces_the_size_of_the_whole_log() -> None:
    async def work(bench: Bench) -> None:
        await bench.run((1, b"12345"), (6, b""))
        await bench.run((1, b"678"), (6, b""))
        assert await bench.hints() == [(REQUEST.log, "load", 8)]

    play(work)


def test_an_instance_that_no_airflow_task_waits_for_costs_nothing() -> None:
    async def work(bench: Bench) -> None:
        await bench.run((1, b"12345"), (60, b"6"), request=replace(REQUEST, watched=False))
        assert bench.writes == 0

    play(work)


def test_a_hint_that_cannot_be_written_fails_nothing_and_is_written_later() -> None:
    async def work(bench: Bench) -> None:
        await bench.run((1, b"12345"), (11, b""))
        assert await bench.hints() == [(REQUEST.log, "load", 5)]
        assert bench.writes == 1

    play(work, at(1, refused(), kind="table.upsert"))


def test_the_outcome_waits_at_most_2_s_for_the_last_hint() -> None:
    async def work(bench: Bench) -> None:
        began = bench.clock.monotonic()
        await bench.run((1, b"12345"), (6, b"6"))
        assert bench.clock.monotonic() - began == 7 + 2

    play(work, at(2, late(60), kind="table.upsert"))
