"""What administrators order, carried out by owners that run: kick, bars, offline, caps, drains; and what they see."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import Conflict, InputError
from airflow_provider_taskhub.hub.model import BLOB, Control, ControlKind, Member, Ownership, OwnerState, Service
from airflow_provider_taskhub.hub.partitions.balance import Rules
from airflow_provider_taskhub.hub.partitions.lease import Lease
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations, Stale
from airflow_provider_taskhub.hub.partitions.orders import Controls, Orders, names, orders
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes, Settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.virtual_time import START, VirtualClock
from tests.hub.partitions.cluster import NAMES, Cluster, Faults, Node
from tests.hub.partitions.test_owner import (
    GIVE_UP,
    JITTER,
    RENEW,
    SCAN,
    TAKE,
    changes_a_lease,
    dict_of,
    now,
    participant,
    scenario,
)

CYCLE = SCAN * JITTER
"""Every worker has read the controls by then."""


def operations_of(cluster: Cluster, by: str = "ops") -> PartitionOperations:
    return PartitionOperations(cluster.store, NAMES, by=by, clock=VirtualClock())


def reasons(node: Node) -> set[str]:
    return {reason for *_, reason in node.events if reason}


async def settled(*names: str, partitions: int = 4, cluster: Cluster) -> list[Node]:
    nodes = [await cluster.join(name) for name in names]
    await cluster.settle()
    await asyncio.sleep(3 * SCAN)
    return nodes


async def delete_row(cluster: Cluster, partition: int) -> None:
    gone = Entity(partition_key="", row_key=NAMES.control(partition))
    row = RowOperation(verb=RowVerb.DELETE, entity=gone, etag="*")
    await cluster.store.execute(Transact(table=NAMES.partitions, rows=(row,)))


# --- what they mean -----------------------------------------------------------------------------------------------


@pytest.mark.rows("T62", "E81")
def test_a_node_is_named_in_any_case_by_name_host_or_both() -> None:
    worker = "ETL@Node7.example/4f2a"
    for node in ("etl", "ETL@NODE7.example", "etl@node7.EXAMPLE/4F2A", "@node7.example"):
        assert names(node, worker), node
    for node in ("node7.example", "etl@node7", "@node", "et", "", "@", "etl@node7.example/4f"):
        assert not names(node, worker), node


@pytest.mark.rows("T61", "T63", "T66", "T07")
def test_orders_are_worked_out_for_the_workers_that_are_there() -> None:
    def control(kind: ControlKind, **more: Any) -> Control:
        return Control(kind=kind, at=START, **more)

    given = [
        control(ControlKind.OFFLINE, partition=3),
        control(ControlKind.PROHIBIT, partition=1, node="a"),
        control(ControlKind.PROHIBIT, partition=1, node="@h2"),
        control(ControlKind.CAP, value=4),
        control(ControlKind.CAP, value=2, node="B@H2"),
        control(ControlKind.TURN, value=1),
        control(ControlKind.DRAIN, node="c"),
        control(ControlKind.DRAIN),  # a damaged row drains nobody
        control(ControlKind.UNKNOWN, partition=0, node="a"),
    ]
    workers = {"a@h1/1", "b@h2/1", "c@h3/1"}
    assert orders(given, workers) == orders(given[::-1], workers), "in whatever order they are read"
    assert orders(given, workers) == Orders(
        rules=Rules(offline=frozenset({3}), barred={1: frozenset({"a@h1/1", "b@h2/1"})}, turn=1),
        caps={"a@h1/1": 4, "b@h2/1": 2, "c@h3/1": 4},
        drained=frozenset({"c@h3/1"}),
    )


@scenario
@pytest.mark.rows("T75")
async def test_every_order_is_listed_with_who_when_and_why_until_it_is_lifted() -> None:
    async with Cluster() as cluster:
        operations = operations_of(cluster, "maria")
        await operations.offline([2], "repair")
        await operations.prohibit([1], ["etl", "@Node/7#1"])
        await operations.cap(3, node="etl")
        await operations.drain_node("@node8")
        found = await operations.controls()
        assert {(item.kind, item.partition, item.node, item.value) for item in found} == {
            (ControlKind.OFFLINE, 2, None, None),
            (ControlKind.PROHIBIT, 1, "etl", None),
            (ControlKind.PROHIBIT, 1, "@Node/7#1", None),
            (ControlKind.CAP, None, "etl", 3),
            (ControlKind.DRAIN, None, "@node8", None),
        }
        assert {(item.by, item.at, item.reason) for item in found if item.partition == 2} == {
            ("maria", START, "repair")
        }
        assert await operations.online([2, 3]) == 1
        assert await operations.allow([1], ["ETL"]) == 1
        assert await operations.allow([0, 1]) == 1
        await operations.cap(None, node="etl")
        assert await operations.undrain_node("@NODE8")
        assert not await operations.undrain_node("@NODE8")
        assert await operations.controls() == ()


@scenario
@pytest.mark.rows("T04", "T02")
async def test_what_cannot_be_meant_is_refused() -> None:
    async with Cluster() as cluster:
        operations = operations_of(cluster)
        for order in (
            operations.offline([0, 4]),
            operations.prohibit([-1], ["a"]),
            operations.prohibit([1], [" "]),
            operations.cap(5),
            operations.turn(-1),
            operations.kick(7),
            operations.drain_node("@"),
        ):
            with pytest.raises(InputError):
                await order
        assert await operations.controls() == ()


# --- carried out --------------------------------------------------------------------------------------------------


@participant
@pytest.mark.rows("T57", "T58", "T45", "T46")
async def test_a_kick_makes_the_owner_let_go_and_anybody_may_take_at_once() -> None:
    async with Cluster() as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        number = min(a.held)
        began, before = now(), len(b.when("lost"))
        assert await operations_of(cluster, "maria").kick(number, reason="stuck") == "a@host/a-1"
        await asyncio.sleep(CYCLE)
        assert dict_of(a, "lost")[number] - began <= RENEW * JITTER
        kicked = "by maria at 2026-01-01T"
        assert any(reason.startswith(f"kicked {kicked}") and reason.endswith("stuck") for reason in reasons(a))
        await cluster.settle(SCAN * JITTER)
        row = await cluster.leases.read(NAMES.control(number))
        assert row is not None
        assert (row.kicked_by or "").startswith(kicked)
        assert row.next_owner is None
        assert len(b.when("lost")) == before
        assert cluster.counts() == [2, 2]
        await cluster.leave(a)
        await cluster.leave(b)
        assert await operations_of(cluster).kick(0) is None, "nobody has it"


@participant
@pytest.mark.rows("T57")
async def test_a_kick_that_a_renewal_forestalls_is_made_again() -> None:
    async with Cluster() as cluster:
        (a,) = await settled("a", cluster=cluster)
        faults, forestalled = Faults(cluster.store), list[int]()

        async def renew(name: str, arguments: tuple[object, ...]) -> None:
            if changes_a_lease(name, arguments) and len(forestalled) < 4:
                lease = await cluster.leases.read(NAMES.control(0))
                assert lease is not None
                await cluster.leases.write(lease.renewed(START, timedelta(seconds=TAKE), draining=False))
                forestalled.append(0)

        faults.before = renew
        kicking = PartitionOperations(faults, NAMES, by="ops", clock=VirtualClock())  # type: ignore[arg-type]
        assert await kicking.kick(0) == "a@host/a-1"
        assert len(forestalled) == 4
        await asyncio.sleep(2 * CYCLE)
        assert a.when("lost"), "it was heeded"


@participant
@pytest.mark.rows("T59", "T60", "T61", "T34")
async def test_a_prohibited_worker_is_evicted_and_stays_out_through_every_renewal_and_take() -> None:
    async with Cluster() as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        operations, number = operations_of(cluster), min(a.held)
        await operations.kick(number, prohibit=["A@host"])
        await cluster.settle(3 * CYCLE)
        await asyncio.sleep(2 * CYCLE)
        assert number in b.held
        assert cluster.counts() == [2, 2], "shares are fair among what is allowed"
        await asyncio.sleep(cluster.long(1000))
        await cluster.crash(b)
        await asyncio.sleep(TAKE + 5 * CYCLE)
        assert sorted(a.held) == sorted({0, 1, 2, 3} - {number}), "not even when nobody else is there"
        assert await operations.allow([number]) == 1
        await cluster.settle(CYCLE)


@participant
@pytest.mark.rows("T63")
async def test_bars_change_while_workers_run() -> None:
    async with Cluster() as cluster:
        (a,) = await settled("a", cluster=cluster)
        operations = operations_of(cluster)
        await operations.prohibit([0, 1], ["a"])
        await asyncio.sleep(CYCLE)
        assert sorted(a.held) == [2, 3]
        assert "prohibited to this worker" in reasons(a)
        await operations.allow([1])
        await asyncio.sleep(CYCLE)
        assert sorted(a.held) == [1, 2, 3]


@participant
@pytest.mark.rows("T64", "T65", "T33")
async def test_an_offline_partition_is_served_by_nobody_until_it_is_online() -> None:
    async with Cluster() as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        operations = operations_of(cluster)
        await operations.offline([2], "repair")
        await asyncio.sleep(CYCLE)
        assert sorted([*a.held, *b.held]) == [0, 1, 3]
        assert "it was taken offline" in reasons(a) | reasons(b)
        await asyncio.sleep(cluster.long(1000))
        assert sorted([*a.held, *b.held]) == [0, 1, 3]
        for node in (a, b):
            assert node.owner is not None
            assert node.owner.metrics.longest_free < SCAN, "nobody misses what is offline (E78)"
        await operations.online([2])
        await asyncio.sleep(CYCLE)
        assert 2 in {*a.held, *b.held}
        await cluster.settle(2 * CYCLE)  # free for so long it was anybody's: shares may have to be evened out after it


@participant
@pytest.mark.rows("T66", "T67", "T69")
async def test_a_drained_node_hands_everything_over_without_a_gap_and_takes_nothing() -> None:
    async with Cluster(8) as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        operations = operations_of(cluster)
        cluster.unserved.clear()
        await operations.drain_node("a")
        await asyncio.sleep(2 * CYCLE)
        assert not a.held
        assert len(b.held) == 8
        assert max(cluster.unserved.values()) * 0.05 <= CYCLE
        assert reasons(a) <= {"this worker is drained", "handed over to b@host/b-1"}
        await asyncio.sleep(cluster.long(500))
        assert not a.held
        assert await operations.undrain_node("A")
        await cluster.settle(60)


@participant
@pytest.mark.rows("T07", "T08", "T31", "T38")
async def test_a_cap_is_obeyed_within_a_cycle_in_both_directions() -> None:
    async with Cluster(8) as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        operations = operations_of(cluster)
        await operations.cap(3)
        await asyncio.sleep(CYCLE)
        assert cluster.counts() == [3, 3]
        await operations.cap(1, node="a")
        await asyncio.sleep(CYCLE)
        assert (len(a.held), len(b.held)) == (1, 3)
        spare = await cluster.join("c")
        await asyncio.sleep(CYCLE)
        assert len(spare.held) == 3
        await operations.cap(None)
        await operations.cap(None, node="a")
        await cluster.settle(3 * CYCLE)


@participant
@pytest.mark.rows("T31", "T37", "T38")
async def test_spare_workers_hold_nothing_and_take_over_within_one_take_limit() -> None:
    async with Cluster(2) as cluster:
        nodes = await settled("a", "b", "c", cluster=cluster)
        spare = next(node for node in nodes if not node.held)
        died, victim = now(), next(node for node in nodes if node.held)
        await cluster.crash(victim)
        await asyncio.sleep(TAKE + CYCLE + 1)
        assert len(spare.held) == 1
        (taken,) = spare.when("taken")
        assert taken[0] - died <= TAKE + CYCLE + 1


@participant
@pytest.mark.rows("E52")
async def test_a_worker_of_double_weight_gets_twice_as_many() -> None:
    async with Cluster(12) as cluster:
        small, big = await cluster.join("small"), await cluster.join("big", weight=2)
        await asyncio.sleep(60)
        assert (len(small.held), len(big.held)) == (4, 8)


@participant
@pytest.mark.rows("T32", "E79", "T07")
async def test_a_turn_of_one_moves_one_partition_a_scan() -> None:
    async with Cluster(8) as cluster:
        await settled("a", cluster=cluster)
        await operations_of(cluster).turn(1)
        b = await cluster.join("b")
        await asyncio.sleep(2 * SCAN)
        assert len(b.held) <= 2 * 10 / 2  # scans are faster while a partition is on its way
        await cluster.settle(300)
        await operations_of(cluster).turn(0)
        c = await cluster.join("c")
        await asyncio.sleep(cluster.long(200))
        assert not c.held


# --- loads, progress, records -------------------------------------------------------------------------------------


@participant
@pytest.mark.rows("T76", "T77", "T78")
async def test_published_loads_move_a_busy_partition_to_who_has_room() -> None:
    loads = {0: 50.0, 1: 40.0, 2: 1.0, 3: 1.0}

    def services() -> dict[int, Service]:
        return {number: Service(load=load) for number, load in loads.items()}

    async with Cluster() as cluster:
        a = await cluster.join("a", services=services)
        await asyncio.sleep(30)
        await operations_of(cluster).prohibit([0, 1], ["b"])
        b = await cluster.join("b", services=services)
        await cluster.settle(60)
        assert sorted(b.held) == [2, 3]
        await operations_of(cluster).allow([0, 1])
        await asyncio.sleep(6 * SCAN)
        assert {frozenset(a.held) & {0, 1}, frozenset(b.held) & {0, 1}} == {frozenset({0}), frozenset({1})}
        moves = len(a.events) + len(b.events)
        await asyncio.sleep(cluster.long(1000))
        assert len(a.events) + len(b.events) == moves, "and then nothing moves"


@participant
@pytest.mark.rows("T76", "T79")
async def test_what_was_just_handed_over_is_no_reason_to_hand_over_more() -> None:
    """Its new owner does not know its load yet: counted as nothing, it would make room for another."""
    nodes: dict[str, Node] = {}

    def services(name: str) -> dict[int, Service]:
        return {number: Service(load=10.0) for number in (nodes[name].held if name in nodes else ())}

    async with Cluster(times=AZURE_LEASE.model_copy(update={"scan": timedelta(seconds=1)})) as cluster:
        nodes["a"] = a = await cluster.join("a", services=lambda: services("a"))
        await cluster.settle(60)
        nodes["b"] = b = await cluster.join("b", services=lambda: services("b"))
        await cluster.settle(60)
        await asyncio.sleep(cluster.long(200))
        assert len(a.held) == len(b.held) == 2
        assert len(b.when("taken")) == len(a.when("lost")) == 2
        assert not b.when("lost"), "and nothing was exchanged"


@participant
@pytest.mark.rows("K12", "E70", "E66")
async def test_a_partition_whose_queue_is_not_polled_is_reported_and_taken_back() -> None:
    polled = {1: 0.0}

    def services() -> dict[int, Service]:
        return {number: Service(unpolled=now() - polled.get(number, now())) for number in range(4)}

    with capture_logs() as logs:
        async with Cluster() as cluster:
            a = await cluster.join("a", services=services, longest_unpolled=timedelta(seconds=120))
            await asyncio.sleep(100)
            row = await cluster.leases.read(NAMES.control(1))
            assert row is not None
            assert row.polled is not None
            assert row.polled - START < timedelta(seconds=1), "anybody can see when it was polled last"
            assert not a.when("lost")
            await asyncio.sleep(20 + RENEW)
            polled[1] = now()
            await asyncio.sleep(CYCLE)
            assert [partition for _, partition in a.when("lost")] == [1]
            assert len(a.held) == 4
            assert a.owner is not None
            assert a.owner.metrics.not_polled == 1
    assert [entry["partition"] for entry in logs if entry["event"] == "partition_not_polled"] == [1]


@scenario
@pytest.mark.rows("E77", "E76", "E54", "K06", "D105")
async def test_each_change_of_owner_is_one_record_that_says_why() -> None:
    structlog.reset_defaults()
    with capture_logs() as logs:
        async with Cluster() as cluster:
            a = await cluster.join("a")
            await asyncio.sleep(30)
            b = await cluster.join("b")
            await cluster.settle(60)
            await cluster.leave(a)
            await cluster.settle(CYCLE)
            await cluster.crash(b)
            await cluster.join("c")
            await cluster.settle(TAKE + 2 * CYCLE)
            await cluster.join("d")
            await cluster.settle(60)
            leases = await cluster.leases.scan()
    changes = [entry for entry in logs if entry["event"] == "partition_owner_changed"]
    assert {entry["log_level"] for entry in changes} == {"info"}
    told = [(entry["previous"], entry["owner"], entry["change"]) for entry in changes]
    a_id, b_id, c_id, d_id = (f"{name}@host/{name}-1" for name in "abcd")
    assert told.count((None, a_id, "new")) == 4
    assert told.count((a_id, b_id, "handed over")) == 2
    assert told.count((a_id, b_id, "released")) == 2
    assert told.count((b_id, c_id, "expired")) == 4
    assert told.count((c_id, d_id, "handed over")) == 2
    assert len(told) == 14
    assert {lease.owner for lease in leases} == {c_id, d_id}
    lost = [lease.failover for lease in leases if lease.failover is not None]
    assert [(one.lost, one.taken_by, one.proven) for one in lost] == [(b_id, c_id, False)] * 4, "a handover is none"
    silences = [one.silent for one in lost]
    assert all(one is not None and TAKE <= one <= TAKE + CYCLE for one in silences), silences
    assert {entry["reason"] for entry in changes if entry["change"] == "released"} == {"the worker stops"}
    silent = [entry["silent"] for entry in changes if entry["change"] == "expired"]
    assert all(TAKE <= seconds <= TAKE + CYCLE for seconds in silent), "for how long it was without an owner"
    epochs = {number: [e["epoch"] for e in changes if e["partition"] == number] for number in range(4)}
    assert all(found == list(range(1, len(found) + 1)) for found in epochs.values())
    assert not [entry for entry in logs if entry["log_level"] in ("error", "warning")]


@participant
@pytest.mark.rows("E78", "D105")
async def test_figures_count_what_happened() -> None:
    async with Cluster() as cluster:
        a = await cluster.join("a")
        await asyncio.sleep(30)
        b = await cluster.join("b")
        await cluster.settle(60)
        await cluster.crash(a)
        await cluster.settle(TAKE + 2 * CYCLE)
        assert b.owner is not None
        ages = []
        for _ in range(100):
            await asyncio.sleep(1)
            ages.append(max(tenure.age for tenure in b.owner.tenures))
        assert 0.8 * RENEW < max(ages) < RENEW + 1, "from one renewal to the next"
        metrics = b.owner.metrics
        assert metrics.takes == {"handed over": 2, "expired": 2}
        assert metrics.lost == 0
        assert metrics.renewals >= 4
        assert 0 <= metrics.slowest_renewal < 1
        assert TAKE <= metrics.longest_free <= TAKE + CYCLE


# --- what monitors see --------------------------------------------------------------------------------------------


@scenario
@pytest.mark.rows("T71", "T72", "T27")
async def test_stale_partitions_are_found_by_looking_twice() -> None:
    async with Cluster() as cluster:
        a, _b = await settled("a", "b", cluster=cluster)
        operations = operations_of(cluster)
        assert await operations.stale(RENEW + 5) == ()
        held = sorted(a.held)
        await cluster.crash(a)
        assert await operations.stale(RENEW + 5) == tuple(
            Stale(partition=number, owner="a@host/a-1") for number in held
        )
        await cluster.settle(TAKE + 2 * CYCLE)
        await operations.offline([2])
        await asyncio.sleep(CYCLE)
        assert await operations.stale(RENEW + 5) == (), "what is offline is not meant to live"

        async def delete_later() -> None:
            await asyncio.sleep(1)
            await delete_row(cluster, 3)

        deleting = asyncio.ensure_future(delete_later())
        assert await operations.stale(RENEW + 5) == (Stale(partition=3, owner="b@host/b-1", deleted=True),)
        await deleting
        assert await cluster.leases.insert(NAMES.control(9))  # beyond the hub's partitions: `check` lists it
        assert await operations.stale(RENEW + 5) == (Stale(partition=3, owner=None, deleted=True),), (
            "missing all the time"
        )


@scenario
@pytest.mark.rows("T71", "T72")
async def test_a_look_for_stale_partitions_that_could_not_tell_is_refused() -> None:
    """By the pace that the owners list themselves; nothing has to be waited for where nobody is."""
    for renew, least in ((RENEW, 15), (60, 90)):
        give_up, take = timedelta(seconds=2 * renew), timedelta(seconds=3 * renew)
        async with Cluster(times=LeaseTimes(renew=timedelta(seconds=renew), give_up=give_up, take=take)) as cluster:
            operations = operations_of(cluster)
            for wrong in (math.inf, math.nan, -1.0):
                with pytest.raises(InputError, match=f"give the seconds between the two reads, not {wrong:g}"):
                    await operations.stale(wrong)
            assert [found.partition for found in await operations.stale(0)] == [0, 1, 2, 3], "nobody's since ever"
            await cluster.join("a")
            await cluster.settle(10 * renew)
            told = (
                rf"{least - 1} s are too short: worker a@host/a-1 renews .* {renew:g} s\. Give {least} or more seconds"
            )
            with pytest.raises(InputError, match=told):
                await operations.stale(least - 1)
            assert await operations.stale(least) == ()
            await operations.offline(range(4))
            assert await operations.stale(0) == (), "what is offline is not meant to live"


@scenario
@pytest.mark.rows("T73", "T74", "T75")
async def test_a_check_finds_missing_rows_too_few_workers_and_what_nobody_may_serve() -> None:
    async with Cluster() as cluster:
        operations = operations_of(cluster)
        assert (await operations.check()).problems == (
            *(f"partition {number}: no worker owns it" for number in range(4)),
            "live workers that may serve partitions: 0, fewer than 1",
        )
        await settled("a", "b", cluster=cluster)
        findings = await operations.check(floor=2)
        assert (findings.problems, findings.live) == ((), ("a@host/a-1", "b@host/b-1"))
        await operations.drain_node("b", "update")
        await operations.prohibit([1], ["@host"])
        await delete_row(cluster, 3)
        await asyncio.sleep(2 * CYCLE)
        findings = await operations.check(floor=2)
        assert findings.problems == (
            "partition 3: no lease row: run `taskhub partitions create`",
            "partition 1: no worker owns it",
            "partition 1: orders prohibit it to every live worker",
            "live workers that may serve partitions: 1, fewer than 2",
        )
        assert {(item.kind, item.by) for item in findings.controls} == {
            (ControlKind.DRAIN, "ops"),
            (ControlKind.PROHIBIT, "ops"),
        }


@scenario
async def test_a_check_finds_workers_that_were_given_different_times() -> None:
    async with Cluster() as cluster:
        await settled("a", "b", cluster=cluster)
        assert (await operations_of(cluster).check()).problems == ()
        cluster.times = LeaseTimes(renew=timedelta(seconds=2), give_up=timedelta(seconds=4), take=timedelta(seconds=6))
        other = await cluster.join("c")
        await cluster.settle()
        told = "workers have different lease times (renew/take): 10/30 s a@host/a-1, b@host/b-1; 2/6 s c@host/c-1"
        assert (await operations_of(cluster).check()).problems == (told,)
        await cluster.crash(other)
        assert told not in (await operations_of(cluster).check()).problems, "only of those that live"


@scenario
@pytest.mark.rows("T54")
async def test_a_check_finds_partitions_whose_owners_are_dead() -> None:
    """By looking until each has renewed or should have: no clock of another machine is asked."""
    async with Cluster() as cluster:
        a = await cluster.join("a", skew=timedelta(hours=-3))
        await cluster.settle()
        operations = operations_of(cluster)
        began = now()
        assert (await operations.check()).problems == ()
        assert now() - began <= 1.2 * RENEW, "whoever has renewed is not waited for any longer"
        await cluster.crash(a)

        async def kick_later() -> None:
            await asyncio.sleep(1)
            await operations.kick(1)

        kicking = asyncio.ensure_future(kick_later())
        findings = await operations.check(floor=0)
        await kicking
        assert now() - began <= 2.8 * RENEW, "who writes to its row does not bring an owner back to life"
        assert findings.problems == tuple(
            f"partition {number}: its owner a@host/a-1 does not renew it" for number in range(4)
        )
        await operations.offline([0, 1, 2])
        assert [found.partition for found in (await operations.check(floor=0)).silent] == [3], (
            "offline is not meant to live"
        )


@scenario
@pytest.mark.rows("T54")
async def test_a_renewal_that_comes_late_is_waited_for_as_its_owner_says() -> None:
    """The interval is the owner's own, as it lists it."""
    times = LeaseTimes(renew=timedelta(seconds=60), give_up=timedelta(seconds=90), take=timedelta(seconds=120))
    async with Cluster(times=times) as cluster:
        await cluster.join("a")
        await cluster.settle(600)
        assert (await operations_of(cluster).owner(0)).state is OwnerState.LIVE


@scenario
@pytest.mark.rows("T54")
async def test_no_row_makes_a_check_wait_for_longer_than_two_minutes() -> None:
    """Not an owner that claims to renew once in years, and not a row beyond the hub's partitions."""
    async with Cluster() as cluster:
        a = await cluster.join("a")
        await cluster.settle()
        queue = NAMES.control(9)
        assert await cluster.leases.insert(queue)
        row = await cluster.leases.read(queue)
        assert row is not None
        await cluster.leases.write(row.claimed("gone@host/1", START, timedelta(seconds=TAKE)))
        began = now()
        assert (await operations_of(cluster).check()).problems == (
            "partition 9: there is a lease row, but the hub has no such partition",
        )
        assert now() - began <= 1.2 * RENEW
        times = LeaseTimes(renew=timedelta(days=999), give_up=timedelta(days=1000), take=timedelta(days=1010))
        seldom = Members(cluster.store, NAMES, times=times, clock=VirtualClock())
        await cluster.crash(a)
        await seldom.announce(
            Member(worker=str(a.me), started=START, roles=(), apps={}, orchestrators=(), activities=())
        )
        began = now()
        findings = await operations_of(cluster).check(floor=0)
        assert 0 < now() - began <= 121
        assert findings.problems[1:] == tuple(
            f"partition {number}: it is unknown whether its owner a@host/a-1 is alive" for number in range(4)
        )


@scenario
@pytest.mark.rows("T54")
async def test_a_check_looks_three_times_at_leases_that_cost_a_request_each_and_one_is_read_alone() -> None:
    cluster = Cluster(8)
    cluster.lease_store = BLOB
    async with cluster:
        a = await cluster.join("a")
        await cluster.settle()
        await asyncio.sleep(60)  # now it looks at no lease itself

        async def read(asked: Awaitable[object]) -> tuple[int, int]:
            before = cluster.store.requests.copy()
            await asked
            used = cluster.store.requests - before
            return used["blob.list"], used["blob.get"]

        assert await read(operations_of(cluster).check()) in ((2, 16), (3, 24))
        await cluster.crash(a)
        assert await read(operations_of(cluster).check(floor=0)) == (3, 24)
        listed, gets = await read(operations_of(cluster).owner(0))
        assert listed == 0
        assert 9 <= gets <= 13
        client = await Client.over(cluster.store, Settings(hub=NAMES.hub), clock=VirtualClock())
        assert await read(client.admin.routes.refresh("x")) == (0, 1)


@scenario
@pytest.mark.rows("T43", "T53", "T52", "T54")
async def test_who_serves_a_partition_can_be_asked() -> None:
    async with Cluster() as cluster:
        operations = operations_of(cluster)
        assert await operations.owner(1) == Ownership(partition=1, owner=None, state=OwnerState.NEW)
        a, b = await settled("a", "b", cluster=cluster)
        for node in (a, b):
            assert node.owner is not None
            assert sorted(tenure.partition for tenure in node.owner.tenures) == sorted(node.held)
            assert {await operations.owner(number) for number in node.held} == {
                Ownership(partition=number, owner=str(node.me), state=OwnerState.LIVE) for number in node.held
            }
        number = min(b.held)
        await cluster.crash(b)
        assert await operations.owner(number) == Ownership(partition=number, owner=str(b.me), state=OwnerState.SILENT)
        await cluster.settle(2 * TAKE)
        await operations.offline([0])
        await asyncio.sleep(CYCLE)
        assert await operations.owner(0) == Ownership(partition=0, owner=None, state=OwnerState.OFFLINE, offline=True)
        await operations.kick(1, prohibit=["a"])
        assert (await operations.owner(1)).state is OwnerState.KICKED
        await cluster.leave(a)
        assert await operations.owner(2) == Ownership(partition=2, owner=None, state=OwnerState.RELEASED)
        await delete_row(cluster, 3)
        assert await operations.owner(3) == Ownership(partition=3, owner=None, state=OwnerState.MISSING)


@scenario
@pytest.mark.rows("T54", "T65", "T70")
async def test_an_owner_that_still_stands_in_an_offline_partition_is_told_as_it_is() -> None:
    """An order is an order; whether somebody serves the partition all the same, the row tells."""
    async with Cluster() as cluster:
        a = await cluster.join("a")
        await cluster.settle()
        await cluster.crash(a)
        operations = operations_of(cluster)
        await operations.offline([0])
        await delete_row(cluster, 1)
        await operations.offline([1])
        stands = Ownership(partition=0, owner=str(a.me), state=OwnerState.SILENT, offline=True)
        assert await operations.owner(0) == stands
        assert await operations.owner(1) == Ownership(partition=1, owner=None, state=OwnerState.MISSING, offline=True)
        client = await Client.over(cluster.store, Settings(hub=NAMES.hub), clock=VirtualClock())
        state = (await client.admin.partitions(prove=True))[0]
        assert (state.owner, state.state, state.offline) == (stands.owner, stands.state, True)
        await cluster.join("b")
        await asyncio.sleep(2 * TAKE)
        assert await operations.owner(0) == stands, "nobody takes it, not even to clear the row"


@scenario
@pytest.mark.rows("T52", "T54")
async def test_a_client_that_looks_on_tells_live_owners_from_silent_ones() -> None:
    async with Cluster() as cluster:
        a = await cluster.join("a")
        await cluster.settle()
        client = await Client.over(cluster.store, Settings(hub=NAMES.hub), clock=VirtualClock())

        async def states() -> set[OwnerState]:
            return {found.state for found in await client.admin.partitions()}

        assert await states() == {OwnerState.UNPROVEN}, "one look proves nothing"
        await asyncio.sleep(RENEW)
        assert await states() == {OwnerState.LIVE}
        assert {found.state for found in (await client.admin.routes.map()).values()} == {OwnerState.LIVE}
        await asyncio.sleep(10 * TAKE)
        assert await states() == {OwnerState.UNPROVEN}, "they may have died at any time since the look before"
        await cluster.crash(a)
        assert {found.state for found in await client.admin.partitions(prove=True)} == {OwnerState.SILENT}
        assert (await client.admin.routes.refresh("x")).state is OwnerState.SILENT
        assert await states() == {OwnerState.SILENT}


@participant
@pytest.mark.rows("T83", "T54")
async def test_a_reading_that_comes_late_brings_no_owner_back_to_life() -> None:
    """Of two looks under way the older reading comes last; what the other had seen already is no new sign."""
    async with Cluster() as cluster:
        a = await cluster.join("a")
        await cluster.settle()
        client = await Client.over(cluster.store, Settings(hub=NAMES.hub), clock=VirtualClock())
        leases = client.admin.routes._observer._leases
        scan = leases.scan

        async def slow() -> tuple[Lease, ...]:
            found = await scan()
            leases.scan = scan  # type: ignore[method-assign]
            await asyncio.sleep(RENEW + 2)
            return found

        await client.admin.partitions()
        leases.scan = slow  # type: ignore[method-assign]
        late = asyncio.ensure_future(client.admin.partitions())
        await asyncio.sleep(RENEW + 1)
        await cluster.crash(a)
        other = asyncio.ensure_future(client.admin.routes.map())
        await asyncio.gather(late, other)
        await asyncio.sleep(2 * RENEW)
        assert {found.state for found in await client.admin.partitions()} == {OwnerState.SILENT}


@participant
@pytest.mark.rows("T44")
async def test_a_release_that_fails_costs_others_the_take_time_and_nothing_else() -> None:
    async with Cluster() as cluster:
        a, b = await settled("a", "b", cluster=cluster)
        number, leases = min(a.held), cluster.leases
        assert a.owner is not None

        async def refuse(held: object, reason: str) -> None:
            raise Conflict("somebody else is always first")

        a.owner._holds._write_release = refuse  # type: ignore[method-assign,assignment]
        began = now()
        await operations_of(cluster).prohibit([number], ["a"])
        await asyncio.sleep(CYCLE)
        assert number not in a.held
        row = await leases.read(NAMES.control(number))
        assert row is not None
        assert row.owner == "a@host/a-1"
        await asyncio.sleep(TAKE + GIVE_UP)
        assert number in b.held
        assert dict_of(b, "taken")[number] - began <= TAKE + 3 * CYCLE


@scenario
@pytest.mark.rows("T60", "T83")
async def test_orders_and_renewals_do_not_touch_each_other() -> None:
    """A bar is a row of its own: no worker writes it, and no order writes a lease row."""
    async with Cluster() as cluster:
        await settled("a", cluster=cluster)
        before = cluster.store.requests.copy()
        operations = operations_of(cluster)
        await operations.prohibit([1], ["x"])
        assert (cluster.store.requests - before)["table.update"] == 0
        (bar,) = await Controls(cluster.store, NAMES).read()
        await asyncio.sleep(500)
        assert await Controls(cluster.store, NAMES).read() == (bar,)
