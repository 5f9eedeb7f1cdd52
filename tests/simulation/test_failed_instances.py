"""A failed instance: its activities that run go on, and a rewind takes their results instead of running them again."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub import rewind as rewinding
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.workers.activities.begins import Begins, Permit
from airflow_provider_taskhub.workers.activities.cancellation import Fate
from tests.simulation.world import World, simulate

BEGUN: Counter[str] = Counter()
DONE: Counter[str] = Counter()
BROKEN: set[str] = set()
app = App("year")


@app.activity(record=True)
async def month(what: tuple[str, float]) -> str:
    name, seconds = what
    BEGUN[name] += 1
    await asyncio.sleep(seconds)
    if name in BROKEN:
        raise ValueError(f"no {name}")
    DONE[name] += 1
    return name


@app.orchestrator
async def year(ctx: OrchestrationContext, months: list[tuple[str, float]]) -> list[str]:
    return await ctx.when_all([ctx.call_activity(month, what) for what in months])


@app.orchestrator
async def tidied(ctx: OrchestrationContext) -> str:
    """Begins something that it does not await, after the failure that it ends with."""
    try:
        return await ctx.call_activity(month, ("bad", 1.0))
    except Exception:
        ctx.call_activity(month, ("tidy", 600.0))
        await ctx.create_timer(timedelta(seconds=5))
        raise


@app.orchestrator
async def twice(ctx: OrchestrationContext) -> list[str]:
    policy = RetryPolicy(max_attempts=2, first_retry_interval=timedelta(seconds=1))
    months = [("bad", 1.0), ("late", 30.0)]
    return await ctx.when_all([ctx.call_activity(month, what, retry_policy=policy) for what in months])


@app.orchestrator
async def parent(ctx: OrchestrationContext) -> list[str]:
    given = [("bad", 3.0), ("short", 10.0), ("long", 120.0)]
    return await ctx.call_sub_orchestrator(year, given, instance_id="child")


async def _failed(world: World, orchestrator: str = "year", given: Any = None) -> None:
    """Run an instance whose activity "bad" fails, and then mend this activity."""
    for counted in (BEGUN, DONE, BROKEN):
        counted.clear()
    BROKEN.add("bad")
    months = [("bad", 3.0), ("short", 10.0), ("long", 120.0)]
    await world.client.start(orchestrator, *([months] if orchestrator == "year" else []), instance_id="i")
    assert (await world.wait("i")).status is Status.FAILED
    BROKEN.clear()


async def _output(world: World) -> Any:
    """Wait until the instance has completed, and return its output."""
    ended = await world.wait("i")
    assert ended.status is Status.COMPLETED, ended
    return codec.loads(ended.output or "", what="output")


async def _states(world: World) -> dict[str, RecordState]:
    found = await world.client.instance("i").activities()
    return {f"{record.task_id}.{record.attempt}": record.state for record in found}


@pytest.mark.parametrize("pause", [0.0, 8.0, 200.0], ids=["all run", "one has ended", "both have ended"])
def test_a_rewind_runs_only_what_has_failed(pause: float) -> None:
    async def main() -> None:
        async with World(app) as world:
            for name in ("one", "two"):
                await world.join(name)
            await _failed(world)
            await world.clock.sleep(pause)
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN == {"bad": 2, "short": 1, "long": 1}
            assert set((await _states(world)).values()) == {RecordState.COMPLETED, RecordState.FAILED}
            await world.settle()

    simulate(main)


def test_a_terminate_of_a_failed_instance_does_not_end_what_was_rewound_meanwhile() -> None:
    async def main() -> None:
        async with World(app) as world:
            one = await world.join("one")
            await _failed(world)
            await one.bury()
            await world.client.terminate("i", "stop")
            await world.client.rewind("i", "mended")
            await world.join("two")
            assert await _output(world) == ["bad", "short", "long"]
            await world.settle()

    simulate(main)


def test_what_has_not_begun_when_the_instance_fails_does_not_begin_before_the_rewind() -> None:
    async def main() -> None:
        async with World(app, partitions=1, activities=2) as world:
            await world.join("one")
            await _failed(world)
            await world.clock.sleep(300)
            assert BEGUN == {"bad": 1, "short": 1}, "the third one waited for a slot"
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN == {"bad": 2, "short": 1, "long": 1}

    simulate(main)


def test_what_fails_after_its_instance_runs_again_after_the_rewind() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world)
            BROKEN.add("long")
            await world.clock.sleep(300)
            BROKEN.clear()
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN == {"bad": 2, "short": 1, "long": 2}

    simulate(main)


def test_an_activity_that_still_runs_and_fails_after_the_rewind_is_tried_again_by_its_policy() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "twice")
            BROKEN.add("late")
            await world.client.rewind("i", "mended")
            await world.clock.sleep(32)
            BROKEN.clear()
            assert await _output(world) == ["bad", "late"]
            assert BEGUN == {"bad": 3, "late": 2}

    simulate(main)


@pytest.mark.parametrize("rewound", ["before the death is known", "after another worker has closed it"])
def test_an_activity_whose_worker_dies_after_the_failure_runs_once_more(rewound: str) -> None:
    async def main() -> None:
        async with World(app) as world:
            one = await world.join("one")
            await _failed(world)
            one.die()
            if rewound.startswith("after"):
                await world.join("two")
                await world.clock.sleep(300)
                assert (await _states(world))["2.1"] is RecordState.CANCELLED, "nothing begins for a failed instance"
            await world.client.rewind("i", "mended")
            if rewound.startswith("before"):
                await world.join("two")
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN == {"bad": 2, "short": 2, "long": 2}
            assert DONE == {"bad": 1, "short": 1, "long": 1}
            await world.settle()

    simulate(main)


def test_a_worker_that_closes_an_attempt_during_the_rewind_does_not_lose_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker reads that the instance has failed, and closes the attempt of a dead worker, after the rewind has
    decided to keep its call."""

    async def main() -> None:
        async with World(app) as world:
            one = await world.join("one")
            await _failed(world)
            one.die()
            mark = rewinding._mark

            async def late(*given: Any) -> None:
                await world.join("two")
                await world.clock.sleep(300)
                assert (await _states(world))["2.1"] is RecordState.CANCELLED
                await mark(*given)

            monkeypatch.setattr(rewinding, "_mark", late)
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert DONE == {"bad": 1, "short": 1, "long": 1}
            await world.settle()

    simulate(main)


def test_a_worker_that_has_read_the_failure_before_the_rewind_and_closes_the_attempt_after_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with World(app) as world:
            one = await world.join("one")
            await _failed(world)
            one.die()
            ask, slow = Begins.permit, asyncio.Event()

            async def slowly(self: Begins, held: Delivery) -> Permit:
                permit = await ask(self, held)
                if permit.fate is Fate.FAILED:
                    slow.set()
                    await world.clock.sleep(20)
                return permit

            monkeypatch.setattr(Begins, "permit", slowly)
            await world.join("two")
            await slow.wait()
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert DONE == {"bad": 1, "short": 1, "long": 1}
            assert RecordState.CANCELLED not in (await _states(world)).values()
            await world.settle()

    simulate(main)


def test_a_cancel_that_comes_after_the_rewind_does_not_lose_the_call() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world)
            await world.client.rewind("i", "mended")
            hub = world.client.hub
            for found in await records.of_instance(hub.store, hub.names, "i"):
                if found[0].task_id == 2:
                    await records.ask_to_stop(hub.store, hub.names, found)
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN["long"] == 2
            assert (await _states(world))["2.1"] is RecordState.LOST
            await world.settle()

    simulate(main)


def test_a_terminate_ends_the_activities_of_a_failed_instance() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world)
            state = await world.client.terminate("i", "enough", wait=True)
            assert state.status is Status.FAILED
            states = await _states(world)
            assert {states["1.1"], states["2.1"]} == {RecordState.CANCELLED}
            assert DONE == {}
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            await world.settle()

    simulate(main)


@pytest.mark.parametrize("recurse", [True, False])
def test_a_terminate_ends_the_activities_of_failed_children_too(recurse: bool) -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "parent")
            assert await world.client.instance("i").runs_on()
            await world.client.terminate("i", "enough", wait=True, recurse=recurse)
            running = [record for record in await world.client.instance("child").activities() if record.runs]
            assert (len(running), await world.client.instance("i").runs_on()) == ((0, False) if recurse else (2, True))
            await world.client.rewind("i", "mended")
            assert await _output(world) == ["bad", "short", "long"]
            assert BEGUN["long"] == (2 if recurse else 1)
            await world.settle()

    simulate(main)


def test_what_a_rewind_undoes_is_stopped_also_if_the_rewind_is_cut_off() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "tidied")
            cut = True

            def plan(call: Call) -> Fault | None:
                if cut and isinstance(call.what, Transact) and call.what.table.endswith("Instances"):
                    raise Unavailable("cut off", maybe_done=False)
                return None

            store = FaultyStore(world.store, plan, clock=world.clock)
            client = await Client.over(store, world.settings, clock=world.clock)
            with pytest.raises(Unavailable):
                await client.rewind("i", "mended")
            cut = False
            await client.rewind("i", "mended")
            assert await _output(world) == "bad"
            await world.clock.sleep(20)
            found = await world.client.instance("i").activities()
            assert [record.state for record in found if record.task_id == 1] == [RecordState.CANCELLED]

    simulate(main)


def test_what_runs_for_a_decision_that_the_rewind_takes_back_is_stopped() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world, "tidied")
            assert BEGUN == {"bad": 1, "tidy": 1}
            await world.client.rewind("i", "mended")
            assert await _output(world) == "bad"
            await world.clock.sleep(20)
            found = await world.client.instance("i").activities()
            assert [record.state for record in found if record.task_id == 1] == [RecordState.CANCELLED]
            assert DONE == {"bad": 1}
            await world.settle()

    simulate(main)


def test_a_start_in_place_of_a_failed_instance_stops_its_activities() -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await _failed(world)
            await world.client.restart("i")
            await world.wait("i")
            await world.clock.sleep(60)
            assert DONE == {"bad": 1, "short": 1, "long": 1}, "only those of the second run"
            await world.settle()

    simulate(main)
