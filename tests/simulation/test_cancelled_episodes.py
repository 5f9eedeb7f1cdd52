"""An episode whose task is cancelled although its worker goes on, and orchestrators that call asyncio on a worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.app import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.workers.orchestrations.commit import Committer
from tests.simulation.scenarios import app_of
from tests.simulation.world import Effects, World, simulate


def test_a_cancelled_episode_is_logged_and_its_messages_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, cancelled = Committer.commit, []

    async def cancelling(self: Committer, *args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if not cancelled:
            cancelled.append(task)
            task.cancel()
        return await commit(self, *args, **kwargs)

    monkeypatch.setattr(Committer, "commit", cancelling)

    async def main() -> Any:
        async with World(app_of(Effects())) as world:
            await world.join("one")
            await world.client.start("plod", 2, instance_id="i")
            ended = await world.wait("i")
            return ended.status, [entry["instance_id"] for entry in world.said("episode_cancelled")]

    assert simulate(main) == (Status.COMPLETED, ["i"])


def test_a_worker_that_stops_says_nothing_of_a_cancelled_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def hanging(self: Committer, *args: Any, **kwargs: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Committer, "commit", hanging)

    async def main() -> Any:
        async with World(app_of(Effects())) as world:
            machine = await world.join("one")
            await world.client.start("plod", 2, instance_id="i")
            await begun.wait()
            await machine.stop()
            return world.said("episode_cancelled")

    assert simulate(main) == []


def test_orchestrators_that_call_asyncio_fail_at_once_and_disturb_no_other_instance() -> None:
    app = app_of(Effects())

    async def limited(ctx: OrchestrationContext) -> Any:
        async with asyncio.timeout(0):
            return await ctx.wait_for_external_event("go")

    @app.orchestrator
    async def timeout(ctx: OrchestrationContext) -> Any:
        return await limited(ctx)

    @app.orchestrator
    async def group(ctx: OrchestrationContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(limited(ctx))
            tasks.create_task(limited(ctx))

    async def main() -> Any:
        async with World(app) as world:
            await world.join("one")
            names = ("timeout", "group", "plod")
            ids = [f"{name}-{number}" for number in range(5) for name in names]
            for instance_id in ids:
                name = instance_id.partition("-")[0]
                await world.client.start(name, 2 if name == "plod" else None, instance_id=instance_id)
            ends = [await world.wait(instance_id) for instance_id in ids]
            assert not world.defects()
            assert not world.said("episode_cancelled")
            return {(end.name, end.status, (end.output or "").partition(" (at ")[0]) for end in ends}

    assert simulate(main) == {
        ("timeout", Status.FAILED, "OrchestrationError: asyncio.timeout cannot be used in an orchestrator"),
        ("group", Status.FAILED, "OrchestrationError: asyncio.TaskGroup cannot be used in an orchestrator"),
        ("plod", Status.COMPLETED, "2"),
    }
