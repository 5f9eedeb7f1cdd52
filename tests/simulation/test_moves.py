"""The product changes instances and the records of attempts as the tables of the engine say, records in each such way.

Every simulation compares what its workers and clients have written with the table when its world ends.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.lifecycle import ActivityState as A
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.hub import rewind as rewinding
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Transact
from tests.simulation.moves import MOVES
from tests.simulation.world import World, simulate

WITHOUT_A_RECORD = {(A.QUEUED, A.FAILED)}
"""What has waited too long in its queue has no record."""
OF_THE_NEXT = {(A.LOST, A.RUNNING), (A.LOST, A.CANCELLED)}
"""What comes after a lost attempt is told by the record of the next one, which was queued."""
app = App("moves")


@app.activity(record=True)
async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)
    if seconds == 3.0:
        raise OSError("no disk")


@app.orchestrator
async def fine(ctx: OrchestrationContext) -> None:
    return


@app.orchestrator
async def fails(ctx: OrchestrationContext) -> None:
    await ctx.when_all([ctx.call_activity(work, seconds) for seconds in (3.0, 10.0, 120.0)])


@app.orchestrator
async def cancels(ctx: OrchestrationContext) -> None:
    tasks = [ctx.call_activity(work, 600.0) for _ in range(6)]
    await ctx.wait_for_external_event("stop")
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            await task
        except TaskCancelledError:
            continue


@pytest.mark.rows("D30", "D31", "D36", "D56", "D65")
def test_each_change_of_a_record_that_the_table_has_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[A, A]] = set()
    real = rewinding._mark

    async def cancelled() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("cancels", instance_id="i")
            await world.clock.sleep(5)
            await world.client.raise_event("i", "stop")
            await world.wait("i")
            seen.update(world.moves.seen)

    async def failed(world: World) -> None:
        await world.client.start("fails", instance_id="i")
        assert (await world.wait("i")).status is Status.FAILED

    async def rewound_while_it_ends() -> None:
        """A cancel comes after the rewind."""
        async with World(app) as world:
            await world.join("one")
            await failed(world)
            await world.client.rewind("i")
            hub = world.client.hub
            for found in await records.of_instance(hub.store, hub.names, "i"):
                if found[0].task_id == 2:
                    await records.ask_to_stop(hub.store, hub.names, found)
            await world.clock.sleep(60)
            seen.update(world.moves.seen)

    async def rewound_after_a_loss(lost: bool) -> None:
        """The worker is dead, and the next one closes the record, or has lost it, before the rewind reads it."""
        async with World(app) as world:
            one = await world.join("one")
            await failed(world)
            one.die()

            async def late(*given: Any) -> None:
                if lost:
                    hub = world.client.hub
                    for record, row in await records.of_instance(hub.store, hub.names, "i"):
                        if record.runs:
                            await hub.store.execute(records.update(hub.names, record.lost(), row.etag))
                else:
                    await world.join("two")
                    await world.clock.sleep(300)
                await real(*given)

            monkeypatch.setattr(rewinding, "_mark", late)
            await world.client.rewind("i")
            await world.clock.sleep(60)
            seen.update(world.moves.seen)

    for play in (
        cancelled,
        rewound_while_it_ends,
        partial(rewound_after_a_loss, False),
        partial(rewound_after_a_loss, True),
    ):
        monkeypatch.setattr(rewinding, "_mark", real)
        simulate(play)
    assert seen == MOVES - WITHOUT_A_RECORD - OF_THE_NEXT


@pytest.mark.parametrize("state", [RecordState.RUNNING, RecordState.CANCELLED])
def test_a_world_in_which_an_attempt_moves_in_another_way_fails(state: RecordState) -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("fails", instance_id="i")
            await world.wait("i")
            hub = world.client.hub
            record, row = (await records.of_instance(hub.store, hub.names, "i"))[0]
            await hub.store.execute(records.update(hub.names, replace(record, state=state), row.etag))

    with pytest.raises(AssertionError, match=state):
        simulate(main)


@pytest.mark.rows("D65")
@pytest.mark.parametrize(("status", "strange"), [("Running", True), ("Completed", False)])
def test_a_world_in_which_an_instance_that_has_ended_runs_again_fails(status: str, strange: bool) -> None:
    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("fine", instance_id="i")
            await world.wait("i")
            hub = world.client.hub
            row = await hub.store.get(hub.names.instances, "i", "")
            assert row is not None
            again = RowOperation(
                verb=RowVerb.MERGE, entity=replace(row, properties={"RuntimeStatus": status}), etag=row.etag
            )
            await hub.store.execute(Transact(table=hub.names.instances, rows=(again,)))

    with pytest.raises(AssertionError, match=r"COMPLETED.*RUNNING") if strange else nullcontext():
        simulate(main)
