"""Owners on threads of their own: what blocks the worker's loop, or theirs, costs no lease and keeps none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from airflow_provider_taskhub.errors import AccessDenied, HubError, LeaseLost
from airflow_provider_taskhub.hub.model import BLOB, TABLE, HubNames, Tenure, WorkerIdentity
from airflow_provider_taskhub.hub.partitions.administration import create_hub, partition_states
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.owner import PartitionOwner
from airflow_provider_taskhub.hub.partitions.owner_thread import OwnerThread
from airflow_provider_taskhub.settings import LeaseTimes
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from tests.waiting import until_async

NAMES = HubNames("ThreadHub")
TIMES = LeaseTimes(
    renew=timedelta(seconds=0.3),
    give_up=timedelta(seconds=1.5),
    take=timedelta(seconds=2.5),
    scan=timedelta(seconds=0.2),
    visibility=timedelta(seconds=4),
)
SOON = 20.0


class Host:
    """Notes what it is told, on which thread, and drains at once."""

    def __init__(self) -> None:
        self.held: dict[int, Tenure] = {}
        self.lost_ones: list[tuple[int, str, str]] = []
        self.threads: set[str] = set()
        self.block = threading.Event()
        self.block.set()

    def taken(self, tenure: Tenure) -> None:
        self.threads.add(threading.current_thread().name)
        self.held[tenure.partition] = tenure
        self.block.wait(SOON)

    def asked(self, tenure: Tenure) -> None:
        tenure.drained()

    def lost(self, tenure: Tenure, reason: str) -> None:
        del self.held[tenure.partition]
        self.lost_ones.append((tenure.partition, reason, threading.current_thread().name))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    async with SqliteStore(path) as opened:
        await create_hub(opened, NAMES, 4)
        yield opened


def owner(
    path: Path, host: Host, name: str = "a", *, opens: Callable[[], Store] | None = None, names: HubNames = NAMES
) -> OwnerThread:
    return OwnerThread(
        open_store=opens or (lambda: SqliteStore(path)),
        names=names,
        host=PartitionHost(me=WorkerIdentity(name=name, host="h", incarnation="1"), listener=host),
        times=TIMES,
        app_name="",
    )


@pytest.mark.rows("T19", "T42", "E06", "E75")
async def test_a_blocked_worker_loop_costs_no_lease(path: Path, store: Store) -> None:
    host = Host()
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    assert host.threads == {"taskhub-partitions"}
    time.sleep(TIMES.take.total_seconds() + 0.5)  # noqa: ASYNC251  # an orchestrator that blocks
    for tenure in thread.tenures:
        tenure.check()
    assert len(thread.tenures) == 4
    assert host.lost_ones == []
    await thread.stop(timedelta(seconds=5))
    await thread.wait()
    assert sorted(partition for partition, *_ in host.lost_ones) == [0, 1, 2, 3]
    assert [state.owner for state in await partition_states(store, NAMES)] == [None] * 4


async def test_the_outage_of_its_store_is_known_to_other_threads_while_it_lasts(path: Path, store: Store) -> None:
    refused = threading.Event()

    def plan(call: Call) -> Fault | None:
        return Fault(before=AccessDenied("403 (fault)")) if refused.is_set() else None

    thread = owner(path, Host(), opens=lambda: FaultyStore(SqliteStore(path), plan))
    await thread.start()
    assert thread.outage == ""
    refused.set()
    await until_async("the outage is known", lambda: thread.outage == "403 (fault)")
    refused.clear()
    await until_async("the end of the outage is known", lambda: thread.outage == "")
    await thread.stop(timedelta(seconds=5))
    await thread.wait()


@pytest.mark.rows("T20", "T21", "T40")
async def test_a_stuck_owner_loop_keeps_no_lease(path: Path, store: Store) -> None:
    host = Host()
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    tenures = list(host.held.values())
    assert thread._loop is not None
    stuck = threading.Event()
    thread._loop.call_soon_threadsafe(stuck.wait, SOON)
    await until_async("it serves no partition", lambda: not host.held)
    for tenure in tenures:
        with pytest.raises(LeaseLost):
            tenure.check()
    assert {name for *_, name in host.lost_ones} == {"taskhub-watchdog"}
    assert len(host.lost_ones) == 4
    stuck.set()
    await until_async(
        "it serves every partition", lambda: len(host.held) == 4
    )  # its own rows, served by nobody: taken again
    await thread.stop(timedelta(seconds=5))


@pytest.mark.rows("T20")
async def test_the_watchdog_looks_again_when_a_tenure_begins(
    path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that was answered late may end before what it waits for."""
    host, held = Host(), [0]
    expire = PartitionOwner.expire

    def seen(self: PartitionOwner) -> float:
        expire(self)
        held[0] = len(self.tenures)
        return 3600.0

    monkeypatch.setattr(PartitionOwner, "expire", seen)
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: held[0] == 4)
    await thread.stop(timedelta(seconds=5))
    await until_async("the watchdog has ended", lambda: not thread._watchdog.is_alive())


@pytest.mark.rows("T42", "T49")
async def test_a_callback_may_wait_for_another_thread_that_asks_what_is_held(path: Path, store: Store) -> None:
    answers: list[int] = []

    class Asking(Host):
        def taken(self, tenure: Tenure) -> None:
            super().taken(tenure)

            def ask() -> None:
                tenure.check()
                answers.append(len(thread.tenures))

            other = threading.Thread(target=ask, daemon=True)
            other.start()
            other.join(SOON)

    host = Asking()
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    await until_async("every contender has an answer", lambda: len(answers) == 4)
    assert max(answers) >= 3
    assert host.lost_ones == []
    await thread.stop(timedelta(seconds=5))


@pytest.mark.rows("T50", "E07", "E15")
async def test_a_stop_hands_over_to_another_worker(path: Path, store: Store) -> None:
    one, two = Host(), Host()
    first, second = owner(path, one, "a"), owner(path, two, "b")
    async with AsyncExitStack() as stack:
        await first.start()
        await until_async("the first one serves every partition", lambda: len(one.held) == 4)
        await second.start()
        stack.push_async_callback(second.stop, timedelta(seconds=5))
        await until_async("each serves a half", lambda: (len(one.held), len(two.held)) == (2, 2))
        with pytest.raises(RuntimeError):
            await first.start()
        await first.stop(timedelta(seconds=5))
        await until_async("the second one serves every partition", lambda: len(two.held) == 4)
        await first.stop(timedelta(seconds=5))  # again: nothing to do
        again = owner(path, one, "a")
        await again.start()
        stack.push_async_callback(again.stop, timedelta(seconds=5))
        await until_async("each serves a half", lambda: (len(one.held), len(two.held)) == (2, 2))


@pytest.mark.rows("T06")
async def test_a_start_without_a_hub_says_so(path: Path) -> None:
    async with SqliteStore(path):
        thread = owner(path, Host())
        with pytest.raises(HubError, match="there is no hub 'ThreadHub'"):
            await thread.start()
        await thread.stop(timedelta(seconds=1))


@pytest.mark.rows("T01", "T50", "T51", "K03", "K13", "E01", "E60")
@pytest.mark.parametrize("lease_store", [TABLE, BLOB])
async def test_owners_share_hand_over_and_take_over_on_azure(azurite: str, lease_store: str) -> None:
    """The participant suite in virtual time is test_owner; here the same loops, in real time, on the emulator."""
    names = HubNames(f"t{uuid4().hex[:12]}")

    def opens() -> Store:
        return AzureStore(azurite, timeout=timedelta(seconds=5))

    hosts = {name: Host() for name in "abc"}
    threads = {name: owner(Path(), host, name, opens=opens, names=names) for name, host in hosts.items()}
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opens())
        await create_hub(store, names, 4, lease_store=lease_store)
        await threads["a"].start()
        await until_async("a serves every partition", lambda: len(hosts["a"].held) == 4)
        await threads["b"].start()
        await until_async("a and b serve a half each", lambda: (len(hosts["a"].held), len(hosts["b"].held)) == (2, 2))
        assert {reason for _, reason, _ in hosts["a"].lost_ones} == {"handed over to b@h/1"}
        await threads["a"].stop(timedelta(seconds=5))
        await until_async("b serves every partition", lambda: len(hosts["b"].held) == 4)
        # it dies without a word: its loop stops where it is
        dead = threads["b"]
        assert dead._loop is not None
        assert dead._owner is not None
        loop = dead._loop
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        await threads["c"].start()
        stack.push_async_callback(threads["c"].stop, timedelta(seconds=5))
        await until_async("c serves every partition", lambda: len(hosts["c"].held) == 4)
        assert {state.epoch for state in await partition_states(store, names)} <= {3, 4}
