"""``make hour``: limits on two real workers that are killed again and again, counted from the activities' own file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import psutil

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.tags import DAG_TAG
from tests.e2e import hour_app
from tests.e2e.house import House, Worker
from tests.e2e.storm import place
from tests.waiting import until

APP = "hour_app:app"
EVERY = 15.0
"""Seconds between two kills."""
DELIVERED = 2.0
"""Seconds within which a work item that was sent begins if it waits for nothing."""
LOOK = 0.25
"""Seconds between two looks at the processes of the workers."""
OPEN = 24
"""Instances that are open at once, so that something waits for every limit all the time."""
LOW = 8
"""One of so many instances has a low priority."""
MEMORY = 4
"""GiB of each worker."""
AFTERWARDS = timedelta(minutes=15)
"""For what is left when the last instance has been started."""


@dataclass(slots=True)
class Run:
    """An attempt of an activity, from its own lines.

    :ivar worker: the worker that ran it, and which of those of this name.
    :ivar ended: monotonic time of its end; of one that was cut off, the time since which its process was gone, or was
        seen to stand still.
    :ivar cut_off: whether it wrote no end.
    """

    name: str
    call: str
    tenant: str
    worker: str
    pid: int
    begun: float
    ended: float = float("inf")
    cut_off: bool = False


def runs_of(lines: Iterable[str]) -> dict[str, Run]:
    """Return the attempts by their ids, in the order in which they begin."""
    found: dict[str, Run] = {}
    for line in lines:
        given: dict[str, Any] = json.loads(line)
        run = given.pop("run")
        if "ended" in given:
            found[run].ended = given["ended"]
        else:
            found[run] = Run(**given)
    return found


def most_at_once(runs: Iterable[Run], weight: Mapping[str, int] | None = None) -> int:
    """Return the largest number of these attempts that ran at the same time; with ``weight``, of their weights."""
    steps = []
    for run in runs:
        size = 1 if weight is None else weight[run.name]
        steps += [(run.begun, 1, size), (run.ended, 0, -size)]
    most = now = 0
    for _, _, size in sorted(steps):
        now += size
        most = max(most, now)
    return most


def most_within(runs: Iterable[Run], seconds: float) -> int:
    """Return the largest number of these attempts that began within so many seconds."""
    begins = sorted(run.begun for run in runs)
    most, first = 0, 0
    for last, begun in enumerate(begins):
        while begun - begins[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that was counted.

    :param most: the largest number.
    :param allowed: the largest number that is allowed.
    """

    what: str
    most: int
    allowed: int


def unexplained(runs: Sequence[Run], kills: Mapping[str, float]) -> list[list[Run]]:
    """Return, for each call, the attempts that begin without a kill which explains them; most first.

    Two kills explain another attempt. A killed worker may not have stored that its attempt has ended. And a worker that
    is killed during a checkpoint may have sent the work item without storing the history: the next owner of the
    partition sends it again. That can be any worker, within :data:`DELIVERED` of the beginning of the first attempt.

    :param kills: their monotonic times, by worker.
    """
    last, again = dict[str, Run](), defaultdict[str, list[Run]](list)
    for run in sorted(runs, key=lambda one: one.begun):
        before = last.get(run.call)
        own = before is not None and before.worker in kills and kills[before.worker] <= run.begun
        sent = before is not None and any(abs(kill - before.begun) <= DELIVERED for kill in kills.values())
        if not own and not sent:
            again[run.call].append(run)
        last[run.call] = run
    return sorted(again.values(), key=len, reverse=True)


def counted(runs: Sequence[Run], kills: Mapping[str, float]) -> list[Found]:
    """Count the attempts that ran at once, or began within a time, against every limit.

    :param kills: their monotonic times, by worker.
    """

    def of(*names: str) -> list[Run]:
        return [run for run in runs if run.name in names]

    def largest(of_each: Mapping[str, list[Run]], weight: Mapping[str, int] | None = None) -> int:
        return max((most_at_once(its, weight) for its in of_each.values()), default=0)

    tenants, workers = defaultdict[str, list[Run]](list), defaultdict[str, list[Run]](list)
    for run in of("bill"):
        tenants[run.tenant].append(run)
    for run in of(*hour_app.NEEDS):
        workers[run.worker].append(run)
    return [
        Found("load at once", most_at_once(of("load")), hour_app.LIMIT),
        Found("read and write at once", most_at_once(of("read", "write")), hour_app.SHARED),
        Found("bill at once for a tenant", largest(tenants), hour_app.TENANT),
        Found(f"mail begun within {hour_app.WITHIN:g} s", most_within(of("mail"), hour_app.WITHIN), hour_app.STARTS),
        Found("GiB at once in a worker", largest(workers, hour_app.NEEDS), MEMORY),
        Found("attempts of a call that no kill explains", max(map(len, unexplained(runs, kills)), default=0), 1),
    ]


class Pair:
    """Two workers that are killed and started again.

    :ivar kills: their monotonic times, by worker.
    :ivar gone: when the last of its processes was seen to have ended, by killed worker.
    :ivar stood: since when a process of a worker was seen to stand still, by its id.
    :ivar ends: of the processes of the workers.
    """

    def __init__(self, house: House, slots: int) -> None:
        self._house, self._slots, self._numbers = house, slots, count(1)
        self.kills: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self.stood: dict[int, float] = {}
        self.ends = Ends()
        self._dice = random.Random(1)
        self._workers = [self._new(name) for name in ("one", "two")]

    def look(self) -> None:
        """Look which processes the workers have, and which of them stand still."""
        for worker, _ in self._workers:
            self._watch(worker)
        for pid in self.ends.live():
            if _stands_still(pid):
                self.stood.setdefault(pid, time.monotonic())
            else:
                self.stood.pop(pid, None)

    def over(self, run: Run) -> float:
        """Return when an attempt without an end was over: since when its process was gone, or stood still."""
        stood = self.stood.get(run.pid, float("inf"))
        seen = self.gone.get(run.worker, float("inf"))  # a process that began just before the kill was not watched
        return min(self.ends.after(run.begun, run.pid), seen, stood if stood >= run.begun else float("inf"))

    def _watch(self, worker: Worker) -> list[int]:
        """Watch the processes of a worker, and return them."""
        with suppress(psutil.NoSuchProcess):
            children = [child.pid for child in psutil.Process(worker.process.pid).children(recursive=True)]
            self.ends.watch(children)
            return children
        return []

    def _new(self, name: str) -> tuple[Worker, str]:
        number = str(next(self._numbers))
        options = ("--activities", str(self._slots), "--memory", f"{MEMORY}g")
        return self._house.worker(name, *options, app=APP, INCARNATION=number), f"{name} {number}"

    def kill(self) -> None:
        """One of them dies, and another is started under its name."""
        at = self._dice.randrange(2)
        dead, key = self._workers[at]
        executors = self._watch(dead)
        self.kills[key] = time.monotonic()
        dead.kill()
        until(f"the processes of {dead.name} are gone", lambda: not {*executors} & {*self.ends.live()})
        self.gone[key] = time.monotonic()
        dead.log.rename(dead.log.with_suffix(f".{len(self.kills)}"))
        self._house.workers.remove(dead)
        self._workers[at] = self._new(dead.name)


class Ends:
    """Notes when processes end. The kernel tells it (:manpage:`pidfd_open(2)`), because a look now and then would be
    too late: another worker may begin the next attempt a tenth of a second after the end.

    """

    def __init__(self) -> None:
        self._at = defaultdict[int, list[float]](list)
        self._watched: dict[int, int] = {}
        """The process ids by the open files of the kernel."""
        self._poll = select.epoll()
        threading.Thread(target=self._note, daemon=True).start()

    def watch(self, pids: Iterable[int]) -> None:
        """Note the ends of processes, too."""
        for pid in {*pids} - {*self._watched.values()}:
            with suppress(ProcessLookupError):
                file = os.pidfd_open(pid)
                self._watched[file] = pid
                self._poll.register(file, select.EPOLLIN)

    def live(self) -> list[int]:
        """Return the watched processes that have not ended."""
        return [*self._watched.values()]

    def after(self, begun: float, pid: int) -> float:
        """Return when the process ended that had this id at ``begun``. Another one may have it since."""
        return min((at for at in self._at[pid] if at >= begun), default=float("inf"))

    def _note(self) -> None:
        while True:
            ended, now = self._poll.poll(), time.monotonic()
            for file, _ in ended:
                self._at[self._watched[file]].append(now)
                del self._watched[file]  # the end is known before the process is no longer a live one
                os.close(file)


def _stands_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


@dataclass(slots=True)
class Hour:
    """What was done, and what was wrong with it.

    :ivar kills: their monotonic times, by worker.
    :ivar waits: by name of an activity and whether the priority is low, the seconds from the start of an instance to
        the beginning of each of its calls.
    """

    runs: Sequence[Run]
    kills: Mapping[str, float]
    lost: list[str] = field(default_factory=list)
    waits: dict[tuple[str, bool], list[float]] = field(default_factory=dict)

    @property
    def damage(self) -> list[str]:
        over = [
            f"{one.what}: {one.most}, allowed {one.allowed}"
            for one in counted(self.runs, self.kills)
            if one.most > one.allowed
        ]
        return [*self.lost, *over, *self._stories()]

    def _stories(self) -> Iterator[str]:
        """Tell about some calls with attempts that no kill explains."""
        first = min((run.begun for run in self.runs), default=0.0)
        for attempts in unexplained(self.runs, self.kills)[:5]:
            if len(attempts) > 1:
                told = (f"{run.worker} from {run.begun - first:.1f} to {run.ended - first:.1f} s" for run in attempts)
                yield f"{attempts[0].name} {attempts[0].call}: {', '.join(told)}"

    def told(self) -> Iterator[str]:
        """Yield lines for people."""
        cut_off = sum(run.cut_off for run in self.runs)
        yield (
            f"{len(self.runs)} attempts of {len({run.call for run in self.runs})} activities, {len(self.kills)} kills, "
            f"{cut_off} attempts cut off, lost {len(self.lost)}"
        )
        for one in counted(self.runs, self.kills):
            yield f"  {one.what}: at most {one.most} of {one.allowed}"
        for (name, low), seconds in sorted(self.waits.items()):
            middle, longest = sorted(seconds)[len(seconds) // 2], max(seconds)
            yield f"  {name}{' of low priority' if low else ''} waits {middle:.1f} s, at most {longest:.1f} s"


async def hour(house: House, *, seconds: float, every: float = EVERY, kills: int = 0, slots: int = 12) -> Hour:
    """Let instances run for so long while workers are killed.

    :param every: seconds between two kills.
    :param kills: the fewest kills.
    :param slots: activities that each worker runs at once.
    """
    pair, started, lost = Pair(house, slots), dict[str, tuple[float, bool]](), list[str]()

    async with house.client() as client:
        end = time.monotonic() + seconds
        numbers, gate = count(), asyncio.Semaphore(OPEN)

        async def one(name: str) -> None:
            try:
                lost.extend(await _is_done(client, name))
            finally:
                gate.release()

        async def killing() -> None:
            while time.monotonic() < end or len(pair.kills) < kills:
                await asyncio.sleep(every)
                await asyncio.to_thread(pair.kill)

        async def looking() -> None:
            while True:
                await asyncio.to_thread(pair.look)
                await asyncio.sleep(LOOK)

        async with owned() as start, asyncio.TaskGroup() as group:
            start(looking())
            group.create_task(killing())
            while time.monotonic() < end:
                await gate.acquire()
                number = next(numbers)
                name, low = f"mix-{number}", number % LOW == 0
                started[name] = time.monotonic(), low
                tags = {DAG_TAG: f"dag{number % 3}"}
                await client.start("mix", number, instance_id=name, tags=tags, priority=-1 if low else 0)
                group.create_task(one(name))
    runs = runs_of(house.effects())
    waits = defaultdict[tuple[str, bool], list[float]](list)
    calls = set[str]()
    for run in runs.values():
        if run.ended == float("inf"):
            run.ended, run.cut_off = pair.over(run), True
        if run.call not in calls:
            calls.add(run.call)
            since, low = started[run.call.partition("/")[0]]
            waits[run.name, low].append(run.begun - since)
    return Hour([*runs.values()], pair.kills, lost, dict(waits))


async def _is_done(client: Client, name: str) -> list[str]:
    try:
        state = await client.wait(name, timeout=AFTERWARDS)
    except TimeoutError as error:
        return [str(error)]
    if (state.status, state.output) not in ((Status.COMPLETED, "7"), (Status.COMPLETED, "8")):
        return [f"{name} is {state.status} with {state.output}"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    options = _parser().parse_args(arguments)
    failed = False
    for store in options.store or ("sqlite", "azurite"):
        with place(store, EMBEDDED_LEASE if store == "sqlite" else AZURE_LEASE) as house:
            done = asyncio.run(hour(house, seconds=options.seconds, every=options.every))
        print(f"{store}, {options.seconds:g} s:", *done.told(), sep="\n", flush=True)
        for line in done.damage:
            print(line, file=sys.stderr)
        failed = failed or bool(done.damage)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.hour", description=__doc__)
    parser.add_argument("--store", action="append", choices=("sqlite", "azurite"), help="else both")
    parser.add_argument("--seconds", type=float, default=3600.0, help="on each store")
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between two kills")
    return parser


if __name__ == "__main__":
    sys.exit(main())
