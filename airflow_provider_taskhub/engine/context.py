"""The orchestration context: the object through which an orchestrator calls activities, waits and reads its input.

Methods have the names of DurableTask; some also have the name of Microsoft's Python SDK. The context checks and encodes
arguments. The module ``generation`` keeps the decisions, the events and the time. This module is long because of the
overloads that let type checkers check calls, and the texts of the methods, which are all public.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Never, Protocol, Unpack, overload
from uuid import UUID

from airflow_provider_taskhub.codec import Timestamp, check_annotation, decode, dumps, loads
from airflow_provider_taskhub.engine.actions import MAX_DEPTH, Action, CallSite, child_tags
from airflow_provider_taskhub.engine.awaitables import Attempts, Started, Timer
from airflow_provider_taskhub.engine.cancel_scope import CancelScope
from airflow_provider_taskhub.engine.direct_calls import original
from airflow_provider_taskhub.engine.events import EventType, ParentInstance
from airflow_provider_taskhub.engine.identity import check_instance_id, check_new_instance_id, guid
from airflow_provider_taskhub.engine.inputs import has_default
from airflow_provider_taskhub.engine.no_event_loop import user_line
from airflow_provider_taskhub.engine.references import Reference
from airflow_provider_taskhub.engine.registry import Registry, result_annotation_of
from airflow_provider_taskhub.engine.replay_safe_logger import LevelLogger, Log, LogLine, ReplaySafeLogger
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.signatures import A, CallOptions, ChildOptions, T
from airflow_provider_taskhub.engine.tasks import NAME, CancellableTask, Task, described, when_all, when_any
from airflow_provider_taskhub.engine.validation import LAST_TIME, check_column, check_event, check_tags, check_time
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.tags import FIRE_AND_FORGET

if TYPE_CHECKING:
    from airflow_provider_taskhub.engine.generation import Generation
    from airflow_provider_taskhub.engine.timeouts import Timeout


class _Defined(Protocol):
    @property
    def function(self) -> Callable[..., Any]: ...


class OrchestrationContext:
    """The object with which an orchestrator works. It gives the same values again on each replay.

    An orchestrator must get time, random values and results only from its context, because its code runs again over its
    history.
    """

    def __init__(self, generation: Generation, log: Log | None) -> None:
        self._given = generation
        self._sink = log
        self._guids = 0
        self._logger = ReplaySafeLogger(lambda: self._generation.is_muted, self._emit)

    # ---- properties of the instance, time and ids

    @property
    def _generation(self) -> Generation:
        """The generation.

        :raises OrchestrationError: the code of another orchestrator asks. What it decides would go to this instance.
        """
        self._given.check_own()
        return self._given

    @property
    def instance_id(self) -> str:
        """Id of this instance."""
        return self._generation.instance.instance_id

    @property
    def execution_id(self) -> str:
        """Execution id of this generation. It changes with each ``continue_as_new``."""
        return self._generation.instance.execution_id or ""

    @property
    def name(self) -> str:
        """Name of the orchestrator, as the start gave it."""
        return self._generation.started.name

    @property
    def version(self) -> str:
        """Version with which the instance was started; "" if it has none."""
        return self._generation.started.version or ""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags with which the instance was started, and the tags that it inherits from its parent."""
        return dict(self._generation.started.tags or {})

    @property
    def parent(self) -> ParentInstance | None:
        """The parent that started this instance as its child; None if a client started the instance."""
        return self._generation.started.parent

    @property
    def is_replaying(self) -> bool:
        """Whether the code must have no side effect: it runs again over old events, or is only closed.

        The worker closes an orchestrator, so that its ``finally`` blocks run, when it removes the orchestrator from
        memory while it waits, and when the instance is terminated.
        """
        generation = self._generation
        generation.wait_changes.polled("is_replaying", lambda: "await a task")
        return generation.is_muted

    @property
    def current_utc_datetime(self) -> datetime:
        """The orchestrator's time, in UTC. It stays the same during an episode and on replay, and never goes back."""
        generation = self._generation
        generation.wait_changes.polled(
            "current_utc_datetime", lambda: "write `await ctx.create_timer(...)` with the time for which it waits"
        )
        return generation.time.datetime()

    @property
    def logger(self) -> ReplaySafeLogger:
        """A logger that writes to the worker's log, and writes nothing while :attr:`is_replaying` is true."""
        return self._logger

    def create_replay_safe_logger(self, logger: LevelLogger) -> ReplaySafeLogger:
        """Return a logger that writes to your logger, and writes nothing while :attr:`is_replaying` is true.

        :param logger: a logger of Python's module ``logging``.
        """
        return ReplaySafeLogger(lambda: self._generation.is_muted, logger.log)

    def new_guid(self) -> UUID:
        """Return a new GUID. A replay gets the same GUID again."""
        self._guids += 1
        return guid(self._generation.instance, self._generation.time, self._guids)

    def new_uuid(self) -> str:
        """Return a new GUID as text: :meth:`new_guid` under its name in Microsoft's Python SDK."""
        return str(self.new_guid())

    # ---- decisions

    @overload
    def call_activity(
        self, activity: Callable[[A], Any], input: A, *, result_type: type[T], **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], Any], input: A, *, result_type: type[T], **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[..., Any], *, result_type: type[T], **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self,
        activity: str,
        input: Any = ...,
        *,
        result_type: type[T],
        arguments: Sequence[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> CancellableTask[T]: ...
    # a Reference is Any, so that it fits a parameter of the type DataFrame, where it is opened
    @overload
    def call_activity(
        self, activity: Callable[[A], Reference], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[Any]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], Reference], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[Any]: ...
    @overload
    def call_activity(
        self, activity: Callable[..., Reference], **options: Unpack[CallOptions]
    ) -> CancellableTask[Any]: ...
    @overload
    def call_activity(
        self, activity: Callable[[A], Coroutine[Any, Any, T]], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[[A], T], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], Coroutine[Any, Any, T]], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], T], input: A, **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self, activity: Callable[..., Coroutine[Any, Any, T]], **options: Unpack[CallOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_activity(self, activity: Callable[..., T], **options: Unpack[CallOptions]) -> CancellableTask[T]: ...
    @overload
    def call_activity(
        self,
        activity: Callable[..., Any] | str,
        *,
        arguments: Sequence[Any] | None = None,
        result_type: Any = None,
        **options: Unpack[CallOptions],
    ) -> CancellableTask[Any]: ...
    @overload
    def call_activity(
        self, activity: str, input: Any, *, result_type: Any = None, **options: Unpack[CallOptions]
    ) -> CancellableTask[Any]: ...

    def call_activity(
        self,
        activity: Callable[..., Any] | str,
        input: Any = NO_INPUT,
        *,
        arguments: Sequence[Any] | None = None,
        result_type: Any = None,
        retry: RetryPolicy | None = None,
        retry_policy: RetryPolicy | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> CancellableTask[Any]:
        """Run an activity on a worker. Awaiting the returned task gives the activity's result.

        The result has the type that the function declares (``-> Totals``), if JSON values can be decoded to it; else it
        is a plain JSON value. If the activity has failed and no retry is left, awaiting the task raises
        :class:`TaskFailedError`. If the result does not fit its type, awaiting the task raises :class:`InputError`.

        :param activity: the declared function, or its name.
        :param input: the one argument of the activity; None is an argument too. Without it, the activity runs with the
            default of its parameter. The worker adds the session of a Spark activity.
        :param arguments: several arguments instead of ``input``, for an activity of another system such as .NET.
            None: ``input`` is the only argument.
        :param result_type: type to which the result is decoded, such as a dataclass; None: the type that the function
            declares. Give it for an activity whose function no app of this worker declares.
        :param retry: retry policy of this call; None: the retry policy that the activity declares.
        :param retry_policy: the name of ``retry`` in Microsoft's Python SDK.
        :param version: version that the message carries, for workers of other systems that choose the code by version.
            TaskHub's workers choose an activity only by its name.
        :param tags: texts by name; None: no tags. The activity reads the tags with ``activity_info().tags``.
        :raises InputError: JSON cannot express the input; there is no input, and the function has no default for it; no
            value can be decoded to ``result_type``; the function is not declared; or the version or the tags cannot be
            stored.
        """
        name = _name(activity, "call_activity", self._generation.registry)
        check_column(version, f"version of activity {name[:40]!r}")
        if tags:
            check_tags(tags, f"activity {name[:40]!r}", spilled=True)
        definition = self._generation.registry.activities.get(name)
        function = _function(activity, definition)
        result_type = _result_type(result_type, function, f"activity {name!r}")
        if arguments is not None:
            text = dumps(list(arguments), what=f"input of activity {name!r}")
        elif input is NO_INPUT:
            parameter = None if definition is None else definition.parameter
            if definition is not None and parameter is not None and not has_default(definition.function, parameter):
                raise InputError(
                    f"activity {name!r} needs an input: its parameter {parameter!r} has no default. "
                    f"Write ctx.call_activity({name}, …)"
                )
            text = "[]"
        else:
            annotation = None if definition is None else definition.input_annotation
            text = f"[{dumps(input, annotation, what=f'input of activity {name!r}')}]"
        action = Action(
            kind=EventType.TaskScheduled,
            role="activity",
            where=CallSite.of(sys._getframe(1)),
            name=name,
            version=version,
            input=text,
            tags=dict(tags) if tags else None,
        )
        policy = _policy(retry, retry_policy, f"activity {name!r}") or (definition.retry if definition else None)
        return Attempts(self._generation, action, policy, result_type)

    @overload
    def call_sub_orchestrator(
        self,
        orchestrator: Callable[[OrchestrationContext, A], Any],
        input: A,
        *,
        result_type: type[T],
        **options: Unpack[ChildOptions],
    ) -> CancellableTask[T]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: Callable[..., Any], *, result_type: type[T], **options: Unpack[ChildOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: str, input: Any = ..., *, result_type: type[T], **options: Unpack[ChildOptions]
    ) -> CancellableTask[T]: ...
    @overload
    def call_sub_orchestrator(
        self,
        orchestrator: Callable[[OrchestrationContext, A], Coroutine[Any, Any, T] | Generator[Any, Any, T]],
        input: A,
        **options: Unpack[ChildOptions],
    ) -> CancellableTask[T]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: Callable[[OrchestrationContext, A], Any], input: A, **options: Unpack[ChildOptions]
    ) -> CancellableTask[Any]: ...
    @overload
    def call_sub_orchestrator(
        self,
        orchestrator: Callable[..., Coroutine[Any, Any, T] | Generator[Any, Any, T]],
        **options: Unpack[ChildOptions],
    ) -> CancellableTask[T]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: Callable[..., Any] | str, *, result_type: Any = None, **options: Unpack[ChildOptions]
    ) -> CancellableTask[Any]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: str, input: Any, *, result_type: Any = None, **options: Unpack[ChildOptions]
    ) -> CancellableTask[Any]: ...

    def call_sub_orchestrator(
        self,
        orchestrator: Callable[..., Any] | str,
        input: Any = NO_INPUT,
        *,
        result_type: Any = None,
        instance_id: str | None = None,
        retry: RetryPolicy | None = None,
        retry_policy: RetryPolicy | None = None,
        version: str | None = None,
        tags: Mapping[str, str] | None = None,
        fire_and_forget: bool = False,
    ) -> CancellableTask[Any]:
        """Start a child orchestration. Awaiting the returned task gives the child's result.

        The result has the type that the function declares, as for :meth:`call_activity`. If the child has failed and no
        retry is left, awaiting the task raises :class:`SubOrchestrationFailedError`.

        :param orchestrator: the declared function, or its name.
        :param input: the one input of the child; None is an input too. Without it, the child runs with the default of
            its parameter.
        :param result_type: type to which the result is decoded, such as a dataclass; None: the type that the function
            declares. Give it for an orchestrator whose function no app of this worker declares.
        :param instance_id: instance id of the child; None: ``{execution id of this instance}:{action number}``.
        :param retry: retry policy of this call; None: a failed child is not started again.
        :param retry_policy: the name of ``retry`` in Microsoft's Python SDK.
        :param version: version of the child; None: the version that the orchestrator's app declares.
        :param tags: texts by name, which are added to the tags that the child inherits; None: no tags are added.
        :param fire_and_forget: whether the parent does not wait for the child. The returned task is then complete at
            once, with the result None.
        :raises InputError: JSON cannot express the input; no value can be decoded to ``result_type``; the instance id
            is not valid, or is the id of this instance; the version, or all tags of the child together, cannot be
            stored; or :data:`MAX_DEPTH` ancestors wait for this instance.
        """
        name = _name(orchestrator, "call_sub_orchestrator", self._generation.registry)
        if not fire_and_forget and (self._generation.started.taskhub_depth or 0) >= MAX_DEPTH:
            raise InputError(
                f"call_sub_orchestrator: {MAX_DEPTH} instances wait for this one, each for its child: "
                f"does {name!r} call itself without an end? For a loop use ctx.continue_as_new"
            )
        # A start message waits until the running instance of its id has ended. If the child had the parent's id, parent
        # and child would wait for each other and never end.
        if instance_id is not None and instance_id == self.instance_id:
            raise InputError(f"call_sub_orchestrator: {instance_id!r} is the caller's own id: give the child another")
        definition = self._generation.registry.orchestrators.get(name)
        result_type = _result_type(result_type, _function(orchestrator, definition), f"orchestrator {name!r}")
        annotation = None if definition is None else definition.input_annotation
        version = version if version is not None else definition.version if definition else ""
        check_column(version, f"version of orchestrator {name[:40]!r}")
        own = dict(tags or {})
        if fire_and_forget:
            own[FIRE_AND_FORGET] = "true"
        if own:
            check_tags(child_tags(own, self._generation.started.tags) or {}, f"orchestrator {name[:40]!r}")
        action = Action(
            kind=EventType.SubOrchestrationInstanceCreated,
            role="child",
            where=CallSite.of(sys._getframe(1)),
            name=name,
            version=version,
            input=None if input is NO_INPUT else dumps(input, annotation, what=f"input of orchestrator {name!r}"),
            tags=own or None,
            instance_id=None if instance_id is None else check_new_instance_id(instance_id),
        )
        if FIRE_AND_FORGET not in own:
            policy = _policy(retry, retry_policy, f"orchestrator {name!r}")
            return Attempts(self._generation, action, policy, result_type)
        self._generation.schedule(action, None)
        return Started(self._generation.wait_changes)

    def create_timer(self, fire_at: timedelta | datetime) -> CancellableTask[None]:
        """Make a timer. Awaiting the returned task waits until the timer fires. A timer never fires early.

        :param fire_at: a duration from the orchestrator's current time, or a time. A time without a zone is UTC.
        :raises InputError: the time is before the year 1601, which no row can hold.
        :raises TypeError: ``fire_at`` is neither a timedelta nor a datetime.
        """
        return Timer(self._generation, self._time(fire_at, "create_timer"), CallSite.of(sys._getframe(1)))

    def branch(self, coroutine: Coroutine[Any, Any, T] | Generator[Any, Any, T]) -> CancellableTask[T]:
        """Run a coroutine of several steps beside the code that follows. Awaiting the returned task gives its result.

        Use it like ``asyncio.create_task``. The code of the branch runs at once, up to its first await. Give the task
        to :meth:`when_all` or :meth:`when_any`, or await it. If the branch raises an error, awaiting the task raises
        the same error. ``cancel()`` of the task raises ``asyncio.CancelledError`` at the await of the branch, where
        the branch can clean up; awaiting the task then raises :class:`TaskFailedError`.

        A branch that the orchestrator does not await goes on. When the orchestrator ends before the branch, the rest of
        the branch does not run, and a warning in the worker's log names the branch.

        :param coroutine: the call of a coroutine function, such as ``load(ctx, "a")``, or of a generator function. It
            can await tasks of this context, start branches and use :meth:`timeout`.
        :raises TypeError: the argument is not the call of a coroutine function or generator function.
        :raises InputError: the coroutine was already begun or awaited.
        """
        if not isinstance(coroutine, CoroutineType | GeneratorType):
            raise TypeError(_not_a_coroutine(coroutine))
        name = coroutine.__name__
        begun = (
            inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
            if isinstance(coroutine, CoroutineType)
            else inspect.getgeneratorstate(coroutine) != inspect.GEN_CREATED
        )
        if begun:
            raise InputError(f"branch: the coroutine {name!r} was begun before: call the function again")
        return self._generation.branch(coroutine, name, CallSite.of(sys._getframe(1)))

    def timeout(self, delay: float | timedelta | datetime | None) -> Timeout:
        """Limit how long a block of code waits. Use it like ``asyncio.timeout``, with ``async with``.

        When the time is over, the await at which the block waits is interrupted, and the end of the block raises
        ``TimeoutError``. The limit is a durable timer, which is cancelled when the block ends. Limits can be nested. A
        limit holds only for the branch that has entered the block.

        What was awaited is left behind: an external event goes to the next wait of its name, and a branch is
        cancelled if no other code waits for it. Activities and children go on, and can be awaited again later.

        In a generator function, write ``with ctx.timeout(...)``.

        :param delay: seconds from the orchestrator's current time, or a timedelta, or a time; None: no limit. A time
            without a zone is UTC.
        :raises InputError: the time is before the year 1601, or the seconds are not a finite number.
        :raises TypeError: ``delay`` is of another type.
        """
        where = CallSite.of(sys._getframe(1))
        if delay is None:
            return self._generation.limit(None, "None", where)
        shown = str(delay) if isinstance(delay, timedelta | datetime) else repr(delay)
        given: Any = delay
        if isinstance(delay, int | float) and not isinstance(delay, bool):
            try:
                given = timedelta(seconds=delay)
            except (OverflowError, ValueError):
                raise InputError(f"timeout: {shown} is no number of seconds; for no limit, give None") from None
        return self._generation.limit(self._time(given, "timeout"), shown, where)

    def cancel_scope(self) -> CancelScope:
        """Cancel, at the end of a block, what the block has started and has not finished. Use it with ``async with``.

        Activities, children, timers, waits for events and branches are cancelled, whether the block ends normally, with
        an error or with a limit of :meth:`timeout` around it. The block then waits until no attempt of its activities
        runs any more, on any worker, and its children have ended in the same way. What has finished keeps its result.
        Blocks can be nested: a task belongs to the innermost one.
        """
        return self._generation.scope(CallSite.of(sys._getframe(1)))

    @overload
    def wait_for_external_event(self, name: str, data_type: type[T]) -> CancellableTask[T]: ...
    @overload
    def wait_for_external_event(self, name: str, data_type: Any = None) -> CancellableTask[Any]: ...

    def wait_for_external_event(self, name: str, data_type: Any = None) -> CancellableTask[Any]:
        """Wait for an external event. Awaiting the returned task gives the event's data.

        An event that came before this call counts too, if no earlier wait has taken it. A wait that lost in
        ``when_any`` takes no event, unless the code comes back to it. If the data do not fit ``data_type``, awaiting
        the task raises :class:`InputError`.

        The orchestrator gets the events that came before its start, and those that ``continue_as_new`` carries over, at
        its first await. Until then ``is_complete`` of their waits is False: in a loop of ``continue_as_new``, await a
        timer or an activity first and ask then.

        :param name: name of the event; upper and lower case are the same.
        :param data_type: type to which the data are decoded, such as a dataclass; None: plain JSON.
        :raises InputError: the name cannot be stored, or no value can be decoded to ``data_type``.
        """
        check_event(name, "wait_for_external_event")
        if data_type is not None:
            what = f"data_type of event {name!r}"
            if isinstance(data_type, timedelta | int | float):
                raise InputError(f"{what} is {data_type!r}, which is no type; for a limit of the wait, use ctx.timeout")
            check_annotation(data_type, what=what)
        return self._generation.wait(name, data_type, CallSite.of(sys._getframe(1)))

    def send_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Send an external event to another instance, without waiting for its arrival.

        :param instance_id: instance id of the receiver.
        :param name: name of the event.
        :param data: one value that JSON can express.
        :raises InputError: JSON cannot express the data, or the name or the instance id cannot be stored.
        """
        check_event(name, "send_event")
        self._generation.schedule(
            Action(
                kind=EventType.EventSent,
                role="event",
                where=CallSite.of(sys._getframe(1)),
                name=name,
                input=dumps(data, what=f"data of event {name!r}"),
                instance_id=check_instance_id(instance_id),
            ),
            None,
        )

    def continue_as_new(self, new_input: Any = NO_INPUT, *, save_events: bool = True) -> None:
        """Start the orchestrator again with a new input and an empty history, when the orchestrator returns.

        Until it returns, its waits still get events. If it has cancelled activities, the new start waits for their end.

        :param new_input: the new input: one value that JSON can express; None is an input too. Without it, the
            orchestrator runs with the default of its parameter.
        :param save_events: whether external events that came before this call, and that no wait has taken, are kept for
            the time after the new start. Events that come after this call are kept in any case.
        """
        what, annotation = f"input of orchestrator {self.name!r}", self._generation.definition.input_annotation
        text = None if new_input is NO_INPUT else dumps(new_input, annotation, what=what)
        self._generation.continue_as_new(text, keep_events=save_events)

    def set_custom_status(self, status: Any) -> None:
        """Set the custom status of this instance, which clients and the page show.

        :param status: one value that JSON can express; None: no custom status.
        """
        text = None if status is None else dumps(status, what="custom status")
        self._generation.set_custom_status(text)

    def when_all(self, tasks: Iterable[Task[T]], *more: Never) -> Task[list[T]]:
        """Return a task that gives the results of all tasks, in their order. It fails as soon as one task fails.

        :param tasks: tasks that this context made. If there are no tasks, the returned task is complete at once.
        :param more: nothing: all tasks are in one list.
        :raises TypeError: an element is not a task.
        """
        if more:
            raise TypeError("when_all takes one list of tasks: write when_all([one, other])")
        return when_all(tasks)

    def when_any(self, tasks: Iterable[Task[T]], *more: Never) -> Task[Task[T]]:
        """Return a task that gives the first task which completes or fails.

        Awaiting the returned task never raises the error of the first task. Await the first task, or call its
        ``get_result()``, for its result or error.

        :param tasks: tasks that this context made; at least one.
        :param more: nothing: all tasks are in one list.
        :raises TypeError: an element is not a task.
        :raises ValueError: there are no tasks, so the returned task could never complete.
        """
        if more:
            raise TypeError("when_any takes one list of tasks: write when_any([one, other])")
        return when_any(tasks)

    @overload
    def get_input(self, annotation: type[T]) -> T: ...
    @overload
    def get_input(self, annotation: Any = None) -> Any: ...

    def get_input(self, annotation: Any = None) -> Any:
        """Return the input of this instance, as in Microsoft's Python SDK.

        :param annotation: type to which the input is decoded, such as a dataclass; None: plain JSON.
        :raises InputError: the input does not fit the type.
        """
        self._generation.input_is_read = True
        text = self._generation.started.input
        return decode(None if text is None else loads(text), annotation, what=f"input of orchestrator {self.name!r}")

    def _time(self, given: timedelta | datetime, what: str) -> Timestamp:
        if isinstance(given, timedelta):
            at = self._generation.time + given
        elif isinstance(given, datetime):
            at = Timestamp.from_datetime(given)
        else:
            seconds = "seconds, " if what == "timeout" else ""
            raise TypeError(f"{what} takes {seconds}a timedelta or a datetime, not {type(given).__name__} {given!r}")
        # A time after LAST_TIME is accepted: a long timer is stored in parts of six days, so no row holds its end.
        check_time(min(at, LAST_TIME), f"{what}: {given}")
        return at

    def _emit(self, level: int, message: object, *args: object, exc_info: Any = None, **_: Any) -> None:
        if self._sink is None:
            return
        text = str(message)
        if args:
            try:
                text = text % args
            except (TypeError, ValueError):
                text = f"{text} {args!r}"
        error = sys.exc_info()[1] if exc_info is True else exc_info
        if isinstance(error, BaseException):
            text += "\n" + "".join(traceback.format_exception(error)).rstrip()
        self._sink(
            LogLine(
                level=level,
                message=text,
                instance_id=self.instance_id,
                orchestrator=self.name,
                time=self._generation.time,
            )
        )


def _not_a_coroutine(given: object) -> str:
    found = f"branch takes a coroutine, not {described(given)}: "
    if isinstance(given, Task):
        return f"{found}a task runs already, so give it to when_all or when_any"
    if callable(given):
        return f"{found}call the function, as in ctx.branch(load(ctx))"
    return f"{found}give it the call of an `async def` function, as in ctx.branch(load(ctx))"


def _function(declared: Callable[..., Any] | str, definition: _Defined | None) -> Callable[..., Any] | None:
    """Return the function of an activity or child; None: only its name is known."""
    if not isinstance(declared, str):
        return declared
    return None if definition is None else definition.function


def _result_type(given: Any, function: Callable[..., Any] | None, what: str) -> Any:
    if given is None:
        return None if function is None else result_annotation_of(function)
    check_annotation(given, what=f"result_type of {what}")
    return given


def _policy(retry: RetryPolicy | None, other: RetryPolicy | None, what: str) -> RetryPolicy | None:
    for given in (retry, other):
        if given is not None and not isinstance(given, RetryPolicy):
            raise InputError(f"retry of {what} is {given!r}; give a RetryPolicy, e.g. RetryPolicy(max_attempts=3)")
    return retry or other


def _name(declared: Callable[..., Any] | str, what: str, registry: Registry) -> str:
    """Return the name of an activity or orchestrator.

    :param what: the method that was called.
    :raises InputError: the function is not declared, or is declared as the other one of the two; or the name cannot be
        stored.
    """
    name: Any = declared
    if not isinstance(declared, str):
        name = getattr(declared, NAME, None) or getattr(declared, "__name__", "")
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: {declared!r} is neither a name nor a declared function")
    if not isinstance(declared, str):
        kind, other, other_call = "activity", "orchestrator", "call_sub_orchestrator"
        known: Mapping[str, Any] = registry.activities
        others: Mapping[str, Any] = registry.orchestrators
        if what != "call_activity":
            kind, other, other_call, known, others = other, kind, "call_activity", others, known
        if not hasattr(declared, NAME):
            where = user_line() or "an unknown line"
            raise InputError(
                f"{what}: function {name!r} is not declared (at {where}): put @app.{kind} on it. If it is declared and "
                "another decorator stands above, that one must use functools.wraps"
            )
        inner = original(getattr(original(declared), "__wrapped__", None))
        if getattr(inner, NAME, None) == name and getattr(known.get(name), "function", declared) is inner:
            raise InputError(
                f"{what}: {name!r} is a decorator's wrapper around the declared function, which would run without it: "
                f"put @app.{kind} above the decorator"
            )
        if name not in known and name in others:
            raise InputError(f"{what}: {name!r} is an {other}: use ctx.{other_call}")
    check_column(name, f"{what}: the name {name[:40]!r}…")
    return name
