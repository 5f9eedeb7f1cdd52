"""An instance that its owner holds without progress has a reason, wherever somebody looks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.hub.waiting import snapshot
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.workers.orchestrations.commit import Committer
from airflow_provider_taskhub.workers.orchestrations.sessions import LONG, Sessions
from tests.simulation.scenarios import app_of
from tests.simulation.world import RARE_RENEWALS, Effects, World, simulate


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


def test_only_its_own_episode_counts_and_not_the_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Committer.commit

    async def slow(self: Committer, episode: Any, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.8 * LONG)
        return await commit(self, episode, *args, **kwargs)

    monkeypatch.setattr(Committer, "commit", slow)

    async def main() -> None:
        async with World(app_of(Effects()), orchestrations=1) as world:
            await world.join("one")
            for instance_id in ("i", "j"):
                await world.client.start("plod", 0, instance_id=instance_id)
            for instance_id in ("i", "j"):
                assert (await world.wait(instance_id)).status is Status.COMPLETED
            assert world.said("instance_held") == []

    simulate(main)


def test_a_held_instance_is_counted_though_its_row_is_not_among_those_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = Committer.commit

    async def stops(self: Committer, episode: Any, *args: Any, **kwargs: Any) -> Any:
        if episode.current.instance_id == "i" and episode.completed is not None:
            await asyncio.sleep(10 * LONG)
        return await commit(self, episode, *args, **kwargs)

    monkeypatch.setattr(Committer, "commit", stops)
    monkeypatch.setattr(snapshot, "ROWS", 1)

    async def main() -> None:
        async with World(app_of(Effects())) as world:
            await world.join("one")
            for instance_id, name in (("a", "events"), ("i", "plod"), ("z", "events")):
                await world.client.start(name, 1, instance_id=instance_id)
            await asyncio.sleep(2 * LONG)
            found = await world.client.admin.waiting_instances()
            assert [one.instance_id for one in found.examples[Reason.HELD]] == ["i"]
            assert not found.complete

    simulate(main)


def test_an_idle_worker_looks_for_no_held_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog, looks = Sessions.backlog, []

    def counted(self: Sessions[Any], now: float) -> Any:
        looks.append(now)
        return backlog(self, now)

    monkeypatch.setattr(Sessions, "backlog", counted)

    async def main() -> None:
        async with World(app_of(Effects()), lease=RARE_RENEWALS) as world:
            await world.join("one")
            await world.client.start("plod", 1, instance_id="i")
            await world.wait("i")
            await asyncio.sleep(60)
            looks.clear()
            await asyncio.sleep(300)
            assert looks == []

    simulate(main)
