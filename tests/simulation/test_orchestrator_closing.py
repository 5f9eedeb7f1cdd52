"""Orchestrators that a worker lets go of are closed by whoever it was given for that, and by nobody else: what their
``finally`` blocks do is users' business, and may never end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.storage.faults import Call, Fault, unsent
from airflow_provider_taskhub.workers.orchestrations.commit import TRIES
from tests.simulation.world import World, simulate


@pytest.mark.parametrize("why", ["idle", "no session", "too many", "stopped", "not committed"])
def test_nothing_that_is_put_aside_is_closed_on_the_workers_loop(why: str) -> None:
    ran: list[str] = []
    app = App("aside")

    @app.orchestrator
    async def waits(ctx: OrchestrationContext) -> Any:
        try:
            return await ctx.wait_for_external_event("go")
        finally:
            ran.append(ctx.instance_id)

    aside: list[tuple[str, Callable[[], None]]] = []
    failing = TRIES if why == "not committed" else 0

    def plan(call: Call) -> Fault | None:
        nonlocal failing
        if failing and call.kind == "table.batch" and call.what.table == world.client.hub.names.history:
            failing -= 1
            return unsent()
        return None

    settings = {"idle": {"session_idle": timedelta(seconds=6)}, "no session": {"session_idle": timedelta(0)}}
    world = World(app, **settings.get(why, {}))

    async def drive() -> None:
        async with world:
            machine = await world.join("one", plan=plan)
            machine.backend._closes = lambda instance_id, close: aside.append((instance_id, close))
            if why == "too many":
                machine.backend.sessions._limit = 1
            await world.client.start("waits", instance_id="one")
            await world.clock.sleep(20.0)
            if why == "stopped":
                await machine.stop()
            gc.collect()
            assert not ran
            assert {name for name, _ in aside} == {"one"}
            for _, close in aside:
                close()
            assert ran == [name for name, _ in aside]
            aside.clear()

    simulate(drive)
