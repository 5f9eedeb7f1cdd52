"""For users' tests: runs an orchestrator in memory with virtual time, so that hours of timers take milliseconds.

The code is the same as in production (client, partitions, sessions, engine, checkpoints), over a hub in memory. The
only difference: activities run in the test's process and not in executors.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack, overload

import structlog

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.activity import ActivityInfo, Attempt, entered
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import decode, dumps, loads
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.failures import chain, failure_of
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry, annotation_of
from airflow_provider_taskhub.engine.signatures import A, J
from airflow_provider_taskhub.engine.tasks import NAME
from airflow_provider_taskhub.errors import (
    ConfigurationError,
    NotFound,
    OrchestrationError,
    UnknownActivity,
    UnknownOrchestrator,
)
from airflow_provider_taskhub.hub.formats.waits_column import decode_awaits
from airflow_provider_taskhub.hub.history import waiting_calls
from airflow_provider_taskhub.hub.history.load import sentinel_of
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, Member, WorkerIdentity
from airflow_provider_taskhub.memory import MOST
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.settings import MAX_RESULT, LeaseTimes, Settings
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.workers.backend import Backend
from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome, ActivityProgress, ActivityRequest
from airflow_provider_taskhub.workers.executors.child.invocation import arguments, opened_arguments, result_text
from airflow_provider_taskhub.workers.executors.pause import Pause
from airflow_provider_taskhub.workers.orchestrations.watchdog import EpisodeInterrupter
from airflow_provider_taskhub.workers.peers import Peers

__all__ = ["Event", "Terminate", "run"]

_TIME_LIMIT = timedelta(days=3650)
_MORE = timedelta(days=1)
"""Virtual time after the limit in which the run finds out what the orchestration waits for."""
_NEAR = 0.8
"""How near a name must be to that of an activity to be a typing error, from 0 to 1."""
_DAY = 86_400.0
_SLOTS = 4
"""Activities that run at once, the same on each machine."""
_LAST = timedelta(minutes=1)
"""Longest virtual time that activities have after the end of the orchestration."""
_ALONE = LeaseTimes(
    renew=timedelta(days=1),
    give_up=timedelta(days=2),
    take=timedelta(days=3),
    scan=timedelta(days=1),
    visibility=timedelta(days=6),
)
"""Very long lease times: the only worker never dies, so no renewal is needed while an orchestration waits."""

_UNKNOWN = frozenset({UnknownActivity.__name__, UnknownOrchestrator.__name__})


class _Options(TypedDict, total=False):
    """Options of :func:`run`."""

    app: App | Iterable[App]
    activities: Mapping[str, Callable[..., Any]] | None
    events: Iterable[Event | Terminate]
    spark: Any
    limit: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An external event that is raised while the orchestration runs.

    :param name: name of the event.
    :param data: the value that the event carries; it is written as JSON.
    :param after: virtual time between the start of the run and the event.
    """

    name: str
    data: Any = None
    after: timedelta = field(default=timedelta(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """A terminate of the orchestration while it runs. Then :func:`run` raises an error with the reason as its text.

    :param reason: reason of the terminate.
    :param grace: time for the clean-up of the orchestrator; None: it ends at once.
    :param after: virtual time between the start of the run and the terminate.
    """

    reason: str = ""
    grace: timedelta | None = None
    after: timedelta = field(default=timedelta(0))


@overload
def run(
    orchestrator: Callable[[OrchestrationContext, A], Coroutine[Any, Any, J] | Generator[Any, Any, J]],
    input: A,
    **options: Unpack[_Options],
) -> J: ...
@overload
def run(orchestrator: Callable[[OrchestrationContext, A], Any], input: A, **options: Unpack[_Options]) -> Any: ...
@overload
def run(
    orchestrator: Callable[[OrchestrationContext], Coroutine[Any, Any, J] | Generator[Any, Any, J]],
    input: None = ...,
    **options: Unpack[_Options],
) -> J: ...
@overload
def run(orchestrator: Callable[[OrchestrationContext], Any], input: None = ..., **options: Unpack[_Options]) -> Any: ...
@overload
def run(orchestrator: str, input: Any = ..., **options: Unpack[_Options]) -> Any: ...


def run(
    orchestrator: Callable[..., Any] | str,
    input: Any = NO_INPUT,
    *,
    app: App | Iterable[App] = (),
    activities: Mapping[str, Callable[..., Any]] | None = None,
    events: Iterable[Event | Terminate] = (),
    spark: Any = None,
    limit: timedelta = _TIME_LIMIT,
) -> Any:
    """Run an orchestration to its end and return its result.

    :param orchestrator: the declared function, or its name in ``app``.
    :param input: the input of the orchestration; None is an input too. Without it, the orchestrator runs with the
        default of its parameter.
    :param app: the app or apps that declare orchestrators and activities. It is needed for all functions that are
        called by name.
    :param activities: replacements: for each name of an activity, the function to call instead. The function gets the
        input as the activity itself gets it, decoded to the declared type, or no argument if it has no parameter. It
        gets no Spark session, and a ``Reference`` in place of a DataFrame. None: no replacements.
    :param events: external events to raise, and terminates.
    :param spark: the Spark session for Spark activities that are not replaced; None: such an activity fails.
    :param limit: virtual time after which the run is stopped with an error.
    :raises OrchestrationError: if the orchestration failed or was terminated; the text is the failure's text. The
        error's notes are stack traces of the user's code; the last note is the stack trace of the first cause.
    :raises ConfigurationError: if the orchestrator is not declared, if ``activities`` has a name that is nearly the
        name of a declared activity, or if an event loop runs in this thread already.
    :raises RuntimeError: if the run takes more virtual time than ``limit``, or if nothing can happen any more. The text
        names the events for which the orchestration waits.

    Orchestrator code that computes for ten seconds without waiting for anything fails with an error that names its
    line. A worker would put its messages into quarantine.

    What a worker's log would tell about the code, such as a task that it never awaited, is a ``RuntimeWarning`` here.
    """
    if asyncio._get_running_loop() is not None:
        raise ConfigurationError(
            "testing.run starts an event loop, but an event loop runs here already: call it from a plain `def`, "
            "or with `await asyncio.to_thread(run, …)`"
        )
    apps = (app,) if isinstance(app, App) else tuple(app)
    registry, name = _registry(apps, orchestrator)
    replaced = dict(activities or {})
    _check_names(replaced, registry)
    runner = InProcess(registry, replaced, spark)
    told: list[str] = []
    try:
        with _quiet(told):
            return virtual_time.run(_run(runner, name, input, tuple(events), limit), limit=limit + _MORE)
    finally:
        for text in told:
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _check_names(replaced: Mapping[str, object], registry: Registry) -> None:
    """Refuse a replacement whose name is a typing error, because the activity itself would run."""
    for name in replaced:
        if not isinstance(name, str):
            raise ConfigurationError(f"activities has the key {name!r}: give the name of an activity, as a text")
        near = get_close_matches(name, registry.activities, n=1, cutoff=_NEAR)
        if name not in registry.activities and near:
            raise ConfigurationError(f"activities replaces {name!r}, which is no activity: did you mean {near[0]!r}?")


def _registry(apps: tuple[App, ...], orchestrator: Callable[..., Any] | str) -> tuple[Registry, str]:
    if isinstance(orchestrator, str):
        name = orchestrator
    else:
        name = getattr(orchestrator, NAME, orchestrator.__name__)
        if not any(name in app.orchestrators for app in apps):
            alone = App("testing")
            alone.orchestrator(name=name)(orchestrator)
            apps = (*apps, alone)
    if not any(name in app.orchestrators for app in apps):
        raise ConfigurationError(f"orchestrator {name!r} is in none of the given apps: pass app=…")
    return Registry.of(apps), name


@contextmanager
def _quiet(told: list[str]) -> Iterator[None]:
    """Switch off TaskHub's own log lines, because they would fill the output of the user's test.

    :param told: this function adds the texts of warnings about orchestrator code to the list.
    """

    def take(_: Any, method: str, entry: MutableMapping[str, Any]) -> Any:
        if method == "warning" and str(entry["event"]).startswith(f"orchestrator {entry.get('orchestrator')!r} "):
            told.append(str(entry["event"]))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[take], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


class InProcess:
    """Runs activities in the event loop of the test. It takes the place of the executor pool.

    :param registry: the declared orchestrators and activities.
    :param replaced: for each name of an activity, the function to call instead.
    :param spark: the Spark session for Spark activities that are not replaced.
    :ivar registry: the given registry, extended by the activities that only ``replaced`` has.
    """

    def __init__(self, registry: Registry, replaced: Mapping[str, Callable[..., Any]], spark: Any) -> None:
        undeclared = {
            name: ActivityDefinition(name=name, function=function)
            for name, function in replaced.items()
            if name not in registry.activities
        }
        self._undeclared = frozenset(undeclared)
        self.registry = replace(registry, activities={**registry.activities, **undeclared})
        self._replaced, self._spark = replaced, spark

    async def run(
        self,
        request: ActivityRequest,
        *,
        progress: Callable[[ActivityProgress], None] | None = None,
        pause: Pause | None = None,
    ) -> ActivityOutcome:
        recorded = request.name in self._replaced or self.registry.activity(request.name).record
        attempt = Attempt(
            info=_info(request),
            report=lambda fraction, message: None,
            recorded=recorded,
            saved=request.saved,
            save=lambda state: None,
        )
        try:
            with entered(attempt):
                value = self._call(request)
                if inspect.isawaitable(value):
                    value = await value
            definition = self.registry.activity(request.name)
            return ActivityOutcome(result=result_text(definition, value, MAX_RESULT).decode())
        except BaseException as error:  # an activity may raise any exception, and each is a failure of the activity
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the run is over, or the attempt was cancelled
            return ActivityOutcome(failure=failure_of(error))

    async def end_sessions(self, sessions: Sequence[str]) -> None:
        """Do nothing: there is no Spark Connect server, on which an attempt could leave a session."""

    def _call(self, request: ActivityRequest) -> Any:
        definition = self.registry.activity(request.name)
        replacement = self._replaced.get(request.name)
        if request.name in self._undeclared:
            return definition.function(*_values(definition.function, request.input))
        given = arguments(definition, request.input)
        if replacement is not None:
            return replacement(*_taken(replacement, definition, given))
        if not definition.spark:
            return definition.function(*given)
        if self._spark is None:
            raise ConfigurationError(
                f"activity {request.name!r} needs Spark: replace it with activities={{{request.name!r}: …}}, "
                "or pass spark=…"
            )
        return definition.function(self._spark, *opened_arguments(definition, given, self._spark))


def _info(request: ActivityRequest) -> ActivityInfo:
    return ActivityInfo(
        name=request.name,
        instance_id=request.instance.instance_id,
        execution_id=request.instance.execution_id,
        task_id=request.task_id,
        attempt=request.attempt,
        idempotency_key=request.action_id,
        tags=request.tags or {},
        trace_parent=request.trace.trace_parent if request.trace else None,
        trace_state=request.trace.trace_state if request.trace else None,
    )


def _values(function: Callable[..., Any], text: str | None) -> list[Any]:
    """Return the arguments of a function that replaces an activity which no app declares."""
    names = [*inspect.signature(function).parameters]
    values: list[Any] = loads(text) if text else []
    annotations = [annotation_of(function, name) for name in names]
    return [decode(value, annotation) for value, annotation in zip(values, annotations, strict=False)]


def _taken(replacement: Callable[..., Any], definition: ActivityDefinition, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a replacement: what the activity itself would get, as far as the replacement takes it."""
    parameters = [*inspect.signature(replacement).parameters.values()]
    if not given and definition.parameter is not None and parameters and parameters[0].default is parameters[0].empty:
        default = inspect.signature(definition.function).parameters[definition.parameter].default
        given = () if default is inspect.Parameter.empty else (default,)
    return given[: len(parameters)]


class _EndlessTenure:
    """The tenure of the hub's only partition: the worker of the test owns the partition for ever, without a lease."""

    partition, epoch, draining, failover = 0, 1, False, None

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def check(self) -> None:
        """Raise no error: this tenure never ends."""

    def drained(self) -> None:
        """Do nothing: no code waits until the partition is drained."""


async def _run(
    runner: InProcess, name: str, input: Any, events: tuple[Event | Terminate, ...], limit: timedelta
) -> Any:
    registry, clock = runner.registry, virtual_time.VirtualClock()
    settings = Settings(
        hub="Testing",
        pools=",".join(registry.pools),
        memory=MOST,
        activities=_SLOTS,
        partitions=1,
        lease=_ALONE,
        max_polling=timedelta(days=1),
        session_idle=timedelta(days=1),
    )
    me = WorkerIdentity(name="testing", host="here", incarnation="1")
    member = Member(
        worker=str(me),
        started=clock.utc_now(),
        roles=(ORCHESTRATOR, ACTIVITY),
        apps=registry.apps,
        orchestrators=tuple(registry.orchestrators),
        activities=tuple(registry.activities),
        accepts=registry.accepts,
    )

    async def members() -> tuple[Member, ...]:
        return (member,)

    async with SqliteStore(None, clock=clock) as store:
        client = await Client.over(store, settings, create=True, clock=clock)
        backend = Backend(
            hub=client.hub, registry=registry, runner=runner, me=me, settings=settings, peers=Peers(live=members)
        )
        only = _EndlessTenure(client.hub.names.control(0))
        backend.start()
        backend.taken(only)
        interrupter = EpisodeInterrupter(backend.processor.episodes, thread=threading.get_ident())
        interrupter.start()
        try:
            state = await client.start(name, _plain(registry, name, input))
            async with owned() as start:
                raising = start(_raise(client, clock, state.instance_id, events))
                ending = start(client.wait(state.instance_id, longest=_DAY))
                resting = start(_rests(client, registry, clock, state.instance_id, raising))
                what = f"still running after {limit} of virtual time"
                with suppress(TimeoutError):
                    async with asyncio.timeout(limit.total_seconds()):
                        await asyncio.wait((ending, resting), return_when=asyncio.FIRST_COMPLETED)
                if not ending.done():
                    if resting.done():
                        resting.result()
                        what = "the run never ends, because nothing can happen any more"
                    raise virtual_time.TimeLimit(f"{what}{await _waits(client, state.instance_id, events)}")
                ended = ending.result()
                await _last_activities(client, registry, clock)
        finally:
            interrupter.stop()
            await backend.drain(0.0)
            backend.lost(only, "the run is over")
            await backend.stop()
    if ended.status is not Status.COMPLETED:
        retryable = ended.failure is None or not ended.failure.is_non_retriable
        error = OrchestrationError(ended.output or f"the orchestration ended {ended.status}", retryable=retryable)
        failures = [*chain(ended.failure)]
        if _UNKNOWN.intersection(failure.error_type for failure in failures):
            error.add_note("testing.run has only the functions of the apps that it gets: pass the app with app=…")
        for failure in failures:
            if failure.stack_trace:  # the chain ends with the first cause, so people see its file and line last
                head = f"{failure.error_type}: {failure.error_message}"
                error.add_note(f"{head}\n{failure.stack_trace.rstrip()}")
        raise error
    return None if ended.output is None else loads(ended.output)


async def _waits(client: Client, instance_id: str, events: tuple[Event | Terminate, ...]) -> str:
    """Return for which events an instance waits and which other events were raised, as the rest of a sentence."""
    sentinel = await sentinel_of(client.hub.store, client.hub.names, instance_id)
    awaits = None if sentinel is None or sentinel.awaits is None else decode_awaits(sentinel.awaits)
    names = [event.name for event in awaits.events] if awaits is not None else []
    if not names:
        return ""
    awaited = {name.casefold() for name in names}
    raised = {event.name for event in events if isinstance(event, Event)}
    others = sorted(name for name in raised if name.casefold() not in awaited)
    told = f", and {', '.join(map(repr, others))} was raised" if others else ""
    return f": it waits for event {', '.join(map(repr, names))}{told}"


async def _rests(
    client: Client, registry: Registry, clock: virtual_time.VirtualClock, instance_id: str, raising: asyncio.Task[None]
) -> None:
    """Return when nothing can happen any more although the instance has not ended: all events were raised, and no
    message is left, also not that of a timer.

    :raises InputError: if an event cannot be raised.
    """
    await raising
    looks = 0
    while looks < 2:  # a look is not made in one step, so one alone may miss a message that goes to another queue
        left = await _are_left(client, registry, client.hub.names.control(0)) or await _has_ended(client, instance_id)
        looks = 0 if left else looks + 1
        await clock.sleep(_DAY if left else 0.001)


async def _has_ended(client: Client, instance_id: str) -> bool:
    state = await client.get(instance_id)
    return state is not None and state.status.is_final


async def _last_activities(client: Client, registry: Registry, clock: virtual_time.VirtualClock) -> None:
    """Let the activities run that the orchestration has started and not awaited, for at most :data:`_LAST`."""
    until = clock.monotonic() + _LAST.total_seconds()
    while clock.monotonic() < until and await _are_left(client, registry):
        await clock.sleep(1.0)


async def _are_left(client: Client, registry: Registry, *queues: str) -> bool:
    """Return whether activities have not ended, or one of these queues has messages."""
    store, names = client.hub.store, client.hub.names
    looked = [*queues, *(queue for pool in registry.pools for queue in names.pool_queues(pool))]
    of_own = (names.limited_queues(name) for name, one in registry.activities.items() if one.has_queue)
    looked += [queue for its in of_own for queue in its]

    async def waits(queue: str) -> bool:
        with suppress(NotFound):  # not made yet, so nothing is in it
            return bool(await store.count(queue))
        return False

    divided = {one.limit_name for one in registry.activities.values() if one.limit_key}
    in_rows = [await waiting_calls.in_order(store, names, limit) for limit in divided]
    return any(in_rows) or any([await waits(queue) for queue in looked])


def _plain(registry: Registry, name: str, input: Any) -> Any:
    """Return the input as plain JSON values. Only the type of the parameter says which keys are no texts."""
    if input is NO_INPUT:
        return input
    return loads(dumps(input, registry.orchestrator(name).input_annotation, what=f"input of orchestrator {name!r}"))


async def _raise(
    client: Client, clock: virtual_time.VirtualClock, instance_id: str, events: tuple[Event | Terminate, ...]
) -> None:
    began = clock.monotonic()
    for event in sorted(events, key=lambda one: one.after):
        await clock.sleep(began + event.after.total_seconds() - clock.monotonic())
        if isinstance(event, Terminate):
            await client.terminate(instance_id, event.reason, grace=event.grace)
        else:
            await client.raise_event(instance_id, event.name, event.data)
