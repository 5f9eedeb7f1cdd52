"""Each loop of the triggerer and of the page breaks in turn, and is started again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, settings_without_connection
from airflow_provider_taskhub.plugins import sweep
from airflow_provider_taskhub.plugins.client_cache import client_cache_of
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.triggers.taskhub import TaskHubTrigger
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import FakeHub
from tests.breaking import Breaker


@pytest.fixture
def breaker(monkeypatch: pytest.MonkeyPatch) -> Breaker:
    return Breaker(monkeypatch)


def test_a_trigger_goes_on_waiting_when_the_loops_under_it_break(
    hub: FakeHub, breaker: Breaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without(self: Any) -> Any:
        return settings_without_connection(self.taskhub_conn_id)

    monkeypatch.setattr(TaskHubHook, "asettings", without)

    async def scenario() -> None:
        hub.put("i", Status.RUNNING, tags={"taskhub.owner": "me"})
        trigger = TaskHubTrigger(instance_id="i", owner="me", orchestrator="flights_delays")
        trigger.clock = VirtualClock(asyncio.get_running_loop())

        async def fired() -> dict[str, Any]:
            payload: dict[str, Any] = (await anext(trigger.run())).payload
            return payload

        waiting = asyncio.ensure_future(fired())
        await asyncio.sleep(10)
        for name in tuple(breaker.fuses):
            before = breaker.starts[name]
            for _ in range(3):
                breaker.blow(name)
                await asyncio.sleep(5)
            assert breaker.starts[name] == before + 3, name
        assert "watch" in breaker.fuses
        assert not waiting.done()
        hub.end("i", 1)
        assert (await waiting)["reason"] == "reached"

    run(scenario())


def test_the_page_opens_another_client_when_the_one_it_keeps_breaks(hub: FakeHub) -> None:
    async def scenario() -> None:
        cache = client_cache_of(load_settings())
        await cache.once("members", lambda client: client.admin.workers())
        (keeping,) = [task for task in asyncio.all_tasks() if task.get_name() == "client"]
        keeping.cancel()
        await asyncio.sleep(5)
        await cache.once("members", lambda client: client.admin.workers())
        assert hub.opened == 2

    run(scenario())


def test_the_sweep_is_started_again_when_it_breaks(breaker: Breaker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0

    async def sweep_all(*_: object) -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(sweep, "_sweep_all", sweep_all)

    async def scenario() -> None:
        async with sweep.sweeping():
            await asyncio.sleep(1)
            assert begun == 1
            breaker.blow("sweep")
            await asyncio.sleep(60)
            assert begun == 2

    run(scenario())
