"""``make bench-growth``: what must not cost more when there is more of it, beside its goal.

Idle workers, waiting instances, an instance beside a large one, large hubs, pages of listings, several workers, long
histories, Airflow's page. What is compared takes turns in one process, so that a machine that is slow for a while is
slow for both.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.demo.azurite import install
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import TaskHubError
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.storage.primitives import (
    Compare,
    Entity,
    Operation,
    RowOperation,
    RowVerb,
    Step,
    Transact,
    Unit,
)
from tests.benchmarks import page
from tests.benchmarks.figures import machine
from tests.benchmarks.findings import Extent, Finding, Findings
from tests.benchmarks.histories import LONG, long_history, replayed
from tests.benchmarks.stage import AZURITE, EMBEDDED, EMULATOR, BenchError, Stage
from tests.benchmarks.workloads import IDLE_AFTER

WIDTH = 140
STARTING = 32
"""Starts under way at once."""
WARM = 32
SEEDING = 256
SIZES = (1_000, 10_000, 100_000)
"""Instances in a hub; each copy has 13 history rows."""
WORKERS = (1, 2, 4)
IDLE = {EMBEDDED: (IDLE_AFTER, 60.0), EMULATOR: (IDLE_AFTER, 120.0)}
"""Seconds until nothing more is expected of an idle worker (its polling falls to its floor), and to watch it."""
EVICTED = 40.0
"""Seconds after which an idle session is gone: a timeout of 30, looked at six times within it."""
PAGE = 20
LOOK = 0.002
"""Seconds between two looks at an instance."""
POLLS = ("queue.receive", "queue.update")


# orchestrations


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Orchestrations started at once. :param rate: ended a second. :param cpu: milliseconds of workers for each."""

    rate: float
    cpu: float


async def _started(client: Client, orchestrator: str, count: int) -> list[str]:
    """Ids as users have them, without order: each instance has a place of its own in the indexes."""
    gate = asyncio.Semaphore(STARTING)

    async def start(value: int) -> str:
        async with gate:
            return (await client.start(orchestrator, value)).instance_id

    return await asyncio.gather(*(start(value) for value in range(count)))


async def _burst(stage: Stage, client: Client, count: int) -> Burst:
    before, sent = (await stage.settled()).cpu, SYSTEM_CLOCK.utc_now()
    ids = await _started(client, "single", count)
    last = sent
    for instance_id in reversed(ids):
        ended = await client.wait(instance_id)
        if ended.status is not Status.COMPLETED or ended.completed is None:
            raise BenchError(f"{instance_id} is {ended.status}: {ended.output}\n{stage.tail()}")
        last = max(last, ended.completed)
    after = (await stage.settled()).cpu
    return Burst(rate=count / (last - sent).total_seconds(), cpu=(after - before) / count * 1000)


async def _warm(stage: Stage, client: Client) -> None:
    """Every executor has run something, every code path is loaded."""
    await _burst(stage, client, WARM)


# many instances


async def _seed(client: Client, count: int) -> None:
    """Copies of an instance that has ended, until the hub has so many."""
    source = (await client.start("chain", 2)).instance_id
    await client.wait(source)
    store, names = client.hub.store, client.hub.names
    row = await store.get(names.instances, source, "")
    history = [each async for each in store.rows(names.history, Compare("PartitionKey", "eq", source))]
    assert row is not None
    gate = asyncio.Semaphore(SEEDING)

    async def copy() -> None:
        async with gate:
            key = uuid4().hex
            parts = (_copies(names.instances, key, [row]), _copies(names.history, key, history))
            await store.commit(Unit(steps=tuple(Step(name="copy", operations=(part,)) for part in parts)))

    await asyncio.gather(*(copy() for _ in range(count - 1)))


def _copies(table: str, key: str, entities: Sequence[Entity]) -> Operation:
    copies = (Entity(partition_key=key, row_key=each.row_key, properties=each.properties) for each in entities)
    return Transact(table=table, rows=tuple(RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=each) for each in copies))


async def _sizes(extent: Extent) -> Findings:
    """Hubs of different sizes side by side: bursts and pages in turn."""
    sizes = [extent.of(size) for size in SIZES]
    bursts: dict[int, list[Burst]] = defaultdict(list)
    pages: dict[tuple[str, int], list[float]] = defaultdict(list)
    searches: dict[int, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        hubs = []
        for size in sizes:
            stage = stack.enter_context(Stage(EMBEDDED))
            client = await stack.enter_async_context(Client.open(stage.settings))
            await _warm(stage, client)
            await _seed(client, size)
            hubs.append((size, stage, client))
        for _ in range(extent.rounds):
            for size, stage, client in hubs:
                bursts[size].append(await _burst(stage, client, extent.of(1_000)))
        for _ in range(20):
            for size, _, client in hubs:
                pages["the first page", size].append(await _page(client, ""))
                pages["a page in the middle", size].append(await _page(client, "8"))
                searches[size].append(await _page(client, "", Status.FAILED))
    for size in sizes:
        yield Finding(part="size", what=f"{size} instances", value=_rate(bursts[size]), unit="per s")
        cpu = median(burst.cpu for burst in bursts[size])
        yield Finding(part="size", what=f"{size} instances, CPU of worker and executors", value=cpu, unit="ms each")
    for size in sizes[1:]:
        share = median(b.rate / a.rate for a, b in zip(bursts[sizes[0]], bursts[size], strict=True))
        yield Finding(part="size", what=f"{size} to {sizes[0]}", value=share, unit="", goal=0.9, most=False)
    for what in dict.fromkeys(what for what, _ in pages):
        for size in sizes:
            yield Finding(part="page", what=f"{what} of {size}", value=median(pages[what, size]) * 1000, unit="ms")
        ratio = median(pages[what, sizes[-1]]) / median(pages[what, sizes[0]])
        yield Finding(part="page", what=f"{what}, {sizes[-1]} to {sizes[0]}", value=ratio, unit="", goal=1.5)
    for size in sizes:  # no index of statuses: it would cost every step something
        searched = median(searches[size]) * 1000
        yield Finding(part="page", what=f"a search of {size} for a status that none has", value=searched, unit="ms")


def _rate(bursts: Sequence[Burst]) -> float:
    return median(burst.rate for burst in bursts)


async def _page(client: Client, prefix: str, *statuses: Status) -> float:
    begun = time.perf_counter()
    await client.list(prefix=prefix, statuses=statuses, limit=PAGE)
    return time.perf_counter() - begun


# several workers


async def _several(extent: Extent) -> Findings:
    rates: dict[int, list[float]] = defaultdict(list)
    shares: dict[int, list[float]] = defaultdict(list)
    for _ in range(extent.rounds):
        for count in WORKERS:
            with Stage(EMBEDDED, workers=count) as stage:
                async with Client.open(stage.settings) as client:
                    await _warm(stage, client)
                    before = [_work(each.requests) for each in await stage.readings()]
                    rates[count].append((await _burst(stage, client, extent.of(1_000))).rate)
                    after = [_work(each.requests) for each in await stage.readings()]
            done = [b - a for a, b in zip(before, after, strict=True)]
            shares[count].append(min(done) * count / sum(done))
    for count in WORKERS:
        yield Finding(part="workers", what=f"{count} processes", value=median(rates[count]), unit="per s")
    for count in WORKERS[1:]:
        total = median(b / a for a, b in zip(rates[WORKERS[0]], rates[count], strict=True))
        yield Finding(part="workers", what=f"{count} to 1", value=total, unit="", goal=0.85, most=False)
        least = median(shares[count])
        what = f"the least that one of {count} does, to an even share"
        yield Finding(part="workers", what=what, value=least, unit="", goal=0.75, most=False)


def _work(requests: Mapping[str, int]) -> int:
    return sum(count for kind, count in requests.items() if kind not in POLLS)


# nothing to do


async def _idle(extent: Extent) -> Findings:
    for store in (EMBEDDED, EMULATOR):
        with Stage(store) as stage:
            async with Client.open(stage.settings) as client:
                await _warm(stage, client)
                floor, seconds = IDLE[store]
                await asyncio.sleep(floor * extent.scale)
                cpu, requests = await _watch(stage, seconds * extent.scale)
                queues = client.hub.info.partitions + 1
                slowest = stage.settings.max_polling.total_seconds()
        yield Finding(part="idle", what=f"{store}: CPU of worker and executors", value=cpu, unit="% of a core", goal=1)
        # each queue is asked once in the ceiling of the back-off; whether its last look falls into the time is chance
        goal = queues * (60 / slowest + 60 / seconds / 4) if store == EMULATOR else None
        yield Finding(part="idle", what=f"{store}: requests", value=requests, unit="per min", goal=goal)


async def _watch(stage: Stage, seconds: float) -> tuple[float, float]:
    """Percent of a core, and requests a minute."""
    before = await stage.reading()
    await asyncio.sleep(seconds)
    after = await stage.reading()
    spent = after.at - before.at
    return (after.cpu - before.cpu) / spent * 100, (after.requests - before.requests).total() / spent * 60


async def _waiting(extent: Extent) -> Findings:
    """Instances that wait for an event: first alive, then with their histories alone."""
    count = extent.of(10_000)
    with Stage(EMBEDDED) as stage:
        async with Client.open(stage.settings) as client:
            await _warm(stage, client)
            await asyncio.sleep(EVICTED)
            alone, _ = await _watch(stage, IDLE[EMBEDDED][1])
            before = await stage.settled()
            await _started(client, "waiting", count)
            after = await stage.settled()
            held, _ = await _watch(stage, 5.0)
            await asyncio.sleep(EVICTED)
            evicted, _ = await _watch(stage, IDLE[EMBEDDED][1])
            later = await stage.reading()
    each = (after.memory - before.memory) / 1000 / max(1, after.sessions)
    yield Finding(part="waiting", what="sessions in memory", value=after.sessions, unit="", goal=count, most=False)
    yield Finding(part="waiting", what="memory of a session", value=each, unit="KB", goal=20)
    yield Finding(
        part="waiting", what="CPU with sessions, above an idle worker's", value=held - alone, unit="%", goal=1
    )
    kept = (later.memory - before.memory) / 1000 / max(1, later.sessions)
    yield Finding(part="waiting", what="memory of a history that is kept", value=kept, unit="KB", goal=20)
    yield Finding(part="waiting", what="CPU then, above an idle worker's", value=evicted - alone, unit="%", goal=0.5)


# an instance with many activities


async def _neighbour(extent: Extent) -> Findings:
    """An instance waits for an event in the partition of another one that has many activities under way."""
    width = extent.of(10_000)
    with Stage(EMBEDDED) as stage:
        async with Client.open(stage.settings) as client:
            await _warm(stage, client)
            quiet = [await _raised(client, 0) for _ in range(100)]
            partitions = client.hub.info.partitions
            wide = next(str(number) for number in range(1000) if partition_of(str(number), partitions) == 0)
            await client.start("fan", width, instance_id=wide)
            beside = []
            while not (row := await client.get(wide)) or not row.status.is_final:
                beside.append(await _raised(client, 0))
    part, what = "neighbour", f"beside {width} activities: from an event to the end that it causes"
    yield Finding(part=part, what="alone: from an event to the end that it causes", value=median(quiet), unit="ms")
    yield Finding(part=part, what=f"{what}, median of {len(beside)}", value=median(beside), unit="ms", goal=100)
    yield Finding(part=part, what=f"{what}, 99 of 100", value=sorted(beside)[len(beside) * 99 // 100], unit="ms")
    yield Finding(part=part, what=f"{what}, longest", value=max(beside), unit="ms")


async def _raised(client: Client, partition: int) -> float:
    """Milliseconds from an event for an instance that waits in a partition to the end of this instance."""
    name = uuid4().hex
    while partition_of(name, client.hub.info.partitions) != partition:
        name = uuid4().hex
    await client.start("waiting", 0, instance_id=name)
    await _seen(client, name, Status.RUNNING)
    raised = time.perf_counter()
    await client.raise_event(name, "go")
    await _seen(client, name, Status.COMPLETED)
    return (time.perf_counter() - raised) * 1000


async def _seen(client: Client, instance_id: str, status: Status) -> None:
    while True:
        row = await client.get(instance_id)
        if row is not None and row.status is status:
            return
        await asyncio.sleep(LOOK)


# long histories


async def _replay(extent: Extent) -> Findings:
    for name, make in LONG.items():
        past = long_history(name, make, extent.of(10_000, least=100))
        spent = median(replayed(past) for _ in range(9)) / len(past)
        yield Finding(part="replay", what=f"{len(past)} events, {name}", value=spent * 1e6, unit="µs an event", goal=10)
    with Stage(EMBEDDED) as stage:
        async with Client.open(stage.settings) as client:
            instance_id = (await client.start("chain", extent.of(1_000))).instance_id
            await client.wait(instance_id)
            spent = median([await _read(client, instance_id) for _ in range(9)])
    yield Finding(part="replay", what="reading an event from the embedded store before it", value=spent, unit="µs")


async def _read(client: Client, instance_id: str) -> float:
    """Microseconds of CPU for each event of a history."""
    begun = time.process_time()
    past = await client.instance(instance_id).history()
    return (time.process_time() - begun) / len(past) * 1e6


PARTS: Mapping[str, Callable[[Extent], Findings]] = {
    "replay": _replay,
    "idle": _idle,
    "waiting": _waiting,
    "neighbour": _neighbour,
    "size": _sizes,
    "workers": _several,
    "page": page.findings,
}


# the command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.growth", description=__doc__)
    parser.add_argument("--parts", type=_parts, default=tuple(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth of every size")
    parser.add_argument("--rounds", type=int, default=5, help="turns of what takes turns; figures are medians")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    unknown = [part for part in text.split(",") if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    return tuple(text.split(","))


def table(findings: Sequence[Finding]) -> Table:
    shown = Table(title="TaskHub: growth", title_justify="left")
    for column in ("part", "what"):
        shown.add_column(column)
    for column in ("figure", "goal"):
        shown.add_column(column, justify="right")
    shown.add_column("unit")
    shown.add_column("")
    part = ""
    for each in findings:
        if each.part != part:
            shown.add_section()
        goal = "" if each.goal is None else f"{'<=' if each.most else '>='} {each.goal:.4g}"
        told = "" if each.goal is None else "met" if each.met else "missed"
        shown.add_row(each.part if each.part != part else "", each.what, f"{each.value:.4g}", goal, each.unit, told)
        part = each.part
    return shown


async def _measure(screen: Console, parts: Sequence[str], extent: Extent) -> list[Finding]:
    found = []
    for part in parts:
        screen.print(f"{part} …", style="dim")
        found += [each async for each in PARTS[part](extent)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The status to exit with: 0, 1 when something could not be measured, 130 for Ctrl-C."""
    options = _parser().parse_args(arguments)
    screen = Console()
    if not screen.is_terminal:
        screen.width = WIDTH
    screen.print(machine(), highlight=False)
    try:
        if {"idle", "page"} & set(options.parts):
            install(AZURITE)
        found = asyncio.run(_measure(screen, options.parts, Extent(scale=options.scale, rounds=options.rounds)))
    except (BenchError, TaskHubError) as error:
        screen.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    screen.print(table(found))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as on Ctrl-C: nothing stays behind
    sys.exit(main())
