"""A commit whose answer is lost or late: what other workers and clients do meanwhile stays done."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InvalidStateError, Unavailable
from airflow_provider_taskhub.storage.faults import Call, Fault, lost, throttled
from airflow_provider_taskhub.storage.primitives import Transact
from tests.simulation.lives import move
from tests.simulation.world import Place, World, simulate


@pytest.mark.rows("K29")
def test_what_a_history_says_was_sent_is_not_withdrawn(place: Place) -> None:
    """The first worker has claimed its work item with the put. The next episode is another worker's, which does not
    send the work item again."""
    app = App("overtaken", version="1")
    runs = list[int]()

    @app.activity
    def square(number: int) -> int:
        runs.append(number)
        return number * number

    @app.orchestrator
    async def both(ctx: OrchestrationContext) -> int:
        squared = ctx.call_activity("square", 3)
        await ctx.wait_for_external_event("go")
        return int(await squared)

    async def play() -> tuple[str | None, list[int], int]:
        async with World(app, place=place, partitions=1) as world:
            first = await world.join("first")
            while not first.owner.tenures:
                await world.clock.sleep(0.1)
            second = await world.join("second", roles=("orchestrator",))
            names, story = world.client.hub.names, list[str]()

            def plan(call: Call) -> Fault | None:
                what = call.what
                if isinstance(what, Transact) and what.table == names.history and not story:
                    story.append("history")
                    return lost()
                if story == ["history"] and call.kind == "table.get" and what[0] == names.instances:  # type: ignore[index]
                    story.append("row")
                    move(first, second)
                    return Fault(delay=15.0)
                return None

            first.plan = plan
            await world.client.start("both", instance_id="one")
            while "row" not in story:
                await world.clock.sleep(0.1)
            await world.client.raise_event("one", "go")
            state = await world.wait("one", timedelta(hours=1))
            await world.clock.sleep(30.0)  # until the first worker has heard
            await world.ended()
            aborted = [entry for entry in world.said("session_aborted") if "another episode" in str(entry)]
            return state.output, runs, len(aborted)

    assert simulate(play) == ("9", [3], 1)


@pytest.mark.rows("K46")
def test_a_failure_is_not_written_over_a_rewind(place: Place) -> None:
    """The failing checkpoint has written the row, but its worker has no answer when a client rewinds the instance."""
    app = App("rewound", version="1")
    runs = list[int]()

    @app.activity
    def shaky(number: int) -> int:
        runs.append(number)
        if len(runs) == 1:
            raise ValueError("the first time")
        return number

    @app.orchestrator
    async def child(ctx: OrchestrationContext) -> int:
        number = int(await ctx.call_activity("shaky", 3))
        await ctx.wait_for_external_event("go")
        return number

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> int:
        return int(await ctx.call_sub_orchestrator("child", instance_id="kid"))

    async def play() -> tuple[Status, str, Status, str | None]:
        async with World(app, place=place, partitions=1) as world:
            first = await world.join("first")
            names, handle, story = world.client.hub.names, world.client.instance("one"), list[str]()

            def plan(call: Call) -> Fault | None:
                what = call.what
                if isinstance(what, Transact) and what.table == names.instances and not story:
                    row = what.rows[0].entity
                    if row.partition_key == "one" and row.properties.get("RuntimeStatus") == "Failed":
                        story.append("failed")
                        return Fault(pause=10.0, after=Unavailable("answer lost (fault)", maybe_done=True))
                return None

            first.plan = plan
            await world.client.start("parent", instance_id="one")
            while (await world.client.get("one", payloads=False)).status is not Status.FAILED:  # type: ignore[union-attr]
                await world.clock.sleep(0.2)
            await handle.rewind("again")
            await world.clock.sleep(60.0)  # until the worker has heard
            waiting = await world.client.get("one")
            assert waiting is not None
            with pytest.raises(InvalidStateError) as purged:
                await handle.purge()
            await world.client.raise_event("kid", "go")
            state = await world.wait("one", timedelta(hours=1))
            await world.ended()
            return waiting.status, str(purged.value), state.status, state.output

    waiting, purged, status, output = simulate(play)
    assert waiting is Status.PENDING
    assert "terminate it first" in purged
    assert (status, output) == (Status.COMPLETED, "3")


def squares(name: str) -> tuple[App, list[int]]:
    """An app whose orchestrator ``one`` calls one activity, and the list of the numbers that the activity has got."""
    app, runs = App(name, version="1"), list[int]()

    @app.activity
    def square(number: int) -> int:
        runs.append(number)
        return number * number

    @app.orchestrator
    async def one(ctx: OrchestrationContext) -> int:
        return int(await ctx.call_activity("square", 3))

    return app, runs


@pytest.mark.rows("K29")
def test_what_two_tries_have_put_is_handed_over_once(place: Place) -> None:
    """The store throttles the first try after its puts. The second try is committed, but its answer is lost."""
    app, runs = squares("tries")

    async def play() -> tuple[str | None, list[int], int]:
        async with World(app, place=place, partitions=1) as world:
            first = await world.join("first")
            while not first.owner.tenures:
                await world.clock.sleep(0.1)
            names, faults = world.client.hub.names, [throttled(), lost()]

            def plan(call: Call) -> Fault | None:
                is_history = isinstance(call.what, Transact) and call.what.table == names.history
                return faults.pop(0) if is_history and faults else None

            first.plan = plan
            await world.client.start("one", instance_id="one")
            state = await world.wait("one", timedelta(minutes=5))
            await world.ended()
            return state.output, runs, len(faults)

    assert simulate(play) == ("9", [3], 0)


@pytest.mark.rows("K29")
def test_a_claim_that_has_run_out_is_not_handed_over(place: Place) -> None:
    """The answer to the history takes longer than the claim. Meanwhile another worker has received the work item."""
    app, runs = squares("outrun")

    async def play() -> tuple[str | None, list[int], list[str]]:
        async with World(app, place=place, partitions=1) as world:
            first = await world.join("first")
            while not first.owner.tenures:
                await world.clock.sleep(0.1)
            await world.join("second", roles=("activity",))
            names, story = world.client.hub.names, list[str]()

            def plan(call: Call) -> Fault | None:
                what = call.what
                if isinstance(what, Transact) and what.table == names.history and not story:
                    story.append("history")
                    return Fault(pause=world.settings.lease_times.visibility.total_seconds() + 60.0)
                return None

            first.plan = plan
            await world.client.start("one", instance_id="one")
            state = await world.wait("one", timedelta(minutes=5))
            await world.ended()
            return state.output, runs, story

    assert simulate(play) == ("9", [3], ["history"])
