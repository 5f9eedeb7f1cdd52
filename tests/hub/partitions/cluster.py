"""Several owners on one store under a jumping clock, with everything that they are told kept for the assertions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_provider_taskhub.errors import HubError, LeaseLost, StorageError
from airflow_provider_taskhub.hub.model import HubNames, Member, Service, Tenure, WorkerIdentity
from airflow_provider_taskhub.hub.partitions.administration import create_hub, delete_hub
from airflow_provider_taskhub.hub.partitions.app_lease import SECONDS
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.lease_stores import leases_of
from airflow_provider_taskhub.hub.partitions.owner import PartitionOwner
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store
from airflow_provider_taskhub.virtual_time import START, VirtualClock
from tests.simulation.world import MEMORY, Place

NAMES = HubNames("Cluster")


class Pausable(VirtualClock):
    """A machine's clock; while it is paused nothing that sleeps on it wakes, as under SIGSTOP."""

    def __init__(self, *, skew: timedelta = timedelta(0), rate: float = 1.0) -> None:
        super().__init__(skew=skew, rate=rate)
        self.running = asyncio.Event()
        self.running.set()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.running.wait()


class Paused:
    """A store behind a machine's clock: its answers wait until the machine runs again."""

    def __init__(self, store: Store, clock: Pausable) -> None:
        self._store = store
        self._clock = clock

    def __getattr__(self, name: str) -> object:
        inner = getattr(self._store, name)
        if name == "rows":
            return self._rows
        if not asyncio.iscoroutinefunction(inner):
            return inner

        async def call(*arguments: object, **named: object) -> object:
            await self._clock.running.wait()
            try:
                return await inner(*arguments, **named)
            finally:
                await self._clock.running.wait()

        return call

    async def _rows(self, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
        await self._clock.running.wait()
        async for row in self._store.rows(*arguments, **named):  # type: ignore[arg-type]
            yield row
            await self._clock.running.wait()


@dataclass(eq=False)
class Node:
    """A worker: its owner loop, and a host that drains for ``episode`` seconds when asked."""

    name: str
    clock: Pausable
    episode: float = 0.0
    incarnation: int = 1
    events: list[tuple[float, str, int, str]] = field(default_factory=list)
    held: dict[int, Tenure] = field(default_factory=dict)
    reading: set[int] = field(default_factory=set)
    drains: set[asyncio.Task[None]] = field(default_factory=set)
    owner: PartitionOwner | None = None
    task: asyncio.Task[None] | None = None

    @property
    def me(self) -> WorkerIdentity:
        return WorkerIdentity(name=self.name, host="host", incarnation=f"{self.name}-{self.incarnation}")

    def taken(self, tenure: Tenure) -> None:
        assert tenure.partition not in self.held
        self._note("taken", tenure)
        self.held[tenure.partition] = tenure
        self.reading.add(tenure.partition)

    def asked(self, tenure: Tenure) -> None:
        assert self.held[tenure.partition] is tenure
        self._note("asked", tenure)
        self.reading.discard(tenure.partition)
        task = asyncio.ensure_future(self._finish(tenure))
        self.drains.add(task)
        task.add_done_callback(self.drains.discard)

    def lost(self, tenure: Tenure, reason: str) -> None:
        assert self.held.pop(tenure.partition) is tenure, "lost exactly once"
        self.reading.discard(tenure.partition)
        self._note("lost", tenure, reason)

    async def _finish(self, tenure: Tenure) -> None:
        await self.clock.sleep(self.episode)
        tenure.drained()

    def _note(self, kind: str, tenure: Tenure, reason: str = "") -> None:
        self.events.append((asyncio.get_running_loop().time(), kind, tenure.partition, reason))

    def serves(self, partition: int) -> bool:
        """Whether it would act for the partition right now: it passes its own check."""
        tenure = self.held.get(partition)
        if tenure is None:
            return False
        try:
            tenure.check()
        except LeaseLost:
            return False
        return True

    def when(self, kind: str) -> list[tuple[float, int]]:
        return [(at, partition) for at, event, partition, _ in self.events if event == kind]


class Cluster:
    """Nodes on one in-memory hub. Checks at every tick that no two pass their own check for one partition (T86)."""

    lease_store = "table"
    """What hubs are made with: a ``participant`` of the owners' tests runs over both."""
    place: Place = MEMORY
    """And where they are kept: in memory, or on Azurite under the same clock."""

    def __init__(self, partitions: int = 4, *, times: LeaseTimes = AZURE_LEASE, seed: int = 0) -> None:
        self.partitions = partitions
        self.times = times
        self.seed = seed
        self.nodes: list[Node] = []
        self.store: Store = self.place.open(VirtualClock())
        self.unserved: Counter[int] = Counter()
        self.look = 0.05
        """Seconds between two looks at who serves what."""
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Cluster:
        await self.store.__aenter__()
        made = await create_hub(self.store, NAMES, self.partitions, lease_store=self.lease_store, clock=VirtualClock())
        self.leases = leases_of(self.store, NAMES, made)
        self._watch = asyncio.ensure_future(self._watching())
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            assert self._watch is not None
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            for node in tuple(self.nodes):
                await self.crash(node)
        finally:
            if self.place.shared:
                await self._remove()
            await self.store.__aexit__(None, None, None)

    async def _remove(self) -> None:
        """The dead hold the app lease still, and a request of theirs may arrive after them."""
        for last in (False, False, True):
            await asyncio.sleep(SECONDS + 1)
            try:
                await delete_hub(self.store, NAMES)
                return
            except HubError:
                if last:
                    raise

    def long(self, seconds: float) -> float:
        """So long, or a few minutes where each request is a real one."""
        return min(seconds, 150.0) if self.place.shared else seconds

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(self.look)
            self.check()

    def check(self) -> None:
        serving: dict[int, str] = {}
        for node in self.nodes:
            for partition in node.held:
                if node.serves(partition):
                    first = serving.setdefault(partition, node.name)
                    assert first == node.name, f"partition {partition} is served by {first} and by {node.name}"
        if len(serving) < self.partitions:
            self.unserved.update(set(range(self.partitions)) - serving.keys())

    async def join(
        self,
        name: str,
        *,
        episode: float = 0.0,
        incarnation: int = 1,
        predecessors: Callable[[], Collection[str]] = tuple,
        skew: timedelta = timedelta(0),
        rate: float = 1.0,
        store: Store | None = None,
        weight: int = 1,
        services: Callable[[], Mapping[int, Service]] = dict,
        longest_unpolled: timedelta = timedelta.max,
        rng: random.Random | None = None,
    ) -> Node:
        clock = Pausable(skew=skew, rate=rate)
        node = Node(name, clock, episode, incarnation)
        node.owner = PartitionOwner(
            Paused(store or self.store, clock),  # type: ignore[arg-type]
            NAMES,
            PartitionHost(
                me=node.me,
                listener=node,
                predecessors=predecessors,
                member=lambda: Member(
                    worker=str(node.me),
                    started=START,
                    roles=("orchestrator",),
                    apps={},
                    orchestrators=(),
                    activities=(),
                    weight=weight,
                ),
                services=services,
                longest_unpolled=longest_unpolled,
            ),
            times=self.times,
            clock=clock,
            app_name="",
            rng=rng or random.Random(f"{self.seed}/{name}"),
        )
        self.nodes.append(node)
        node.task = asyncio.ensure_future(node.owner.run())
        return node

    async def crash(self, node: Node) -> None:
        """Gone without a word: nothing is released."""
        assert node.task is not None
        node.task.cancel()
        with suppress(asyncio.CancelledError, StorageError):  # or it could not even start
            await node.task
        node.held.clear()
        if node in self.nodes:
            self.nodes.remove(node)

    async def leave(self, node: Node, timeout: timedelta = timedelta(seconds=30)) -> None:
        assert node.owner is not None
        assert node.task is not None
        await node.owner.stop(timeout)
        await node.task
        self.nodes.remove(node)

    def counts(self, nodes: Collection[Node] | None = None) -> list[int]:
        return sorted(len(node.held) for node in (nodes or self.nodes))

    async def settle(self, seconds: float = 60.0) -> None:
        """Run until every partition is served and shares are fair, at most ``seconds`` of virtual time."""
        async with asyncio.timeout(seconds):
            while sum(self.counts()) < self.partitions or max(self.counts()) - min(self.counts()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


class Faults:
    """A store whose answers a test decides: ``before`` and ``after`` are awaited around each call and may raise.

    Raised before: the call was never carried out. Raised after: it was, and its answer is lost.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[str, tuple[object, ...]], Awaitable[None]] = _nothing
        self.after: Callable[[str, tuple[object, ...]], Awaitable[None]] = _nothing

    def __getattr__(self, name: str) -> object:
        inner = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(inner):
            return inner

        async def call(*arguments: object, **named: object) -> object:
            await self.before(name, arguments)
            result = await inner(*arguments, **named)
            await self.after(name, arguments)
            return result

        return call

    async def rows(self, *arguments: object, **named: object):  # type: ignore[no-untyped-def]
        await self.before("rows", arguments)
        async for row in self._store.rows(*arguments, **named):  # type: ignore[arg-type]
            yield row


async def _nothing(_: str, __: tuple[object, ...]) -> None:
    return
