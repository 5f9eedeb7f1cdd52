"""Which instances sensors wait for: how it is stored, who reads it, and what hints cost."""

from __future__ import annotations

import struct

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.change_hints import MOST, AwaitedInstances, decode, encode, fingerprint
from airflow_provider_taskhub.hub.model import WATCHER, HubNames, Member
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.rules import MAX_PROPERTY_BYTES
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import run
from tests.hub.partitions.test_members import member, members, opened

NAMES = HubNames("Hints")


def watcher(name: str, *ids: str) -> Member:
    awaited = frozenset(map(fingerprint, ids))
    return member(name, roles=(WATCHER,), apps={}, orchestrators=(), activities=(), awaited=awaited)


def test_fingerprints_come_back_and_too_many_are_cut() -> None:
    numbers = frozenset(map(fingerprint, ["a", "b", "ü", ""]))
    assert decode(encode(numbers)) == numbers
    assert decode(encode([])) == frozenset()
    many = encode(range(2 * MOST))
    assert len(many) == 4 * MOST <= MAX_PROPERTY_BYTES
    assert decode(many) == frozenset(range(MOST))


@pytest.mark.parametrize("value", [None, "text", 7, b"abc", struct.pack(">I", 1) + b"x"])
def test_a_damaged_column_means_no_hints(value: object) -> None:
    assert decode(value) == frozenset()


def test_a_worker_learns_from_the_member_rows_what_sensors_wait_for() -> None:
    async def main() -> None:
        store = await opened()
        table, reader = members(store), members(store)
        await table.renew(watcher("t@host/1"))  # inserts the row
        await table.renew(watcher("t@host/1", "i", "j"))
        await table.announce(member())
        await reader.watch()
        assert reader.watching is not None
        known = AwaitedInstances()
        known.update(reader.watching)
        assert [write.rows[0].entity.partition_key for write in known.hints(NAMES, "i")] == ["watcher:t@host^01"]
        assert known.hints(NAMES, "k") == ()
        await table.renew(watcher("t@host/1", "k"))
        await reader.watch()
        known.update(reader.watching)
        assert (known.hints(NAMES, "i"), len(known.hints(NAMES, "k"))) == ((), 1)
        assert await table.listed() == {"t@host/1", "w@host/1"}

    run(main())


def test_two_triggerers_that_wait_for_one_instance_get_a_hint_each() -> None:
    known = AwaitedInstances()
    known.update([watcher("a@h/1", "i"), watcher("b@h/2", "i", "j"), watcher("c@h/3")])
    keys = [write.rows[0].entity.partition_key for write in known.hints(NAMES, "i")]
    assert len(keys) == len(set(keys)) == 2
    assert len(known.hints(NAMES, "j")) == 1


async def test_a_thousand_hints_are_deleted_with_a_request_for_each_hundred() -> None:
    async with SqliteStore(None) as store:
        client = await Client.over(store, Settings(hub="Hints"), create=True)
        async with client.watches.attending("triggerer"):
            ids = [f"i/{number}" for number in range(1_000)]
            await client.watches.await_changes(ids)
            known = AwaitedInstances()
            reader = Members(store, client.hub.names)
            await reader.watch()
            known.update(reader.watching or ())
            for name in ids:
                await store.execute(*known.hints(client.hub.names, name))
            hints = dict(await client.watches.changes())
            assert sorted(hints) == sorted(ids)
            await store.execute(*known.hints(client.hub.names, "i/123"))  # it changes again after it was read
            store.requests.clear()
            await client.watches.forget_changes(hints)
            assert set(await client.watches.changes()) == {"i/123"}
            assert store.requests["table.batch"] + store.requests["table.delete"] <= 10 + 14
            await client.watches.forget_changes(await client.watches.changes() | {"purged": "x"})
            assert not await client.watches.changes()
            await client.watches.forget([*ids, *ids])  # no such hints
