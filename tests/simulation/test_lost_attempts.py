"""Attempts of a dead worker are lost for whoever looks, before another worker has begun the next attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.cli.instances.attempts import waiting_again
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.plugins.json_views import tally
from airflow_provider_taskhub.plugins.timeline import timeline
from tests.simulation.world import WHOLE, World, simulate

app = App("lost")


@app.activity(record=True)
async def nap(number: int) -> int:
    await asyncio.sleep(600)
    return number


@app.orchestrator
async def naps(ctx: OrchestrationContext, count: int) -> int:
    return len(await ctx.when_all([ctx.call_activity(nap, number) for number in range(count)]))


@pytest.mark.rows("D81")
def test_attempts_of_a_dead_worker_end_when_it_was_last_heard_of_and_wait_for_a_slot() -> None:
    async def main() -> None:
        async with World(app, place=WHOLE, partitions=1) as world:
            one = await world.join("one")
            client, handle = world.client, world.client.instance("i")
            await client.start("naps", 2, instance_id="i")
            await world.clock.sleep(20)
            await client.admin.workers()
            assert {record.state for record in await handle.shown_activities()} == {RecordState.RUNNING}
            one.die()
            died = world.clock.utc_now()
            for _ in range(60):
                await world.clock.sleep(1)
                await client.admin.workers()
                await handle.shown_activities()  # a reader that goes on looking, such as the page
            assert {record.state for record in await handle.activities()} == {RecordState.RUNNING}, "as it is stored"
            lost = await handle.shown_activities()
            assert {record.state for record in lost} == {RecordState.LOST}
            for record in lost:
                assert record.ended is not None
                assert timedelta(0) <= died - record.ended <= timedelta(seconds=2), "not when somebody noticed"
            assert waiting_again(lost) == "nap #0, nap #1"
            assert tally(lost) == {"lost": 2, "retried": 0, "all": 2}
            past, _ = await handle.readable_history()
            for lane in timeline(past, lost, lambda text: text or "")["lanes"]:
                first, second = lane["bars"]
                assert (first["state"], second["state"]) == ("lost", "slot")
                assert (second["start"], second["end"]) == (first["end"], None)

            await world.join("two")
            await world.clock.sleep(60)
            await client.admin.workers()
            stored = {(record.task_id, record.attempt): record for record in await handle.activities()}
            assert [stored[0, 1].state, stored[0, 2].state] == [RecordState.LOST, RecordState.RUNNING]
            assert stored[0, 1].ended == next(record.ended for record in lost if record.task_id == 0)
            lanes = timeline(past, [*stored.values()], lambda text: text or "")["lanes"]
            assert [bar["state"] for bar in lanes[0]["bars"]] == ["lost", "slot", "running"]
            assert lanes[0]["bars"][1]["end"] == lanes[0]["bars"][2]["start"]

    simulate(main)


def test_a_reader_misses_a_new_worker_for_some_seconds_before_it_calls_its_attempts_lost() -> None:
    async def main() -> None:
        async with World(app, place=WHOLE, partitions=1) as world:
            client, handle = world.client, world.client.instance("i")
            assert await client.admin.workers() == ()
            await world.join("one")
            await client.start("naps", 1, instance_id="i")
            while not (records := await handle.shown_activities()):
                await world.clock.sleep(0.1)
            assert [record.state for record in records] == [RecordState.RUNNING], "its row was not read yet"
            assert [record.state for record in await handle.shown_activities(patience=0.0)] == [RecordState.LOST]
            await client.admin.workers()
            await world.clock.sleep(10)
            assert [record.state for record in await handle.shown_activities()] == [RecordState.RUNNING]

    simulate(main)
