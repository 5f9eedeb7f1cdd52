"""What an activity saves reaches the next attempt of its call, and no other call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.storage.faults import Call, Fault, refused
from airflow_provider_taskhub.storage.primitives import RowVerb, Transact
from tests.simulation.world import World, running, saves, simulate


def app() -> App:
    made = App("saved")

    @made.activity(record=True)
    def submit(number: int) -> str:
        raise AssertionError("the test has a function in its place")

    @made.orchestrator
    async def once(ctx: OrchestrationContext, number: int) -> str:
        return await ctx.call_activity(submit, number)

    return made


def is_renewal(call: Call) -> bool:
    what = call.what
    return isinstance(what, Transact) and what.table.endswith("Activities") and what.rows[0].verb is RowVerb.REPLACE


@pytest.mark.parametrize("proves", [True, False], ids=["proven-dead", "silent"])
def test_the_next_attempt_after_a_death_has_the_state(proves: bool) -> None:
    found: list[str | None] = []

    async def submit(number: int) -> str:
        found.append(running().saved)
        if len(found) == 1:
            await saves('{"job":1}')
            await saves('{"job":2}')
            found.append("stored")
            await asyncio.sleep(100.0)
        return "done"

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            one = await hub.join("one", proves=proves)
            await hub.client.start("once", 0, instance_id="i")
            while "stored" not in found:
                await hub.clock.sleep(0.05)
            one.die()  # right after the answer: what was answered is stored
            await hub.join("two", proves=proves)
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    records = simulate(play)
    assert found == [None, "stored", '{"job":2}']
    assert [record.saved for record in records] == ['{"job":2}', '{"job":2}']


def test_nothing_is_answered_before_it_is_stored() -> None:
    """Writes into the record fail for a while."""
    answered: list[float] = []
    down = [True]

    async def submit(number: int) -> str:
        await saves("1")
        answered.append(asyncio.get_running_loop().time())
        return "done"

    def plan(call: Call) -> Fault | None:
        return refused() if down[0] and is_renewal(call) else None

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            await hub.join("one", plan=plan)
            await hub.client.start("once", 0, instance_id="i")
            await hub.clock.sleep(2.0)
            assert not answered
            down[0] = False
            await hub.wait("i")
            return await hub.client.instance("i").activities()

    (record,) = simulate(play)
    assert (record.saved, len(answered)) == ("1", 1)


def test_the_call_after_a_rewind_begins_without_a_state() -> None:
    found: list[str | None] = []

    async def submit(number: int) -> str:
        found.append(running().saved)
        await saves('"mine"')
        if len(found) == 1:
            raise RuntimeError("once")
        return "done"

    async def play() -> Any:
        async with World(app(), functions={"submit": submit}) as hub:
            await hub.join("one")
            await hub.client.start("once", 0, instance_id="i")
            await hub.wait("i")
            await hub.client.rewind("i", "again")
            await hub.wait("i")

    simulate(play)
    assert found == [None, None]
