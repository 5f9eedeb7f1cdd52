"""The partition service under a jumping clock: the real owner loops on the real store code, and all that can go wrong.

Machines whose wall clocks are hours apart and set while they run, whose other clocks drift; requests that are late,
lost, doubled, overtaken, throttled; answers that are lost; hosts that join, leave, crash, restart, and stop for longer
than any lease. Everything is drawn from one seed, and checked at every change of a lease:

* never two hosts that both pass their own check for one partition (T86);
* never two hosts that both read a partition's queue, of those that run (T20);
* every partition is served again within take + one scan once nothing is in the way any more (T87);
* then shares are fair, and nothing moves (E46, E48);
* and no decision depends on a wall clock (T88): see ``test_partitions``;
* where hosts have different apps (``--differ``), a partition comes to rest with a host that has all that its instances
  need, if there is one, and no order of moves keeps it from being served.

Most hubs are small, with leases of seconds to minutes; each seed is played for about as many requests as any other, so
that no hour is spent on a hub that is large and calm. ``python -m tests.simulation.partitions --hours 1000 --seed 1``
plays as many seeds as the hours need; a violation prints the line that reproduces it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import logging
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
from unittest import mock

import structlog

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.codec import ticks_of
from airflow_provider_taskhub.errors import HubError, LeaseLost, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.hub.model import (
    BLOB,
    TABLE,
    HubNames,
    Member,
    Need,
    Service,
    Tenure,
    WorkerIdentity,
)
from airflow_provider_taskhub.hub.partitions import lease_stores, members
from airflow_provider_taskhub.hub.partitions.administration import create_hub
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.hub.partitions.owner import DRAIN, PartitionOwner
from airflow_provider_taskhub.hub.partitions.placement import DWELL_SCANS, LEAST_DWELL
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, LEASE_DRIFT, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Paged, Store
from airflow_provider_taskhub.storage.sqlite.rows import _Row
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START, VirtualClock

Request: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
NAMES = HubNames("Simulated")
DEADLINE = 30.0
"""Of one storage call, as in the settings."""
LONGEST = 60.0
"""Seconds that a request, its double, or its answer takes at most."""
SECOND = timedelta(seconds=1)
AWAKENING = 0.5
"""Seconds after a stop within which a host must have noticed it."""
SLOWEST = 8 * 1.1
"""Scans that a throttled host may be late with the next one."""
KNOWN = 20_000
"""Decoded rows that are kept."""
COARSE = 2.0
"""Seconds between two looks at everything, at most."""
TRACE = 40
"""Last events shown with a violation."""
HOURS_PER_SEED = 20.0
"""At most."""
REQUESTS_PER_SEED = 10_000
"""About as many while nothing happens: what happens goes by lease times, and an hour of short ones has more of them."""


class Violation(AssertionError):
    """An invariant did not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a seed is played with. :param hosts: at most at a time. :param hours: of virtual time."""

    lease_store: str = TABLE

    hosts: int
    partitions: int
    times: LeaseTimes
    hours: float

    def __str__(self) -> str:
        times = "/".join(
            f"{span.total_seconds():.3g}"
            for span in (self.times.renew, self.times.give_up, self.times.take, self.times.scan)
        )
        hub = f"{self.partitions} partitions, {self.lease_store} leases"
        return f"{self.hosts} hosts, {hub}, renew/give up/take/scan {times} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Chances of one request. :param late: that it takes up to ``longest`` seconds. :param slow: its answer does."""

    late: float = 0.0
    slow: float = 0.0
    longest: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    doubled: float = 0.0
    throttled: float = 0.0


CALM = Weather()


class Clock(VirtualClock):
    """A machine's clocks: the wall clock can be set, and nothing that sleeps on a stopped machine wakes."""

    def __init__(self, *, skew: timedelta, rate: float) -> None:
        super().__init__(skew=skew, rate=rate)
        self.running = asyncio.Event()
        self.running.set()

    def set(self, skew: timedelta) -> None:
        self._start = type(START)(START.ticks + ticks_of(skew))

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if not self.running.is_set():
            await self.running.wait()


class Wire(Paged):
    """A host's way to the store. Requests travel by themselves: they arrive even when who sent them has given up.

    A request is two timers, and what happens to it is drawn when it is sent: 10,000 hours are hundreds of millions.
    """

    local = True

    def __init__(self, store: Store, host: Host) -> None:
        self._store = store
        self._host = host
        self._dice = random.Random(f"{host.world.seed}/{host.me}/wire")
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(inner):
            return inner

        async def call(*arguments: Any, **named: Any) -> Any:
            return await self._send(partial(inner, *arguments, **named))

        setattr(self, name, call)
        return call

    async def _send(self, request: Request) -> Any:
        host = self._host
        await host.awake()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._post(request, answer)
        try:
            return await answer
        finally:
            await host.awake()
            if host.world.contested:
                # the caller goes on first: what it has learned by this answer is checked right after
                self._loop.call_soon(host.check)

    def _post(self, request: Request, answer: asyncio.Future[Any]) -> None:
        dice, weather = self._dice, self._host.world.weather_of(self._host)
        out, back = 0.001 + 0.009 * dice.random(), 0.001 + 0.009 * dice.random()
        later = self._loop.call_later
        if weather is CALM:
            later(out, self._arrive, request, answer, back)
            return
        if dice.random() < weather.late:
            out += dice.uniform(0, weather.longest)
        if dice.random() < weather.slow:
            back += dice.uniform(0, weather.longest)
        lost, unanswered = dice.random() < weather.lost, dice.random() < weather.unanswered
        throttled = dice.random() < weather.throttled
        busy = Throttled("server busy", retry_after=dice.uniform(0.1, 2.0)) if throttled else None
        if lost or unanswered or out + back > DEADLINE:
            later(DEADLINE, _tell, answer, Unavailable("no answer"))
        if lost:
            return
        later(out, self._arrive, request, None if unanswered else answer, back, busy)
        if dice.random() < weather.doubled:
            later(out + dice.uniform(0, weather.longest), self._arrive, request, None, 0.0)

    def _arrive(
        self, request: Request, answer: asyncio.Future[Any] | None, back: float, busy: Throttled | None = None
    ) -> None:
        self._host.world.requests += 1
        result: Any = busy
        if busy is None:
            try:
                result = _done(request())
            except StorageError as failed:
                result = failed
        if answer is not None:
            self._loop.call_later(back, _tell, answer, result)


def _done(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call of the store to its end, here and now: a private database in memory waits for nothing."""
    try:
        while call.send(None) is None:
            pass
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a store in memory waited for something")


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, StorageError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


class Host:
    """A worker's process on a machine: its owner loop, and a service that drains for ``episode`` seconds when asked."""

    def __init__(self, world: World, name: str, incarnation: int, predecessors: Collection[str]) -> None:
        self.world, self.name = world, name
        self.me = WorkerIdentity(name=name, host="host", incarnation=f"{name}-{incarnation}")
        draw = random.Random(f"{world.seed}/{self.me}")
        self.clock = Clock(skew=world.skew(), rate=draw.uniform(0.999, 1.001))
        self.episode = draw.choice([0.0, 0.5, 5.0, 20.0, 1000.0]) if draw.random() < 0.7 else 1.0
        self.held: dict[int, Tenure] = {}
        self.reading: set[int] = set()
        self.dead = self.leaving = False
        self.resumed = -AWAKENING
        self.predecessors = predecessors
        self.owner = PartitionOwner(
            Wire(world.store, self),  # type: ignore[arg-type]
            NAMES,
            PartitionHost(
                me=self.me,
                listener=self,
                predecessors=lambda: self.predecessors,
                member=self.member if world.differ else None,
                services=self.services if world.differ else dict,
            ),
            times=world.shape.times,
            clock=self.clock,
            app_name="",
            rng=random.Random(f"{world.seed}/{self.me}/jitter"),
        )
        self.task = asyncio.ensure_future(self.owner.run())

    # what it has, and what its partitions need

    def member(self) -> Member:
        return Member(
            worker=str(self.me),
            started=START,
            roles=("orchestrator",),
            apps={"app": "1"},
            orchestrators=tuple(sorted(self.world.parts[self.name])),
            activities=(),
        )

    def services(self) -> dict[int, Service]:
        has = self.world.parts[self.name]
        found = {}
        for number in tuple(self.held):
            needs = [Need("orchestrator", part) for part in sorted(self.world.needs[number])]
            runs, lacks = (tuple(need for need in needs if (need.name in has) is wanted) for wanted in (True, False))
            found[number] = Service(runs=runs, lacks=lacks)
        return found

    # what the owner tells

    def taken(self, tenure: Tenure) -> None:
        number = tenure.partition
        if number in self.held:
            self.world.violated(f"{self.me} was given partition {number} twice")
        if tenure.epoch <= self.world.epochs[number]:
            self.world.violated(f"{self.me} took partition {number} in epoch {tenure.epoch} again (T89)")
        self.world.epochs[number] = tenure.epoch
        self.world.note(self, "taken", number, f"epoch {tenure.epoch}")
        self.held[number] = tenure
        self.reading.add(number)
        self.world.held(self, number)
        self.world.check(number)

    def asked(self, tenure: Tenure) -> None:
        self.world.note(self, "asked", tenure.partition)
        self.reading.discard(tenure.partition)
        self.world.travel(self._drain(tenure))

    def lost(self, tenure: Tenure, reason: str) -> None:
        number = tenure.partition
        if self.dead:
            return
        if self.held.pop(number, None) is not tenure:
            self.world.violated(f"{self.me} lost partition {number} twice, or one that it never had (T40)")
        self.reading.discard(number)
        self.world.let_go(self, number)
        self.world.note(self, "lost", number, reason)

    async def _drain(self, tenure: Tenure) -> None:
        await asyncio.sleep(self.episode)
        await self.clock.running.wait()
        tenure.drained()

    # what the world sees

    def serves(self, number: int) -> bool:
        tenure = self.held.get(number)
        if tenure is None:
            return False
        try:
            tenure.check()
        except LeaseLost:
            return False
        return True

    def runs(self) -> bool:
        """Whether it has run for long enough to know what it may do."""
        return self.clock.running.is_set() and self.world.now() - self.resumed >= AWAKENING

    async def awake(self) -> None:
        """While the machine is stopped nothing on it goes on; what was killed never does."""
        if not self.clock.running.is_set():
            await self.clock.running.wait()
        if self.dead:
            raise asyncio.CancelledError

    def check(self) -> None:
        for number in self.world.contested & self.held.keys():
            self.world.check(number)

    # what happens to it

    def stop(self) -> None:
        self.clock.running.clear()

    def resume(self) -> None:
        self.resumed = self.world.now()
        self.clock.running.set()

    async def crash(self) -> None:
        """Gone without a word; what it has sent is still on its way."""
        self.dead = True
        self.clock.running.set()
        for number in list(self.held):
            self.world.let_go(self, number)
        self.held.clear()
        while not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task], timeout=0.1)
        with suppress(asyncio.CancelledError):
            self.task.exception()


@dataclass(eq=False)
class World:
    """Hosts, their store, the weather between them, and what must never happen."""

    seed: int
    shape: Shape
    skewed: bool = True
    differ: bool = False
    """Hosts have different apps, by name, and each partition's instances need some of them."""
    store: Store = field(default_factory=lambda: SqliteStore(None, clock=VirtualClock()))
    hosts: list[Host] = field(default_factory=list)
    holders: dict[int, set[Host]] = field(default_factory=lambda: defaultdict(set))
    contested: set[int] = field(default_factory=set)
    """Partitions with more than one holder: only there can two serve or read."""
    epochs: Counter[int] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    """Whoever was killed: where all run on one machine, all can prove it."""
    events: Counter[str] = field(default_factory=Counter)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE))
    digest: Any = field(default_factory=hashlib.sha256)
    requests: int = 0
    longest: float = 0.0
    """Seconds that a partition was without service after the last disturbance, at most."""
    _violation: str | None = None
    _weather: Weather = CALM
    _cut: set[str] = field(default_factory=set)
    _spared: set[str] = field(default_factory=set)
    _calm_since: float = 0.0
    _travelling: set[asyncio.Task[None]] = field(default_factory=set)
    _moves: Counter[int] = field(default_factory=Counter)
    _stormy: bool = False

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/schedule")
        self._skews = random.Random(f"{self.seed}/skews")
        self.one_machine = random.Random(f"{self.seed}/machine").random() < 0.3
        self._incarnations: Counter[str] = Counter()
        self._sure = [0.0] * self.shape.partitions
        """Until when a partition is served unless something happens to its holder."""
        self.operations = PartitionOperations(self.store, NAMES, by="ops", clock=VirtualClock())
        times = self.shape.times
        self._scan = times.scan.total_seconds()
        # what a host does with a full second of requests in its way, and a coarse look of ours
        self.within = times.take.total_seconds() * 1.001 + self._scan * 1.15 + COARSE
        self._apart = self.within
        if self.shape.lease_store == BLOB:  # things happen further apart where a blob stays leased behind its owner
            self._apart += min(max(times.take.total_seconds(), 15.0), 60.0)
        self.fair_within = 2 * self._apart + DRAIN.total_seconds() + 3 * self._scan
        draw = random.Random(f"{self.seed}/apps")
        self.parts = {f"w{number}": _some(draw, 0) for number in range(self.shape.hosts)}
        self.needs = [_some(draw, 1) for _ in range(self.shape.partitions)]
        if self.differ:  # a need is said with a renewal, another worker sees it with a scan, and asks for the partition
            # and while partitions go round by turns, hosts differ over who is to take a free one: then it is anybody's
            self.within += 2.5 * 1.15 * self._scan
            dwell = max(LEAST_DWELL, DWELL_SCANS * self._scan)
            self.fair_within += 2 * (times.renew.total_seconds() + 3 * self._scan + DRAIN.total_seconds()) + dwell

    # time, weather, requests under way

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def skew(self) -> timedelta:
        hours = self._skews.uniform(-5, 5)
        return timedelta(hours=hours) if self.skewed else timedelta(0)

    def weather_of(self, host: Host) -> Weather:
        if host.name in self._cut:
            return Weather(lost=1.0)
        return CALM if host.name in self._spared else self._weather

    def travel(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(request)
        self._travelling.add(task)
        task.add_done_callback(self._travelling.discard)

    def disturbed(self, settles: float = 0.0) -> None:
        self._calm_since = max(self._calm_since, self.now() + settles)

    # invariants

    def held(self, host: Host, number: int) -> None:
        holders = self.holders[number]
        holders.add(host)
        if len(holders) > 1:
            self.contested.add(number)

    def let_go(self, host: Host, number: int) -> None:
        holders = self.holders[number]
        holders.discard(host)
        if len(holders) < 2:
            self.contested.discard(number)
        self._sure[number] = 0.0

    def note(self, host: Host, kind: str, number: int, text: str = "") -> None:
        self.events[kind] += 1
        self._moves[number] += kind == "taken"
        line = f"{self.now():.3f} {host.me} {kind} {number} {text}".rstrip()
        self.trace.append(line)
        self.digest.update(line.encode())

    def violated(self, what: str) -> None:
        """A listener's error is its own: what is wrong is kept until the world looks."""
        if self._violation is None:
            self._violation = f"at {self.now():.3f} s: {what}"

    def check(self, number: int) -> None:
        holders = self.holders[number]
        serving = [str(host.me) for host in holders if host.serves(number)]
        if len(serving) > 1:
            self.violated(f"partition {number} is served by {' and '.join(sorted(serving))} (T86)")
        reading = [str(host.me) for host in holders if number in host.reading and host.runs()]
        if len(reading) > 1:
            self.violated(f"partition {number} is read by {' and '.join(sorted(reading))} (T20)")

    def _look(self, number: int, now: float) -> bool:
        """Whether a partition is served, and for how long it will be unless its holder loses it before that."""
        left = [tenure.left() for host in self.holders[number] if host.serves(number) and (tenure := host.held[number])]
        self._sure[number] = now + max(left, default=0.0) / 1.01
        return bool(left)

    async def watch(self) -> None:
        """Look at everything, all the time; hosts that could not start are started again."""
        pause = min(COARSE, self.shape.times.take.total_seconds() / 20)
        lonely: dict[int, float] = {}
        while True:
            await asyncio.sleep(pause)
            if self._violation is not None:
                raise Violation(self._violation)
            for host in [host for host in self.hosts if host.task.done() and not host.leaving]:
                self.hosts.remove(host)
                await host.crash()
                self.join(host.name, host.predecessors)
            now = self.now()
            for number in tuple(self.contested):
                self.check(number)
            if self._stormy:
                lonely.clear()
                continue
            for number in [number for number, until in enumerate(self._sure) if until <= now]:
                if self._look(number, now):
                    lonely.pop(number, None)
                    continue
                since = max(lonely.setdefault(number, now), self._calm_since)
                self.longest = max(self.longest, now - since)
                if now - since > self.within:
                    self.violated(f"partition {number} has not been served for {now - since:.1f} s (T87)")

    # what happens

    def join(self, name: str, predecessors: Collection[str] = ()) -> Host:
        self._incarnations[name] += 1
        host = Host(self, name, self._incarnations[name], self.dead if self.one_machine else predecessors)
        self.hosts.append(host)
        self.disturbed()
        return host

    def _joiner(self) -> str | None:
        names = {host.name for host in self.hosts}
        return next((f"w{number}" for number in range(self.shape.hosts) if f"w{number}" not in names), None)

    async def act(self) -> None:
        """One thing happens to one host; one at least goes on running."""
        awake = [host for host in self.hosts if host.clock.running.is_set() and not host.leaving]
        host = self.dice.choice(self.hosts)
        kind = self.dice.choice(
            ["join", "join", "leave", "crash", "restart", "stop", "stop", "resume", "clock", "cut", "cut", "kick"]
        )
        spare = len(awake) > 1 or host not in awake
        name = self._joiner()
        match kind:
            case "join" if name is not None:
                self.join(name)
            case "leave" if spare and host in awake and host.owner.tenures:
                host.leaving = True
                self.travel(self._leave(host))
            case "crash" if spare:
                self.hosts.remove(host)
                await host.crash()
                self.dead.add(str(host.me))
            case "restart":
                self.hosts.remove(host)
                await host.crash()
                self.dead.add(str(host.me))
                self.join(host.name, [*host.predecessors, str(host.me)])
            case "stop" if spare:
                host.stop()
            case "resume":
                host.resume()
            case "clock":
                host.clock.set(self.skew())
            case "cut" if len(self.hosts) > len(self._cut) + 1:
                self._cut ^= {host.name}
            case "kick":
                with suppress(HubError):  # a blob leased by who died while writing it: try again
                    await self.operations.kick(self.dice.randrange(self.shape.partitions))
            case _:
                return
        self.events[kind] += 1
        self.trace.append(f"{self.now():.3f} -- {kind} {host.me if kind != 'join' else name}")
        self.disturbed()

    async def _leave(self, host: Host) -> None:
        await host.owner.stop(timedelta(seconds=self.dice.choice([0.5, 30.0])))
        with suppress(asyncio.CancelledError):
            await asyncio.wait([host.task])
        if host in self.hosts:
            self.hosts.remove(host)
        self.disturbed()

    async def storm(self) -> None:
        """Minutes in which anything may happen."""
        dice, self._stormy = self.dice, True
        self._weather = Weather(
            late=dice.choice([0.0, 0.1, 0.5]),
            slow=dice.choice([0.0, 0.1, 0.7]),
            longest=dice.choice([1.0, 10.0, LONGEST]),
            lost=dice.choice([0.0, 0.05, 0.3]),
            unanswered=dice.choice([0.0, 0.05, 0.3]),
            doubled=dice.choice([0.0, 0.1, 0.5]),
            throttled=dice.choice([0.0, 0.0, 0.2]),
        )
        # a network that is bad for some of them is worse than one that is bad for all
        self._spared = {f"w{number}" for number in range(self.shape.hosts) if dice.random() < 0.5}
        until, pace = self.now() + dice.uniform(1, 15) * self._apart, dice.choice([1, 2, 4, 8])
        while self.now() < until:
            await asyncio.sleep(dice.expovariate(pace / self._apart))
            await self.act()

    async def ambush(self) -> None:
        """One host's answers become slow, and then it is gone: the moment at which an age counted wrongly kills."""
        awake = [host for host in self.hosts if host.held and host.runs()]
        if len(awake) < 2:
            return
        host, self._stormy = self.dice.choice(awake), True
        self._spared = {other.name for other in self.hosts if other is not host}
        times = self.shape.times
        self._weather = Weather(slow=1.0, longest=self.dice.uniform(0.1, 0.9) * (times.give_up - times.renew) / SECOND)
        await asyncio.sleep(self.dice.uniform(1, 3) * times.renew / SECOND)
        if self.dice.random() < 0.5:
            host.stop()
        else:
            self._cut = {host.name}
        if self.dice.random() < 0.5:
            host.clock.set(self.skew())
            self.events["clock"] += 1
        self.events["ambush"] += 1
        self.trace.append(f"{self.now():.3f} -- ambush {host.me}")
        await asyncio.sleep(self._apart)

    async def clear(self) -> None:
        """The storm ends: every machine runs, every request has arrived."""
        throttled = self._weather.throttled > 0
        self._weather = CALM
        self._cut.clear()
        for host in self.hosts:
            if not host.clock.running.is_set():
                host.resume()
        while self._travelling and any(host.leaving for host in self.hosts):
            self.disturbed()
            await asyncio.sleep(1.0)
        if all(host.leaving for host in self.hosts) and (name := self._joiner()) is not None:
            self.join(name)
        # a late request may still arrive, a throttled scan may still sleep
        self._stormy = False
        self.disturbed(2 * LONGEST + 1.0 + (SLOWEST * self._scan if throttled else 0.0))

    async def calm(self) -> None:
        """Shares become fair, and then nothing moves; single events in between."""
        await self._settle()
        for _ in range(self.dice.randrange(4)):
            await self.act()
            self._cut.clear()
            while any(host.leaving for host in self.hosts):
                self.disturbed()
                await asyncio.sleep(0.5)
            await asyncio.sleep(self._apart)
            if self.dice.random() < 0.5:
                await self._settle()
        for host in self.hosts:
            if not host.clock.running.is_set():
                host.resume()
                self.disturbed()
        await self._settle()
        before = self._moves.copy()
        await asyncio.sleep(self.dice.uniform(0, self.dice.choice([2, 2, 6, 20])) * self._apart)
        moved = [number for number in self._moves if self._moves[number] != before[number]]
        if any(map(self._divided, range(self.shape.partitions))):
            moved = []  # where hosts take turns with some partitions, fair shares move others in return
        if moved and not any(not host.clock.running.is_set() for host in self.hosts):
            self.violated(f"partitions {moved} moved in a stable cluster (E48)")

    async def _settle(self) -> None:
        while (left := self._calm_since + self.fair_within - self.now()) > 0:  # noqa: ASYNC110  # starts disturb
            await asyncio.sleep(left)
        if any(not host.clock.running.is_set() for host in self.hosts):
            return
        counts = sorted(sum(host.serves(number) for number in host.held) for host in self.hosts)
        if not self.differ and counts[-1] - counts[0] > 1:
            self.violated(f"shares are {counts} (E46)")
        for number in range(self.shape.partitions) if self.differ else ():
            fit = self._fit(number)
            if fit and not any(host.serves(number) for host in fit):
                holders = [str(host.me) for host in self.holders[number]]
                self.violated(f"partition {number} rests with {holders}, and {[str(host.me) for host in fit]} are fit")

    def _fit(self, number: int) -> list[Host]:
        """Hosts that have all that the instances of a partition need, as far as any host has it."""
        needs = self.needs[number] & frozenset().union(*(self.parts[host.name] for host in self.hosts))
        return [host for host in self.hosts if needs <= self.parts[host.name]]

    def _divided(self, number: int) -> bool:
        """Whether hosts take turns with a partition."""
        return self.differ and not self._fit(number)

    async def live(self) -> None:
        async with self.store:
            lease_store = self.shape.lease_store
            await create_hub(self.store, NAMES, self.shape.partitions, lease_store=lease_store, clock=VirtualClock())
            for _ in range(self.shape.hosts if self.shape.hosts == LARGEST[0] else max(1, self.shape.hosts // 2)):
                self.join(self._joiner() or "")
            watching = asyncio.ensure_future(self.watch())
            playing = asyncio.ensure_future(self._play())
            try:
                await asyncio.wait([watching, playing], return_when=asyncio.FIRST_COMPLETED)
                for task in (playing, watching):
                    if task.done():
                        task.result()
                if self._violation is not None:
                    raise Violation(self._violation)
            finally:
                watching.cancel()
                playing.cancel()
                for host in self.hosts:
                    await host.crash()
                for task in self._travelling:
                    task.cancel()

    async def _play(self) -> None:
        until = self.shape.hours * 3600
        while self.now() < until:
            await self.calm()
            await (self.ambush() if self.dice.random() < 0.3 else self.storm())
            await self.clear()
        await self.calm()


SIZES = (*((2, 1), (2, 4), (3, 4), (3, 8), (4, 8), (5, 4)) * 2, (5, 16), (6, 11), (8, 16), (8, 32), (16, 64))
"""Hosts and partitions: mostly small hubs, in which everything happens to everybody."""
LARGEST = 64, 1024


def shape_of(seed: int, hours: float) -> Shape:
    """Now and then the largest hub; else one that is played for as many requests as any other."""
    dice = random.Random(f"{seed}/shape")
    hosts, partitions = dice.choice(SIZES)
    tight = _times(dice.uniform(2, 40), dice.uniform(0.5, 60), dice.uniform(0.51, 5), dice.uniform(2, 40))
    # an answer may be waited for longest, and others look most often
    sharp = _times(dice.uniform(2, 10), dice.uniform(20, 60), 0.51, dice.uniform(1, 4))
    wide = _times(dice.uniform(30, 240), dice.uniform(20, 60), dice.uniform(0.51, 5), dice.uniform(30, 240))
    times = dice.choice([AZURE_LEASE, EMBEDDED_LEASE if partitions <= 8 else AZURE_LEASE, tight, sharp, *[wide] * 8])
    lease_store = BLOB if seed % 4 == 3 and partitions <= 16 else TABLE
    if seed % 500 == 24:
        hosts, partitions, times = *LARGEST, AZURE_LEASE
    renew, scan = times.renew.total_seconds(), times.scan.total_seconds()
    rate = (hosts + partitions) / renew + 3 * hosts / scan
    hours = min(hours, HOURS_PER_SEED, REQUESTS_PER_SEED / rate / 3600)
    return Shape(hosts=hosts, partitions=partitions, times=times, hours=hours, lease_store=lease_store)


def _times(renew: float, more: float, margin: float, scan: float) -> LeaseTimes:
    margin = max(margin, (renew + more) * 1.01 * LEASE_DRIFT)
    return LeaseTimes(
        renew=timedelta(seconds=renew),
        give_up=timedelta(seconds=renew + more),
        take=timedelta(seconds=renew + more + margin),
        scan=timedelta(seconds=scan),
    )


def _some(draw: random.Random, least: int) -> frozenset[str]:
    return frozenset(draw.sample("xyz", draw.choice([least, 1, 1, 2, 3])))


@contextmanager
def _remembered() -> Iterator[None]:
    """What is read again and again, by all hosts, is decoded once: pure functions of a row, told apart by its ETag."""
    with ExitStack() as stack:
        for owner, name in ((_Row, "entity"), (lease_stores, "decode_lease"), (members, "_decode")):
            stack.enter_context(mock.patch.object(owner, name, _once(getattr(owner, name))))
        yield


def _once(decode: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def found(row: Any, *arguments: Any) -> Any:
        if row.etag not in known:
            if len(known) > KNOWN:
                known.clear()
            known[row.etag] = decode(row, *arguments)
        return known[row.etag]

    return found


def simulate(seed: int, hours: float, *, skewed: bool = True, differ: bool = False) -> World:
    """Play a seed to its end.

    :raises Violation: with what happened last, and the line that plays it again.
    """
    world = World(seed, shape_of(seed, hours), skewed, differ)
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with _remembered():
            virtual_time.run(world.live(), limit=timedelta(hours=hours + 100))
    except Violation as violation:
        story = "\n".join(world.trace)
        options = f"--seed {seed} --hours {world.shape.hours!r} --seeds 1{' --differ' * differ}"
        line = f"python -m tests.simulation.partitions {options}"
        raise Violation(f"{violation}\n{world.shape}\n{story}\nto see it again: {line}") from None
    finally:
        structlog.configure(**before)
    return world


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of a seed. :param hours: 0: a violation. :param line: to print."""

    hours: float = 0.0
    requests: int = 0
    events: Counter[str] = field(default_factory=Counter)
    line: str


def _played(seed: int, hours: float, differ: bool) -> Played:
    """In a process of its own."""
    gc.set_threshold(100_000)  # little of what is made lives long, and much is made
    try:
        world = simulate(seed, hours, differ=differ)
    except Violation as violation:
        return Played(line=str(violation))
    except Exception:
        return Played(line=f"seed {seed}, {hours:g} hours\n{traceback.format_exc()}")
    line = (
        f"seed {seed}: {world.shape.hours:.2f} h, {world.shape}; {world.requests} requests, {world.events['taken']} "
        f"taken, longest without service {world.longest:.1f} of {world.within:.1f} s; {world.digest.hexdigest()[:12]}"
    )
    return Played(hours=world.shape.hours, requests=world.requests, events=world.events, line=line)


def _seeds(first: int, count: int | None, hours: float) -> Sequence[int]:
    """From ``first`` on, ``count`` of them, or as many as play for so many hours together."""
    if count is not None:
        return range(first, first + count)
    last = first
    while hours > 0:
        hours -= shape_of(last, hours).hours
        last += 1
    return range(first, last)


def main() -> int:
    parser = argparse.ArgumentParser(description="The partition service under everything that can go wrong.")
    parser.add_argument("--hours", type=float, default=100.0, help="virtual hours, of all seeds together")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, help="how many; else as many as the hours need")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--differ", action="store_true", help="hosts have different apps")
    options = parser.parse_args()
    each = options.hours / (options.seeds or 1)
    seeds = _seeds(options.seed, options.seeds, options.hours)
    done, requests, events, began = 0.0, 0, Counter[str](), time.monotonic()
    os.environ["PYTHONHASHSEED"] = "0"  # of the processes: in what order sets are gone through is part of a seed
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for play in as_completed([pool.submit(_played, seed, each, options.differ) for seed in seeds]):
            played = play.result()
            print(played.line, flush=True, file=sys.stdout if played.hours else sys.stderr)
            if not played.hours:
                pool.shutdown(cancel_futures=True)
                return 1
            done += played.hours
            requests += played.requests
            events += played.events
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(events.items()))
    print(
        f"{len(seeds)} seeds from {options.seed} on, {done:.0f} virtual hours in {time.monotonic() - began:.0f} s, "
        f"{requests} requests: {told}; no violation"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
