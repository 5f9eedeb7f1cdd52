"""What an orchestrator sees: DurableTask's context by DurableTask's names, and Microsoft's Python names beside them.

Owns the reading of arguments. Decisions, events and time are the generation's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, Unpack, overload
from uuid import UUID

from airflow_provider_taskhub.codec import Timestamp, decode, dumps, loads
from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET, Action, CallSite, child_tags
from airflow_provider_taskhub.engine.awaitables import Attempts, Timer
from airflow_provider_taskhub.engine.events import EventType, ParentInstance
from airflow_provider_taskhub.engine.identity import check_instance_id, check_new_instance_id, guid
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.signatures import A, CallOptions, ChildOptions, J, T
from airflow_provider_taskhub.engine.tasks import NAME, CancellableTask, Task, when_all, when_any
from airflow_provider_taskhub.engine.validation import LAST_TIME, check_column, check_event, check_tags, check_time
from airflow_provider_taskhub.errors import InputError

if TYPE_CHECKING:
    from airflow_provider_taskhub.engine.generation import Generation


class _Missing:
    def __repr__(self) -> str:
        return "(none)"


_NONE: Any = _Missing()
"""No input was given, which is not the same as None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What an orchestrator logs, once and not again on replay.

    :param level: ``logging``'s number. :param time: the orchestrator's.
    """

    level: int
    message: str
    instance_id: str
    orchestrator: str
    time: Timestamp


Log = Callable[[LogLine], None]
"""Where log lines go; the worker injects it."""


class _Levels(Protocol):
    """The part of ``logging.Logger`` that a replay-safe logger needs."""

    def log(self, level: int, msg: object, /, *args: object, **kwargs: Any) -> None: ...


class ReplaySafeLogger:
    """Logs only what happens for the first time: on replay it says nothing."""

    __slots__ = ("_is_replaying", "_log")

    def __init__(self, is_replaying: Callable[[], bool], log: Callable[..., None]) -> None:
        self._is_replaying = is_replaying
        self._log = log

    def log(self, level: int, message: object, *args: object, **kwargs: Any) -> None:
        if not self._is_replaying():
            self._log(level, message, *args, **kwargs)

    def debug(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(10, message, *args, **kwargs)

    def info(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(20, message, *args, **kwargs)

    def warning(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(30, message, *args, **kwargs)

    def error(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(40, message, *args, **kwargs)


class OrchestrationContext:
    """What an orchestrator works with. Everything here gives the same on replay.

    An orchestrator must read time, random values and results only from here: its code runs again over its history.
    """

    def __init__(self, generation: Generation, log: Log | None) -> None:
        self._generation = generation
        self._sink = log
        self._guids = 0
        self._logger = ReplaySafeLogger(lambda: self.is_replaying, self._emit)

    # ---- who and when

    @property
    def instance_id(self) -> str:
        """Id of this instance."""
        return self._generation.instance.instance_id

    @property
    def execution_id(self) -> str:
        """Id of this generation: it changes with every ``continue_as_new``."""
        return self._generation.instance.execution_id or ""

    @property
    def name(self) -> str:
        """Name of the orchestrator, as it was started."""
        return self._generation.started.name

    @property
    def version(self) -> str:
        """Version that the instance was started with; "" if it has none."""
        return self._generation.started.version or ""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags that the instance was started with, and those that it inherits from its parent."""
        return dict(self._generation.started.tags or {})

    @property
    def parent(self) -> ParentInstance | None:
        """The instance that started this one as its child; None if a client started it."""
        return self._generation.started.parent

    @property
    def is_replaying(self) -> bool:
        """Whether the code repeats what it has decided before. Do effects of your own only if it is False."""
        return self._generation.replaying

    @property
    def current_utc_datetime(self) -> datetime:
        """The orchestrator's time, in UTC. It is the same on replay, moves with each episode and never goes back."""
        return self._generation.time.datetime()

    @property
    def logger(self) -> ReplaySafeLogger:
        """A logger to the worker's log that says nothing on replay."""
        return self._logger

    def create_replay_safe_logger(self, logger: _Levels) -> ReplaySafeLogger:
        """A logger that writes to yours, and says nothing on replay. :param logger: of the module ``logging``."""
        return ReplaySafeLogger(lambda: self.is_replaying, logger.log)

    def new_guid(self) -> UUID:
        """A GUID that is the same on replay."""
        self._guids += 1
        return guid(self._generation.instance, self._generation.time, self._guids)

    def new_uuid(self) -> str:
        """:meth:`new_guid` as text, as in Microsoft's Python SDK."""
        return str(self.new_guid())

    # ---- decisions

    @overload
    def call_activity(
        self, activity: Callable[[A], Coroutine[Any, Any, J]], input: A, **options: Unpack[CallOptions]
    ) -> Task[J]: ...
    @overload
    def call_activity(self, activity: Callable[[A], J], input: A, **options: Unpack[CallOptions]) -> Task[J]: ...
    @overload
    def call_activity(self, activity: Callable[[A], Any], input: A, **options: Unpack[CallOptions]) -> Task[Any]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], Coroutine[Any, Any, J]], input: A, **options: Unpack[CallOptions]
    ) -> Task[J]: ...
    @overload
    def call_activity(self, activity: Callable[[Any, A], J], input: A, **options: Unpack[CallOptions]) -> Task[J]: ...
    @overload
    def call_activity(
        self, activity: Callable[[Any, A], Any], input: A, **options: Unpack[CallOptions]
    ) -> Task[Any]: ...
    @overload
    def call_activity(
        self, activity: Callable[..., Coroutine[Any, Any, J]], **options: Unpack[CallOptions]
    ) -> Task[J]: ...
    @overload
    def call_activity(self, activity: Callable[..., J], **options: Unpack[CallOptions]) -> Task[J]: ...
    @overload
    def call_activity(
        self,
        activity: Callable[..., Any] | str,
        *,
        arguments: Sequence[Any] | None = None,
        **options: Unpack[CallOptions],
    ) -> Task[Any]: ...
    @overload
    def call_activity(self, activity: str, input: Any, **options: Unpack[CallOptions]) -> Task[Any]: ...

    def call_activity(
        self,
        activity: Callable[..., Any] | str,
        input: Any = _NONE,
        *,
        arguments: Sequence[Any] | None = None,
        retry: RetryPolicy | None = None,
        retry_policy: RetryPolicy | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Task[Any]:
        """Run an activity on some worker. Awaiting the task gives the activity's result.

        The result comes back as JSON keeps it: a dataclass comes back as a dict. An activity that failed (after its
        retries) raises :class:`TaskFailedError` where its task is awaited.

        :param activity: the declared function, or its name.
        :param input: the activity's one argument. A Spark activity gets the session by itself.
        :param arguments: instead of ``input``, the arguments of an activity of another system that takes several.
        :param retry: when a failed activity is tried again; None: as the activity declares it.
        :param retry_policy: the name of ``retry`` in Microsoft's Python SDK.
        :param version: sent with the call, for workers of other systems that choose the code by it. TaskHub's workers
            choose an activity by its name alone.
        :param tags: texts by name, which the activity reads with ``activity_info().tags``.
        :raises InputError: for an input that JSON cannot express, or a version or tags that cannot be stored.
        """
        name = _name(activity, "call_activity")
        check_column(version, f"version of activity {name[:40]!r}")
        if tags:
            check_tags(tags, f"activity {name[:40]!r}", spilled=True)
        definition = self._generation.registry.activities.get(name)
        if arguments is not None:
            given = list(arguments)
        elif input is _NONE and definition is not None and not definition.takes_input:
            given = []
        else:
            given = [None if input is _NONE else input]
        action = Action(
            kind=EventType.TaskScheduled,
            role="activity",
            where=CallSite.of(sys._getframe(1)),
            name=name,
            version=version,
            input=dumps(given, what=f"input of activity {name!r}"),
            tags=dict(tags) if tags else None,
        )
        policy = retry or retry_policy or (definition.retry if definition else None)
        return Attempts(self._generation, action, policy)

    @overload
    def call_sub_orchestrator(
        self,
        orchestrator: Callable[[OrchestrationContext, A], Coroutine[Any, Any, J] | Generator[Any, Any, J]],
        input: A,
        **options: Unpack[ChildOptions],
    ) -> Task[J]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: Callable[[OrchestrationContext, A], Any], input: A, **options: Unpack[ChildOptions]
    ) -> Task[Any]: ...
    @overload
    def call_sub_orchestrator(
        self,
        orchestrator: Callable[..., Coroutine[Any, Any, J] | Generator[Any, Any, J]],
        **options: Unpack[ChildOptions],
    ) -> Task[J]: ...
    @overload
    def call_sub_orchestrator(
        self, orchestrator: Callable[..., Any] | str, **options: Unpack[ChildOptions]
    ) -> Task[Any]: ...
    @overload
    def call_sub_orchestrator(self, orchestrator: str, input: Any, **options: Unpack[ChildOptions]) -> Task[Any]: ...

    def call_sub_orchestrator(
        self,
        orchestrator: Callable[..., Any] | str,
        input: Any = _NONE,
        *,
        instance_id: str | None = None,
        retry: RetryPolicy | None = None,
        retry_policy: RetryPolicy | None = None,
        version: str | None = None,
        tags: Mapping[str, str] | None = None,
        fire_and_forget: bool = False,
    ) -> Task[Any]:
        """Start a child orchestration. Awaiting the task gives the child's result.

        A child that failed (after its retries) raises :class:`SubOrchestrationFailedError` where its task is awaited.

        :param orchestrator: the declared function, or its name. :param input: the child's one input.
        :param instance_id: of the child; None: ``{own execution id}:{action number}``.
        :param retry: when a failed child is started again; None: never.
        :param retry_policy: the name of ``retry`` in Microsoft's Python SDK.
        :param version: of the child; None: the version that its app declares.
        :param tags: texts by name, added to the tags that the child inherits.
        :param fire_and_forget: do not wait for the child: the task is complete at once, with None.
        :raises InputError: for an input that JSON cannot express, an instance id that cannot be one or is its own, or
            a version or tags (its own and those it inherits, together) that no row can hold.
        """
        name = _name(orchestrator, "call_sub_orchestrator")
        if instance_id is not None and instance_id == self.instance_id:  # its start would wait for its parent's end
            raise InputError(f"call_sub_orchestrator: {instance_id!r} is the caller's own id: give the child another")
        definition = self._generation.registry.orchestrators.get(name)
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
            input=None if input is _NONE else dumps(input, what=f"input of orchestrator {name!r}"),
            tags=own or None,
            instance_id=None if instance_id is None else check_new_instance_id(instance_id),
        )
        if FIRE_AND_FORGET not in own:
            return Attempts(self._generation, action, retry or retry_policy)
        self._generation.schedule(action, None)
        done: Task[Any] = Task()
        done.complete(None)
        return done

    def create_timer(self, fire_at: timedelta | datetime) -> CancellableTask[None]:
        """A timer. It never fires early.

        :param fire_at: a duration from the orchestrator's time, or a time. A time without a zone is UTC.
        :raises InputError: for a time before 1601, which no row can hold.
        """
        generation = self._generation
        if isinstance(fire_at, timedelta):
            at = generation.time + fire_at
        elif isinstance(fire_at, datetime):
            at = Timestamp.from_datetime(fire_at)
        else:
            raise TypeError(f"create_timer takes a timedelta or a datetime, not {type(fire_at).__name__} {fire_at!r}")
        check_time(min(at, LAST_TIME), f"create_timer: {fire_at}")  # the stretches to a later one never come so far
        return Timer(generation, at, CallSite.of(sys._getframe(1)))

    @overload
    def wait_for_external_event(self, name: str, data_type: type[T]) -> CancellableTask[T]: ...
    @overload
    def wait_for_external_event(self, name: str, data_type: Any = None) -> CancellableTask[Any]: ...

    def wait_for_external_event(self, name: str, data_type: Any = None) -> CancellableTask[Any]:
        """The data of the next event of this name. An event that came before is taken, too.

        Data that does not fit ``data_type`` raises :class:`InputError` where the task is awaited.

        :param name: of the event; upper and lower case do not count.
        :param data_type: the type to decode the data to, such as a dataclass; None: as JSON has it.
        :raises InputError: for a name that cannot be stored.
        """
        check_event(name, "wait_for_external_event")
        return self._generation.wait(name, data_type)

    def send_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Raise an event in another instance, without waiting until it arrives.

        :param instance_id: of the other instance. :param name: of the event. :param data: one value.
        :raises InputError: for data that JSON cannot express, or a name or an instance id that no store takes.
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

    def continue_as_new(self, new_input: Any = None, *, save_events: bool = True) -> None:
        """Begin again with another input and an empty history, once the orchestrator returns.

        :param new_input: of the next generation; one value.
        :param save_events: events that nobody waited for go over to the new generation.
        """
        text = dumps(new_input, what=f"input of orchestrator {self.name!r}")
        self._generation.continue_as_new(text, keep_events=save_events)

    def set_custom_status(self, status: Any) -> None:
        """Set what monitors show of this instance. :param status: one value that JSON can express; None: nothing."""
        text = None if status is None else dumps(status, what="custom status")
        self._generation.custom_status = text

    def when_all(self, tasks: Iterable[Task[T]]) -> Task[list[T]]:
        """A task for the results of all tasks, in their order. It fails as soon as one of them fails.

        :param tasks: made by this context. :raises TypeError: for anything that is not a task.
        """
        return when_all(tasks)

    def when_any(self, tasks: Iterable[Task[T]]) -> Task[Task[T]]:
        """A task for the first task that completes or fails: awaiting it gives that task, and raises no error of it.

        :param tasks: made by this context; at least one. :raises TypeError: for anything that is not a task.
        :raises ValueError: for no task, which could never complete.
        """
        return when_any(tasks)

    @overload
    def get_input(self, annotation: type[T]) -> T: ...
    @overload
    def get_input(self, annotation: Any = None) -> Any: ...

    def get_input(self, annotation: Any = None) -> Any:
        """The orchestration's input, as in Microsoft's Python SDK.

        :param annotation: the type to decode the input to, such as a dataclass; None: as JSON has it.
        :raises InputError: for an input that does not fit the type.
        """
        self._generation.input_is_read = True
        text = self._generation.started.input
        return decode(None if text is None else loads(text), annotation, what=f"input of orchestrator {self.name!r}")

    def _emit(self, level: int, message: object, *args: object, **_: Any) -> None:
        if self._sink is None:
            return
        text = str(message)
        if args:
            try:
                text = text % args
            except (TypeError, ValueError):
                text = f"{text} {args!r}"
        self._sink(
            LogLine(
                level=level,
                message=text,
                instance_id=self.instance_id,
                orchestrator=self.name,
                time=self._generation.time,
            )
        )


def _name(declared: Callable[..., Any] | str, what: str) -> str:
    name: Any = declared
    if not isinstance(declared, str):
        name = getattr(declared, NAME, None) or getattr(declared, "__name__", "")
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: {declared!r} is neither a name nor a declared function")
    check_column(name, f"{what}: the name {name[:40]!r}…")
    return name
