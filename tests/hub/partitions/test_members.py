"""The members table: who is there, judged by change alone."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.codec import loads
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.model import HubNames, Member
from airflow_provider_taskhub.hub.partitions import members as members_module
from airflow_provider_taskhub.hub.partitions.members import Members, Roster
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run

NAMES = HubNames("MemberHub")


def member(worker: str = "w@host/1", **changes: object) -> Member:
    values: dict[str, object] = {
        "worker": worker,
        "started": START,
        "roles": ("orchestrator", "activity"),
        "apps": {"flights": "3"},
        "orchestrators": ("flights_delays",),
        "activities": ("monthly", "publish"),
        **changes,
    }
    return Member(**values)  # type: ignore[arg-type]


async def opened() -> SqliteStore:
    store = SqliteStore(None, clock=VirtualClock())
    await store.__aenter__()
    await store.create_table(NAMES.members)
    return store


def members(store: SqliteStore, **clock: object) -> Members:
    return Members(store, NAMES, times=AZURE_LEASE, clock=VirtualClock(**clock))  # type: ignore[arg-type]


@pytest.mark.parametrize("damaged", ["{", "[1]", '{"a":"x"}', 7, "", "[" * 20_000])
def test_damaged_numbers_of_attempts_are_none(damaged: Any) -> None:
    async def main() -> None:
        store = await opened()
        table = members(store)
        await table.announce(member())
        (row,) = [one async for one in store.rows(NAMES.members)]
        changed = replace(row, properties={"TakenOver": damaged})
        operation = RowOperation(verb=RowVerb.MERGE, entity=changed, etag="*")
        await store.execute(Transact(table=NAMES.members, rows=(operation,)))
        assert [one.taken_over for one in await table.live()] == [{}]

    run(main())


@pytest.mark.rows("E49", "T11")
def test_a_row_comes_back_as_it_was_announced() -> None:
    async def main() -> None:
        store = await opened()
        table = members(store)
        await table.announce(member())
        assert await table.live() == (member(),)
        await table.renew(member(running=7))
        assert await table.live() == (member(running=7),)
        accepting = member(accepts={"flights_delays": ("2", "3")})
        await table.announce(accepting)
        assert await table.live() == (accepting,)
        in_pools = member(pools=("heavy", "default"), pool_of={"load": "heavy"})
        await table.announce(in_pools)
        assert await table.live() == (in_pools,)
        needing = member(memory=2**36, memory_of={"load": 2**35}, limits={"rate load": "10/m"}, limit_names={"a": "b"})
        await table.announce(needing)
        assert await table.live() == (needing,)
        await table.renew(replace(needing, memory_used=2**35))
        assert await table.live() == (replace(needing, memory_used=2**35),)
        with_slots = member(slots=4, spark_slots=2, spark_activities=frozenset({"load"}), running=3, spark_running=1)
        await table.announce(with_slots)
        assert await table.live() == (with_slots,)
        await table.renew(replace(with_slots, spark_running=2))
        assert await table.live() == (replace(with_slots, spark_running=2),)
        await table.renew(replace(needing, taken_over={"a@host/1": 3, "b@host/2": 1}))
        assert [one.taken_over for one in await table.live()] == [{"a@host/1": 3, "b@host/2": 1}]
        await table.withdraw("w@host/1")
        await table.withdraw("w@host/1")
        assert await table.live() == ()

    run(main())


def test_thousands_of_names_fit_and_too_many_are_refused() -> None:
    async def main() -> None:
        store = await opened()
        table = members(store)
        for count in (200, 5_000, 30_000):
            names = tuple(f"orchestrator_{number:06d}_é" for number in range(count))
            big = member(orchestrators=names)
            await table.announce(big)
            assert await table.live() == (big,)
        await table.announce(member())  # fewer names: no column of the former stays
        assert await table.live() == (member(),)
        rng = random.Random(1)
        noise = tuple(f"{rng.getrandbits(256):x}{number}" for number in range(60_000))
        with pytest.raises(ConfigurationError, match=r"worker w@host/1 declares 60000 orchestrators"):
            await table.announce(member(orchestrators=noise))

    run(main())


def test_names_are_decoded_once_however_often_a_row_is_renewed_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads the rows twice a second, and an app may have thousands of names."""
    decoded = list[str]()

    def counted(text: str, **options: str) -> object:
        decoded.append(text)
        return loads(text, **options)

    async def main() -> None:
        store = await opened()
        writer, reader = members(store), members(store)
        names = tuple(f"orchestrator_of_this_test_{number:05d}" for number in range(3_000))
        for worker in ("a@host/1", "b@host/1"):
            await writer.announce(member(worker, orchestrators=names))
        monkeypatch.setattr(members_module, "loads", counted)
        for number in range(5):
            await writer.renew(member("a@host/1", orchestrators=names, running=number))
            for _ in range(2):
                assert [one.running for one in await reader.live()] == [number, 0]
                assert all(one.orchestrators == names for one in await reader.live())

    run(main())
    assert len(decoded) == 1, "both workers have the same app"


@pytest.mark.rows("E59", "T17", "T88", "E49")
def test_a_long_lived_reader_sees_who_falls_silent_whatever_the_clocks_say() -> None:
    async def main() -> None:
        store = await opened()
        writer, reader = members(store, skew=timedelta(days=-3)), members(store, skew=timedelta(days=3))
        await writer.announce(member("a@host/1"))
        await writer.announce(member("b@host/1"))
        for _ in range(4):
            assert {found.worker for found in await reader.live()} == {"a@host/1", "b@host/1"}
            await asyncio.sleep(9)
            await writer.renew(member("a@host/1"))
        roster = await reader.watch()
        assert [found.worker for found in roster.live] == ["a@host/1"]
        assert [(found.worker, found.alive) for found in roster.silent] == [("b@host/1", False)]
        await writer.renew(member("a@host/1"), leaving=True)
        roster = await reader.watch()
        assert (roster.live, roster.leaving) == ((), {"a@host/1"})

    run(main())


def test_long_silent_rows_are_removed_and_a_worker_that_was_only_paused_lists_itself_again() -> None:
    async def main() -> None:
        store = await opened()
        writer, reader = members(store), members(store)
        await writer.announce(member())
        await reader.watch()
        await asyncio.sleep(61)
        await reader.watch()
        assert await reader.watch() == Roster()
        await writer.renew(member(), leaving=True)
        assert await reader.watch() == Roster(), "who is leaving does not come back"
        await writer.renew(member())
        assert await reader.live() == (member(),)

    run(main())


def test_a_worker_that_stops_is_not_gone_and_one_that_is_silent_or_unlisted_is() -> None:
    async def main() -> None:
        store = await opened()
        writer, reader = members(store, skew=timedelta(days=-3)), members(store, skew=timedelta(days=3))
        for name in ("stays", "stops", "dies"):
            await writer.announce(member(f"{name}@host/1"))
        assert not reader.gone("dies@host/1"), "nothing was read yet"
        for _ in range(4):
            await reader.watch()
            await asyncio.sleep(9)
            await writer.renew(member("stays@host/1"))
            await writer.renew(member("stops@host/1"), leaving=True)
        await reader.watch()
        found = [name for name in ("stays", "stops", "dies", "other") if reader.gone(f"{name}@host/1")]
        assert found == ["dies", "other"]
        assert not reader.gone("late@host/1", patience=3.0)
        await asyncio.sleep(3.0)
        assert reader.gone("late@host/1", patience=3.0)
        await writer.announce(member("late@host/1"))
        await reader.watch()
        assert not reader.gone("late@host/1")

    run(main())


def test_a_command_proves_life_by_reading_twice() -> None:
    async def main() -> None:
        store = await opened()
        writer = members(store)
        await writer.announce(member("dead@host/1"))
        await writer.announce(member("alive@host/1"))

        async def renew() -> None:
            await asyncio.sleep(9.5)
            await writer.renew(member("alive@host/1"))

        task = asyncio.ensure_future(renew())
        began = asyncio.get_running_loop().time()
        found = {one.worker: one.alive for one in await members(store).prove()}
        assert found == {"dead@host/1": False, "alive@host/1": True}
        assert asyncio.get_running_loop().time() - began == pytest.approx(15, abs=0.1)  # 1.5 of the advertised 10 s
        await task
        await writer.withdraw("dead@host/1")
        assert await members(await opened()).prove() == ()

    run(main())


@pytest.mark.parametrize(("renew", "dead"), [(60.0, False), (600.0, True)], ids=["a minute", "longer than a proof"])
def test_a_worker_that_renews_rarely_is_not_called_dead(renew: float, dead: bool) -> None:
    """:param dead: what is said of one as rare that died: alive, where its silence proves nothing yet."""

    async def main() -> None:
        store = await opened()
        ages = [timedelta(seconds=times * renew) for times in (1, 2, 3)]
        times = LeaseTimes(renew=ages[0], give_up=ages[1], take=ages[2], visibility=ages[2])
        rare = Members(store, NAMES, times=times, clock=VirtualClock())
        for worker in ("rare@host/1", "dead@host/1"):
            await rare.announce(member(worker))
        await members(store).announce(member("gone@host/1"))

        async def work() -> None:
            await asyncio.sleep(0.95 * renew)
            await rare.renew(member("rare@host/1"))

        task = asyncio.ensure_future(work())
        found = {one.worker: one.alive for one in await members(store).prove()}
        assert found == {"rare@host/1": True, "dead@host/1": dead, "gone@host/1": False}
        task.cancel()

    run(main())
