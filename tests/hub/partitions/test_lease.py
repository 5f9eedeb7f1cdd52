"""Lease rows: the recorded ones field by field, foreign ones, and what a row means to one worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Failover, HubNames, Service
from airflow_provider_taskhub.hub.partitions.balance import Row
from airflow_provider_taskhub.hub.partitions.blob_leases import content, decode_blob, encode_blob
from airflow_provider_taskhub.hub.partitions.lease import (
    EPOCH,
    FAILOVER,
    LOAD,
    PREVIOUS,
    RENEWALS,
    Lease,
    Sightings,
    balance_row,
    decode_failover,
    decode_lease,
    encode_failover,
    encode_lease,
)
from airflow_provider_taskhub.storage.primitives import Blob, Entity, Int64, Property
from airflow_provider_taskhub.virtual_time import START
from tests.golden import load

RECORDED = load("tableleases")
NAMES = HubNames(RECORDED.hub)
TAKE = timedelta(seconds=20)


def entity_of(row: Mapping[str, Mapping[str, Any]]) -> Entity:
    """A row of a recorded state."""
    values: dict[str, Property] = {
        name: Timestamp.parse(cell["value"]) if cell["type"] == "DateTime" else cell["value"]
        for name, cell in row.items()
    }
    return Entity(partition_key=str(values.pop("PartitionKey")), row_key=str(values.pop("RowKey")), properties=values)


def written(columns: Mapping[str, Any]) -> Entity:
    """A row as a recorded call wrote it; nulls are kept."""
    values: dict[str, Property | None] = {
        name: Timestamp.parse(value) if columns.get(f"{name}@odata.type") == "Edm.DateTime" else value
        for name, value in columns.items()
        if "@" not in name
    }
    return Entity(partition_key=str(values.pop("PartitionKey")), row_key=str(values.pop("RowKey")), properties=values)


def plain(entity: Entity) -> dict[str, Property]:
    """Columns as they are stored: None is not."""
    return {name: value for name, value in entity.properties.items() if value is not None}


@pytest.mark.rows("K13")
@pytest.mark.parametrize("state", list(RECORDED.states))
def test_recorded_rows_are_decoded_and_encoded_to_the_same(state: str) -> None:
    rows = RECORDED.rows(state, "Partitions")
    assert len(rows) == 4
    for row in rows:
        entity = entity_of(row)
        lease = decode_lease(entity, NAMES)
        assert lease is not None
        assert lease.owner == entity.properties.get("CurrentOwner")
        again = encode_lease(lease)
        assert (again.partition_key, again.row_key) == (entity.partition_key, entity.row_key)
        assert plain(again) == plain(entity)


@pytest.mark.rows("K13", "T51", "T83")
def test_every_recorded_write_is_a_transition_of_ours() -> None:
    """Claim, renew, mark, drain and release write the same columns, under the ETag of the row, as DurableTask does."""
    leases: dict[str, Lease] = {}
    seen = dict.fromkeys(("insert", "claim", "renew", "ask", "drain", "release"), 0)
    for call in RECORDED.writes("Partitions"):
        entity = written(call.columns)
        after = decode_lease(entity, NAMES)
        assert after is not None
        before = leases.get(entity.row_key)
        leases[entity.row_key] = after
        if before is None:
            assert call.verb == "POST"
            assert plain(entity) == {"IsDraining": False}
            seen["insert"] += 1
            continue
        assert call.verb == "PUT"
        assert call.etag not in (None, "*")
        kind, ours = ours_for(before, after)
        seen[kind] += 1
        assert plain(encode_lease(ours)) == plain(entity), kind
    assert all(seen.values()), seen


def ours_for(before: Lease, after: Lease) -> tuple[str, Lease]:
    """The same step by our functions; DurableTask reads its clock anew for each column, ticks apart."""
    now = after.last_renewal or START
    if before.owner != after.owner and after.owner is not None:
        claimed = before.claimed(after.owner, now, TAKE)
        same = replace(claimed, owned_since=after.owned_since, expires_at=after.expires_at)
        return "claim", replace(same, epoch=None, renewals=None, previous=None)
    if before.owner is not None and after.owner is None:
        return "release", replace(before.given_up(), previous=None)
    if before.next_owner != after.next_owner:
        assert after.next_owner is not None
        return "ask", before.asked(after.next_owner)
    renewed = before.renewed(now, TAKE, draining=after.draining)
    assert renewed.expires_at is not None
    assert after.expires_at is not None
    assert abs(renewed.expires_at - after.expires_at) < timedelta(milliseconds=1)
    return ("drain" if after.draining else "renew"), replace(
        renewed, expires_at=after.expires_at, renewals=None, polled=None
    )


@pytest.mark.rows("T10", "K13")
def test_a_row_without_optional_columns_has_defaults() -> None:
    lease = decode_lease(Entity(partition_key="", row_key=NAMES.control(7)), NAMES)
    assert lease == Lease(queue=NAMES.control(7))
    assert lease is not None
    assert (lease.partition, lease.owner, lease.epoch, lease.draining) == (7, None, None, False)


@pytest.mark.rows("T03")
@pytest.mark.parametrize(
    ("partition_key", "row_key"),
    [
        ("Control", "rectableleases-control-00"),
        ("", "other-control-00"),
        ("", "rectableleases-control-"),
        ("", "rectableleases-control-7"),
        ("", "rectableleases-control-007"),
        ("", "rectableleases-workitems"),
    ],
)
def test_other_rows_are_no_partitions(partition_key: str, row_key: str) -> None:
    assert decode_lease(Entity(partition_key=partition_key, row_key=row_key), NAMES) is None


@pytest.mark.rows("T60", "E54", "T89")
def test_foreign_columns_survive_and_each_take_raises_the_epoch() -> None:
    entity = Entity(
        partition_key="",
        row_key=NAMES.control(0),
        properties={"CurrentOwner": "a", "NextOwner": "b", "IsDraining": True, EPOCH: Int64(4), "Note": "keep"},
    )
    lease = decode_lease(entity, NAMES)
    assert lease is not None
    claimed = encode_lease(lease.claimed("b", START, TAKE))
    assert plain(claimed) == {
        "CurrentOwner": "b",
        "IsDraining": False,
        EPOCH: Int64(5),
        RENEWALS: Int64(1),
        PREVIOUS: "a",
        "Note": "keep",
        "OwnedSince": START,
        "LastRenewal": START,
        "ExpiresAt": START + TAKE,
    }
    assert isinstance(claimed.properties[EPOCH], Int64)


@pytest.mark.rows("D105")
def test_renewals_store_what_the_owner_has_counted_of_the_loss_with_which_its_tenure_began() -> None:
    lost = Failover(lost="a", taken_by="b", at=START, silent=4.0, proven=True)
    lease = replace(Lease(queue=NAMES.control(0), owner="a").claimed("b", START, TAKE), failover=lost)
    counted = replace(lost, messages=7, instances=3)

    def renewed(failover: Failover | None) -> Lease:
        found = decode_lease(
            encode_lease(lease.renewed(START, TAKE, draining=False, service=Service(failover=failover))), NAMES
        )
        assert found is not None
        return found

    assert renewed(counted).failover == counted
    assert renewed(None).failover == lost
    assert renewed(replace(counted, at=START + timedelta(hours=-1))).failover == lost, "of a tenure before"
    assert renewed(counted).given_up().claimed("c", START + TAKE, TAKE).failover == counted


def test_a_failover_of_a_newer_version_is_read() -> None:
    lost = Failover(lost="a", taken_by="b", at=START, silent=4.0, proven=True)
    text = json.dumps(json.loads(encode_failover(lost) or "") | {"later": 1})
    assert decode_failover(text) == lost


@pytest.mark.parametrize("damaged", ["{", "[1]", '{"lost":"a"}', 7, ""])
def test_a_damaged_failover_is_none(damaged: Any) -> None:
    """It is only for people, so it must not keep a worker from taking the partition."""
    row = Entity(partition_key="", row_key=NAMES.control(0), properties={"CurrentOwner": "a", FAILOVER: damaged})
    lease = decode_lease(row, NAMES)
    assert lease is not None
    assert (lease.owner, lease.failover) == ("a", None)


def test_an_ask_and_a_renewal_keep_the_tenure_a_new_take_does_not() -> None:
    held = Lease(queue="h-control-00").claimed("a", START, TAKE)
    later = START + timedelta(seconds=1)
    assert held.same_tenure(held.asked("b"))
    assert held.same_tenure(held.renewed(later, TAKE, draining=True))
    assert held.same_tenure(replace(held.asked("dotnet"), epoch=None)), "a .NET writer drops our column"
    assert not held.same_tenure(held.claimed("a", later, TAKE))
    assert not held.same_tenure(held.given_up())
    assert not held.same_tenure(held.claimed("a", START, TAKE)), "two takes in one tick"


@pytest.mark.rows("T76", "T10")
def test_a_renewal_publishes_the_load() -> None:
    held = Lease(queue=NAMES.control(0)).claimed("a", START, TAKE)
    row = encode_lease(held.renewed(START, TAKE, draining=False, service=Service(load=2.5, unpolled=3.0)))
    assert row.properties[LOAD] == 2.5
    read = decode_lease(row, NAMES)
    assert read is not None
    assert (read.load, seen(read).load) == (2.5, 2.5)
    assert read.polled == START + timedelta(seconds=-3)
    assert plain(encode_lease(held)).get(LOAD) is None


@pytest.mark.rows("T87", "E34")
def test_asking_for_a_partition_is_no_sign_of_life_of_its_owner() -> None:
    """Otherwise each worker that joins would delay the takeover of a dead worker's partitions."""
    held = replace(Lease(queue="h-control-00", etag="1").claimed("a", START, TAKE), etag="2")
    assert replace(held.asked("b"), etag="3").life == held.life
    assert held.renewed(START, TAKE, draining=False).life != held.life, "a clock that stands still changes nothing"
    assert held.given_up().life != held.life
    assert held.claimed("a", START, TAKE).life != held.life
    dotnet = Lease(queue="h-control-00", owner="net", etag="4")
    assert dotnet.life != replace(dotnet, etag="5").life


@pytest.mark.rows("T25", "T47", "T83")
def test_silence_is_counted_from_the_first_sight_of_an_etag() -> None:
    sightings = Sightings()
    assert sightings.note("p", ("a/1", 1), 100.0) == 0
    assert sightings.note("p", ("a/1", 1), 130.0) == 30
    assert sightings.note("p", ("a/1", 2), 140.0) == 0
    assert sightings.note("p", ("a/1", 1), 150.0) == 10, "an older sign that comes late is no new one"
    assert sightings.note("p", ("b/2", 1), 160.0) == 0
    sightings.keep([])
    assert sightings.note("p", ("b/2", 1), 200.0) == 0, "a row that vanished and came back is watched anew"


def seen(
    lease: Lease, *, me: str = "me", held: bool = False, unchanged: float = 0.0, dead: tuple[str, ...] = ()
) -> Row:
    return balance_row(lease, me=me, held=held, unchanged=unchanged, take=30.0, patience=25.0, dead=dead)


@pytest.mark.rows("T26", "T27", "T28", "E18", "E23", "E24", "E59")
def test_a_partition_is_free_if_it_has_no_owner_or_the_owner_is_silent_or_dead() -> None:
    old = Lease(queue="h-control-00", owner="a", expires_at=Timestamp(0))  # long expired by its wall clock: not read
    assert seen(old) == Row(partition=0, owner="a")
    assert seen(old, unchanged=29.9).free is False
    assert seen(old, unchanged=30.0) == Row(partition=0, free=True, silent=True)
    assert seen(old, dead=("a",)) == Row(partition=0, free=True, overdue=True)
    assert seen(Lease(queue="h-control-00")) == Row(partition=0, free=True)
    assert seen(replace(old, owner="me")) == Row(partition=0, next_owner="me", free=True), "own claim, answer lost"
    assert seen(replace(old, owner="me"), held=True, unchanged=99) == Row(partition=0, owner="me")


@pytest.mark.rows("T51", "E34")
def test_an_heir_has_some_time_then_anybody() -> None:
    released = Lease(queue="h-control-00", next_owner="b")
    assert seen(released, unchanged=24) == Row(partition=0, next_owner="b", free=True)
    assert seen(released, unchanged=25) == Row(partition=0, next_owner="b", free=True, overdue=True)
    assert seen(released, unchanged=30) == Row(partition=0, free=True, overdue=True)
    silent = Lease(queue="h-control-00", owner="a")
    assert not seen(silent, unchanged=54).overdue
    assert seen(silent, unchanged=55).overdue


@pytest.mark.rows("T76")
@pytest.mark.parametrize("load", [None, 0.0, 2.5])
def test_a_load_of_nothing_is_known_and_another_than_none(load: float | None) -> None:
    lease = Lease(queue=NAMES.control(3), epoch=1, load=load)
    row = decode_lease(encode_lease(lease), NAMES)
    assert row is not None
    assert row.load == load
    assert decode_blob(lease.queue, content(Blob(data=encode_blob(lease), etag="1")), "1").load == load
