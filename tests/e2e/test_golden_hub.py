"""A real worker takes over a hub that .NET has filled, on either store (K55)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskhub.client import Client
from tests.e2e.house import housed
from tests.golden import load
from tests.golden.moments import load_moment
from tests.simulation.test_golden_moments import LOST, events_of, facts, recorded_states, told


async def nothing(client: Client) -> None:
    """Everything that is needed is in the queues."""


async def stop(client: Client) -> None:
    await client.raise_event("events-1", "stop", [1, 2])


async def resume(client: Client) -> None:
    await client.resume("susp-1", "go on")


async def rewind(client: Client) -> None:
    await client.rewind("rewind-1", "try again")


MOMENTS: dict[tuple[str, str, str], Callable[[Client], Awaitable[None]]] = {
    ("events", "2_waiting", "3_done"): stop,
    ("suspend", "2_raised", "3_done"): resume,
    ("rewind", "1_failed", "3_done"): rewind,
    ("queues", "1_work_items", "2_done"): nothing,
    ("parent", "1_created", "2_done"): nothing,
    ("fanout150", "1_created", "2_done"): nothing,
    ("terminate", "2_pending", "3_done"): nothing,
}


@pytest.mark.rows("K46", "K53", "K54", "K55")
@pytest.mark.parametrize("store", ["embedded", "azurite"])
@pytest.mark.process
async def test_a_hub_of_dotnets_is_taken_over(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One worker after another: each on a hub with a recorded moment."""
    for (name, moment, done), act in MOMENTS.items():
        recording = load(name)
        folder = tmp_path / name
        folder.mkdir()
        connection = request.getfixturevalue("azurite") if store == "azurite" else f"sqlite:///{folder / 'hub.db'}"
        with housed(folder, connection, recording.hub) as house:
            async with house.client() as client:
                await load_moment(client.hub, recording, moment)
                await act(client)
                house.worker("ours", app="tests.e2e.golden_worker_app:app").ready()
                expected, histories = recorded_states(recording, done), events_of(recording, done)
                for instance_id, state in expected.items():
                    if instance_id in LOST or ":" in instance_id:
                        continue
                    ended = await client.wait(instance_id, timeout=timedelta(seconds=60))
                    assert facts(ended, input=ended.input, output=ended.output) == state, name
                    assert told(await client.instance(instance_id).history()) == told(histories[instance_id]), name
                    assert await client.purge(instance_id)
                assert await client.admin.quarantined() == ()
