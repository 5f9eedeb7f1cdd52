"""The client that all triggers of one event loop share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.errors import HubError, InputError, StorageError
from airflow_provider_taskhub.settings import Settings, load_settings
from airflow_provider_taskhub.triggers.shared_client import IDLE, STARTS_AT_ONCE, shared_client, starting_client
from airflow_provider_taskhub.virtual_time import run
from tests.airflow.fake import FakeHub


@pytest.fixture
def settings() -> Settings:
    return load_settings()


async def use(settings: Settings, seconds: float = 1.0, error: Exception | None = None, **more: Any) -> Any:
    async with shared_client(settings, **more) as client:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return client


def test_all_use_one_client_which_closes_after_the_last_use(hub: FakeHub, settings: Settings) -> None:
    async def scenario() -> None:
        clients = await asyncio.gather(*(use(settings, seconds) for seconds in range(500)))
        assert len(set(map(id, clients))) == 1
        await asyncio.sleep(IDLE.total_seconds() - 1)
        assert (hub.opened, hub.open_now) == (1, 1)
        assert await use(settings, IDLE.total_seconds() * 2) is clients[0], "a use begins the time anew"
        await asyncio.sleep(IDLE.total_seconds() + 1)
        assert (hub.opened, hub.open_now) == (1, 0)
        await use(settings)
        assert hub.opened == 2

    run(scenario())


def test_a_use_that_begins_when_the_idle_time_ends_keeps_its_client(hub: FakeHub, settings: Settings) -> None:
    async def scenario() -> None:
        await use(settings)

        async def late() -> None:
            async with shared_client(settings):
                await asyncio.sleep(20)
                assert hub.open_now == 1

        uses: list[asyncio.Task[None]] = []
        asyncio.get_running_loop().call_later(
            IDLE.total_seconds(), lambda: uses.append(asyncio.get_running_loop().create_task(late()))
        )
        await asyncio.sleep(IDLE.total_seconds() + 1)
        await uses[0]

    run(scenario())


def test_hubs_do_not_share_a_client(hub: FakeHub, settings: Settings) -> None:
    async def scenario() -> None:
        one, other = await asyncio.gather(use(settings), use(load_settings(hub="Other")))
        assert one is not other

    run(scenario())


@pytest.mark.parametrize(
    ("error", "opened"), [(StorageError("no answer"), 2), (OSError("reset"), 2), (InputError("wrong"), 1)]
)
def test_the_next_user_gets_another_client_after_an_error_of_the_storage(
    hub: FakeHub, settings: Settings, error: Exception, opened: int
) -> None:
    async def scenario() -> None:
        other = asyncio.ensure_future(use(settings, 30))
        with pytest.raises(type(error)):
            await use(settings, 1, error)
        await use(settings)
        assert (hub.opened, hub.open_now) == (opened, opened), "the other user keeps the client it has"
        await other
        await asyncio.sleep(1)
        assert hub.open_now == (0 if opened == 2 else 1)

    run(scenario())


def test_a_client_that_cannot_be_opened_is_an_error_for_each_user_and_opened_again(
    hub: FakeHub, settings: Settings
) -> None:
    async def scenario() -> None:
        hub.down = HubError("there is no hub")
        errors = await asyncio.gather(*(use(settings) for _ in range(3)), return_exceptions=True)
        assert ([type(error) for error in errors], hub.opened) == ([HubError] * 3, 1)
        hub.down = None
        await use(settings, create=True)
        assert (hub.opened, hub.created) == (2, True)

    run(scenario())


def test_at_the_end_of_the_process_the_client_closes_after_its_users(hub: FakeHub, settings: Settings) -> None:
    """A watcher deletes its row in the list of workers when it is cancelled."""
    seen: list[int] = []

    async def scenario() -> None:
        async def user() -> None:
            async with shared_client(settings):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(1)
                    seen.append(hub.open_now)

        asyncio.get_running_loop().create_task(user(), name="user")
        await asyncio.sleep(1)

    run(scenario())
    assert (seen, hub.open_now) == ([1], 0)


def test_a_bounded_number_of_instances_is_started_at_once(hub: FakeHub, settings: Settings) -> None:
    busy, most = 0, 0

    async def start() -> None:
        nonlocal busy, most
        async with starting_client(settings):
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(1)
            busy -= 1

    async def scenario() -> None:
        await asyncio.gather(*(start() for _ in range(100)))

    run(scenario())
    assert (most, hub.opened) == (STARTS_AT_ONCE, 1)


def test_a_start_that_waits_for_its_turn_uses_the_client_of_that_moment(hub: FakeHub, settings: Settings) -> None:
    async def start(*, broken: bool) -> int:
        async with starting_client(settings):
            await asyncio.sleep(1)
            if broken:
                raise StorageError("no answer")
            return hub.opened

    async def scenario() -> None:
        broken = [start(broken=True) for _ in range(STARTS_AT_ONCE)]
        *_, opened = await asyncio.gather(*broken, start(broken=False), return_exceptions=True)
        assert opened == 2

    run(scenario())
