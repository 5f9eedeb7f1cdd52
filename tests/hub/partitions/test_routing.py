"""Routing to the worker that serves an instance, while partitions move (T52, T53, T55)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import HubError, LeaseLost
from airflow_provider_taskhub.hub.model import OwnerState
from airflow_provider_taskhub.hub.partitions.administration import read_hub
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.settings import LeaseTimes, Settings
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.hub.partitions.cluster import NAMES, Cluster
from tests.hub.partitions.test_owner import SCAN, TAKE, now, participant

INSTANCES = [f"instance-{number}" for number in range(32)]


class Caller:
    """A client that speaks to workers. A worker answers for what it serves, and says so when it does not."""

    def __init__(self, cluster: Cluster, routes: Routes) -> None:
        self._cluster, self.routes = cluster, routes
        self.asked: list[str] = []

    async def call(self, instance_id: str, **named: Any) -> str:
        async def ask(owner: str) -> str:
            self.asked.append(owner)
            for node in self._cluster.nodes:
                if str(node.me) == owner and node.serves(partition_of(instance_id, self._cluster.partitions)):
                    return owner
            raise LeaseLost("not the owner")

        return await self.routes.call(instance_id, ask, **named)


async def caller(cluster: Cluster) -> Caller:
    observer = LeaseObserver(cluster.store, NAMES, await read_hub(cluster.store, NAMES), clock=VirtualClock())
    return Caller(cluster, Routes(observer, NAMES, VirtualClock()))


@participant
@pytest.mark.rows("T55", "T52", "T53")
async def test_the_map_is_read_once_and_only_a_wrong_entry_again() -> None:
    async with Cluster(8) as cluster:
        await cluster.join("a")
        await cluster.settle()
        reader = await caller(cluster)
        scans, reads = [0], []  # type: list[int], list[str]
        leases = reader.routes._observer._leases
        scan, read = leases.scan, leases.read

        async def scanned() -> Any:
            scans[0] += 1
            return await scan()

        async def one(queue: str) -> Any:
            reads.append(queue)
            return await read(queue)

        leases.scan, leases.read = scanned, one  # type: ignore[method-assign]
        for instance_id in INSTANCES:
            assert await reader.call(instance_id) == "a@host/a-1"
        assert scans == [1]
        reads.clear()  # a scan of blobs reads each
        b = await cluster.join("b")
        await cluster.settle()
        for instance_id in INSTANCES * 2:
            served = {str(node.me) for node in cluster.nodes if node.serves(partition_of(instance_id, 8))}
            assert {await reader.call(instance_id)} == served
        moved = [NAMES.control(number) for number in sorted(b.held)]
        assert sorted(reads) == moved, "each entry that had changed, once"
        assert scans == [1]
        owners = {number: found.owner for number, found in (await reader.routes.map()).items()}
        assert owners == {number: str(node.me) for node in cluster.nodes for number in node.held}


@participant
@pytest.mark.rows("T55")
async def test_a_call_comes_through_while_its_partition_is_taken_over() -> None:
    async with Cluster(4) as cluster:
        a, b = await cluster.join("a"), await cluster.join("b")
        await cluster.settle()
        await asyncio.sleep(60)
        reader = await caller(cluster)
        instance_id = next(name for name in INSTANCES if partition_of(name, 4) in a.held)
        assert await reader.call(instance_id) == "a@host/a-1"
        await cluster.crash(a)
        died = now()
        assert await reader.call(instance_id) == str(b.me)
        assert now() - died <= TAKE + SCAN + 4
        assert len(reader.asked) < 40, "it does not hammer a worker that is not there"


@participant
@pytest.mark.rows("T55")
async def test_a_call_ends_when_there_is_nobody() -> None:
    async with Cluster(4) as cluster:
        reader = await caller(cluster)
        began = now()
        with pytest.raises(HubError, match=r"no worker serves instance 'x' \(partition \d of hub 'Cluster'"):
            await reader.call("x", timeout=timedelta(seconds=20))
        assert now() - began == pytest.approx(20, abs=0.1)
        with pytest.raises(ValueError, match="broken"):
            await (await with_owner(cluster)).routes.call("x", broken)


async def with_owner(cluster: Cluster) -> Caller:
    await cluster.join("a")
    await cluster.settle()
    return await caller(cluster)


async def broken(owner: str) -> None:
    raise ValueError(f"broken {owner}")


@participant
@pytest.mark.rows("T55")
async def test_a_client_keeps_one_map() -> None:
    async with Cluster(4) as cluster:
        await cluster.join("a")
        await cluster.settle()
        client = await Client.over(cluster.store, Settings(hub=NAMES.hub), clock=VirtualClock())
        assert (await client.admin.routes.owner("x")).owner == "a@host/a-1"
        asked = cluster.store.requests.copy()
        assert [(await client.admin.routes.owner(name)).owner for name in ("x", "y", "z")] == ["a@host/a-1"] * 3
        assert cluster.store.requests == asked


@participant
@pytest.mark.rows("T52", "T54")
async def test_one_entry_is_read_with_all_that_tells_of_it() -> None:
    """The orders and its owner's pace too; what was not read yet is not missing for it."""
    times = LeaseTimes(renew=timedelta(seconds=60), give_up=timedelta(seconds=90), take=timedelta(seconds=120))
    async with Cluster(4, times=times) as cluster:
        await cluster.join("a")
        await cluster.settle()
        one, other, shut = (next(name for name in INSTANCES if partition_of(name, 4) == number) for number in range(3))
        routes = (await caller(cluster)).routes
        assert (await routes.refresh(one)).state is OwnerState.UNPROVEN
        assert (await routes.owner(other)).owner == "a@host/a-1"
        await PartitionOperations(cluster.store, NAMES, by="ops", clock=VirtualClock()).offline([2])
        routes = (await caller(cluster)).routes
        found = await routes.refresh(shut)
        assert (found.state, found.offline) == (OwnerState.UNPROVEN, True), "its owner still stands in the row"
        await routes.refresh(one)
        await asyncio.sleep(61)
        assert (await routes.refresh(one)).state is OwnerState.LIVE
