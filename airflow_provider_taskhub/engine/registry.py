"""The registry of a worker: the orchestrators and activities of all its apps, by name.

The registry checks what can be checked only after all modules are loaded: that names are unique over all apps, and that
the annotations of inputs can be resolved. An annotation can name a class that is defined below the function. Only the
annotation of the input is resolved, so that the annotation ``spark: "SparkSession"`` does not need pyspark.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from types import NoneType, SimpleNamespace
from typing import Any, Protocol, TypeVar

from airflow_provider_taskhub.activity_limit import Rate, check_shared
from airflow_provider_taskhub.codec import check_annotation, is_decodable
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.references import Frame, stored
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.errors import ConfigurationError, InputError, UnknownActivity, UnknownOrchestrator
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorDefinition:
    """A declared orchestrator.

    :param name: name of the orchestrator.
    :param function: the user's function.
    :param version: version of the orchestrator's app.
    :param parameter: name of the parameter that takes the input; None if the function takes no input.
    :param app: name of the orchestrator's app.
    :param compatible: other versions whose instances this code can continue; None: all versions.
    """

    name: str
    function: Callable[..., Any]
    version: str = ""
    parameter: str | None = None
    app: str = ""
    compatible: frozenset[str] | None = None

    def accepts(self, version: str | None) -> bool:
        """Return whether this code can run an instance of this version.

        :param version: version of the instance. This code can run every instance without a version (None or "").
        """
        return not version or version == self.version or self.compatible is None or version in self.compatible

    @property
    def takes_input(self) -> bool:
        return self.parameter is not None

    @property
    def input_annotation(self) -> Any:
        """The resolved annotation of the input parameter.

        None: the function takes no input, or the parameter has no annotation, so that the input can have any type.

        :raises InputError: the annotation cannot be resolved, for example because it uses a name that the function's
            module does not have; or it has a ``DataFrame``, which only Spark activities can take.
        """
        return annotation_of(self.function, self.parameter, frames=False)

    @property
    def result_annotation(self) -> Any:
        """The type to which the result is decoded: see :func:`result_annotation_of`."""
        return result_annotation_of(self.function)

    def arguments(self, value: Any, *, what: str, recorded: bool) -> tuple[Any, ...]:
        """Return the arguments that follow the context in a call of this function: the decoded input, or none.

        The parameters are those of :func:`.inputs.input_arguments`.
        """
        if self.parameter is None:
            return ()
        return input_arguments(
            self.function, self.parameter, self.input_annotation, value, what=what, recorded=recorded
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityDefinition:
    """A declared activity.

    :param name: name of the activity.
    :param function: the user's function.
    :param spark: whether the first parameter of the function is the SparkSession.
    :param record: whether each attempt has an activity record, which decides which worker runs the attempt.
    :param timeout: time limit of one attempt, from the moment when an executor takes it; None: no limit.
    :param queue_timeout: time limit of the wait for its turn to begin, looked at when the turn comes; None: no limit.
    :param retry: retry policy for calls that give no policy; None: no retry.
    :param parameter: name of the parameter that takes the input; None if the function takes no input.
    :param app: name of the activity's app.
    :param version: version of the activity's app.
    :param spark_conf: settings of the Spark session of each attempt.
    :param limit: how many attempts may run at once in the whole hub; None: as many as the workers have slots.
    :param rate: how many attempts may begin within a time in the whole hub; None: no rate.
    :param limit_name: name of its limit and its rate. Activities with the same name share them.
    :param limit_key: the tag of calls of which each value has a limit and a rate of its own; "": all calls share them.
    :param pool: the pool of workers that run it.
    :param memory: how many bytes of a worker's memory one attempt uses; None: it is not counted.
    :param clean_up: whether it is called to end what a dead attempt has left, if nobody wants it any more.
    """

    name: str
    function: Callable[..., Any]
    spark: bool = False
    record: bool = False
    timeout: timedelta | None = None
    queue_timeout: timedelta | None = None
    retry: RetryPolicy | None = None
    parameter: str | None = None
    app: str = ""
    version: str = ""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    rate: Rate | None = None
    limit_name: str = ""
    limit_key: str = ""
    pool: str = DEFAULT_POOL
    memory: int | None = None
    clean_up: bool = False

    @property
    def limited(self) -> bool:
        """Whether it has a limit or a rate."""
        return self.limit is not None or self.rate is not None

    @property
    def has_queue(self) -> bool:
        """Whether its calls wait in queues of their own, because not every free slot is enough to run one."""
        return self.limited or self.memory is not None

    @property
    def takes_input(self) -> bool:
        return self.parameter is not None

    @property
    def input_annotation(self) -> Any:
        """The resolved annotation of the input parameter.

        None: the function takes no input, or the parameter has no annotation, so that the input can have any type.

        :raises InputError: the annotation cannot be resolved, for example because it uses a name that the function's
            module does not have; or it has a ``DataFrame``, which only Spark activities can take.
        """
        return annotation_of(self.function, self.parameter, frames=self.spark)

    @property
    def result_annotation(self) -> Any:
        """The type to which the result is decoded: see :func:`result_annotation_of`."""
        return result_annotation_of(self.function)

    @property
    def opens_references(self) -> bool:
        """Whether the function takes DataFrames, so that each :class:`.Reference` in its input has to be opened."""
        return self.parameter is not None and _resolve(self.function, self.parameter) is not self.input_annotation


class Declared(Protocol):
    """The part of an app that the registry uses."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def orchestrators(self) -> Mapping[str, OrchestratorDefinition]: ...

    @property
    def activities(self) -> Mapping[str, ActivityDefinition]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The orchestrators and activities that a worker has loaded.

    :param orchestrators: the declared orchestrators by name.
    :param activities: the declared activities by name.
    :param apps: the version of each app, by the name of the app.
    """

    orchestrators: Mapping[str, OrchestratorDefinition] = field(default_factory=dict)
    activities: Mapping[str, ActivityDefinition] = field(default_factory=dict)
    apps: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, apps: Iterable[Declared]) -> Registry:
        """Return the registry of several apps.

        :param apps: the apps; no two of them have the same name.
        :raises ConfigurationError: an app, an orchestrator or an activity is declared twice, or the annotation of an
            input cannot be resolved.
        """
        orchestrators: dict[str, OrchestratorDefinition] = {}
        activities: dict[str, ActivityDefinition] = {}
        versions: dict[str, str] = {}
        for app in apps:
            if app.name in versions:
                raise ConfigurationError(
                    f"app {app.name!r} is loaded twice: load each app once, and give each app its own name"
                )
            versions[app.name] = app.version
            before = tuple(activities.values())
            _merge(orchestrators, app.orchestrators, "orchestrator")
            _merge(activities, app.activities, "activity")
            for activity in app.activities.values():
                check_shared(activity, before)
        return cls(orchestrators=orchestrators, activities=activities, apps=versions)

    def orchestrator(self, name: str, version: str | None = None) -> OrchestratorDefinition:
        """Return the orchestrator that can run an instance.

        :param name: name of the orchestrator.
        :param version: version of the instance; None: any version.
        :raises UnknownOrchestrator: no loaded app declares this name, or its code cannot run this version. The text
            lists the known names or versions.
        """
        definition = self.orchestrators.get(name)
        if definition is None:
            text = _unknown("orchestrator", name, self.orchestrators)
            raise UnknownOrchestrator(text, name=name, version=version or "")
        if not definition.accepts(version):
            others = ", ".join(sorted(definition.compatible or ())) or "none"
            raise UnknownOrchestrator(
                f"orchestrator {name!r} of version {version!r}: app {definition.app!r} here is version "
                f"{definition.version!r}, compatible with: {others}",
                name=name,
                version=version or "",
            )
        return definition

    @property
    def accepts(self) -> dict[str, tuple[str, ...]]:
        """By orchestrator name, the versions of instances that its code can continue.

        Orchestrators whose code can continue all versions are left out.
        """
        return {
            name: tuple(sorted({definition.version, *definition.compatible}))
            for name, definition in self.orchestrators.items()
            if definition.compatible is not None
        }

    @property
    def pool_of(self) -> dict[str, str]:
        """By activity name, its pool of workers. Activities of the pool ``default`` are left out."""
        return {name: one.pool for name, one in self.activities.items() if one.pool != DEFAULT_POOL}

    @property
    def memory_of(self) -> dict[str, int]:
        """By activity name, how many bytes of a worker's memory one attempt uses. Other activities are left out."""
        return {name: one.memory for name, one in self.activities.items() if one.memory is not None}

    @property
    def limit_names(self) -> dict[str, str]:
        """By the name of an activity with a limit, the name of the limit."""
        return {name: one.limit_name for name, one in self.activities.items() if one.limited}

    @property
    def spark_activities(self) -> frozenset[str]:
        """The names of the Spark activities."""
        return frozenset(name for name, one in self.activities.items() if one.spark)

    def runnable(self, pools: Collection[str], memory: int) -> frozenset[str]:
        """Return the names of the activities that a worker can run.

        :param pools: the pools of workers to which it belongs.
        :param memory: how many bytes of memory it has.
        """
        found = self.activities.items()
        return frozenset(name for name, one in found if one.pool in pools and (one.memory or 0) <= memory)

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools of workers of all activities, and the pool ``default``."""
        return tuple(sorted({DEFAULT_POOL, *(one.pool for one in self.activities.values())}))

    def activity(self, name: str) -> ActivityDefinition:
        """Return the activity of this name.

        :param name: the declared name of the activity.
        :raises UnknownActivity: no loaded app declares this name. The text lists the known names.
        """
        definition = self.activities.get(name)
        if definition is None:
            raise UnknownActivity(_unknown("activity", name, self.activities))
        return definition


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    listed = ", ".join(sorted(known)[:20]) or "none"
    return f"no loaded app declares {kind} {name!r}; known here: {listed}"


class _Owned(Protocol):
    @property
    def app(self) -> str: ...

    @property
    def input_annotation(self) -> Any: ...


_Definition = TypeVar("_Definition", bound=_Owned)


def _merge(into: dict[str, _Definition], more: Mapping[str, _Definition], kind: str) -> None:
    for name, definition in more.items():
        if name in into:
            raise ConfigurationError(
                f"{kind} {name!r} is declared by app {into[name].app!r} and by app {definition.app!r}: "
                "rename one of them, or run each app on its own hub"
            )
        try:
            check_annotation(definition.input_annotation, what="its input")
        except InputError as error:
            raise ConfigurationError(f"app {definition.app!r}: {kind} {name!r}: {error}") from error
        into[name] = definition


def annotation_of(function: Callable[..., Any], parameter: str | None, *, frames: bool = True) -> Any:
    """Return the resolved annotation of one parameter of a function, with :class:`.Reference` for ``DataFrame``.

    :param function: the function.
    :param parameter: name of the parameter; None: the function has no such parameter.
    :param frames: False: ``DataFrame`` is refused.
    :returns: None if there is no parameter or no annotation.
    :raises InputError: the annotation uses a name that its module does not have, or a ``DataFrame`` is refused.
    """
    if parameter is None:
        return None
    resolved = _resolve(function, parameter)
    found = stored(resolved)
    if found is not resolved and not frames:
        raise InputError(
            f"parameter {parameter!r} of {function.__qualname__} is a DataFrame, which needs a Spark session: "
            "declare the function with @app.spark_activity, or take a Reference"
        )
    return found


_LAZY = (AsyncIterator, Generator, Iterable, Iterator)
"""Annotations that pydantic would decode to an object which can be read only once."""


@lru_cache(maxsize=4096)
def result_annotation_of(function: Callable[..., Any]) -> Any:
    """Return the type that an orchestrator or activity declares for its result, for the code that awaits the result.

    None: the function declares no type, or none to which values can be decoded. The result is then plain JSON. Such a
    type is no error, because a function may declare for people what only its own process has.

    :param function: the function. What a generator or coroutine returns is in its last argument.
    """
    try:
        found = _resolve(function, "return")
    except InputError:
        return None
    origin = typing.get_origin(found)
    if origin in (Generator, Coroutine):
        found = typing.get_args(found)[2] if len(typing.get_args(found)) == 3 else None
    elif origin in _LAZY:
        return None
    return None if found in (None, NoneType, Any) or not is_decodable(found) else found


def result_problem(function: Callable[..., Any]) -> str | None:
    """Return why the results of a function are not decoded to the type that it declares for them; None: they are, or it
    declares none.

    :param function: the orchestrator or activity.
    """
    try:
        found = _resolve(function, "return")
    except InputError as error:
        return str(error)
    if found in (None, NoneType, Any) or typing.get_origin(found) in (*_LAZY, Coroutine):
        return None
    if result_annotation_of(function) is not None:
        return None
    return f"values cannot be decoded to annotation {found!r}"


@lru_cache(maxsize=4096)
def _resolve(function: Callable[..., Any], parameter: str) -> Any:
    plain = inspect.unwrap(function)
    raw = getattr(plain, "__annotations__", {}).get(parameter)
    if raw is None:
        return None
    # Only this annotation is resolved. To resolve all annotations would need pyspark for "SparkSession".
    holder = SimpleNamespace(__annotations__={parameter: raw})
    try:
        known = getattr(plain, "__globals__", {})
        local = {"DataFrame": Frame} if "DataFrame" not in known else {}
        hints = typing.get_type_hints(holder, known, local | _closure(plain), include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InputError(
            f"annotation {raw!r} of parameter {parameter!r} of {plain.__qualname__} cannot be resolved ({error}): "
            "import it where the function is defined"
        ) from error
    return hints[parameter]


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable of the enclosing function has no value yet
            continue
    return found
