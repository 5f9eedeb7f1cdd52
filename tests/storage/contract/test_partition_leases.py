"""Partition leases in every store that can hold them, table rows and blobs alike, on SQLite and on Azurite (T01)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import uuid4

import pytest

from airflow_provider_taskhub.errors import Conflict, HubError, LeaseLost, NotFound
from airflow_provider_taskhub.hub.model import BLOB, TABLE, HubNames, Service
from airflow_provider_taskhub.hub.partitions.administration import create_hub, ensure_hub, read_hub
from airflow_provider_taskhub.hub.partitions.blob_leases import BlobLeases
from airflow_provider_taskhub.hub.partitions.lease import Lease
from airflow_provider_taskhub.hub.partitions.lease_stores import Leases, leases_of
from airflow_provider_taskhub.storage.primitives import PutBlob, Store
from airflow_provider_taskhub.virtual_time import START

TAKE = timedelta(seconds=30)


@pytest.fixture(params=[TABLE, BLOB])
def lease_store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def names(fresh: str) -> HubNames:
    return HubNames(fresh)


@pytest.fixture
async def leases(store: Store, names: HubNames, lease_store: str) -> Leases:
    info = await create_hub(store, names, 2, lease_store=lease_store)
    assert (await read_hub(store, names)).lease_store == lease_store
    return leases_of(store, names, info, TAKE)


async def lease_of(leases: Leases, partition: int = 0) -> Lease:
    return (await leases.scan())[partition]


@pytest.mark.rows("T01", "T29", "E04", "K03")
async def test_leases_are_born_given_up_and_made_once(leases: Leases, names: HubNames) -> None:
    found = await leases.scan()
    assert [(lease.partition, lease.owner, lease.draining) for lease in found] == [(0, None, False), (1, None, False)]
    assert not await leases.insert(names.control(0))
    assert await leases.read(names.control(9)) is None


@pytest.mark.rows("T01", "T13", "T30", "T83", "E08", "E44", "E45", "E54", "E56", "E19")
async def test_every_write_is_refused_unless_the_lease_is_as_it_was_read(leases: Leases) -> None:
    free = await lease_of(leases)
    claimed = await leases.write(free.claimed("a", START, TAKE))
    with pytest.raises(Conflict):
        await leases.write(free.claimed("b", START, TAKE))
    read = await lease_of(leases)
    assert (read.owner, read.epoch, read.renewals, read.etag) == ("a", 1, 1, claimed.etag)
    assert read.life == claimed.life
    renewed = await leases.write(claimed.renewed(START, TAKE, draining=False, service=Service(load=2.5, unpolled=1)))
    with pytest.raises(Conflict):  # a thief that has read before the renewal
        await leases.write(read.claimed("b", START, TAKE))
    read = await lease_of(leases)
    assert (read.load, read.polled, read.renewals) == (2.5, START + timedelta(seconds=-1), 2)
    asked = await leases.mark(read.asked("b"))
    with pytest.raises(Conflict):  # the owner reads again, and finds who has asked
        await leases.write(renewed.renewed(START, TAKE, draining=False))
    read = await lease_of(leases)
    assert (read.owner, read.next_owner, read.life) == ("a", "b", renewed.life)
    draining = await leases.write(asked.renewed(START, TAKE, draining=True))
    given_up = await leases.write(draining.given_up("handed over"))
    with pytest.raises(Conflict):
        await leases.write(draining.renewed(START, TAKE, draining=True))
    read = await lease_of(leases)
    assert (read.owner, read.next_owner, read.previous, read.released) == (None, "b", "a", "handed over")
    taken = await leases.write(read.claimed("b", START, TAKE))
    assert (taken.owner, taken.epoch, taken.previous) == ("b", 2, "a")
    with pytest.raises(Conflict):
        await leases.write(given_up.claimed("c", START, TAKE))
    stolen = await leases.write((await lease_of(leases)).claimed("c", START, TAKE))  # while the service still leases it
    assert stolen.epoch == 3
    with pytest.raises(Conflict):
        await leases.write(taken.renewed(START, TAKE, draining=False))


@pytest.mark.rows("T01", "T30", "E33", "E35")
async def test_of_many_takers_exactly_one_wins(leases: Leases, store: Store, names: HubNames, lease_store: str) -> None:
    free = await lease_of(leases)
    info = await read_hub(store, names)
    takers = [leases_of(store, names, info, TAKE) for _ in range(8)]
    outcomes = await asyncio.gather(
        *(taker.write(free.claimed(f"w{number}", START, TAKE)) for number, taker in enumerate(takers)),
        return_exceptions=True,
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    assert len(won) == 1
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 7
    assert (await lease_of(leases)).owner == won[0].owner
    await leases.write((await lease_of(leases)).renewed(START, TAKE, draining=False))


@pytest.mark.rows("T01", "T48")
async def test_a_lease_that_is_gone_is_not_found(leases: Leases, names: HubNames, lease_store: str) -> None:
    etag = str(uuid4()) if lease_store == BLOB else "W/\"datetime'2026-01-01T00%3A00%3A00Z'\""
    with pytest.raises(NotFound):
        await leases.mark(Lease(queue=names.control(5), etag=etag).asked("b"))


@pytest.mark.rows("K13")
async def test_a_hub_keeps_its_lease_store(leases: Leases, store: Store, names: HubNames, lease_store: str) -> None:
    other = BLOB if lease_store == TABLE else TABLE
    for attempt in (
        ensure_hub(store, names, lease_store=other),
        create_hub(store, names, 2, lease_store=other),
        read_hub(store, names, lease_store=other),
    ):
        with pytest.raises(HubError, match=f"keeps its leases in a {lease_store} store, not in a {other}"):
            await attempt
    assert (await ensure_hub(store, names)).lease_store == lease_store


@pytest.mark.rows("E81")
@pytest.mark.parametrize(
    "kind", ["memory", "file"], indirect=True
)  # Azurite tells tables by case, which Azure does not
async def test_a_hubs_name_in_another_case_is_the_same_hub(store: Store, names: HubNames, lease_store: str) -> None:
    """Its workers see each other's leases; a second hub that differs by case alone cannot be made."""
    await create_hub(store, names, 2, lease_store=lease_store)
    other = HubNames(names.hub.upper())
    assert other.hub != names.hub
    with pytest.raises(HubError, match="has 2 partitions, not 3"):
        await create_hub(store, other, 3)
    info = await ensure_hub(store, other)
    assert (info.partitions, info.lease_store) == (2, lease_store)
    ours, theirs = leases_of(store, names, info, TAKE), leases_of(store, other, info, TAKE)
    free = await lease_of(theirs)
    await ours.write((await lease_of(ours)).claimed("a", START, TAKE))
    assert (await lease_of(theirs)).owner == "a"
    with pytest.raises(Conflict):
        await theirs.write(free.claimed("b", START, TAKE))


@pytest.mark.rows("T84")
async def test_what_each_write_and_each_look_costs(
    leases: Leases, store: Store, names: HubNames, lease_store: str
) -> None:
    """Exactly as ``blobs`` says of blobs; a row costs one request, whatever is done with it."""

    async def cost(call: Awaitable[Lease]) -> tuple[Lease, Counter[str]]:
        before = store.requests.copy()
        return await call, store.requests - before

    free, row = await lease_of(leases), {"table.update": 1}
    both, put = ({"blob.put": 1, "blob.lease": 1}, {"blob.put": 1}) if lease_store == BLOB else (row, row)
    taken, used = await cost(leases.write(free.claimed("a", START, TAKE)))
    assert used == both
    renewed, used = await cost(leases.write(taken.renewed(START, TAKE, draining=False)))
    assert used == both
    asked, used = await cost(leases.mark(renewed.asked("b")))
    assert used == put
    kicked, used = await cost(leases.mark(asked.kicked("ops", START)))
    assert used == put
    given_up, used = await cost(leases.write(kicked.given_up()))
    assert used == both
    taken, used = await cost(leases.write(given_up.claimed("b", START, TAKE)))
    assert used == both
    stolen, used = await cost(leases.write(taken.claimed("c", START, TAKE)))
    assert used == ({"blob.put": 2, "blob.lease": 2} if lease_store == BLOB else row)
    if stolen.token is not None:  # as of one that ran out
        await store.release_lease(names.leases, f"default/{names.control(0)}", lease_id=stolen.token)
    _, used = await cost(leases.write(stolen.renewed(START, TAKE, draining=False)))
    assert used == ({"blob.put": 2, "blob.lease": 1} if lease_store == BLOB else row)
    _, used = await cost(lease_of(leases))
    assert used == ({"blob.list": 1, "blob.get": 2} if lease_store == BLOB else {"table.query": 1})


# --- blobs alone --------------------------------------------------------------------------------------------------


@pytest.mark.rows("K03", "E08", "E30")
async def test_a_lease_blob_is_what_durabletask_reads(store: Store, names: HubNames) -> None:
    await create_hub(store, names, 2, lease_store=BLOB)
    assert [blob.name for blob in await store.list_blobs(names.leases)] == [
        f"default/{names.control(0)}",
        f"default/{names.control(1)}",
        "taskhub.json",
    ]
    about = await store.get_blob(names.leases, "taskhub.json")
    assert about is not None
    assert {name: value for name, value in json.loads(about.data).items() if name != "CreatedAt"} == {
        "PartitionCount": 2,
        "TaskHubName": names.hub,
    }
    leases = BlobLeases(store, names, TAKE)
    claimed = await leases.write((await lease_of(leases)).claimed("a", START, TAKE))
    blob = await store.get_blob(names.leases, f"default/{names.control(0)}")
    assert blob is not None
    content = json.loads(blob.data)
    assert {name: content[name] for name in ("PartitionId", "Owner", "Token", "Epoch")} == {
        "PartitionId": names.control(0),
        "Owner": "a",
        "Token": claimed.token,
        "Epoch": 1,
    }
    await store.renew_lease(names.leases, f"default/{names.control(0)}", lease_id=content["Token"])


@pytest.mark.rows("K03", "K13")
async def test_a_hub_that_durabletask_made_with_blob_leases_is_adopted(store: Store, names: HubNames) -> None:
    for number in range(2):
        await store.create_queue(names.control(number))
    await store.create_container(names.leases)
    token = "5d3a5c7e-0000-4000-8000-000000000001"
    for number, owner in enumerate(["dotnet", None]):
        name = f"default/{names.control(number)}"
        content = {"PartitionId": names.control(number), "Owner": owner, "Token": owner and token, "Epoch": 7}
        await store.execute(PutBlob(container=names.leases, name=name, data=json.dumps(content).encode()))
    await store.acquire_lease(names.leases, f"default/{names.control(0)}", lease_id=token, seconds=60)
    with pytest.raises(HubError, match="TASKHUB_LEASE_STORE=blob"):
        await create_hub(store, names, 2)
    await create_hub(store, names, 2, lease_store=BLOB)
    leases = BlobLeases(store, names, TAKE)
    for lease in await leases.scan():  # its workers are gone: they are taken with the token that is published
        assert (await leases.write(lease.claimed("ours", START, TAKE))).epoch == 8


ACTS: dict[str, Callable[[BlobLeases, Lease], Awaitable[Lease]]] = {
    "claim": lambda leases, free: leases.write(free.claimed("dead", START, TAKE)),
    "ask": lambda leases, held: leases.mark(held.asked("dead")),
    "kick": lambda leases, held: leases.mark(held.kicked("ops", START)),
    "renewal": lambda leases, held: leases.write(held.renewed(START, TAKE, draining=False)),
    "theft": lambda leases, held: leases.write(held.claimed("dead", START, TAKE)),
    "release": lambda leases, held: leases.write(held.given_up("handed over")),
}


class Dead(Exception):
    """The writer is no more."""


class Dying:
    """A store to which its user sends so many requests, and no more; with ``deaf`` the answer of the last is lost."""

    def __init__(self, store: Store, requests: int, *, deaf: bool) -> None:
        self._store, self._left, self._deaf = store, requests, deaf

    def __getattr__(self, name: str) -> object:
        async def call(*arguments: object, **named: object) -> object:
            if self._left == 0:
                raise Dead
            self._left -= 1
            answer = await getattr(self._store, name)(*arguments, **named)
            if self._left == 0 and self._deaf:
                raise Dead
            return answer

        return call


@pytest.mark.rows("E31", "T14", "E57")
@pytest.mark.parametrize("act", ACTS)
async def test_a_writer_that_dies_at_any_of_its_requests_dispossesses_nobody_and_locks_nobody_out(
    store: Store, names: HubNames, act: str
) -> None:
    """Its owner goes on, others may ask, and it can be released and taken, all at once."""
    await create_hub(store, names, 1, lease_store=BLOB)
    leases, others = BlobLeases(store, names, TAKE), BlobLeases(store, names, TAKE)
    name = f"default/{names.control(0)}"
    for requests in range(6):
        for deaf in (False, True):
            lease = await lease_of(leases)
            if act != "claim":
                lease = await leases.write(lease.claimed("a", START, TAKE))
            before, done = lease.epoch, True
            try:
                await ACTS[act](BlobLeases(Dying(store, requests, deaf=deaf), names, TAKE), lease)  # type: ignore[arg-type]
            except Dead:
                done = False
            found = await lease_of(others)
            if act in ("ask", "kick", "renewal"):
                assert found.same_tenure(lease)
                found = await leases.write(found.renewed(START, TAKE, draining=False))
                assert found.token == lease.token
                await store.renew_lease(names.leases, name, lease_id=str(found.token))
            asked = await others.mark(found.asked("b"))
            taken = await others.write(asked.claimed("b", START, TAKE))
            assert taken.epoch == (found.epoch or 0) + 1 > (before or 0)
            renewed = await others.write(taken.renewed(START, TAKE, draining=False))
            await store.renew_lease(names.leases, name, lease_id=str(renewed.token))  # it is as .NET would have it
            if act != "claim":
                with pytest.raises(Conflict):
                    await leases.write(lease.renewed(START, TAKE, draining=False))
            await others.write(renewed.given_up())
    assert done, "every request was the last one once"


@pytest.mark.rows("E29", "E44", "E45", "E60")
async def test_each_take_has_a_fresh_id_for_the_configured_time(
    store: Store, names: HubNames, kind: str, elapse: Callable[[float], Awaitable[None]]
) -> None:
    await create_hub(store, names, 2, lease_store=BLOB)
    leases, name = BlobLeases(store, names, TAKE), f"default/{names.control(0)}"
    ids = set()
    for _ in range(3):
        claimed = await leases.write((await lease_of(leases)).claimed("a", START, TAKE))
        assert claimed.token is not None
        ids.add(claimed.token)
        await leases.write(claimed.given_up())
        with pytest.raises(LeaseLost):
            await store.renew_lease(names.leases, name, lease_id=claimed.token)
        anybody = str(uuid4())  # what is given up is not leased: .NET and people need no token
        await store.acquire_lease(names.leases, name, lease_id=anybody, seconds=15)
        await store.release_lease(names.leases, name, lease_id=anybody)
    taken = await leases.write((await lease_of(leases)).claimed("a", START, TAKE))
    stolen = await leases.write(taken.claimed("b", START, TAKE))
    assert taken.token is not None
    assert stolen.token is not None
    with pytest.raises(LeaseLost):  # the token of whoever it was stolen from works no more
        await store.renew_lease(names.leases, name, lease_id=taken.token)
    await store.renew_lease(names.leases, name, lease_id=stolen.token)
    await leases.write(stolen.given_up())
    assert len(ids | {taken.token, stolen.token}) == 5
    if kind == "memory":
        claimed = await leases.write((await lease_of(leases)).claimed("a", START, TAKE))
        await elapse(20.0)
        await leases.write(claimed.renewed(START, TAKE, draining=False))  # a change of the id alone extends nothing
        await elapse(29.0)
        with pytest.raises(LeaseLost):
            await store.acquire_lease(names.leases, name, lease_id=str(uuid4()), seconds=15)
        await elapse(1.5)
        await store.acquire_lease(names.leases, name, lease_id=str(uuid4()), seconds=15)


@pytest.mark.rows("E31", "E34", "T87")
@pytest.mark.parametrize("kind", ["memory"], indirect=True)  # how long a lease runs is the test's above, on all stores
async def test_a_blob_that_is_leased_under_an_id_that_nobody_published_is_free_when_the_service_says_so(
    store: Store, names: HubNames, elapse: Callable[[float], Awaitable[None]]
) -> None:
    await create_hub(store, names, 2, lease_store=BLOB)
    dead, other = BlobLeases(store, names, TAKE), BlobLeases(store, names, TAKE)
    claimed = await dead.write((await lease_of(dead)).claimed("a", START, TAKE))
    unknown = "5d3a5c7e-0000-4000-8000-000000000002"
    name = f"default/{names.control(0)}"
    await store.change_lease(names.leases, name, lease_id=str(claimed.token), new_lease_id=unknown)
    with pytest.raises(Conflict):
        await other.write((await lease_of(other)).claimed("b", START, TAKE))
    await elapse(31.0)
    taken = await other.write((await lease_of(other)).claimed("b", START, TAKE))
    assert (taken.owner, taken.epoch) == ("b", 2)
    with pytest.raises(Conflict):
        await dead.write(claimed.renewed(START, TAKE, draining=False))
