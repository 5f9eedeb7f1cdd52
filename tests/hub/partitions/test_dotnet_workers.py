"""A hub that workers of .NET serve: ours refuse it, and say why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.errors import HubError, LeaseLost
from airflow_provider_taskhub.hub.partitions.app_lease import SECONDS, dotnet_lease_id, lease_id
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.partitions.cluster import NAMES, Cluster, Node

RENEW, TAKE, SCAN = 10.0, 30.0, 10.0


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def inner() -> None:
        run(test(), limit=timedelta(days=2))

    inner.__name__ = test.__name__
    inner.__doc__ = test.__doc__
    inner.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return inner


class DotNet:
    """A .NET worker: it replaces its rows at each renewal, without a column of ours, and honours who asks.

    :ivar asked: by whom its partitions were asked for.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = VirtualClock()
        self.asked: set[object] = set()

    async def renew(self) -> None:
        for number in range(self._cluster.partitions):
            found = await self._cluster.store.get(NAMES.partitions, "", NAMES.control(number))
            assert found is not None
            self.asked.add(found.properties.get("NextOwner"))
            now = self._clock.utc_now()
            columns = {"CurrentOwner": "dotnet", "OwnedSince": now, "LastRenewal": now, "ExpiresAt": now}
            row = Entity(partition_key="", row_key=NAMES.control(number), properties={**columns, "IsDraining": False})
            operation = RowOperation(verb=RowVerb.REPLACE, entity=row, etag="*")
            await self._cluster.store.execute(Transact(table=NAMES.partitions, rows=(operation,)))

    async def live(self) -> None:
        while True:
            await self.renew()
            await asyncio.sleep(RENEW)


async def _refusal(cluster: Cluster, node: Node, within: float) -> str:
    assert node.task is not None
    with pytest.raises(HubError) as caught:
        await asyncio.wait_for(asyncio.shield(node.task), within)
    cluster.nodes.remove(node)
    return str(caught.value)


@scenario
async def test_a_worker_refuses_a_hub_that_dotnet_serves_without_an_app_lease() -> None:
    async with Cluster() as cluster:
        theirs = DotNet(cluster)
        living = asyncio.create_task(theirs.live())
        await asyncio.sleep(1.0)
        node = await cluster.join("a")
        text = await _refusal(cluster, node, 2 * RENEW + SCAN)
        assert "'dotnet'" in text
        assert "Stop the .NET app" in text
        assert "TASKHUB_HUB" in text
        assert not node.when("taken"), "it has served nothing"
        assert theirs.asked == {None}, "and it has asked for nothing"
        living.cancel()


@scenario
async def test_a_dotnet_app_that_comes_later_ends_the_service_of_ours() -> None:
    async with Cluster() as cluster:
        node = await cluster.join("a")
        await cluster.settle()
        living = asyncio.create_task(DotNet(cluster).live())
        assert "'dotnet'" in await _refusal(cluster, node, 4 * RENEW)
        assert not node.held
        living.cancel()


@scenario
async def test_what_a_dead_dotnet_worker_left_is_taken_as_ever() -> None:
    async with Cluster() as cluster:
        await DotNet(cluster).renew()
        nodes = [await cluster.join("a"), await cluster.join("b")]
        await asyncio.sleep(2 * TAKE)
        assert sum(len(node.held) for node in nodes) == cluster.partitions
        assert all(node.task is not None and not node.task.done() for node in nodes)


@pytest.mark.parametrize("app", ["", "flights"])
def test_no_app_name_of_ours_is_an_app_lease_of_dotnet(app: str) -> None:
    assert dotnet_lease_id("") == "811c9dc5-0000-0000-0000-000000000000", "as recorded from .NET"
    assert lease_id(app).startswith(dotnet_lease_id(app)[:8])
    assert lease_id(app) != dotnet_lease_id(app)


@scenario
async def test_the_app_lease_of_dotnet_keeps_ours_out_though_the_names_are_the_same() -> None:
    async with Cluster() as cluster:
        await DotNet(cluster).renew()
        await cluster.store.acquire_lease(NAMES.app_lease, None, lease_id=dotnet_lease_id(""), seconds=SECONDS)
        node = await cluster.join("a")
        text = await _refusal(cluster, node, 5.0)
        assert "served by another app" in text
        assert "a hub of its own" in text


@scenario
async def test_ours_keep_dotnet_out_though_the_names_are_the_same() -> None:
    async with Cluster() as cluster:
        await cluster.join("a")
        await cluster.settle()
        with pytest.raises(LeaseLost):
            await cluster.store.acquire_lease(NAMES.app_lease, None, lease_id=dotnet_lease_id(""), seconds=SECONDS)


@scenario
async def test_a_worker_joins_those_of_an_older_version_in_a_rolling_update() -> None:
    """They hold the app lease under DurableTask's id, their rows have our columns, and they are listed."""
    async with Cluster() as cluster:
        older = await cluster.join("older")
        await cluster.settle()
        await cluster.store.change_lease(NAMES.app_lease, None, lease_id=lease_id(""), new_lease_id=dotnet_lease_id(""))
        newer = await cluster.join("newer")
        await cluster.settle(60)
        assert cluster.counts([older, newer]) == [2, 2]
        await cluster.leave(older)
        await asyncio.sleep(3 * SECONDS)
        assert len(newer.held) == cluster.partitions, "and it keeps the lease when they have gone"
        with pytest.raises(LeaseLost):
            await cluster.store.acquire_lease(NAMES.app_lease, None, lease_id=dotnet_lease_id("x"), seconds=SECONDS)
