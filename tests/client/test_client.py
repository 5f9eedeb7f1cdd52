"""The three parts of the client: short ways and handle do the same, and an operation must fit the instance's state."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_taskhub.client import Client, HubAdmin, InstanceHandle, StartPolicy, Status
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import (
    HubError,
    InputError,
    InstanceExists,
    InstanceNotFound,
    InvalidStateError,
    TaskHubError,
    Unavailable,
)
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.tags import OWNER_TAG, WATCH_TAG

SETTINGS = Settings(hub="Client", partitions=2)
NOON = datetime(2026, 10, 1, 12, tzinfo=UTC)
ENDED: list[tuple[str, Callable[[InstanceHandle], Awaitable[Any]]]] = [
    ("takes no events", lambda one: one.raise_event("approve")),
    ("cannot be suspended", lambda one: one.suspend()),
    ("cannot be resumed", lambda one: one.resume()),
    ("only a failed instance can be rewound", lambda one: one.rewind()),
]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with SqliteStore(None) as store:
        yield await Client.over(store, SETTINGS, create=True)


async def merge(client: Client, instance_id: str, **properties: Any) -> None:
    row = Entity(partition_key=escape(instance_id), row_key="", properties=properties)
    operation = RowOperation(verb=RowVerb.MERGE, entity=row, etag="*")
    await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(operation,)))


async def end(client: Client, instance_id: str) -> None:
    """As a worker's checkpoint does, but only the row."""
    await merge(client, instance_id, RuntimeStatus="Completed")


async def test_no_input_and_the_input_none_are_stored_differently(client: Client) -> None:
    states = [await client.start("o"), await client.start("o", None), await client.start("o", 0)]
    assert [state.input for state in states] == [None, "null", "0"]


@pytest.mark.parametrize(("text", "operation"), ENDED, ids=[text for text, _ in ENDED])
async def test_an_operation_that_does_not_fit_the_state_is_refused(
    client: Client, text: str, operation: Callable[[InstanceHandle], Awaitable[Any]]
) -> None:
    await client.start("flights", instance_id="f")
    await end(client, "f")
    with pytest.raises(InvalidStateError, match=text) as refused:
        await operation(client.instance("f"))
    assert isinstance(refused.value, InputError), "what caught it before catches it now"
    assert isinstance(refused.value, TaskHubError)


async def test_an_instance_that_runs_cannot_be_purged_nor_started_again_in_its_place(client: Client) -> None:
    await client.start("flights", instance_id="f")
    with pytest.raises(InvalidStateError, match="terminate it first, then purge it"):
        await client.purge("f")
    with pytest.raises(InstanceExists):
        await client.restart("f")
    other = await client.restart("f", new_id=True)
    assert (other.name, other.instance_id != "f") == ("flights", True)


async def test_no_airflow_task_waits_for_a_copy(client: Client) -> None:
    """With the tag, its end would leave a hint that nobody deletes, and a task's kill would end it."""
    tags = {"airflow.dag_id": "d", OWNER_TAG: "o", WATCH_TAG: "1"}
    await client.start("flights", instance_id="f", tags=tags)
    copy = await client.restart("f", new_id=True)
    await end(client, "f")
    assert (copy.tags, (await client.restart("f")).tags) == ({"airflow.dag_id": "d"}, tags)
    await client.start("flights", instance_id="plain")
    assert (await client.restart("plain", new_id=True)).tags is None


async def test_an_interrupted_restart_can_be_repeated(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is written and the start message is not: a repeat puts the message, and starts nothing else."""

    async def fails(self: Hub, *messages: Any) -> None:
        raise Unavailable("no answer")

    await client.start("flights", 1, instance_id="f")
    await end(client, "f")
    with monkeypatch.context() as patched:
        patched.setattr(Hub, "send", fails)
        with pytest.raises(Unavailable):
            await client.restart("f")
    row = await client.get("f")
    sent: list[Any] = []
    send = Hub.send

    async def noted(self: Hub, *messages: Any) -> None:
        sent.extend(messages)
        await send(self, *messages)

    monkeypatch.setattr(Hub, "send", noted)
    again = await client.restart("f")
    assert row is not None
    assert (again.status, again.execution_id, len(sent)) == (Status.PENDING, row.execution_id, 1)
    await merge(client, "f", CompletedTime=Timestamp.from_datetime(NOON))  # as a rewound instance has it
    with pytest.raises(InstanceExists):
        await client.restart("f")


async def test_terminating_an_instance_that_has_ended_is_no_error(client: Client) -> None:
    await client.start("flights", instance_id="f")
    await end(client, "f")
    assert (await client.terminate("f")).status is Status.COMPLETED


@pytest.mark.parametrize("operation", [operation for _, operation in ENDED] + [lambda one: one.status()])
async def test_every_operation_says_that_there_is_no_such_instance(
    client: Client, operation: Callable[[InstanceHandle], Awaitable[Any]]
) -> None:
    with pytest.raises(InstanceNotFound, match="'nobody'"):
        await operation(client.instance("nobody"))


async def test_a_handle_reads_nothing_before_it_is_asked(client: Client) -> None:
    flight = client.instance("f")
    assert repr(flight) == f"<InstanceHandle 'f' of {client.describe()}>"
    assert await flight.get() is None
    await client.start("flights", {"year": 2013}, instance_id="f", tags={"team": "air"})
    assert await flight.status() is Status.PENDING
    assert await flight.get() == await client.get("f")
    assert (await flight.activities(), await flight.history(), await flight.logs()) == ((), (), ())


async def test_an_attached_start_returns_the_instance_that_is_there(client: Client) -> None:
    first = await client.start("flights", 1, instance_id="f")
    again = await client.start("flights", 2, instance_id="f", policy=StartPolicy.ATTACH)
    assert (again.execution_id, [one.instance_id for one in (await client.list()).instances]) == (
        first.execution_id,
        ["f"],
    )


async def test_created_from_and_created_to_are_inclusive(client: Client) -> None:
    await client.start("flights", instance_id="f")
    await merge(client, "f", CreatedTime=Timestamp.from_datetime(NOON))
    for window in ({"created_from": NOON}, {"created_to": NOON}, {"created_from": NOON, "created_to": NOON}):
        page = await client.list(**window)
        assert [one.instance_id for one in page.instances] == ["f"], window
    assert not (await client.list(created_from=NOON + timedelta(seconds=1))).instances
    assert not (await client.list(created_to=NOON - timedelta(seconds=1))).instances


def test_the_short_ways_take_what_the_handle_takes() -> None:
    short = [name for name in vars(Client) if "Short for" in (getattr(Client, name).__doc__ or "")]
    assert len(short) == 9
    for name in short:
        mine = dict(inspect.signature(getattr(Client, name)).parameters)
        assert list(mine).index("instance_id") == 1
        del mine["instance_id"]
        assert mine == dict(inspect.signature(getattr(InstanceHandle, name)).parameters), name


async def test_a_hub_is_made_and_deleted_by_its_administration(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"connection": SecretStr(f"sqlite://{tmp_path / 'hub.db'}")})
    with pytest.raises(HubError):
        await HubAdmin.delete(settings)
    assert (await HubAdmin.create(settings)).partitions == 2
    async with Client.open(settings) as client:
        assert client.admin.info.partitions == 2
        assert await client.admin.workers() == ()
        assert [one.partition for one in await client.admin.partitions()] == [0, 1]
        assert await client.admin.quarantined() == ()
        assert not await client.admin.put_back("nothing")
    await HubAdmin.delete(settings)
    with pytest.raises(HubError):
        async with Client.open(settings):
            raise AssertionError("the hub is gone")
