"""What a worker can run: orchestrators and activities by name, collected from apps.

Owns the checks that need every app at once, or its whole module: an annotation may name a class that is defined below
the function. Only that of the input is resolved, so that ``spark: "SparkSession"`` needs no pyspark.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from airflow_provider_taskhub.codec import check_annotation
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.errors import ConfigurationError, InputError, UnknownActivity, UnknownOrchestrator


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorDefinition:
    """A declared orchestrator.

    :param parameter: name of the input's parameter, None when it takes none. :param version: of its app.
    :param compatible: other versions whose instances this code may go on with; None: all of them.
    """

    name: str
    function: Callable[..., Any]
    version: str = ""
    parameter: str | None = None
    app: str = ""
    compatible: frozenset[str] | None = None

    def accepts(self, version: str | None) -> bool:
        """Whether an instance of this version may run on this code. One without a version always may."""
        return not version or version == self.version or self.compatible is None or version in self.compatible

    @property
    def takes_input(self) -> bool:
        return self.parameter is not None

    @property
    def input_annotation(self) -> Any:
        """The type of the input, None for any.

        :raises InputError: when the annotation names something that its module does not have.
        """
        return annotation_of(self.function, self.parameter)

    def arguments(self, value: Any, *, what: str, recorded: bool) -> tuple[Any, ...]:
        """As :func:`input_arguments`, for this function."""
        if self.parameter is None:
            return ()
        return input_arguments(
            self.function, self.parameter, self.input_annotation, value, what=what, recorded=recorded
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityDefinition:
    """A declared activity.

    :param spark: its first parameter is the SparkSession.
    :param record: one activity record per attempt decides who runs.
    :param timeout: per attempt, from its claim. :param queue_timeout: of the wait before.
    :param retry: the default policy.
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

    @property
    def takes_input(self) -> bool:
        return self.parameter is not None

    @property
    def input_annotation(self) -> Any:
        """The type of the input, None for any.

        :raises InputError: when the annotation names something that its module does not have.
        """
        return annotation_of(self.function, self.parameter)


class Declared(Protocol):
    """What a registry wants to know of an app."""

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
    """Everything that a worker has loaded.

    :param orchestrators: by name. :param activities: by name. :param apps: versions by the app's name.
    """

    orchestrators: Mapping[str, OrchestratorDefinition] = field(default_factory=dict)
    activities: Mapping[str, ActivityDefinition] = field(default_factory=dict)
    apps: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, apps: Iterable[Declared]) -> Registry:
        """The registry of several apps.

        :param apps: each with a name of its own.
        :raises ConfigurationError: an app, orchestrator or activity declared twice; the annotation of an input that
            cannot be resolved.
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
            _merge(orchestrators, app.orchestrators, "orchestrator")
            _merge(activities, app.activities, "activity")
        return cls(orchestrators=orchestrators, activities=activities, apps=versions)

    def orchestrator(self, name: str, version: str | None = None) -> OrchestratorDefinition:
        """The orchestrator that an instance may run on.

        :param name: of the orchestrator. :param version: of the instance; None for any.
        :raises UnknownOrchestrator: naming what there is.
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
        """By orchestrator, the versions of instances that it can continue; those that can continue all are left out."""
        return {
            name: tuple(sorted({definition.version, *definition.compatible}))
            for name, definition in self.orchestrators.items()
            if definition.compatible is not None
        }

    def activity(self, name: str) -> ActivityDefinition:
        """The activity of this name. :param name: as declared. :raises UnknownActivity: naming what there is."""
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


def annotation_of(function: Callable[..., Any], parameter: str | None) -> Any:
    """The resolved annotation of one parameter; None without a parameter or annotation.

    :raises InputError: when it names something that cannot be found.
    """
    return None if parameter is None else _resolve(function, parameter)


@lru_cache(maxsize=4096)
def _resolve(function: Callable[..., Any], parameter: str) -> Any:
    plain = inspect.unwrap(function)
    raw = getattr(plain, "__annotations__", {}).get(parameter)
    if raw is None:
        return None
    # One annotation at a time: resolving all of them would need pyspark for "SparkSession".
    holder = SimpleNamespace(__annotations__={parameter: raw})
    try:
        hints = typing.get_type_hints(holder, getattr(plain, "__globals__", {}), _closure(plain), include_extras=True)
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
        except ValueError:  # not yet bound
            continue
    return found
