"""What is ordered before the first checkpoint of a run: the sentinel decides, and the row shows it (K41, K46)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, lost, straggling, unsent
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.tags import WATCH_TAG
from tests.simulation.scenarios import app_of
from tests.simulation.world import AFTER, RARE_RENEWALS, Death, Effects, World, simulate

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When the worlds begin."""
SLOW = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=15)})
"""What a dead worker held comes back after its partition was taken."""
OTHER = App("other")
"""The app of a worker that has none of the orchestrators."""


def writes_history(hub: World, call: Call) -> bool:
    return isinstance(call.what, Transact) and call.what.table == hub.client.hub.names.history


async def names_of(hub: World, instance_id: str = "one") -> list[str]:
    return [event.event_type.name for event in await hub.client.instance(instance_id).history()]


ENDED_AT_ONCE = [
    "OrchestratorStarted",
    "ExecutionStarted",
    "ExecutionTerminated",
    "ExecutionCompleted",
    "OrchestratorCompleted",
]


@pytest.mark.rows("K26", "K41")
def test_a_first_checkpoint_that_arrives_after_the_terminate_has_made_its_own_is_refused() -> None:
    """Its owner died and the write was still on its way: the insert of the sentinel decides between the two."""

    async def play() -> Any:
        async with World(app_of(Effects()), partitions=1, lease=SLOW) as hub:
            slow: list[Call] = []

            def plan(call: Call) -> Fault | None:
                if slow or not writes_history(hub, call):
                    return None
                slow.append(call)
                asyncio.get_running_loop().call_soon(first.die)
                return straggling(20.0)

            first = await hub.join("first", plan=plan)
            await hub.client.start("chain", 3, instance_id="one", tags={WATCH_TAG: "1"})
            await first.died.wait()
            await first.bury()
            await hub.join("second")
            await hub.client.terminate("one", "enough")
            began = hub.clock.monotonic()
            ended = await hub.wait("one")
            took = hub.clock.monotonic() - began
            assert hub.clock.monotonic() < 19.0, "the write is still on its way"
            await hub.clock.sleep(60.0)
            states, watched = (await hub.ended()).states, await hub.client.watches.completions()
            return ended.status, took < 10.0, await names_of(hub), states["one"][:2], watched

    status, soon, history, state, watched = simulate(play)
    assert (status, soon, state) == (Status.TERMINATED, True, ("Terminated", "enough"))
    assert history == ENDED_AT_ONCE
    assert watched == ("one",), "who watches the instance is told"


@pytest.mark.rows("K36", "K41")
def test_a_terminate_before_the_start_of_a_later_run_leaves_the_earlier_one_in_the_list() -> None:
    async def play() -> Any:
        async with World(app_of(Effects()), partitions=1, lease=RARE_RENEWALS) as hub:
            await hub.join("only")
            runs = []
            for number in range(3):
                due = START + timedelta(hours=1) if number else None
                row = await hub.client.start(
                    "chain", 1, instance_id="one", start_at=due, policy=StartPolicy.REPLACE_FINISHED
                )
                if number:
                    await hub.client.terminate("one", "enough", wait=True)
                await hub.wait("one")
                runs.append(run_name(row.execution_id or ""))
            sentinel = await sentinel_of(hub.store, hub.client.hub.names, "one")
            assert sentinel is not None
            queued = await hub.queued()
            await hub.clock.sleep(3700.0)
            return runs, sentinel.ended, run_name(sentinel.execution_id), queued, await hub.queued()

    runs, ended, current, waiting, left = simulate(play)
    assert (list(ended), current) == (runs[:2], runs[2])
    assert (waiting, left) == (2, 0), "the starts are dropped when they come"


@pytest.mark.rows("D61", "K41", "K46")
@pytest.mark.parametrize("again", [False, True], ids=["new", "over an ended run"])
@pytest.mark.parametrize(
    "death",
    [Death(point="sentinel"), Death(point="sentinel", side=AFTER), Death(point="instance", side=AFTER)],
    ids=str,
)
def test_a_suspension_whose_worker_dies_around_sentinel_and_row_holds_and_is_shown(death: Death, again: bool) -> None:
    async def play() -> Any:
        async with World(app_of(Effects()), partitions=1) as hub:
            if again:
                before = await hub.join("before")
                await hub.client.start("chain", 1, instance_id="one")
                await hub.wait("one")
                await before.stop()
            first = await hub.join("first", app=OTHER, death=death)
            await hub.client.start("chain", 2, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
            await hub.clock.sleep(20.0)
            await hub.client.suspend("one", "not yet", by="ann@a")
            await first.died.wait()
            second = await hub.join("second", app=OTHER)
            await hub.clock.sleep(30.0)
            shown = await hub.client.get("one")
            assert shown is not None
            await second.stop()
            await hub.join("third")
            await hub.clock.sleep(60.0)
            held, history = await hub.client.get("one"), await names_of(hub)
            assert held is not None
            await hub.client.resume("one")
            ended = await hub.wait("one")
            said = [held.status, held.output, held.suspended_by, held.suspended_at == shown.suspended_at]
            return (shown.status, shown.is_held, shown.output, shown.suspended_by), said, history[1:3], ended.output

    shown, held, history, output = simulate(play)
    assert shown == (Status.PENDING, True, "not yet", "ann@a")
    assert held == [Status.SUSPENDED, "not yet", "ann@a", True]
    assert history == ["ExecutionStarted", "ExecutionSuspended"]
    assert output == "2"


@pytest.mark.rows("K26", "K41", "K46")
@pytest.mark.parametrize("fault", [lost(), unsent()], ids=["it was done", "it was not"])
def test_orders_of_one_moment_before_the_start_count_in_their_order_though_the_first_write_fails(fault: Fault) -> None:
    async def play() -> Any:
        async with World(app_of(Effects()), partitions=1) as hub:
            faults = [fault]

            def plan(call: Call) -> Fault | None:
                return faults.pop() if faults and writes_history(hub, call) else None

            await hub.join("only", plan=plan)
            due = START + timedelta(seconds=30)
            await hub.client.start("counter", [], instance_id="one", start_at=due)
            await hub.client.suspend("one", "hold")
            await hub.client.resume("one", "go on")
            await hub.clock.sleep(20.0)
            before = await hub.client.get("one")
            await hub.clock.sleep(30.0)
            after = await hub.client.get("one")
            assert before is not None
            assert after is not None
            assert not faults
            return before.is_held, after.status, await hub.queued()

    assert simulate(play) == (False, Status.RUNNING, 0)


@pytest.mark.rows("K46")
def test_a_reason_that_no_column_holds_is_cut_and_the_suspension_holds() -> None:
    async def play() -> Any:
        async with World(app_of(Effects()), partitions=1) as hub:
            await hub.join("only")
            await hub.client.start("chain", 1, instance_id="one", start_at=START + timedelta(seconds=30))
            await hub.client.suspend("one", "x" * 70_000)
            await hub.clock.sleep(20.0)
            before = await hub.client.get("one")
            await hub.clock.sleep(30.0)
            held = await hub.client.get("one")
            assert before is not None
            assert held is not None
            await hub.client.resume("one")
            return before.output, held.status, len(held.output or ""), (await hub.wait("one")).output

    before, status, size, output = simulate(play)
    assert before == "x" * 70_000
    assert status is Status.SUSPENDED
    assert 30_000 < size < 33_000
    assert output == "1"
