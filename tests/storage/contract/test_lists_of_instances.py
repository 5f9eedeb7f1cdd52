"""Lists of instances for a program that follows a hub, on every store: changes, errors without payloads, ETags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Store, Transact

FAILURE = '{"ErrorType":"ValueError","ErrorMessage":"41 rows rejected","IsNonRetriable":false}'


@pytest.fixture
async def client(store: Store, fresh: str) -> Client:
    return await Client.over(store, Settings(hub=fresh, partitions=1), create=True)


async def merge(client: Client, instance_id: str, **columns: Any) -> None:
    row = RowOperation(
        verb=RowVerb.MERGE, entity=Entity(partition_key=escape(instance_id), row_key="", properties=columns), etag="*"
    )
    await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(row,)))


async def stamp(client: Client, instance_id: str) -> Timestamp:
    row = await client.hub.store.get(client.hub.names.instances, escape(instance_id), "")
    assert row is not None
    assert row.timestamp is not None
    return row.timestamp


async def ids(client: Client, **wanted: Any) -> list[str]:
    return [one.instance_id for one in (await client.list(**wanted)).instances]


async def test_only_what_the_store_has_written_later_is_listed(
    client: Client, elapse: Callable[[float], Awaitable[None]]
) -> None:
    for name in ("a", "b/é", "c"):
        await client.start("o", instance_id=name)
    page = await client.list()
    assert page.newest == max([await stamp(client, name) for name in ("a", "b/é", "c")])
    before = page.newest
    await elapse(0.01)  # Azurite's clock has milliseconds
    await merge(client, "b/é", CustomStatus='"x"')
    changed = await client.list(changed_since=before)
    assert [one.instance_id for one in changed.instances] == ["b/é"]
    assert changed.newest == await stamp(client, "b/é")
    last = await client.list(changed_since=changed.newest)
    assert (last.instances, last.newest, last.continuation) == ((), None, None)
    assert await ids(client, changed_since=before + timedelta(seconds=-3600)) == ["a", "b/é", "c"]
    assert await ids(client, changed_since=before, statuses=[Status.FAILED]) == []


async def test_a_list_without_payloads_has_errors_and_reasons_only(client: Client) -> None:
    for name in ("completed", "failed", "running", "terminated"):
        await client.start("o", {"secret": 1}, instance_id=name, tags={"t": name}, version="3")
        await merge(client, name, RuntimeStatus=name.capitalize(), Output=f'"{name}"', CustomStatus='"half"')
    await merge(client, "failed", Output="ValueError: 41 rows rejected", TaskHubFailure=FAILURE)
    for more in ({}, {"changed_since": Timestamp(0)}):
        page = await client.list(payloads=False, **more)
        assert {one.instance_id: one.output for one in page.instances} == {
            "completed": None,
            "failed": "ValueError: 41 rows rejected",
            "running": None,
            "terminated": '"terminated"',
        }
        assert {(one.input, one.custom_status, one.version, one.name) for one in page.instances} == {
            (None, None, "3", "o")
        }
        assert [(one.tags or {})["t"] for one in page.instances] == [one.instance_id for one in page.instances]
        failure = page.instances[1].failure
        assert failure is not None
        assert failure.error_message == "41 rows rejected"
    whole = await client.list()
    assert [one.input for one in whole.instances] == ['{"secret":1}'] * 4
    assert [(one.etag, one.execution_id, one.created, one.status) for one in whole.instances] == [
        (one.etag, one.execution_id, one.created, one.status) for one in page.instances
    ]


async def test_errors_cost_one_request_more_and_only_where_there_are_some(client: Client) -> None:
    async def requests(**wanted: Any) -> int:
        before = client.hub.store.requests["table.query"]
        await client.list(**wanted)
        return client.hub.store.requests["table.query"] - before

    await client.start("o", instance_id="a")
    await client.start("o", instance_id="b")
    assert await requests(payloads=False) == 1
    await merge(client, "b", RuntimeStatus="Failed", Output="E: x")
    assert await requests(payloads=False) == 2
    assert await requests(payloads=False, changed_since=Timestamp(0)) == 1
    assert await requests() == 1


async def test_etags_tell_what_is_out_of_date_and_what_was_purged(client: Client) -> None:
    for name in ("a", "b/é", "c"):
        await client.start("o", instance_id=name)
    states = {one.instance_id: one.etag for one in (await client.list()).instances}
    first = await client.etags(limit=2)
    assert first.continuation is not None
    rest = await client.etags(continuation=first.continuation)
    assert {**first.etags, **rest.etags} == states
    assert (list(first.etags), list(rest.etags), rest.continuation) == (["a", "b/é"], ["c"], None)
    await merge(client, "b/é", RuntimeStatus="Completed")
    await merge(client, "c", RuntimeStatus="Completed")
    await client.purge("c")
    now = (await client.etags()).etags
    assert [name for name, etag in now.items() if etag != states[name]] == ["b/é"]
    assert list(now) == ["a", "b/é"]


async def test_the_newest_instances_can_be_listed_first_where_the_store_has_an_index(
    client: Client, elapse: Callable[[float], Awaitable[None]]
) -> None:
    for name in ("b", "c", "a"):
        await client.start("o", {"secret": 1}, instance_id=name)
        await elapse(0.01)
    await merge(client, "b", RuntimeStatus="Failed", Output="E: x", TaskHubFailure=FAILURE)
    if not client.lists_by_time:
        with pytest.raises(InputError, match="index"):
            await client.list(order="created")
        return
    assert await ids(client, order="created") == ["a", "c", "b"]
    assert await ids(client, order="changed") == ["b", "a", "c"]
    assert await ids(client, order="created", statuses=[Status.FAILED]) == ["b"]
    found: list[str] = []
    continuation = None
    while not found or continuation is not None:
        page = await client.list(order="created", limit=1, continuation=continuation, payloads=False)
        found += [one.instance_id for one in page.instances]
        continuation = page.continuation
    assert found == ["a", "c", "b"]
    assert [(one.input, one.output) for one in page.instances] == [(None, "E: x")]
    assert await ids(client, order="changed", changed_since=await stamp(client, "a")) == ["b"]
