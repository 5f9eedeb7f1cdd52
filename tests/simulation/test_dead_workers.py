"""A worker that is proven dead: what it held goes on at once, and what the living hold is left alone (E24, K06)."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import TaskCompleted
from airflow_provider_taskhub.hub.partitions.incarnation import Incarnation
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.faults import Call, Fault, refused, unsent
from airflow_provider_taskhub.workers.activities import responses
from airflow_provider_taskhub.workers.peers import Peers
from tests.simulation.crash import go_through
from tests.simulation.lives import DEATHS, Kind
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import PROVING, WHOLE, World, simulate

SOON = 0.5
"""Seconds from a death to the next step: a look at the lock files, a scan, a receive."""


def app_of(ran: Counter[int], seconds: float = 0.0) -> App:
    app = App("proofs")

    @app.activity
    async def step(number: int) -> int:
        ran[number] += 1
        await asyncio.sleep(seconds)
        return number + 1

    @app.orchestrator
    async def chain(ctx: OrchestrationContext, length: int) -> int:
        number = 0
        while number < length:
            number = await ctx.call_activity(step, number)
        return number

    return app


async def _after_death(*, proves: bool) -> float:
    """Seconds from the death of a worker in the middle of an activity to the end of the instance."""
    ran: Counter[int] = Counter()
    async with World(app_of(ran, seconds=1.0), place=WHOLE, partitions=1) as world:
        one = await world.join("one", proves=proves)
        await world.clock.sleep(2.0)
        await world.client.start("chain", 1, instance_id="i")
        while not ran[0]:
            await world.clock.sleep(0.05)
        two = await world.join("two", proves=proves)
        await world.clock.sleep(0.2)
        one.die()
        began = world.clock.monotonic()
        while ran[0] == 1:
            await world.clock.sleep(0.01)
        took = world.clock.monotonic() - began
        await world.wait("i")
        assert ran[0] == 2
        await world.clock.sleep(2 * EMBEDDED_LEASE.renew.total_seconds())
        (partition,) = await world.client.admin.partitions(prove=False)
        assert (lost := partition.failover) is not None
        assert (lost.messages, lost.instances) == (0, 0), "its call waits in another queue"
        assert (lost.lost, lost.taken_by, lost.proven) == (str(one.me), str(two.me), proves)
        assert lost.silent is not None
        assert lost.silent <= EMBEDDED_LEASE.renew.total_seconds() + SOON if proves else lost.silent > 2.0
        return took


@pytest.mark.rows("E24", "K06", "D105")
def test_what_a_worker_proven_dead_held_goes_on_at_once() -> None:
    assert simulate(partial(_after_death, proves=True)) <= SOON
    assert simulate(partial(_after_death, proves=False)) > 2.0, "else by time alone"


async def _many(*, proves: bool) -> None:
    ran: Counter[int] = Counter()
    async with World(app_of(ran), place=WHOLE, partitions=2) as world:
        one, _ = await world.join("one", proves=proves), await world.join("two", proves=proves)
        await world.clock.sleep(5.0)
        for number in range(20):
            await world.client.start("chain", 40, instance_id=f"i{number}")
        one.die()
        for number in range(20):
            state = await world.wait(f"i{number}", timedelta(seconds=10 if proves else 60))
            assert state.output == "40"
            history = await world.client.instance(f"i{number}").history()
            answers = [event.task_scheduled_id for event in history if isinstance(event, TaskCompleted)]
            assert answers == list(range(40))
        assert sum(ran.values()) <= 20 * 40 + 20, "one call of each chain was open at the death"
        if not proves:
            return
        released = world.said("claims_released")
        assert [entry["workers"] for entry in released] == [[str(one.me)]]
        assert released[0]["messages"] > 0


@pytest.mark.rows("D93")
@pytest.mark.parametrize("proves", [True, False], ids=["proven dead", "silent"])
def test_many_chains_survive_a_death(proves: bool) -> None:
    """Each goes on where it was: only the activity that ran is called again."""
    simulate(partial(_many, proves=proves))


async def _counted() -> None:
    """Five instances have got an event since the death, and one of them two. A timer is due later."""
    app = App("waits")

    @app.activity(record=True)
    async def work(number: int) -> None:
        await asyncio.sleep(60.0)

    @app.activity(limit=1)
    async def alone(number: int) -> None:
        await asyncio.sleep(60.0)

    @app.orchestrator
    async def waits(ctx: OrchestrationContext, number: int) -> None:
        if number < 3:
            await ctx.call_activity(alone if number == 2 else work, number)
        timer = ctx.create_timer(timedelta(minutes=2))
        for _ in range(2):
            await ctx.wait_for_external_event("go")
        await timer

    async with World(app, place=WHOLE, partitions=1, activities=4) as world:
        one = await world.join("one")
        await world.clock.sleep(2.0)
        for number in range(8):
            await world.client.start("waits", number, instance_id=f"i{number}")
        await world.clock.sleep(10.0)
        one.die()
        await world.clock.sleep(1.0)
        for number in (3, 4, 5, 6, 7, 7):
            await world.client.raise_event(f"i{number}", "go")
        two = await world.join("two")

        async def found() -> tuple[object, object]:
            await world.clock.sleep(2 * EMBEDDED_LEASE.renew.total_seconds())
            (partition,) = await world.client.admin.partitions(prove=False)
            assert partition.failover is not None
            return partition.failover.messages, partition.failover.instances

        while not two.owner.tenures:
            await world.clock.sleep(0.1)
        assert await found() == (6, 5)
        for number in range(8):
            for _ in range(2):
                await world.client.raise_event(f"i{number}", "go")
        for number in range(8):
            await world.wait(f"i{number}")
        assert await found() == (6, 5), "what came later, and the timers, do not count"
        (member,) = [one for one in await world.client.admin.workers() if one.worker == str(two.me)]
        assert member.taken_over == {str(one.me): 3}
        (partition,) = await world.client.admin.partitions(prove=False)
        assert partition.failover is not None
        assert partition.failover.attempts == 3, "kept after the taker has ended"
        # The taker has not seen the lost worker live. The store's clock knows for how long it was silent.
        assert partition.failover.silent is not None
        assert partition.failover.silent >= 1.0


@pytest.mark.rows("D105")
def test_a_failover_tells_how_many_messages_instances_and_attempts_it_concerned() -> None:
    simulate(_counted)


async def _own_attempt() -> None:
    """The store takes no outcome for so long that the worker gives the attempt up. Later it begins the next one."""
    ran, refuses = list[int](), True
    app = App("outcomes")

    @app.activity(record=True)
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(1.0)

    @app.orchestrator
    async def waits(ctx: OrchestrationContext, number: int) -> None:
        await ctx.call_activity(work, number)

    def plan(call: Call) -> Fault | None:
        return refused() if ran and refuses and call.kind == "unit" else None

    async with World(app, place=WHOLE, partitions=1) as world:
        one = await world.join("one")
        one.plan = plan
        await world.client.start("waits", 1, instance_id="i")
        await world.clock.sleep(20.0)
        refuses = False
        await world.wait("i")
        assert {entry["before"] for entry in world.said("activity_taken_over")} == {str(one.me)}
        await world.clock.sleep(2 * EMBEDDED_LEASE.renew.total_seconds())
        (member,) = await world.client.admin.workers()
        assert member.taken_over == {}


def test_a_worker_that_takes_its_own_attempt_over_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "OUTCOMES", replace(responses.OUTCOMES, within=5.0))
    simulate(_own_attempt)


async def _idle() -> None:
    async with World(app_of(Counter()), place=WHOLE, partitions=1) as world:
        one, _ = await world.join("one", proves=True), await world.join("two", proves=True)
        await world.clock.sleep(5.0)
        one.die()
        await world.clock.sleep(5.0)
        await world.client.start("chain", 1, instance_id="i")
        await world.wait("i", timedelta(seconds=10))
        assert not world.said("claims_released")


def test_of_a_dead_worker_that_held_nothing_nothing_is_said() -> None:
    simulate(_idle)


async def _living() -> None:
    """A worker stands still for longer than its messages are its own, and comes back: nobody has released them."""
    ran: Counter[int] = Counter()
    async with World(app_of(ran, seconds=30.0), place=WHOLE, partitions=1) as world:
        await world.join("one", proves=True)
        await world.clock.sleep(2.0)
        await world.client.start("chain", 1, instance_id="i")
        while not ran[0]:
            await world.clock.sleep(0.05)
        await world.join("two", proves=True)
        await world.wait("i")
        assert ran == {0: 1}
        assert not world.said("claims_released")


def test_what_the_living_hold_is_left_alone() -> None:
    simulate(_living)


async def _outage() -> None:
    """The store does not answer when the death is found: the claims are released once it does."""
    ran: Counter[int] = Counter()
    async with World(app_of(ran, seconds=1.0), place=WHOLE, partitions=1) as world:
        one = await world.join("one", proves=True)
        await world.clock.sleep(2.0)
        await world.client.start("chain", 1, instance_id="i")
        while not ran[0]:
            await world.clock.sleep(0.05)
        two = await world.join("two", proves=True)
        await world.clock.sleep(0.2)
        answers = two.store.release_claims
        tries = 0

        async def refuse(holders: object) -> int:
            nonlocal tries
            tries += 1
            fault = unsent()
            assert fault.before is not None
            if tries < 3:
                raise fault.before
            return await answers([str(one.me)])

        two.store.release_claims = refuse  # type: ignore[method-assign]
        one.die()
        began = world.clock.monotonic()
        while ran[0] == 1:
            await world.clock.sleep(0.01)
        assert 2.0 <= world.clock.monotonic() - began < EMBEDDED_LEASE.visibility.total_seconds()
        assert tries == 3


def test_claims_are_released_when_the_store_answers_again() -> None:
    simulate(_outage)


RARE = LeaseTimes(
    renew=timedelta(seconds=4),
    give_up=timedelta(seconds=8),
    take=timedelta(seconds=16),
    scan=timedelta(seconds=8),
    visibility=timedelta(seconds=16),
)


async def _released(after: float) -> float:
    """Seconds from the end of a worker's service of its partitions to another's. :param after: moment, within scans."""
    ran: Counter[int] = Counter()
    async with World(app_of(ran), place=WHOLE, partitions=2, lease=RARE) as world:
        one = await world.join("one", proves=True)
        await world.clock.sleep(20.0)
        two = await world.join("two", proves=True)
        await world.clock.sleep(60.0 + after)
        assert (len(one.owner.tenures), len(two.owner.tenures)) == (1, 1)
        stopping = world.spawn(one.stop())
        while one.owner.tenures:
            await world.clock.sleep(0.01)
        began = world.clock.monotonic()
        while len(two.owner.tenures) < 2:
            await world.clock.sleep(0.01)
        took = world.clock.monotonic() - began
        await stopping
        return took


def test_what_a_worker_releases_on_this_machine_is_taken_before_the_next_scan() -> None:
    assert max(simulate(partial(_released, after)) for after in (0.0, 2.0, 4.0, 6.0)) <= 0.05


@pytest.mark.rows("K06", "K26", "K27", "K29")
@pytest.mark.parametrize(
    "name",
    [
        "chain",
        "recorded",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("parent", "events", "family", "cancel")),
    ],
)
def test_nothing_is_lost_or_doubled_where_deaths_are_proven(name: str) -> None:
    told = [
        line for _, count in go_through(SCENARIOS[name], (*DEATHS, Kind.LEFT), PROVING, sample=4) for line in count.told
    ]
    assert not told, "\n".join(told)


@pytest.mark.parametrize(("alone", "pause"), [(False, 0.1), (True, 1.0)])
async def test_a_worker_that_is_alone_on_its_machine_looks_less_often(
    alone: bool, pause: float, tmp_path: Path
) -> None:
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    hub: Any = SimpleNamespace(clock=SimpleNamespace(sleep=sleep))
    me = Incarnation.claim("me", tmp_path)
    if not alone:
        Incarnation.claim("other", tmp_path)
    os.utime(tmp_path / "incarnations", (0, 0))
    peers = Peers(live=lambda: asyncio.sleep(0, ()), dead=me.predecessors, alone=me.is_alone)
    with pytest.raises(asyncio.CancelledError):
        await peers._watch_deaths(hub)
    assert pauses == [pause] * 3
