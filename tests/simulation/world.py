"""Workers of one hub in one process under a jumping clock, each of which can die at any storage call.

The workers are the very ones of production (backend, partition owner, client). The store is SQLite in memory, or
Azurite under the same clock (``still``); units go operation by operation, so that there are points to die at.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

import structlog
from structlog.testing import LogCapture

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import (
    FailureDetails,
    HistoryEvent,
    OrchestratorCompleted,
    OrchestratorStarted,
)
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import (
    ACTIVITY,
    ORCHESTRATOR,
    HubNames,
    InstanceState,
    Member,
    RecordState,
    WorkerIdentity,
)
from airflow_provider_taskhub.hub.partitions import administration, app_lease
from airflow_provider_taskhub.hub.partitions.hosting import PartitionHost
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.hub.partitions.owner import PartitionOwner
from airflow_provider_taskhub.hub.queues.delivery import Delivery, renew
from airflow_provider_taskhub.memory import memory_of
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, LeaseTimes, Settings
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, Plan
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Message,
    Operation,
    PutMessage,
    Receipt,
    Result,
    Results,
    Store,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.storage.steps import one_by_one
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.testing import InProcess
from airflow_provider_taskhub.virtual_time import VirtualClock
from airflow_provider_taskhub.workers.backend import POLLS_MISSED, Backend, member_of
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.peers import Peers
from tests.simulation.moves import Moves

T = TypeVar("T")
log = structlog.get_logger(__name__)

BEFORE, AFTER = "before", "after"
ANSWER = 0.4
"""Seconds between a renewal and its answer, where :attr:`Network.renewing` is True."""
POLLS = ("queue.receive", "admin")
"""Calls that are not numbered."""
_hubs = itertools.count(1)
RARE_RENEWALS = AZURE_LEASE.model_copy(update={"visibility": EMBEDDED_LEASE.visibility})
"""Lease times for plays of many minutes in which no partition moves. A worker renews a tenth as often as with the times
of the embedded store, and the play costs a tenth, because an idle worker does little else. A received message is hidden
for as short a time as there."""
PLAYED = EMBEDDED_LEASE.model_copy(update={"scan": EMBEDDED_LEASE.renew})
"""Lease times of most plays: a worker looks half as often for partitions without an owner, which costs half as much."""
QUIET = timedelta(hours=2)
"""Virtual time within which nothing may be left in any queue once everything has ended."""

_machine: ContextVar[Machine | None] = ContextVar("machine", default=None)


_running: ContextVar[ActivityRequest] = ContextVar("running")
_listener: ContextVar[Callable[[ActivityProgress], None] | None] = ContextVar("listener", default=None)


def running() -> ActivityRequest:
    """The attempt that calls this."""
    return _running.get()


def machine() -> str:
    """The name of the worker that runs the attempt that calls this."""
    found = _machine.get()
    return found.name if found is not None else ""


def seen_in_spark(fraction: float, message: str) -> None:
    """Report progress of the calling attempt that its executor would have seen in Spark."""
    listener = _listener.get()
    assert listener is not None
    listener(ActivityProgress(executor="spark-1.1", fraction=fraction, message=message, observed=True))


def tells(fraction: float) -> None:
    """Report progress of the calling attempt, as ``progress`` does in an executor."""
    listener = _listener.get()
    assert listener is not None
    listener(ActivityProgress(executor="plain-1.1", fraction=fraction))


async def saves(state: str) -> None:
    """Save a state of the calling attempt, as ``save_state`` does in an executor."""
    listener, stored = _listener.get(), asyncio.Event()
    assert listener is not None
    listener(ActivityProgress(executor="plain-1.1", saved=state, confirm=stored.set))
    await stored.wait()


class Standing(Generic[T]):
    """A coroutine that runs no step while a pause is on, as a stopped process."""

    def __init__(self, work: Coroutine[Any, Any, T], pause: Pause) -> None:
        self._work, self._pause, self._changed = work, pause, asyncio.Event()
        pause.follow(self._changed.set)

    def __await__(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            try:
                waits_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                self._pause.follow(None)
                value: T = end.value
                return value
            try:
                error = None
                yield waits_for
                while self._stands_still:
                    self._changed.clear()
                    yield from self._changed.wait().__await__()
            except BaseException as thrown:
                if self._stands_still:
                    log.warning("attempt_ended_while_it_stood_still")  # an executor would be killed
                error = thrown

    @property
    def _stands_still(self) -> bool:
        return self._pause.on or self._pause.due <= VirtualClock().monotonic()


class Attempts(InProcess):
    """Lets an activity know which attempt it is."""

    async def run(
        self,
        request: ActivityRequest,
        *,
        progress: Callable[[ActivityProgress], None] | None = None,
        pause: Pause | None = None,
    ) -> ActivityOutcome:
        if request.begin_by is not None and VirtualClock().monotonic() > request.begin_by:
            return ActivityOutcome(too_late=True)  # as an executor does it
        _running.set(request)
        _listener.set(progress)
        seconds = None if request.timeout is None else request.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await Standing(super().run(request, progress=progress), pause or Pause())
        except TimeoutError:  # the failure of an activity is an outcome and no error, so this is the timeout
            failure = FailureDetails(error_type="TimeoutError", error_message=f"longer than {seconds:g} s")
            return ActivityOutcome(failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Where a worker dies.

    :param point: name of a crash point, or a number: of the storage call. :param count: which time of a named point.
    """

    point: str | int
    side: str = BEFORE
    count: int = 1

    def __str__(self) -> str:
        return f"{self.side}-{self.point}-{self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the hub of a world is kept.

    :param open: makes the store, under the world's clock. :param stepwise: units go operation by operation; else whole.
    :param proves: its workers run on one machine and find the dead by their lock files.
    :param shared: others' hubs are there too: each has a name of its own, and is removed when its world ends.
    """

    name: str
    open: Callable[[VirtualClock], Store]
    stepwise: bool = True
    shared: bool = False
    proves: bool = False
    lease: LeaseTimes = PLAYED

    def __str__(self) -> str:
        return self.name


MEMORY = Place(name="sqlite", open=lambda clock: SqliteStore(None, clock=clock))
WHOLE = Place(name="sqlite-units", open=lambda clock: SqliteStore(None, clock=clock), stepwise=False)
"""As the embedded store is in production: a checkpoint is there or not."""
PROVING = Place(name="sqlite-proofs", open=lambda clock: SqliteStore(None, clock=clock), stepwise=False, proves=True)
"""And as its workers are: each finds the others' deaths, and has what they held released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An operation that was carried out. :param machine: whose it was."""

    machine: str
    operation: Operation


class Tape(FaultyStore):
    """Records what is really done, in order."""

    def __init__(self, inner: Store, machine: str, done: list[Done], moves: Moves) -> None:
        super().__init__(inner, lambda call: None)
        self._machine, self._done, self._moves = machine, done, moves

    def describe(self) -> str:
        return self._inner.describe()

    async def _through(self, kind: str, what: object, do: Callable[[], Awaitable[T]]) -> T:
        return await do()

    async def execute(self, operation: Operation) -> Result:
        result = await self._inner.execute(operation)
        self._done.append(Done(machine=self._machine, operation=operation))
        self._moves.note(operation, result)
        return result

    async def commit(self, unit: Unit) -> Results:
        results = await self._inner.commit(unit)
        done = [operation for step in unit.steps for operation in step.operations]
        self._done.extend(Done(machine=self._machine, operation=operation) for operation in done)
        for operation, result in zip(done, (one for step in results for one in step), strict=True):
            self._moves.note(operation, result)
        return results


class Network(FaultyStore):
    """A machine's way to the store. It may deliver one message twice, or lose one answer with messages.

    :ivar unheard: number of the receive, of those that found something, whose answer is lost.
    :ivar twice: number of the delivery (a message received, or put and claimed) that comes again at once, as when its
        visibility had run out in the worker's hands.
    :ivar renewing: True: at each deletion a renewal of the message is under way. The store has carried it out, and its
        answer comes :data:`ANSWER` seconds later.
    """

    def __init__(self, inner: Store, plan: Plan, *, claim: timedelta, **options: Any) -> None:
        super().__init__(inner, plan, **options)
        self._claim = claim
        self.receives = self.deliveries = self.renewals = 0
        self.twice: int | None = None
        self.unheard: int | None = None
        self.renewing = False
        self._renewed: dict[str, asyncio.Event] = {}

    async def receive(self, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        messages = await super().receive(queue, limit=limit, visibility=visibility)
        self.receives += bool(messages)
        if messages and self.receives == self.unheard:
            raise Unavailable("answer lost (fault)", maybe_done=True)
        for message in messages:
            await self._delivered(queue, message.receipt)
        return messages

    async def execute(self, operation: Operation) -> Result:
        if isinstance(operation, DeleteMessage):
            await self._renew(operation)
        result = await super().execute(operation)
        if isinstance(operation, PutMessage) and isinstance(result, Receipt) and operation.visibility == self._claim:
            await self._delivered(operation.queue, result)
        if isinstance(operation, UpdateMessage) and operation.message.message_id in self._renewed:
            self._renewed.pop(operation.message.message_id).set()
            await self._clock.sleep(ANSWER)
        return result

    async def commit(self, unit: Unit) -> Results:
        if not self._stepwise:
            for operation in (operation for step in unit.steps for operation in step.operations):
                if isinstance(operation, DeleteMessage):
                    await self._renew(operation)
        return await super().commit(unit)

    async def _renew(self, deletion: DeleteMessage) -> None:
        """Begin a renewal as the worker does it, and return when the store has carried it out."""
        held = deletion.message
        if not self.renewing or not isinstance(held, Delivery) or held.gone or held.changing.locked():
            return
        done = self._renewed[held.message_id] = asyncio.Event()
        self.renewals += 1
        async with owned() as start:
            under_way = self._under_way.spawn(renew(self, held, self._claim, self._clock))
            await asyncio.wait((under_way, start(done.wait())), return_when=asyncio.FIRST_COMPLETED)

    async def _delivered(self, queue: str, receipt: Receipt) -> None:
        self.deliveries += 1
        if self.deliveries == self.twice:
            await self._inner.execute(UpdateMessage(queue=queue, message=receipt, visibility=timedelta(0)))


class Machine:
    """One worker, and the machine it runs on: its clock, its ways into the store, its tasks."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        death: Death | None = None,
        skew: timedelta = timedelta(0),
        roles: Sequence[str] = (ORCHESTRATOR, ACTIVITY),
        app: App | None = None,
        plan: Plan = lambda call: None,
        twice: int | None = None,
        unheard: int | None = None,
        proves: bool = False,
        renewing: bool = False,
        pools: str | None = None,
        memory: str | None = None,
    ) -> None:
        """:param proves: it finds the dead by their lock files, as workers of one machine do."""
        self.name, self.world, self.death, self.plan = name, world, death, plan
        self.clock = VirtualClock(skew=skew)
        self.me = WorkerIdentity(name=name, host="host", incarnation=f"{name}-1")
        self.dead = False
        self.paused: asyncio.Event = asyncio.Event()
        self.paused.set()
        self.died = asyncio.Event()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.calls = 0
        self.points: Counter[str] = Counter()
        self.owning: asyncio.Task[None] | None = None
        names = HubNames(world.settings.hub)
        store = world.store
        if isinstance(store, SqliteStore):
            store = store.held_by(str(self.me))
        self.store = Network(
            Tape(store, name, world.tape, world.moves),
            self._plan,
            clock=self.clock,
            crash=self._crash,
            stepwise=world.place.stepwise,
            together=self._together,
            claim=world.settings.lease_times.visibility,
        )
        self.store.twice, self.store.unheard, self.store.renewing = twice, unheard, renewing
        self.lease_store = FaultyStore(world.store, self._lease_plan, clock=self.clock)
        self.leases: Plan = lambda call: None
        registry = Registry.of([app or world.app])
        runner = Attempts(registry, world.functions, None)
        registry = runner.registry
        members = Members(self.lease_store, names, times=world.settings.lease_times, clock=self.clock)

        async def live() -> Sequence[Member]:
            return await members.live()

        hub = Hub(store=self.store, names=names, info=world.client.hub.info, clock=self.clock)
        settings = world.settings if pools is None else world.settings.model_copy(update={"pools": pools})
        if memory is not None:
            settings = settings.model_copy(update={"memory": memory_of(memory)})
        self.backend = Backend(
            hub=hub,
            registry=registry,
            runner=runner,
            me=self.me,
            settings=settings,
            roles=roles,
            peers=Peers(live=live, dead=self._dead if proves else None, partitions_free=lambda: self.owner.hurry()),
        )
        member = member_of(registry, settings, self.me, roles, self.clock.utc_now())
        self.owner = PartitionOwner(
            self.lease_store,
            names,
            PartitionHost(
                me=self.me,
                listener=self.backend,
                predecessors=self._dead if proves else tuple,
                services=self.backend.services,
                longest_unpolled=POLLS_MISSED * world.settings.max_polling,
                watchers=hub.awaited.update,
                member=lambda: self.backend.current_row(member),
            ),
            times=world.settings.lease_times,
            clock=self.clock,
            app_name="",
            rng=random.Random(name),
        )

    # dying

    def _dead(self) -> tuple[str, ...]:
        return tuple(str(machine.me) for machine in self.world.machines if machine.dead)

    def _plan(self, call: Call) -> Fault | None:
        if self.dead:
            return Fault(before=asyncio.CancelledError())
        if call.kind in POLLS:
            return self.plan(call)  # polling: when it happens is nothing that a number should depend on
        self.calls += 1
        death = self.death
        if death is not None and death.point == self.calls:
            self.die()
            lost = asyncio.CancelledError()
            return Fault(before=lost) if death.side == BEFORE else Fault(after=lost)
        return self.plan(call)

    async def _together(self, operations: Sequence[Coroutine[Any, Any, Result]]) -> tuple[Result, ...]:
        self.world.steps += len(operations) > 1
        if len(operations) == 1 or self.world.steps != self.world.backwards:
            return await one_by_one(operations)
        done: list[Result] = []
        with ExitStack() as left:
            for operation in operations:
                left.callback(operation.close)
            for operation in reversed(operations):
                done.append(await operation)
                await self.clock.sleep(0.3)
        return tuple(reversed(done))

    def _lease_plan(self, call: Call) -> Fault | None:
        return Fault(before=asyncio.CancelledError()) if self.dead else self.leases(call)

    async def _crash(self, name: str) -> None:
        if self.dead:
            raise asyncio.CancelledError
        side, point = (AFTER, name.removeprefix("after:")) if name.startswith("after:") else (BEFORE, name)
        self.points[f"{side}-{point}"] += 1
        death = self.death
        if death is None or death.point != point or death.side != side:
            return
        if self.points[f"{side}-{point}"] == death.count:
            self.die()
            raise asyncio.CancelledError

    def die(self) -> None:
        """As under SIGKILL: from now on nothing of it reaches the store."""
        self.dead = True
        self.died.set()
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def bury(self) -> None:
        """Die, and wait until nothing of it runs."""
        if not self.dead:
            self.die()
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    # living

    async def start(self) -> None:
        _machine.set(self)
        self.backend.start()
        self.owning = asyncio.create_task(self._own())

    async def _own(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.owner.run()

    async def stop(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        """As on SIGTERM, in the host's order."""
        await self.backend.drain(timeout.total_seconds())
        await self.owner.stop(timeout)
        await self.backend.stop()
        await self.bury()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is left of a world when everything has ended, without times and ids.

    :param histories, states: by instance id.
    """

    histories: dict[str, list[str]]
    states: dict[str, tuple[str, str | None, str | None]]


class World:
    """A hub and its workers. An asynchronous context manager, to be used under :func:`simulate`.

    :ivar steps: that the workers have carried out, of those with several operations.
    :ivar backwards: the number of the one that is carried out last first.
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int = 2,
        place: Place = MEMORY,
        hub: str = "Simulated",
        functions: Mapping[str, Callable[..., Any]] | None = None,
        **settings: Any,
    ) -> None:
        """:param functions: activities by name, called with all arguments, as .NET's activities may be."""
        self.app, self.place, self.functions = app, place, functions or {}
        hub = f"{hub}{next(_hubs)}" if place.shared else hub
        self.settings = Settings(hub=hub, partitions=partitions, **{"lease": place.lease, "activities": 4} | settings)
        self.clock = VirtualClock()
        self.store: Store = place.open(self.clock)
        self.tape: list[Done] = []
        self.moves = Moves()
        self.machines: list[Machine] = []
        self.steps = 0
        self.backwards: int | None = None
        self.logs: list[Any] = []
        self.client: Client = None  # type: ignore[assignment]  # from __aenter__ on

    async def __aenter__(self) -> World:
        asyncio.get_running_loop().set_task_factory(_task)
        capture = LogCapture()
        self._configured = structlog.get_config()
        structlog.configure(processors=[structlog.processors.format_exc_info, capture])
        self.logs = capture.entries
        await self.store.__aenter__()
        taped = Tape(self.store, "", [], self.moves)
        self.client = await Client.over(taped, self.settings, create=True, clock=self.clock)
        return self

    async def __aexit__(self, *error: object) -> None:
        for machine in self.machines:
            await machine.bury()
        if self.place.shared and self.client is not None:
            await self.clock.sleep(app_lease.SECONDS + 1)  # the dead hold it still
            await administration.delete_hub(self.store, self.client.hub.names)
        await self.store.__aexit__(None, None, None)
        structlog.configure(**self._configured)
        assert error[0] is not None or not self.moves.strange, self.moves.strange

    async def join(self, name: str, **options: Any) -> Machine:
        """A worker starts. Two that live at the same time must not have one identity."""
        assert not [one for one in self.machines if one.name == name and not one.dead], name
        machine = Machine(self, name, **{"proves": self.place.proves} | options)
        self.machines.append(machine)
        await asyncio.get_running_loop().create_task(machine.start())
        return machine

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of nobody's machine: no death ends it."""
        return contextvars.Context().run(asyncio.get_running_loop().create_task, work)

    async def wait(self, instance_id: str, limit: timedelta = timedelta(minutes=30)) -> InstanceState:
        return await self.client.wait(instance_id, timeout=limit)

    def said(self, event: str) -> list[Any]:
        """What was logged under a name."""
        return [entry for entry in self.logs if entry["event"] == event]

    def defects(self) -> list[Any]:
        wrong = ("episode_defect", "dispatch_defect", "activity_defect", "loop_failed", "task_failed")
        return [entry for entry in self.logs if entry["event"] in wrong]

    async def queued(self) -> int:
        """Messages in the hub's queues, invisible ones included."""
        names = self.client.hub.names
        queues = [names.control(number) for number in range(self.settings.partitions)]
        lanes = await self.store.list_queues(names.lane_prefix)
        return sum([await self.store.count(queue) for queue in (*queues, names.work_items, *lanes)])

    async def settle(self, limit: timedelta = QUIET) -> None:
        """Until no queue holds anything: what is processed is deleted, duplicates included."""
        until = self.clock.monotonic() + limit.total_seconds()
        pause = 0.5
        while await self.queued():
            assert self.clock.monotonic() < until, f"messages are left after {limit}: {self.logs[-12:]}"
            await self.clock.sleep(pause)
            pause = min(10.0, pause * 1.2)

    async def ended(self) -> Ended:
        """Read everything back; nothing may be left to do, nothing in quarantine, no row may lag (K29)."""
        await self.settle()
        assert not await self.client.admin.quarantined()
        assert not self.defects(), self.defects()
        page = await self.client.list(limit=1000)
        histories, states = {}, {}
        for row in page.instances:
            full = await self.client.get(row.instance_id)
            assert full is not None
            assert full.status.is_final, f"{row.instance_id} is {row.status}"
            assert self.client.hub.container_url not in (full.input or ""), "its blob is gone"
            past = await self.client.instance(row.instance_id).history()
            histories[row.instance_id] = sorted(shape(event) for event in past if not isinstance(event, _EPISODES))
            states[row.instance_id] = (str(full.status), full.output, full.custom_status)
            await self._check_records(row.instance_id)
        return Ended(histories=histories, states=states)

    async def _check_records(self, instance_id: str) -> None:
        """Of the attempts of a recorded activity at most one ended, and it is the last."""
        by_task: dict[tuple[str | None, int], list[RecordState]] = {}
        for record in await self.client.instance(instance_id).activities():
            by_task.setdefault((record.instance.execution_id, record.task_id), []).append(record.state)
        for states in by_task.values():
            assert all(state is RecordState.LOST for state in states[:-1]), states


_EPISODES = (OrchestratorStarted, OrchestratorCompleted)
_IDS = {
    "timestamp": None,
    "taskhub_action_id": None,
    "taskhub_message_id": None,
    "taskhub_row_etag": None,
    "fire_at": None,
    "is_played": None,
    "parent_trace_context": None,
    "correlation": None,
}


def shape(event: HistoryEvent) -> str:
    """An event without times and ids, as a text to compare and to show."""
    known = {name: getattr(event, name) for name in event.__dataclass_fields__ if name not in _IDS}
    if (instance := known.get("instance")) is not None:
        known["instance"] = instance.instance_id
    if (parent := known.get("parent")) is not None:
        known["parent"] = replace(parent, instance=replace(parent.instance, execution_id=None))
    known.pop("execution_id", None)
    return f"{event.event_type.name} {known}"


def _task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
    """Tasks belong to the machine in whose context they are made, so that a death takes them all."""
    task = asyncio.Task(coro, loop=loop, **named)
    machine = _machine.get()
    if machine is not None:
        machine.tasks[task] = None
        task.add_done_callback(lambda ended: machine.tasks.pop(ended, None))
    return task


def simulate(play: Callable[[], Awaitable[Any]], *, limit: timedelta = timedelta(days=2)) -> Any:
    """Run a play in virtual time, at most ``limit`` of it. It goes the same way each time."""

    async def main() -> Any:
        return await play()

    before = random.getstate()
    random.seed(0)
    try:
        return virtual_time.run(main(), limit=limit)
    finally:
        random.setstate(before)


@dataclass(slots=True)
class Effects:
    """What user code did: counts of runs by (activity, argument)."""

    ran: Counter[tuple[str, Any]] = field(default_factory=Counter)
