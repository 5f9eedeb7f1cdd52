"""Making, adopting, refusing and removing a hub; every crash point of a creation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from airflow_provider_taskhub.clock import SystemClock
from airflow_provider_taskhub.errors import ConfigurationError, HubError, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.hub.model import FORMAT_VERSION, HubInfo, HubNames, Member
from airflow_provider_taskhub.hub.partitions.administration import (
    create_hub,
    delete_hub,
    ensure_hub,
    partition_states,
    read_hub,
)
from airflow_provider_taskhub.hub.partitions.app_lease import AppLease, dotnet_lease_id, lease_id
from airflow_provider_taskhub.hub.partitions.lease_stores import TableLeases, insert_row
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Store,
    Transact,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START
from tests.hub.partitions.cluster import Faults

NAMES = HubNames("AdminHub")


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with SqliteStore(None) as opened:
        yield opened


async def everything(store: Store) -> dict[str, list[str]]:
    return {
        "queues": sorted(await store.list_queues("")),
        "tables": sorted(await store.list_tables("")),
        "rows": [row.row_key async for row in store.rows(NAMES.partitions)],
        "info": [str((await store.get_blob(NAMES.app_lease, NAMES.app_lease_info) or PutBlob).data)],  # type: ignore[union-attr]
    }


WHOLE = {
    "queues": [
        *(f"adminhub-control-0{number}" for number in range(4)),
        "adminhub-workitems",
        "adminhub-workitems-spark",
    ],
    "tables": sorted(
        f"AdminHub{name}"
        for name in (
            "Activities",
            "Completions",
            "Controls",
            "History",
            "Instances",
            "Members",
            "Partitions",
            "Quarantine",
        )
    ),
    "rows": [f"adminhub-control-0{number}" for number in range(4)],
    "info": ["b'{}'"],
}


async def set_hub_row(store: Store, **columns: object) -> None:
    entity = Entity(partition_key="hub", row_key="hub", properties=columns)  # type: ignore[arg-type]
    row = RowOperation(verb=RowVerb.MERGE, entity=entity, etag="*")
    await store.execute(Transact(table=NAMES.controls, rows=(row,)))


@pytest.mark.rows("K01", "T02", "T29", "E01", "E04")
async def test_a_hub_is_made_with_everything_it_needs(store: Store) -> None:
    info = await create_hub(store, NAMES, 4)
    assert info == HubInfo(partitions=4, lease_store="table", format_version=FORMAT_VERSION, ready=True)
    assert await everything(store) == WHOLE
    assert await read_hub(store, NAMES) == info
    assert not await store.create_container(NAMES.logs)
    leases = await TableLeases(store, NAMES).scan()
    assert [(lease.owner, lease.owned_since, lease.draining) for lease in leases] == [(None, None, False)] * 4


@pytest.mark.rows("T05", "E01", "E05")
async def test_a_creation_interrupted_at_any_request_is_completed_by_the_next(store: Store) -> None:
    point = 0
    while True:
        await delete_hub(store, NAMES)
        faults, calls = Faults(store), [0]

        async def crash(_: str, __: tuple[object, ...], stop: int = point, calls: list[int] = calls) -> None:
            calls[0] += 1
            if calls[0] > stop:
                raise asyncio.CancelledError

        faults.before = crash
        try:
            await create_hub(faults, NAMES, 4)  # type: ignore[arg-type]
            break
        except asyncio.CancelledError:
            with pytest.raises(HubError):
                await read_hub(store, NAMES)  # never taken for a whole one
        await create_hub(store, NAMES, 4)
        assert await everything(store) == WHOLE
        point += 1
    assert point > 15


@pytest.mark.rows("E01", "E04")
async def test_many_creators_at_once_all_succeed(store: Store) -> None:
    infos = await asyncio.gather(*(create_hub(store, NAMES, 4) for _ in range(8)))
    assert {info.partitions for info in infos} == {4}
    assert await everything(store) == WHOLE


@pytest.mark.rows("E05")
async def test_a_request_is_tried_five_times_then_named(store: Store) -> None:
    faults, left = Faults(store), [4]

    async def flaky(name: str, arguments: tuple[object, ...]) -> None:
        if name == "create_queue" and arguments == (NAMES.control(2),) and left[0]:
            left[0] -= 1
            raise Throttled("patience", retry_after=0.0)

    faults.before = flaky
    await create_hub(faults, NAMES, 4)  # type: ignore[arg-type]
    left[0] = 5
    with pytest.raises(Throttled, match="queue of partition 2 of the hub could not be written in 5 tries"):
        await create_hub(faults, NAMES, 4)  # type: ignore[arg-type]


class Patience(SystemClock):
    """Waits for nothing, and keeps how long it was to wait."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.mark.rows("E05")
async def test_the_pauses_between_tries_are_the_given_clocks(store: Store) -> None:
    faults, clock = Faults(store), Patience()
    errors: list[StorageError] = [Throttled("patience", retry_after=0.3), Unavailable("nobody answers")]

    async def flaky(name: str, arguments: tuple[object, ...]) -> None:
        if name == "create_queue" and arguments == (NAMES.control(2),) and errors:
            raise errors.pop(0)

    faults.before = flaky
    await create_hub(faults, NAMES, 4, clock=clock)  # type: ignore[arg-type]
    assert clock.slept == [0.3, 0.2]


@pytest.mark.rows("K01")
async def test_another_partition_count_is_refused_by_name(store: Store) -> None:
    await create_hub(store, NAMES, 8)
    for call in (create_hub(store, NAMES, 4), read_hub(store, NAMES, partitions=4), ensure_hub(store, NAMES, 4)):
        with pytest.raises(HubError, match=r"hub 'AdminHub' has 8 partitions, not 4.*TASKHUB_PARTITIONS=8"):
            await call
    assert len(await store.list_queues(NAMES.control_prefix)) == 8, "no queue was added"
    assert (await ensure_hub(store, NAMES)).partitions == 8
    assert (await read_hub(store, NAMES)).partitions == 8


@pytest.mark.rows("K01", "T02")
@pytest.mark.parametrize("count", [0, -1, 1025])
async def test_a_count_out_of_range_is_refused(store: Store, count: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"1 to 1024 partitions, not {count}"):
        await create_hub(store, NAMES, count)
    assert await store.list_tables("") == []


@pytest.mark.rows("T06")
async def test_a_missing_hub_is_refused_with_the_way_out(store: Store) -> None:
    with pytest.raises(HubError, match=r"there is no hub 'AdminHub' .*taskhub hub create"):
        await read_hub(store, NAMES)
    with pytest.raises(HubError, match="there is no hub"):
        await partition_states(store, NAMES)
    assert (await ensure_hub(store, NAMES, default=2)).partitions == 2
    with pytest.raises(HubError, match=r"there is no hub 'AdminHab' .*: did you mean 'AdminHub'\? Create it"):
        await read_hub(store, HubNames("AdminHab"))
    with pytest.raises(HubError, match=r"there is no hub 'Sales' .*: it has AdminHub\. Create it"):
        await read_hub(store, HubNames("Sales"))


@pytest.mark.rows("T06")
async def test_a_hub_that_is_not_ready_is_refused(store: Store) -> None:
    await create_hub(store, NAMES, 4)
    await set_hub_row(store, State="creating")
    with pytest.raises(HubError, match="not ready"):
        await read_hub(store, NAMES)
    assert (await ensure_hub(store, NAMES)).ready, "a creation is finished by whoever needs the hub"
    await set_hub_row(store, State="deleting")
    for call in (read_hub(store, NAMES), create_hub(store, NAMES, 4), ensure_hub(store, NAMES)):
        with pytest.raises(HubError, match="is being deleted"):
            await call


async def test_a_newer_or_damaged_hub_is_refused(store: Store) -> None:
    await create_hub(store, NAMES, 4)
    await set_hub_row(store, FormatVersion=FORMAT_VERSION + 1)
    for call in (read_hub(store, NAMES), create_hub(store, NAMES, 4), ensure_hub(store, NAMES)):
        with pytest.raises(HubError, match=r"format version 2, this package knows 1: upgrade"):
            await call
    await set_hub_row(store, FormatVersion="x")
    with pytest.raises(HubError, match="damaged"):
        await read_hub(store, NAMES)


@pytest.mark.rows("K13")
async def test_another_lease_store_is_refused(store: Store) -> None:
    await create_hub(store, NAMES, 4)
    await set_hub_row(store, LeaseStore="elsewhere")
    with pytest.raises(HubError, match="elsewhere store, not in a table"):  # of a version to come
        await read_hub(store, NAMES)
    await set_hub_row(store, LeaseStore="blob")
    with pytest.raises(HubError, match="blob store, not in a table"):
        await read_hub(store, NAMES, lease_store="table")


async def dotnet_hub(store: Store, *numbers: int) -> None:
    """What DurableTask leaves: no Controls table."""
    for number in numbers:
        await store.create_queue(NAMES.control(number))
    await store.create_table(NAMES.partitions)
    for number in numbers:
        columns = {"CurrentOwner": "worker-a", "IsDraining": False, "OwnedSince": START}
        entity = Entity(partition_key="", row_key=NAMES.control(number), properties=columns)  # type: ignore[arg-type]
        await insert_row(store, NAMES.partitions, entity)


@pytest.mark.rows("K01", "K13", "E04")
async def test_a_hub_made_by_dotnet_is_adopted_as_it_is(store: Store) -> None:
    await dotnet_hub(store, 0, 1, 2)
    with pytest.raises(HubError, match="made by DurableTask: adopt it"):
        await read_hub(store, NAMES)
    with pytest.raises(HubError, match=r"with 3 partitions, not 4.*TASKHUB_PARTITIONS=3"):
        await create_hub(store, NAMES, 4)
    assert (await ensure_hub(store, NAMES)).partitions == 3
    states = await partition_states(store, NAMES)
    assert [(state.owner, state.owned_since) for state in states] == [("worker-a", START)] * 3


async def test_a_dotnet_hub_with_a_gap_is_refused(store: Store) -> None:
    await dotnet_hub(store, 0, 1, 3)
    with pytest.raises(HubError, match=r"lacks the control queues \[2\]"):
        await create_hub(store, NAMES, 4)
    assert NAMES.controls not in await store.list_tables("")


@pytest.mark.rows("K13")
async def test_a_dotnet_hub_with_blob_leases_is_refused(store: Store) -> None:
    await dotnet_hub(store, 0)
    await store.create_container(NAMES.leases)
    await store.execute(PutBlob(container=NAMES.leases, name="default/adminhub-control-00", data=b"{}"))
    with pytest.raises(HubError, match="blob leases"):
        await create_hub(store, NAMES, 1)


@pytest.mark.rows("T56")
async def test_delete_removes_the_hub_and_only_it(store: Store) -> None:
    other = HubNames("AdminHub2")
    await create_hub(store, other, 1)
    await create_hub(store, NAMES, 4)
    for queue in (*NAMES.pool_queues("default"), *NAMES.pool_queues("heavy"), *NAMES.limited_queues("load")):
        await store.create_queue(queue)  # as workers do
    await delete_hub(store, NAMES)
    await delete_hub(store, NAMES)  # a missing hub is no error
    assert await store.list_queues("") == ["adminhub2-control-00", "adminhub2-workitems", "adminhub2-workitems-spark"]
    assert all(name.startswith("AdminHub2") for name in await store.list_tables(""))
    assert (await create_hub(store, NAMES, 2)).partitions == 2, "a new hub may have another count"


@pytest.mark.rows("T56")
async def test_a_hub_is_not_deleted_beside_a_live_worker(store: Store) -> None:
    """Its queues were gone when the app lease was found to be held: the hub stayed "being deleted"."""
    await create_hub(store, NAMES, 4)
    worker = AppLease(store, NAMES, "")
    await worker.acquire()
    with pytest.raises(HubError, match=r"a worker serves it, or was killed less than 60 s ago\. Stop its workers\."):
        await delete_hub(store, NAMES)
    assert (await read_hub(store, NAMES)).ready
    found = await everything(store)
    assert (found["queues"], found["tables"]) == (WHOLE["queues"], WHOLE["tables"])
    await worker.release()
    await delete_hub(store, NAMES)
    assert await store.list_tables("") == []


def member(worker: str) -> Member:
    return Member(worker=worker, started=START, roles=("activity",), apps={}, orchestrators=(), activities=())


async def dead_hub(store: Store) -> tuple[str, str]:
    """A hub whose two workers have ended without a release: one has a member row, the other owns a partition."""
    await create_hub(store, NAMES, 2)
    await AppLease(store, NAMES, "some app").acquire()
    await Members(store, NAMES).announce(member("a@h/1"))
    leases = TableLeases(store, NAMES)
    await leases.write((await leases.scan())[0].claimed("b@h/2", START, AZURE_LEASE.take))
    return "a@h/1", "b@h/2"


@pytest.mark.rows("T56")
async def test_a_hub_whose_workers_are_all_proven_dead_is_deleted_at_once(store: Store) -> None:
    dead = await dead_hub(store)
    for proven in ((), dead[:1], dead[1:], ("c@h/3",)):
        with pytest.raises(HubError, match="is in use"):
            await delete_hub(store, NAMES, dead=lambda proven=proven: proven)  # type: ignore[misc]
        assert (await read_hub(store, NAMES)).ready
    await delete_hub(store, NAMES, dead=lambda: (*dead, "c@h/3"))
    assert await store.list_tables("") == []


async def test_a_held_app_lease_without_a_named_worker_proves_no_death(store: Store) -> None:
    await create_hub(store, NAMES, 2)
    await AppLease(store, NAMES, "").acquire()
    with pytest.raises(HubError, match="is in use"):
        await delete_hub(store, NAMES, dead=lambda: ("a@h/1",))
    assert (await read_hub(store, NAMES)).ready


async def test_the_app_lease_of_dotnet_is_not_released_for_a_deletion(store: Store) -> None:
    dead = await dead_hub(store)
    ours, theirs = lease_id("some app"), dotnet_lease_id("some app")
    await store.change_lease(NAMES.app_lease, None, lease_id=ours, new_lease_id=theirs)
    info = b'{"OwnerId": "%s"}' % theirs.encode()
    await store.execute(PutBlob(container=NAMES.app_lease, name=NAMES.app_lease_info, data=info))
    with pytest.raises(HubError, match="is in use"):
        await delete_hub(store, NAMES, dead=lambda: dead)
    await store.renew_lease(NAMES.app_lease, None, lease_id=theirs)


async def test_a_worker_that_starts_during_a_deletion_keeps_its_hub(store: Store) -> None:
    """It joins the app lease before the deletion releases it, and writes its member row after the first look at it."""
    dead = await dead_hub(store)
    faults = Faults(store)

    async def start(name: str, _: tuple[object, ...]) -> None:
        if name == "release_lease":
            await Members(store, NAMES).announce(member("new@h/3"))

    faults.before = start
    with pytest.raises(HubError, match="is in use"):
        await delete_hub(faults, NAMES, dead=lambda: dead)  # type: ignore[arg-type]
    assert (await read_hub(store, NAMES)).ready


async def test_an_interrupted_deletion_is_finished_by_the_next(store: Store) -> None:
    await create_hub(store, NAMES, 4)
    faults = Faults(store)

    async def fail(name: str, arguments: tuple[object, ...]) -> None:
        if name == "delete_container" and arguments != (NAMES.app_lease,):
            raise Unavailable("no answer")

    faults.before = fail
    with pytest.raises(Unavailable):
        await delete_hub(faults, NAMES)  # type: ignore[arg-type]
    with pytest.raises(HubError, match="being deleted"):
        await read_hub(store, NAMES)
    await delete_hub(store, NAMES)
    assert await store.list_tables("") == []


@pytest.mark.rows("T52", "T54", "T70")
async def test_partition_states_are_for_people(store: Store) -> None:
    await create_hub(store, NAMES, 2)
    leases = TableLeases(store, NAMES)
    first = (await leases.scan())[0]
    claimed = await leases.write(first.claimed("w@h/1", START, AZURE_LEASE.take))
    await leases.mark(claimed.asked("v@h/1"))
    await store.execute(PutMessage(queue=NAMES.control(1), text="x"))
    one, two = await partition_states(store, NAMES)
    assert (one.owner, one.next_owner, one.epoch, one.last_renewal, one.messages) == ("w@h/1", "v@h/1", 1, START, 0)
    assert (two.owner, two.epoch, two.messages, two.queue) == (None, 0, 1, "adminhub-control-01")
    await leases.mark((await leases.scan())[0].kicked("ops", START, "slow"))
    (kicked, _) = await partition_states(store, NAMES)
    assert (kicked.next_owner, kicked.kicked) == (None, f"by ops at {START.text()}: slow"), "a kick is no worker"
