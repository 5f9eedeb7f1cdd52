"""A partition that is owned and renewed, but that nobody reads any more: reported, given up and served anew (K12)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.faults import Call, Fault, refused, throttled
from tests.simulation.world import PLAYED, World, simulate


def app() -> App:
    made = App("unpolled")

    @made.orchestrator
    async def echo(ctx: OrchestrationContext, value: str) -> str:
        return value

    return made


@pytest.mark.rows("K12", "E66", "E68", "E70")
def test_a_reader_that_died_is_replaced_and_nothing_is_lost() -> None:
    async def play() -> Any:
        async with World(app(), partitions=2) as hub:
            machine = await hub.join("only")
            await asyncio.sleep(10)
            for partition in range(2):
                machine.backend.supervisor.end(hub.client.hub.names.control(partition))
            began = hub.clock.monotonic()
            await hub.client.start("echo", "there", instance_id="waiting")
            state = await hub.wait("waiting")
            waited = hub.clock.monotonic() - began
            await hub.clock.sleep(60)  # the other one's turn comes with another scan
            metrics = machine.owner.metrics
            return (
                state.output,
                waited,
                metrics.not_polled,
                [entry["partition"] for entry in hub.said("partition_not_polled")],
            )

    output, waited, not_polled, reported = simulate(play)
    assert output == '"there"'
    assert 80 < waited < 130, "three of the longest polling intervals"
    assert not_polled == 2
    assert sorted(reported) == [0, 1]


@pytest.mark.rows("K12", "E70")
@pytest.mark.long
def test_who_receives_nothing_leaves_its_partitions_to_the_others_until_it_receives_again() -> None:
    """Its leases are renewed all the time. That it counts for fair shares must not bring them back at once."""

    async def play() -> Any:
        async with World(app(), partitions=4, max_polling=timedelta(seconds=2), lease=EMBEDDED_LEASE) as hub:
            deaf = True

            def plan(call: Call) -> Fault | None:
                return refused() if deaf and call.kind == "queue.receive" else None

            good = await hub.join("good")
            bad = await hub.join("bad", plan=plan)
            await asyncio.sleep(5)
            shared = len(good.owner.tenures), len(bad.owner.tenures)
            began = hub.clock.monotonic()
            ids = [f"waiting-{number}" for number in range(12)]
            for instance_id in ids:
                await hub.client.start("echo", "there", instance_id=instance_id)
            for instance_id in ids:
                await hub.wait(instance_id)
            waited = hub.clock.monotonic() - began
            held = []
            for _ in range(600):
                held.append(len(bad.owner.tenures))
                await asyncio.sleep(1)
            deaf = False
            await asyncio.sleep(16 * 6 + 10)
            return shared, waited, sum(held) / len(held), len(good.owner.tenures), len(bad.owner.tenures)

    shared, waited, held, *after = simulate(play)
    assert shared == (2, 2)
    assert waited < 6 + 5, "three of the longest polling intervals, and until others see that they are left to them"
    assert held < 0.3, "tried again, ever more rarely"
    assert after == [2, 2]


@pytest.mark.parametrize("answer", [throttled(), Fault(before=AccessDenied("403 (fault)"))], ids=["busy", "denied"])
def test_a_worker_that_alone_is_refused_gives_its_partitions_up(answer: Fault) -> None:
    """The store answers each of its requests for messages with a refusal. The other worker receives."""

    async def play() -> Any:
        async with World(app(), partitions=4, max_polling=timedelta(seconds=2), lease=EMBEDDED_LEASE) as hub:
            good = await hub.join("good")
            bad = await hub.join("bad", plan=lambda call: answer if call.kind == "queue.receive" else None)
            await asyncio.sleep(5)
            shared = len(good.owner.tenures), len(bad.owner.tenures)
            ids = [f"waiting-{number}" for number in range(12)]
            for instance_id in ids:
                await hub.client.start("echo", "there", instance_id=instance_id)
            began = hub.clock.monotonic()
            for instance_id in ids:
                await hub.wait(instance_id)
            return shared, hub.clock.monotonic() - began, bad.owner.metrics.not_polled, good.owner.metrics.not_polled

    shared, waited, given_up, others = simulate(play)
    assert shared == (2, 2)
    assert waited < 6 + 5
    assert (given_up, others) == (2, 0)


@pytest.mark.parametrize("lease", [EMBEDDED_LEASE, PLAYED], ids=["often", "seldom"])
def test_workers_that_are_refused_alike_keep_their_partitions(lease: LeaseTimes) -> None:
    """An outage for all: another owner would be refused too. Work goes on when the store takes the requests again."""

    async def play() -> Any:
        async with World(app(), partitions=4, max_polling=timedelta(seconds=2), lease=lease) as hub:
            busy = False
            workers = [
                await hub.join(name, plan=lambda call: throttled() if busy and call.kind == "queue.receive" else None)
                for name in ("one", "two")
            ]
            await asyncio.sleep(10)
            tenures = {tenure for worker in workers for tenure in worker.owner.tenures}
            busy = True
            await hub.client.start("echo", "there", instance_id="waiting")
            await asyncio.sleep(600)
            kept = {tenure for worker in workers for tenure in worker.owner.tenures} == tenures
            busy = False
            began = hub.clock.monotonic()
            await hub.wait("waiting")
            return kept, [worker.owner.metrics.not_polled for worker in workers], hub.clock.monotonic() - began

    kept, given_up, waited = simulate(play)
    assert (kept, given_up) == (True, [0, 0])
    assert waited < 35


@pytest.mark.rows("K12")
def test_who_is_alone_leaves_nothing_to_nobody() -> None:
    async def play() -> Any:
        async with World(app(), max_polling=timedelta(seconds=2), lease=EMBEDDED_LEASE) as hub:
            deaf = True

            def plan(call: Call) -> Fault | None:
                return refused() if deaf and call.kind == "queue.receive" else None

            only = await hub.join("only", plan=plan)
            await hub.client.start("echo", "there", instance_id="waiting")
            free, longest = 0, 0
            for _ in range(3000):
                await asyncio.sleep(0.1)
                free = 0 if only.owner.tenures else free + 1
                longest = max(longest, free)
            deaf = False
            began = hub.clock.monotonic()
            await hub.wait("waiting")
            return hub.clock.monotonic() - began, longest, only.owner.metrics.not_polled

    waited, longest, not_polled = simulate(play)
    assert waited < 2
    assert longest < 10, "tenths of a second: its next scan takes them"
    assert not_polled > 20, "reported each time"
