"""What an orchestrator sees: DurableTask's context by DurableTask's names, and Microsoft's Python names beside them.

Owns the reading of arguments. Decisions, events and time are the generation's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from airflow_provider_taskhub.codec import Timestamp, decode, dumps, loads
from airflow_provider_taskhub.engine.attempts import Attempts, Timer
from airflow_provider_taskhub.engine.decisions import FIRE_AND_FORGET, Action, Where, child_tags
from airflow_provider_taskhub.engine.events import EventType, ParentInstance
from airflow_provider_taskhub.engine.identity import check_instance_id, check_new_instance_id, guid
from airflow_provider_taskhub.engine.limits import LAST_TIME, check_column, check_event, check_tags, check_time
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.tasks import NAME, CancellableTask, Task, when_all, when_any
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
    """Logs only what happens for the first time."""

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
    """The orchestrator's only way to the world. Everything here gives the same on replay."""

    def __init__(self, generation: Generation, log: Log | None) -> None:
        self._generation = generation
        self._sink = log
        self._guids = 0
        self._logger = ReplaySafeLogger(lambda: self.is_replaying, self._emit)

    # ---- who and when

    @property
    def instance_id(self) -> str:
        return self._generation.instance.instance_id

    @property
    def execution_id(self) -> str:
        """Id of this generation."""
        return self._generation.instance.execution_id or ""

    @property
    def name(self) -> str:
        """Name that the orchestration was started under."""
        return self._generation.started.name

    @property
    def version(self) -> str:
        """Version that it was started with."""
        return self._generation.started.version or ""

    @property
    def tags(self) -> Mapping[str, str]:
        return dict(self._generation.started.tags or {})

    @property
    def parent(self) -> ParentInstance | None:
        """Who started it as a child."""
        return self._generation.started.parent

    @property
    def is_replaying(self) -> bool:
        """The code runs over what was decided before; effects of its own belong under ``if not``."""
        return self._generation.replaying

    @property
    def current_utc_datetime(self) -> datetime:
        """The orchestrator's time, in UTC: it moves from episode to episode and never goes back."""
        return self._generation.time.datetime()

    @property
    def logger(self) -> ReplaySafeLogger:
        """Logs what happens for the first time, to the worker's log."""
        return self._logger

    def create_replay_safe_logger(self, logger: _Levels) -> ReplaySafeLogger:
        """A logger of the user's own, silent on replay."""
        return ReplaySafeLogger(lambda: self.is_replaying, logger.log)

    def new_guid(self) -> UUID:
        """A GUID that is the same on replay."""
        self._guids += 1
        return guid(self._generation.instance, self._generation.time, self._guids)

    def new_uuid(self) -> str:
        """:meth:`new_guid` as text, as in Microsoft's Python SDK."""
        return str(self.new_guid())

    # ---- decisions

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
        """Run an activity somewhere.

        :param activity: the declared function, or its name. :param input: its one argument.
        :param arguments: instead of ``input``, the arguments of an activity of another system that takes several.
        :param retry: policy; by default the activity's own. ``retry_policy`` is Microsoft's name for it.
        :raises InputError: for an input that JSON cannot express, or a version or tags that no row can hold.
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
            where=Where.of(sys._getframe(1)),
            name=name,
            version=version,
            input=dumps(given, what=f"input of activity {name!r}"),
            tags=dict(tags) if tags else None,
        )
        policy = retry or retry_policy or (definition.retry if definition else None)
        return Attempts(self._generation, action, policy)

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
        """Start a child orchestration and wait for it.

        :param instance_id: of the child; by default ``{own execution id}:{action number}``.
        :param version: by default the one that its app declares. :param tags: added to those it inherits.
        :param fire_and_forget: do not wait: the task is complete at once, with None.
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
            where=Where.of(sys._getframe(1)),
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
        """A timer, after a duration or at a time (UTC where it has no zone). It never fires early.

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
        return Timer(generation, at, Where.of(sys._getframe(1)))

    def wait_for_external_event(self, name: str, data_type: Any = None) -> CancellableTask[Any]:
        """The next event of this name; its data decoded by ``data_type``. Names are matched without their case."""
        check_event(name, "wait_for_external_event")
        return self._generation.wait(name, data_type)

    def send_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Raise an event in another instance; nobody waits for it to arrive.

        :raises InputError: for data that JSON cannot express, or a name or an instance id that no store takes.
        """
        check_event(name, "send_event")
        self._generation.schedule(
            Action(
                kind=EventType.EventSent,
                role="event",
                where=Where.of(sys._getframe(1)),
                name=name,
                input=dumps(data, what=f"data of event {name!r}"),
                instance_id=check_instance_id(instance_id),
            ),
            None,
        )

    def continue_as_new(self, new_input: Any = None, *, save_events: bool = True) -> None:
        """Begin anew with another input and an empty history, once the orchestrator returns.

        :param save_events: events that nobody waited for go over to the new generation.
        """
        text = dumps(new_input, what=f"input of orchestrator {self.name!r}")
        self._generation.continue_as_new(text, keep_events=save_events)

    def set_custom_status(self, status: Any) -> None:
        """What monitors show; any JSON value, None for nothing."""
        text = None if status is None else dumps(status, what="custom status")
        self._generation.custom_status = text

    def when_all(self, tasks: Iterable[Task[Any]]) -> Task[list[Any]]:
        """All results in order; fails as soon as one of them fails."""
        return when_all(tasks)

    def when_any(self, tasks: Iterable[Task[Any]]) -> Task[Task[Any]]:
        """The first task that completes or fails."""
        return when_any(tasks)

    def get_input(self, annotation: Any = None) -> Any:
        """The input once more, decoded by ``annotation``."""
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
