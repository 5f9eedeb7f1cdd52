"""``make storm``: real workers, killed for real, again and again; then everything is counted.

``storm`` starts orchestrations all the time, kills a worker every two seconds and starts another in its place; nothing
may be lost, no result doubled, no history corrupt. ``still`` runs chains, lets a second worker join and the first one
end (told to stop, or killed), and measures the longest time that any instance stood still.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.demo.azurite import Azurite, install
from airflow_provider_taskhub.engine.events import (
    ExecutionCompleted,
    ExecutionStarted,
    HistoryEvent,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.hub.history.load import HistoryUnreadable, load
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import EMBEDDED_LEASE, LeaseTimes
from tests.azurite import FOLDER
from tests.e2e.house import House, Worker, housed
from tests.waiting import PATIENCE, until

APP = "storm_app:app"
EVERY = 2.0
"""Seconds between two kills."""
AFTERWARDS = timedelta(minutes=3)
"""For what is left when the storm is over."""
STILL_LEASE = EMBEDDED_LEASE.model_copy(update={"scan": timedelta(seconds=1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An orchestration and the output that it must have."""

    instance_id: str
    orchestrator: str
    input: int
    output: str


def jobs(count: int) -> list[Job]:
    """All kinds in turn."""
    kinds: Sequence[tuple[str, Callable[[int], tuple[int, str]]]] = (
        ("chain", lambda number: (8, "8")),
        ("fan", lambda number: (10, "55")),
        ("recorded", lambda number: (number * 10, str(number * 30 + 3))),
        ("parent", lambda number: (3, "6")),
        ("timed", lambda number: (3, "3")),
        ("rounds", lambda number: (4, "0")),
        ("gathers", lambda number: (3, "[0,1,2]")),
    )
    found = []
    for number in range(count):
        name, make = kinds[number % len(kinds)]
        given, output = make(number)
        found.append(Job(instance_id=f"{name}-{number}", orchestrator=name, input=given, output=output))
    return found


@dataclass(slots=True)
class Damage:
    """What a storm did: one line each."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.corrupt]


class Fleet:
    """Workers of a house, always as many.

    :param apart: each on a machine of its own: no lock file proves its death.
    """

    def __init__(
        self,
        house: House,
        size: int,
        *,
        app: str = APP,
        seed: int = 1,
        options: Sequence[str] = (),
        apart: bool = False,
    ) -> None:
        self._house, self._app, self._options, self._apart = house, app, options, apart
        self._dice = random.Random(seed)
        self._numbers = iter(range(1, 1_000_000))
        self.workers = [self._new(f"w{number}") for number in range(size)]
        self.kills = 0

    def _new(self, name: str) -> Worker:
        home = {"TASKHUB_HOME": str(self._house.folder / f"machine-{name}")} if self._apart else {}
        return self._house.worker(name, *self._options, app=self._app, **home)

    def kill(self) -> Worker:
        """One of them dies, and another is started under its name. :returns: the new one."""
        place = self._dice.randrange(len(self.workers))
        dead = self.workers[place]
        dead.kill()
        self.kills += 1
        dead.log.rename(dead.log.with_suffix(f".{next(self._numbers)}"))
        self._house.workers.remove(dead)
        self.workers[place] = self._new(dead.name)
        return self.workers[place]

    def end(self) -> None:
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        for worker in self.workers:
            worker.process.wait(PATIENCE)


async def storm(house: House, *, seconds: float, count: int, workers: int, kills: int = 0) -> tuple[Damage, int, float]:
    """Kill workers for so long, and at least ``kills`` times.

    :returns: the damage, how many kills there were, and the seconds until all had ended after the last one.
    """
    fleet = Fleet(house, workers)
    work = jobs(count)
    async with house.client() as client:
        killing = asyncio.create_task(_kill(fleet, seconds, kills))
        for job in work:
            await client.start(job.orchestrator, job.input, instance_id=job.instance_id)
            if job.orchestrator == "gathers":
                for number in range(job.input):
                    await client.raise_event(job.instance_id, "go", number)
            await asyncio.sleep(seconds / count * 0.8)
        await killing
        over = time.monotonic()
        damage = Damage()
        for job in work:
            await check(client, job, damage, left=AFTERWARDS.total_seconds() - (time.monotonic() - over))
        passed = time.monotonic() - over
        await check_all(client, house, damage)
    fleet.end()
    return damage, fleet.kills, passed


async def _kill(fleet: Fleet, seconds: float, kills: int) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end or fleet.kills < kills:
        await asyncio.sleep(EVERY)
        await asyncio.to_thread(fleet.kill)


async def check(client: Client, job: Job, damage: Damage, *, left: float) -> None:
    try:
        state = await client.wait(job.instance_id, timeout=timedelta(seconds=max(1.0, left)))
    except TimeoutError as error:
        damage.lost.append(str(error))
        return
    if (state.status, state.output) != (Status.COMPLETED, job.output):
        damage.lost.append(f"{job.instance_id} is {state.status} with {state.output}, not {job.output}")


async def check_all(client: Client, house: House, damage: Damage) -> None:
    """Histories, records, quarantine, and what the recorded activities did."""
    damage.lost += [f"in quarantine: {kept.cause}" for kept in await client.admin.quarantined()]
    ran = Counter(int(line) for line in house.effects())
    continuation: str | None = None
    while True:
        page = await client.list(limit=100, continuation=continuation)
        for row in page.instances:
            damage.corrupt += [f"{row.instance_id}: {text}" for text in await corruption(client, row.instance_id)]
            damage.doubled += [f"{row.instance_id}: {text}" for text in await _doubled(client, row.instance_id, ran)]
        continuation = page.continuation
        if continuation is None:
            return


async def _doubled(client: Client, instance_id: str, ran: Counter[int]) -> list[str]:
    """An attempt that a kill hit may have come to its end unseen; each other one ran once, and one has the outcome."""
    found: dict[int, list[RecordState]] = {}
    for record in await client.instance(instance_id).activities():
        found.setdefault(record.task_id, []).append(record.state)
    first = int(instance_id.partition("-")[2]) * 10 if found else 0
    told = []
    for task_id, states in found.items():
        if states.count(RecordState.COMPLETED) != 1 or states[-1] is not RecordState.COMPLETED:
            told.append(f"attempts of task {task_id}: {[str(state) for state in states]}")
        if ran[first + task_id] > len(states):
            told.append(f"task {task_id} ran {ran[first + task_id]} times with {len(states)} attempts")
    return told


QUESTIONS = (TaskScheduled, SubOrchestrationInstanceCreated, TimerCreated)


async def corruption(client: Client, instance_id: str, *, all_answered: bool = True) -> list[str]:
    """What is wrong with the history of an instance that has ended.

    :param all_answered: the orchestrator waits for everything that it asks for, and has not been terminated.
    """
    hub = client.hub
    try:
        loaded = await load(hub.store, hub.names, instance_id)
    except HistoryUnreadable as error:
        return [str(error)]
    told = []
    if loaded.sentinel is None or not loaded.sentinel.complete or loaded.uncommitted_rows:
        told.append(f"sentinel {loaded.sentinel}, {loaded.uncommitted_rows} rows too many")
    return told + misshapen(loaded.past, all_answered=all_answered)


def misshapen(past: Sequence[HistoryEvent], *, all_answered: bool = True) -> list[str]:
    """What is wrong with these events: one start, one end, each answer once and to a question before it."""
    told = []
    for kind in (ExecutionStarted, ExecutionCompleted):
        if (count := sum(isinstance(event, kind) for event in past)) != 1:
            told.append(f"{count} times {kind.__name__}")
    asked: Counter[int] = Counter()
    answered: Counter[int] = Counter()
    for event in past:
        if isinstance(event, QUESTIONS):
            asked[event.event_id] += 1
        elif (number := _answers(event)) is not None:
            answered[number] += 1
            if not asked[number]:
                told.append(f"{event.event_type.name} before action {number}")
    told += [f"action {number} decided {count} times" for number, count in asked.items() if count > 1]
    least = 1 if all_answered else 0
    told += [
        f"action {number} answered {answered[number]} times" for number in asked if not least <= answered[number] <= 1
    ]
    identities = Counter(event.taskhub_message_id for event in past if event.taskhub_message_id)
    return told + [f"message {name} taken {count} times" for name, count in identities.items() if count > 1]


def _answers(event: HistoryEvent) -> int | None:
    match event:
        case TaskCompleted() | TaskFailed() | SubOrchestrationInstanceCompleted() | SubOrchestrationInstanceFailed():
            return event.task_scheduled_id
        case TimerFired():
            return event.timer_id
    return None


async def still(house: House, *, end: signal.Signals, chains: int = 40, length: int = 60) -> float:
    """The longest time that any of the chains stood still, in seconds (K58)."""
    one = house.worker("one", "--activities", "8", app=APP).ready()
    two: Worker | None = None
    async with house.client() as client:
        for number in range(chains):
            if number == chains // 2:
                two = house.worker("two", "--activities", "8", app=APP)
            await client.start("chain", length, instance_id=f"chain-{number}")
            await asyncio.sleep(0.1)
        assert two is not None
        ready = two
        await asyncio.to_thread(until, "the second worker is ready", lambda: "worker_ready" in ready.text())
        await asyncio.sleep(1.5)
        one.send(end)
        gaps = []
        for number in range(chains):
            state = await client.wait(f"chain-{number}", timeout=timedelta(minutes=3))
            assert state.output == str(length), f"chain-{number} is {state.status} with {state.output}"
            times = [event.timestamp for event in await client.instance(f"chain-{number}").history()]
            gaps.append(max((after - before).total_seconds() for before, after in pairwise(times)))
    for worker in (one, two):
        if worker.process.poll() is None:
            worker.send(signal.SIGTERM)
        worker.process.wait(PATIENCE)
    return max(gaps)


def bound(end: signal.Signals, store: str, lease: LeaseTimes = STILL_LEASE) -> float:
    """Seconds that an instance may stand still: a scan and 2 s; after a death the take time too.

    Embedded: 1 s, and 1.5 s after a death, which the lock file of the dead worker proves.
    """
    if store == "sqlite":
        return 1.5 if end is signal.SIGKILL else 1.0
    if end is signal.SIGTERM:
        return lease.scan.total_seconds() + 2.0
    return (lease.take + lease.scan).total_seconds() + 2.0


@contextmanager
def place(store: str, lease: LeaseTimes = EMBEDDED_LEASE) -> Iterator[House]:
    """A hub of its own on a store; with its folder it goes when it is done."""
    with tempfile.TemporaryDirectory(prefix="storm-") as name:
        folder, hub = Path(name), f"Storm{uuid4().hex[:8]}"
        if store == "sqlite":
            with housed(folder, f"sqlite:///{folder / 'hub.db'}", hub) as house:
                house.lease = lease
                yield house
            return
        install(FOLDER)
        with Azurite(FOLDER) as azurite, housed(folder, azurite.connection, hub) as house:
            house.lease = lease
            yield house


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    options = _parser().parse_args(arguments)
    return asyncio.run(_storms(options) if options.what == "storm" else _stills(options))


async def _storms(options: argparse.Namespace) -> int:
    failed = False
    for store in options.store or ("sqlite", "azurite"):
        with place(store) as house:
            damage, kills, passed = await storm(
                house, seconds=options.seconds, count=options.instances, workers=options.workers
            )
        print(
            f"{store}: {options.instances} orchestrations, {kills} kills in {options.seconds:g} s, all ended "
            f"{passed:.0f} s after the last: lost {len(damage.lost)}, doubled results {len(damage.doubled)}, "
            f"corrupt histories {len(damage.corrupt)}",
            flush=True,
        )
        for line in damage.told:
            print(line, file=sys.stderr)
        failed = failed or bool(damage.told)
    return 1 if failed else 0


async def _stills(options: argparse.Namespace) -> int:
    failed = False
    for store in options.store or ("sqlite", "azurite"):
        for end in (signal.Signals[name] for name in options.end or ("SIGTERM", "SIGKILL")):
            gaps = []
            for _ in range(options.runs):
                with place(store, STILL_LEASE) as house:
                    gaps.append(await still(house, end=end))
            over = sum(gap > bound(end, store) for gap in gaps)
            print(
                f"{store}, {end.name}: longest without progress in {len(gaps)} runs {max(gaps):.2f} s, median "
                f"{sorted(gaps)[len(gaps) // 2]:.2f} s; allowed {bound(end, store):g} s, beyond it {over}",
                flush=True,
            )
            failed = failed or bool(over)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.storm", description=__doc__)
    parser.add_argument("what", choices=("storm", "still"))
    parser.add_argument("--store", action="append", choices=("sqlite", "azurite"), help="else both")
    parser.add_argument("--end", action="append", choices=("SIGTERM", "SIGKILL"), help="of still; else both")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the storm")
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--runs", type=int, default=20, help="of each way to end the first worker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
