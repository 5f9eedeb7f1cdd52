"""An instance that its owner holds without progress has a reason, wherever somebody looks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.workers.orchestrations.commit import Committer
from tests.simulation.scenarios import app_of
from tests.simulation.world import Effects, World, simulate


@pytest.mark.parametrize("way", ["hangs", "fails"])
def test_an_instance_without_progress_has_a_reason(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    commit, released = Committer.commit, []

    async def without_end(self: Committer, episode: Any, *args: Any, **kwargs: Any) -> Any:
        while episode.current.instance_id == "i" and not released:
            if way == "fails":
                raise StorageError("the store refuses this one")
            await asyncio.sleep(1)
        return await commit(self, episode, *args, **kwargs)

    monkeypatch.setattr(Committer, "commit", without_end)

    async def main() -> None:
        async with World(app_of(Effects())) as world:
            await world.join("one")
            for instance_id in ("i", "j"):
                await world.client.start("plod", 2, instance_id=instance_id)
            assert (await world.wait("j")).status is Status.COMPLETED
            assert await world.client.instance("i").waiting() == ()
            await asyncio.sleep(45)
            (why,) = await world.client.instance("i").waiting()
            assert why.reason is Reason.HELD
            cause = "its episode has not ended" if way == "hangs" else "StorageError: the store refuses this one"
            assert why.text.startswith("worker one@")
            assert why.text.endswith(cause)
            assert "taskhub partitions kick" in why.remedy
            whole = await world.client.admin.waiting_instances()
            assert whole.faults == (Reason.HELD,)
            assert [one.instance_id for one in whole.examples[Reason.HELD]] == ["i"]
            assert [entry["instance_id"] for entry in world.said("instance_held")] == ["i"]
            released.append(True)
            assert (await world.wait("i")).status is Status.COMPLETED
            await asyncio.sleep(10)
            assert not (await world.client.admin.waiting_instances()).counts

    simulate(main)
