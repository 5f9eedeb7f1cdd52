"""The workloads: each drives a stage's worker through a client and yields figures, and beside it the same on the bare
store (``ceiling``).

Times of an orchestration run from the moment before its start until ``Client.wait`` has returned. A burst alone ends
with the last completion time in a row, which is read before the last commit: to wait for 1,000 instances has its cost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.demo.azurite import Azurite
from airflow_provider_taskhub.engine.events import Status, TaskCompleted
from airflow_provider_taskhub.hub.model import InstanceState
from tests.benchmarks.ceiling import Embedded, Hub, orchestration
from tests.benchmarks.cpu import HOST, Usage, spent, usage
from tests.benchmarks.figures import CPU, REQUESTS, Figure, percentile
from tests.benchmarks.requests import Requests
from tests.benchmarks.stage import AZURITE, EMULATOR, BenchError, Stage

LIMIT = timedelta(minutes=10)
"""For one orchestration; a slow workload is a figure, a stuck one an error."""
STARTING = 32
"""Starts under way at once in workload a."""
AT_ONCE: Mapping[str, int] = {EMULATOR: 8}
"""Orchestrations under way at once in the ceiling of workload a: what carries most. Azurite's deletes look through all
messages that it holds; the embedded store carries the more the more arrives together."""
WARM = 8
"""Orchestrations before anything is measured: every executor has run something, every code path is loaded."""
IDLE_AFTER = 60.0
"""Seconds until an idle worker's polling is at its floor: the back-off doubles from 50 ms to 30 s."""
TIMED = ("queue.receive", "queue.update")
"""Kinds whose number depends on the moment: receives, and renewals of messages held for long."""
BUDGETED = "operations beside receives"
FLAT = "last / first"
DECIDED = "p50 until its end is decided"
"""Its completion time: before the last commit."""
EACH, STEP = "per orchestration", "per step"

Measured = AsyncIterator[tuple[str, str, float]]
"""Name, unit, value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One letter of the table.

    :param size: at scale 1. :param repeats: runs unless told otherwise. :param unit: what CPU and requests are told of.
    :param ceiling: the same on the bare store.
    """

    letter: str
    text: str
    size: int
    repeats: int
    unit: str
    run: Callable[[Stage, Client, int], Measured]
    ceiling: Callable[[Hub, str, int], Measured] | None = None
    least: int = 1

    def sized(self, scale: float) -> int:
        return max(self.least, round(self.size * scale))


async def measure(workload: Workload, stage: Stage, size: int) -> list[Figure]:
    """One run of a workload over a fresh stage."""
    async with Client.open(stage.settings) as client:
        for value in range(WARM):
            await _one(stage, client, "single", value)
        await stage.settled()
        before = stage.usage()
        found = [item async for item in workload.run(stage, client, size)]
        if workload.ceiling is not None:
            await stage.settled()
            found += _cpu(before, stage.usage(), size, workload.unit)
    return [
        Figure(store=stage.store, workload=workload.letter, name=name, unit=unit, value=value, size=size)
        for name, unit, value in found
    ]


async def measure_ceiling(workload: Workload, store: str, size: int) -> list[Figure]:
    """One run of the same writes on a fresh store; nothing where there is nothing to compare.

    On Azurite a second one beside it, with as few requests as TaskHub sends itself: no ceiling by the goals, a figure.
    """
    if workload.ceiling is None:
        return []
    found = [
        Figure(store=store, workload=workload.letter, name=name, unit=unit, value=value, size=size, ceiling=True)
        for name, unit, value in await _bare(workload, store, size)
    ]
    if store == EMULATOR:
        name, unit, value = (await _bare(workload, store, size, direct=True))[0]
        name = f"{name} of a bare client with as few requests"
        found.append(Figure(store=store, workload=workload.letter, name=name, unit=unit, value=value, size=size))
    return found


async def _bare(workload: Workload, store: str, size: int, *, direct: bool = False) -> list[tuple[str, str, float]]:
    """:param direct: see :class:`Requests`."""
    assert workload.ceiling is not None
    async with AsyncExitStack() as stack:
        hub: Hub
        if store == EMULATOR:
            azurite = stack.enter_context(Azurite(AZURITE))
            hub = await stack.enter_async_context(Requests(azurite, direct=direct))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="taskhub-bench-"))
            hub = await stack.enter_async_context(Embedded(Path(folder)))
        for _ in range(WARM):
            await orchestration(hub)
        await hub.settled()
        roles = {role: [psutil.Process(pid)] for role, pid in hub.others.items()} | {HOST: [psutil.Process()]}
        before = usage(roles)
        found = [item async for item in workload.ceiling(hub, store, size)]
        await hub.settled()
        found += _cpu(before, usage(roles), size, workload.unit)
    return found


def _cpu(before: Usage, after: Usage, size: int, unit: str) -> Iterator[tuple[str, str, float]]:
    for role, seconds in spent(before, after).items():
        yield f"{CPU}{role}", f"ms {unit}", seconds / size * 1000


# one at a time


async def _in_turn(stage: Stage, client: Client, size: int) -> Measured:
    decided, seen = [], []
    starting: Counter[str] = Counter()
    before = await stage.settled()
    for value in range(size):
        sent, begun, counted = SYSTEM_CLOCK.utc_now(), time.perf_counter(), client.hub.store.requests.copy()
        started = await client.start("single", value)
        starting += client.hub.store.requests - counted
        ended = await _ended(stage, client, started.instance_id)
        seen.append(time.perf_counter() - begun)
        decided.append(_seconds(sent, ended))
    used = (await stage.settled()).requests - before.requests + starting
    yield "p50", "ms", percentile(seen, 0.5) * 1000
    yield "p99", "ms", percentile(seen, 0.99) * 1000
    yield DECIDED, "ms", percentile(decided, 0.5) * 1000
    yield BUDGETED, EACH, (used.total() - sum(used[kind] for kind in TIMED)) / size
    for item in _requests(used, size, EACH):
        yield item


def _requests(used: Counter[str], size: float, unit: str) -> list[tuple[str, str, float]]:
    return [(f"{REQUESTS}{kind}", unit, count / size) for kind, count in sorted(used.items())]


async def _in_turn_bare(hub: Hub, store: str, size: int) -> Measured:
    found = []
    for _ in range(size):
        begun = time.perf_counter()
        await orchestration(hub)
        found.append(time.perf_counter() - begun)
    yield "p50", "ms", percentile(found, 0.5) * 1000
    yield "p99", "ms", percentile(found, 0.99) * 1000


# many


async def _burst(stage: Stage, client: Client, size: int) -> Measured:
    gate = asyncio.Semaphore(STARTING)

    async def start(value: int) -> str:
        async with gate:
            return (await client.start("single", value)).instance_id

    before, own = await stage.settled(), client.hub.store.requests.copy()
    sent = SYSTEM_CLOCK.utc_now()
    ids = await asyncio.gather(*(start(value) for value in range(size)))
    own = client.hub.store.requests - own
    started = SYSTEM_CLOCK.utc_now()
    ends = await _all_ended(stage, client, set(ids), last=ids[-1])
    yield "finished", "per s", size / max(_seconds(sent, ended) for ended in ends)
    yield "started", "per s", size / (started - sent).total_seconds()
    for item in _requests((await stage.settled()).requests - before.requests + own, size, EACH):
        yield item


async def _burst_bare(hub: Hub, store: str, size: int) -> Measured:
    gate = asyncio.Semaphore(AT_ONCE.get(store, size))

    async def one() -> None:
        async with gate:
            await orchestration(hub)

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(size)))
    yield "finished", "per s", size / (time.perf_counter() - begun)


async def _all_ended(stage: Stage, client: Client, ids: set[str], *, last: str) -> list[InstanceState]:
    """Wait with few reads: for the one started last, then for the stragglers."""
    await _ended(stage, client, last)
    deadline = time.monotonic() + LIMIT.total_seconds()
    while (await client.list(statuses=(Status.PENDING, Status.RUNNING), limit=1)).instances:
        stage.check()
        if time.monotonic() > deadline:
            raise BenchError(f"orchestrations were unfinished after {LIMIT}\n{stage.tail()}")
        await asyncio.sleep(0.1)
    found: list[InstanceState] = []
    continuation: str | None = None
    while True:
        page = await client.list(limit=1000, continuation=continuation)
        found.extend(state for state in page.instances if state.instance_id in ids)
        if (continuation := page.continuation) is None:
            break
    if len(found) != len(ids):
        raise BenchError(f"{len(ids)} orchestrations were started, {len(found)} are in the hub")
    return [_completed(state) for state in found]


async def _fan(stage: Stage, client: Client, size: int) -> Measured:
    before = await stage.settled()
    taken, ended = await _one(stage, client, "fan", size)
    after = await stage.settled()
    if ended.output != str(size):
        raise BenchError(f"the fan-out of {size} gave {ended.output}")
    yield "whole", "s", taken
    for item in _requests(after.requests - before.requests, size, "per activity"):
        yield item


async def _fan_bare(hub: Hub, store: str, size: int) -> Measured:
    begun = time.perf_counter()
    await orchestration(hub, width=size)
    yield "whole", "s", time.perf_counter() - begun


async def _chain(stage: Stage, client: Client, size: int) -> Measured:
    before = await stage.settled()
    taken, _ = await _one(stage, client, "chain", size)
    after = await stage.settled()
    yield "step", "ms", taken / size * 1000
    for item in _requests(after.requests - before.requests, size, STEP):
        yield item


async def _chain_bare(hub: Hub, store: str, size: int) -> Measured:
    begun = time.perf_counter()
    await orchestration(hub, steps=size)
    yield "step", "ms", (time.perf_counter() - begun) / size * 1000


async def _long_chain(stage: Stage, client: Client, size: int) -> Measured:
    _, ended = await _one(stage, client, "chain", size)
    events = [event for event in await client.instance(ended.instance_id).history() if isinstance(event, TaskCompleted)]
    if len(events) != size:
        raise BenchError(f"a chain of {size} has {len(events)} completions in its history")
    steps = [(after.timestamp - before.timestamp).total_seconds() * 1000 for before, after in pairwise(events)]
    part = max(1, size // 10)
    first, last = median(steps[:part]), median(steps[-part:])
    yield f"step, first {part}", "ms", first
    yield f"step, last {part}", "ms", last
    yield FLAT, "", last / first


async def _idle(stage: Stage, client: Client, size: int) -> Measured:
    await asyncio.sleep(min(IDLE_AFTER, size))
    before = await stage.reading()
    await asyncio.sleep(size)
    after = await stage.reading()
    seconds = after.at - before.at
    yield "CPU of worker and executors", "% of a core", (after.cpu - before.cpu) / seconds * 100
    for item in _requests(after.requests - before.requests, seconds / 60, "per min"):
        yield item


# starting and waiting


async def _one(stage: Stage, client: Client, orchestrator: str, value: int) -> tuple[float, InstanceState]:
    """Seconds until the client knew its end."""
    begun = time.perf_counter()
    started = await client.start(orchestrator, value)
    ended = await _ended(stage, client, started.instance_id)
    return time.perf_counter() - begun, ended


async def _ended(stage: Stage, client: Client, instance_id: str) -> InstanceState:
    deadline = time.monotonic() + LIMIT.total_seconds()
    while True:
        try:
            return _completed(await client.wait(instance_id, timeout=timedelta(seconds=10)))
        except TimeoutError:
            stage.check()
            if time.monotonic() > deadline:
                raise BenchError(f"an orchestration was unfinished after {LIMIT}\n{stage.tail()}") from None


def _completed(state: InstanceState) -> InstanceState:
    if state.status is not Status.COMPLETED:
        raise BenchError(f"{state.name} {state.instance_id} is {state.status}: {state.output}")
    return state


def _seconds(sent: Timestamp, ended: InstanceState) -> float:
    assert ended.completed is not None
    return (ended.completed - sent).total_seconds()


WORKLOADS: Mapping[str, Workload] = {
    workload.letter: workload
    for workload in (
        Workload(
            letter="a0",
            text="orchestrations of one activity, in turn",
            size=100,
            repeats=3,
            unit=EACH,
            run=_in_turn,
            ceiling=_in_turn_bare,
        ),
        Workload(
            letter="a",
            text="orchestrations of one activity, at once",
            size=1000,
            repeats=3,
            unit=EACH,
            run=_burst,
            ceiling=_burst_bare,
        ),
        Workload(
            letter="b",
            text="a fan-out of activities",
            size=1000,
            repeats=3,
            unit="per activity",
            run=_fan,
            ceiling=_fan_bare,
        ),
        Workload(
            letter="c", text="a chain of activities", size=100, repeats=3, unit=STEP, run=_chain, ceiling=_chain_bare
        ),
        Workload(
            letter="d", text="a long chain of activities", size=1000, repeats=3, unit=STEP, run=_long_chain, least=10
        ),
        Workload(letter="i", text="an idle worker, for seconds", size=60, repeats=1, unit="per min", run=_idle),
    )
}
