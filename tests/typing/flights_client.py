"""A user's program that starts and watches instances, and a user's unit test, as a type checker sees them."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from airflow_provider_taskhub.client import Client, InstanceHandle, InstanceState, StartPolicy, Status
from airflow_provider_taskhub.errors import InstanceNotFound, InvalidStateError, TaskHubError
from airflow_provider_taskhub.settings import Settings, load_settings
from airflow_provider_taskhub.testing import Event, run
from tests.typing.flights_app import Job, app, as_generator, flights_delays


async def start(settings: Settings) -> str | None:
    async with Client.open(settings, create=True) as client:
        state = await client.start("flights_delays", {"year": 2013}, instance_id="f-1", policy=StartPolicy.ATTACH)
        assert_type(state, InstanceState)
        flight = client.instance(state.instance_id)
        assert_type(flight, InstanceHandle)
        try:
            await flight.raise_event("approve", True)
        except InvalidStateError:
            pass
        except (InstanceNotFound, TaskHubError):
            raise
        ended = await flight.wait(timeout=timedelta(hours=1))
        if ended.status is not Status.COMPLETED:
            await client.terminate(ended.instance_id, "too late", wait=True)
        assert_type(await client.get("f-1"), InstanceState | None)
        for record in await flight.activities():
            print(record.name, record.progress)
        page = await client.list(statuses=[Status.RUNNING], limit=10)
        assert_type(page.instances, tuple[InstanceState, ...])
        print([worker.worker for worker in await client.admin.workers()])
        await client.admin.partition_operations.kick(3, reason="slow disk")
        await client.admin.put_back("message")
        return ended.output


def test_delays() -> None:
    approve = Event(name="approve", data=True, after=timedelta(minutes=3))
    result = run(
        flights_delays, Job(2013, [1]), app=app, activities={"by_name": lambda n: n}, events=[approve], spark=object()
    )
    assert_type(result, dict[str, float])
    assert run(as_generator, 2013, app=app) == 3
    assert result == {"rows": 1.0, "minutes": 1.5}


def settings() -> Settings:
    return load_settings(hub="Flights")
