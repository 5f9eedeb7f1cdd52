"""``make soak``: four workers are disturbed in turn while they work, and every receive of a control queue is recorded.

SIGKILL, SIGSTOP for a while and SIGCONT, ``drain-node``, SIGTERM. Nobody may read a queue that another reads (T20,
T86): in the order in which the receives of a queue were begun the epochs of their tenures never go down. A receive
begins when its worker looks at the age of its lease (``soak_app``); one that is on its way when its worker is stopped
is answered to whoever thaws later, and has been begun in time all the same. No partition may stand unserved for longer
than take + one scan (T87), no work may be lost. ``moves`` measures a hand-over to a worker that joins, and what a
silent death costs, with the lease of 20 s and the scan of 1 s at which the original was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.model import BLOB, TABLE
from airflow_provider_taskhub.settings import LeaseTimes
from tests.e2e.house import House, Worker
from tests.e2e.storm import Damage, Job, check, check_all, jobs, place
from tests.waiting import PATIENCE, until

APP = "soak_app:app"


def _lease(renew: float, give_up: float, take: float, scan: float) -> LeaseTimes:
    spans = {"renew": renew, "give_up": give_up, "take": take, "scan": scan, "visibility": take}
    return LeaseTimes(**{name: timedelta(seconds=span) for name, span in spans.items()})


SOAK_LEASE = _lease(1.5, 4, 6, 1)
ORIGINAL_LEASE = _lease(5, 15, 20, 1)
LEAST = 15.0
"""Seconds of the shortest lease of a blob that Azure gives."""
LATE = 3.0
"""Seconds beyond a promise that processes may need which share two cores: to be woken, to claim, to poll."""
AFTERWARDS = 120.0
"""Seconds for the work that is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A receive of a control queue, in seconds of the machine's monotonic clock. :param ended: None: never answered."""

    worker: str
    queue: str
    epoch: int
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What was done to a worker, and when."""

    kind: str
    worker: str
    moment: float


def recorded(folder: Path) -> list[Receive]:
    """All receives, in the order in which they were begun."""
    found: list[Receive] = []
    for file in folder.iterdir():
        begun: dict[str, Receive] = {}
        ended: dict[str, float] = {}
        for line in file.read_text().splitlines():
            sign, number, *rest = line.split()
            if sign == "<":
                ended[number] = float(rest[0])
            else:
                queue, epoch, began = rest
                begun[number] = Receive(worker=file.name, queue=queue, epoch=int(epoch), began=float(began))
        found += [
            Receive(worker=one.worker, queue=one.queue, epoch=one.epoch, began=one.began, ended=ended.get(number))
            for number, one in begun.items()
        ]
    return sorted(found, key=lambda receive: receive.began)


def by_queue(receives: Iterable[Receive]) -> Mapping[str, Sequence[Receive]]:
    found: dict[str, list[Receive]] = defaultdict(list)
    for receive in receives:
        found[receive.queue].append(receive)
    return found


def two_readers(receives: Iterable[Receive]) -> list[str]:
    """Receives begun by one worker while another's tenure held, a line each."""
    told = []
    for queue, found in by_queue(receives).items():
        latest = found[0]
        for receive in found:
            if receive.epoch < latest.epoch or (receive.epoch == latest.epoch and receive.worker != latest.worker):
                late = receive.began - latest.began
                told.append(
                    f"{queue} was read by {receive.worker} (epoch {receive.epoch}) {late:.6f} s after {latest.worker} "
                    f"(epoch {latest.epoch})"
                )
            else:
                latest = receive
    return told


def straddling(receives: Iterable[Receive]) -> int:
    """Receives that were begun in time and not yet answered when the next owner began to read."""
    return sum(
        before.epoch < after.epoch and (before.ended is None or before.ended > after.began)
        for found in by_queue(receives).values()
        for before, after in pairwise(found)
    )


def unserved(receives: Iterable[Receive], events: Sequence[Event]) -> Mapping[str, float]:
    """The longest time that a queue was not asked for messages, by what had been done last: ``nothing`` before all."""
    longest: dict[str, float] = {}
    for found in by_queue(receives).values():
        for before, after in pairwise(found):
            kind = next((event.kind for event in reversed(events) if event.moment <= after.began), "nothing")
            longest[kind] = max(longest.get(kind, 0.0), after.began - before.began)
    return longest


@dataclass(slots=True)
class Crew:
    """Workers of a house that record what they receive, always under the same names.

    :param crowd: workers on one machine, where a lock file proves a death at once. Each machine has its folder.
    """

    house: House
    crowd: int = 2
    workers: dict[str, Worker] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    _numbers: count[int] = field(default_factory=count)

    @property
    def folder(self) -> Path:
        folder = self.house.folder / "receives"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def span(self) -> float:
        """Take and one scan, in seconds."""
        return (self.house.lease.take + self.house.lease.scan).total_seconds()

    @property
    def promise(self) -> float:
        """That, but where a writer of a blob dies between two requests: the service leases for 15 s at least."""
        least = LEAST if self.house.lease_store == BLOB else 0.0
        return self.span + max(0.0, least - self.house.lease.take.total_seconds())

    def hire(self, name: str) -> Worker:
        if (before := self.workers.get(name)) is not None:
            before.log.rename(before.log.with_suffix(f".{next(self._numbers)}"))
            self.house.workers.remove(before)
        places = list(self.workers)
        machine = (places.index(name) if name in places else len(places)) // self.crowd
        home = self.house.folder / f"machine{machine}"
        self.workers[name] = self.house.worker(name, app=APP, RECEIVES=str(self.folder), TASKHUB_HOME=str(home))
        return self.workers[name]

    def note(self, kind: str, name: str) -> None:
        self.events.append(Event(kind=kind, worker=name, moment=time.monotonic()))

    # what is done to one of them

    async def kill(self, name: str) -> None:
        """Dead for long enough for others to take what it had."""
        self.note("SIGKILL", name)
        self.workers[name].kill()
        await asyncio.sleep(self.span + 1)
        await asyncio.to_thread(self.hire(name).ready)

    async def stop(self, name: str) -> None:
        """Stopped for less than its lease, or for much longer."""
        self.note("SIGSTOP", name)
        self.workers[name].send(signal.SIGSTOP)
        await asyncio.sleep(self.dice.choice([0.3, 0.7, 1.1, 1.5]) * self.span)
        self.note("SIGCONT", name)
        self.workers[name].send(signal.SIGCONT)

    async def drain(self, name: str) -> None:
        """Out of service by an administrator's order, and in service again."""
        for order in ("drain-node", "undrain-node"):
            self.note(order, name)
            done = await asyncio.to_thread(self.house.command, "partitions", order, name)
            assert done.returncode == 0, done.stdout + done.stderr
            await asyncio.sleep(3 * self.house.lease.scan.total_seconds())

    async def end(self, name: str) -> None:
        """Told to end, which it does by itself and with status 0."""
        self.note("SIGTERM", name)
        assert await asyncio.to_thread(self.workers[name].end) == 0, self.workers[name].text()
        await asyncio.to_thread(self.hire(name).ready)

    async def disturb(self, seconds: float) -> None:
        """All four in turn, on workers drawn by lot, with time in between for shares to become fair; whole rounds."""
        over = time.monotonic() + seconds
        ways: Sequence[Callable[[str], Awaitable[None]]] = (self.kill, self.stop, self.drain, self.end)
        while True:
            for way in ways:
                await way(self.dice.choice(sorted(self.workers)))
                await asyncio.sleep(3 * self.house.lease.scan.total_seconds())
            if time.monotonic() >= over:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """What a soak found. :param unserved: seconds by kind of event. :param straddling: see there."""

    damage: Damage
    events: Sequence[Event]
    receives: Sequence[Receive]
    readers: Sequence[str]
    unserved: Mapping[str, float]
    straddling: int
    promise: float

    @property
    def wrong(self) -> list[str]:
        return [*self.readers, *self.damage.told]

    @property
    def late(self) -> list[str]:
        return [
            f"unserved for {seconds:.1f} s after {kind}, promised {self.promise:g} s"
            for kind, seconds in self.unserved.items()
            if seconds > self.promise + LATE
        ]


async def soak(house: House, *, seconds: float, workers: int = 4, pace: float = 1.0) -> Soaked:
    """Disturb workers for so long. :param pace: orchestrations started in a second."""
    crew = Crew(house)
    async with house.client() as client:
        for number in range(workers):
            crew.hire(f"w{number}")
        await asyncio.gather(*(asyncio.to_thread(worker.ready) for worker in crew.workers.values()))
        await asyncio.sleep(3 * house.lease.scan.total_seconds())
        working = asyncio.create_task(_work(client, seconds, pace))
        await crew.disturb(seconds)
        over = time.monotonic()
        damage = Damage()
        for job in await working:
            await check(client, job, damage, left=AFTERWARDS - (time.monotonic() - over))
        await check_all(client, house, damage)
    found = recorded(crew.folder)
    for worker in crew.workers.values():
        worker.send(signal.SIGTERM)
    for worker in crew.workers.values():
        await asyncio.to_thread(worker.process.wait, PATIENCE)
    return Soaked(
        damage=damage,
        events=crew.events,
        receives=found,
        readers=two_readers(recorded(crew.folder)),
        unserved=unserved(found, crew.events),
        straddling=straddling(found),
        promise=crew.promise,
    )


async def _work(client: Client, seconds: float, pace: float) -> Sequence[Job]:
    work = jobs(max(7, round(seconds * pace)))
    for job in work:
        await client.start(job.orchestrator, job.input, instance_id=job.instance_id)
        if job.orchestrator == "gathers":
            for number in range(job.input):
                await client.raise_event(job.instance_id, "go", number)
        await asyncio.sleep(seconds / len(work) * 0.9)
    return work


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Seconds. :param joined: from a worker's being ready until it reads both its queues. :param moving: that one of
    them was read by nobody, at most. :param died: from its death until both are read again."""

    joined: float
    moving: float
    died: float


async def moves(house: House, crowd: int) -> Moves:
    """One worker, a second one that joins, and dies. :param crowd: workers on one machine."""
    crew = Crew(house, crowd=crowd)
    async with house.client():
        await asyncio.to_thread(crew.hire("one").ready)
        await asyncio.to_thread(
            until, "every partition is read", lambda: len(by_queue(recorded(crew.folder))) == house.partitions
        )
        await asyncio.to_thread(crew.hire("two").ready)
        ready = time.monotonic()
        await asyncio.sleep(8 * house.lease.scan.total_seconds())
        theirs = {queue: found for queue, found in by_queue(recorded(crew.folder)).items() if "two" in found[-1].worker}
        assert len(theirs) == house.partitions // 2, theirs.keys()
        turns = [pair for found in theirs.values() for pair in pairwise(found) if pair[0].worker != pair[1].worker]
        dead = time.monotonic()
        crew.workers["two"].kill()
        await asyncio.sleep(crew.promise + LATE)
        after = [
            next(receive.began for receive in found if receive.began > dead and "one" in receive.worker)
            for queue, found in by_queue(recorded(crew.folder)).items()
            if queue in theirs
        ]
        assert crew.workers["one"].end() == 0
    return Moves(
        joined=max(0.0, max(second.began for _, second in turns) - ready),
        moving=max(second.began - first.began for first, second in turns),
        died=max(after) - dead,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--pace", type=float, default=1.0, help="orchestrations started in a second")
    parser.add_argument("--runs", type=int, default=3, help="of the measured hand-over and death")
    parser.add_argument("--store", default="azurite", choices=("sqlite", "azurite"))
    parser.add_argument("--leases", default="both", choices=(TABLE, BLOB, "both"), help="both: half of the time each")
    options = parser.parse_args(arguments)
    kinds = (TABLE, BLOB) if options.leases == "both" else (options.leases,)
    return max(_soaked(options, leases, options.seconds / len(kinds)) for leases in kinds)


def _soaked(options: argparse.Namespace, leases: str, seconds: float) -> int:
    """Moves and the soak of one lease store. :param seconds: of the soak."""
    where = f"{options.store}, {leases} leases"
    for crowd in (1, 2) * options.runs:
        with place(options.store, ORIGINAL_LEASE) as house:
            house.lease_store = leases
            found = asyncio.run(moves(house, crowd))
        print(
            f"{where}: 2 partitions read by a joining worker {found.joined:.2f} s after its start, each "
            f"without a reader for {found.moving:.2f} s at most; read again {found.died:.2f} s after its death on "
            f"{'a machine of its own' if crowd == 1 else 'the same machine'} (lease 20 s, scan 1 s)",
            flush=True,
        )
    if seconds <= 0:
        return 0
    with place(options.store, SOAK_LEASE) as house:
        house.partitions, house.lease_store = options.partitions, leases
        done = asyncio.run(soak(house, seconds=seconds, workers=options.workers, pace=options.pace))
    print(_told(done, where), flush=True)
    wrong = [*done.wrong, *done.late]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _told(done: Soaked, where: str) -> str:
    kinds = [event.kind for event in done.events]
    events = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    gaps = ", ".join(f"{seconds:.1f} s after {kind}" for kind, seconds in done.unserved.items())
    owners = sum(len({receive.epoch for receive in found}) for found in by_queue(done.receives).values())
    return (
        f"{where}: {events}; {len(done.receives)} receives recorded in {owners} tenures, begun while another's tenure "
        f"held: {len(done.readers)}; begun in time and answered later: {done.straddling}\n"
        f"longest without a reader: {gaps}; promised {done.promise:g} s\n"
        f"work lost {len(done.damage.lost)}, doubled results {len(done.damage.doubled)}, corrupt histories "
        f"{len(done.damage.corrupt)}"
    )


if __name__ == "__main__":
    sys.exit(main())
