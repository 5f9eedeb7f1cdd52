"""Owners on threads of their own: what blocks the worker's loop, or theirs, costs no lease and keeps none."""

from __future__ import annotations

import asyncio
import threading
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
from tests.waiting import PATIENCE, until, until_async

NAMES = HubNames("ThreadHub")
BRIEF = LeaseTimes(
    renew=timedelta(seconds=0.3),
    give_up=timedelta(seconds=1.5),
    take=timedelta(seconds=2.5),
    scan=timedelta(seconds=0.2),
    visibility=timedelta(seconds=4),
)
"""A lease ends soon, so that a test sees it end."""
CALM = LeaseTimes(
    renew=timedelta(seconds=0.3),
    give_up=timedelta(seconds=50),
    take=timedelta(seconds=60),
    scan=timedelta(seconds=0.2),
    visibility=timedelta(seconds=60),
)
"""No lease ends, even if the machine stands still for some seconds."""
STOP = timedelta(seconds=PATIENCE)


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
        self.block.wait(PATIENCE)

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
    path: Path,
    host: Host,
    name: str = "a",
    *,
    opens: Callable[[], Store] | None = None,
    names: HubNames = NAMES,
    times: LeaseTimes = CALM,
) -> OwnerThread:
    return OwnerThread(
        open_store=opens or (lambda: SqliteStore(path)),
        names=names,
        host=PartitionHost(me=WorkerIdentity(name=name, host="h", incarnation="1"), listener=host),
        times=times,
        app_name="",
    )


@pytest.mark.rows("T19", "T42", "E06", "E75")
async def test_a_blocked_worker_loop_costs_no_lease(path: Path, store: Store) -> None:
    host = Host()
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    assert host.threads == {"taskhub-partitions"}
    wanted = thread.metrics.renewals + 20
    until("20 renewals", lambda: thread.metrics.renewals >= wanted)  # it blocks this loop, as an orchestrator may
    for tenure in thread.tenures:
        tenure.check()
    assert len(thread.tenures) == 4
    assert host.lost_ones == []
    await thread.stop(STOP)
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
    await thread.stop(STOP)
    await thread.wait()


@pytest.mark.rows("T20", "T21", "T40")
async def test_a_stuck_owner_loop_keeps_no_lease(path: Path, store: Store) -> None:
    host = Host()
    thread = owner(path, host, times=BRIEF)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    assert thread._loop is not None
    begun, stuck = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        stuck.wait(2 * PATIENCE)

    thread._loop.call_soon_threadsafe(stand_still)
    await until_async("its loop stands still", begun.is_set)
    tenures = list(host.held.values())
    await until_async("it serves no partition", lambda: not host.held)
    for tenure in tenures:
        with pytest.raises(LeaseLost):
            tenure.check()
    ended = {partition for partition, _, name in host.lost_ones if name == "taskhub-watchdog"}
    assert ended >= {tenure.partition for tenure in tenures}
    stuck.set()
    await until_async(
        "it serves every partition", lambda: len(host.held) == 4
    )  # its own rows, served by nobody: taken again
    await thread.stop(STOP)


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
    await thread.stop(STOP)
    await until_async("the watchdog has ended", lambda: not thread._watchdog.is_alive())


@pytest.mark.rows("T42", "T49")
async def test_a_callback_may_wait_for_another_thread_that_asks_what_is_held(path: Path, store: Store) -> None:
    answers: list[int] = []
    in_time: list[bool] = []

    class Asking(Host):
        def taken(self, tenure: Tenure) -> None:
            super().taken(tenure)

            def ask() -> None:
                tenure.check()
                answers.append(len(thread.tenures))

            other = threading.Thread(target=ask, daemon=True)
            other.start()
            other.join(PATIENCE)
            in_time.append(not other.is_alive())

    host = Asking()
    thread = owner(path, host)
    await thread.start()
    await until_async("it serves every partition", lambda: len(host.held) == 4)
    await until_async("every thread has its answer", lambda: len(in_time) == 4)
    assert in_time == [True] * 4, "the answer comes while the callback waits for it"
    assert max(answers) >= 3
    assert host.lost_ones == []
    await thread.stop(STOP)


@pytest.mark.rows("T50", "E07", "E15")
async def test_a_stop_hands_over_to_another_worker(path: Path, store: Store) -> None:
    one, two = Host(), Host()
    first, second = owner(path, one, "a"), owner(path, two, "b")
    async with AsyncExitStack() as stack:
        await first.start()
        await until_async("the first one serves every partition", lambda: len(one.held) == 4)
        await second.start()
        stack.push_async_callback(second.stop, STOP)
        await until_async("each serves a half", lambda: (len(one.held), len(two.held)) == (2, 2))
        with pytest.raises(RuntimeError):
            await first.start()
        await first.stop(STOP)
        await until_async("the second one serves every partition", lambda: len(two.held) == 4)
        await first.stop(STOP)  # again: nothing to do
        again = owner(path, one, "a")
        await again.start()
        stack.push_async_callback(again.stop, STOP)
        await until_async("each serves a half", lambda: (len(one.held), len(two.held)) == (2, 2))


@pytest.mark.rows("T06")
async def test_a_start_without_a_hub_says_so(path: Path) -> None:
    async with SqliteStore(path):
        thread = owner(path, Host())
        with pytest.raises(HubError, match="there is no hub 'ThreadHub'"):
            await thread.start()
        await thread.stop(STOP)


@pytest.mark.rows("T01", "T50", "T51", "K03", "K13", "E01", "E60")
@pytest.mark.parametrize("lease_store", [TABLE, BLOB])
async def test_owners_share_hand_over_and_take_over_on_azure(azurite: str, lease_store: str) -> None:
    """The participant suite in virtual time is test_owner; here the same loops, in real time, on the emulator."""
    names = HubNames(f"t{uuid4().hex[:12]}")

    def opens() -> Store:
        return AzureStore(azurite, timeout=STOP)

    hosts = {name: Host() for name in "abc"}
    times = {"a": CALM, "b": BRIEF, "c": CALM}  # b dies, and c takes its partitions soon
    threads = {
        name: owner(Path(), host, name, opens=opens, names=names, times=times[name]) for name, host in hosts.items()
    }
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opens())
        await create_hub(store, names, 4, lease_store=lease_store)
        await threads["a"].start()
        await until_async("a serves every partition", lambda: len(hosts["a"].held) == 4)
        await threads["b"].start()
        await until_async("a and b serve a half each", lambda: (len(hosts["a"].held), len(hosts["b"].held)) == (2, 2))
        assert {reason for _, reason, _ in hosts["a"].lost_ones} == {"handed over to b@h/1"}
        await threads["a"].stop(STOP)
        await until_async("b serves every partition", lambda: len(hosts["b"].held) == 4)
        # it dies without a word: its loop stops where it is
        dead = threads["b"]
        assert dead._loop is not None
        assert dead._owner is not None
        loop = dead._loop
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        await threads["c"].start()
        stack.push_async_callback(threads["c"].stop, STOP)
        await until_async("c serves every partition", lambda: len(hosts["c"].held) == 4)
        assert min(state.epoch for state in await partition_states(store, names)) >= 3
