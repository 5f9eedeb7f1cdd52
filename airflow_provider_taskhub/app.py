"""The class App, by which a user's module declares its orchestrators and activities.

This module has the decorators and the function that loads an app by ``module:attribute``. A decorator checks the
signature of its function at once. So a mistake shows when the user's module is imported, not when an instance runs.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar, overload

from airflow_provider_taskhub.activity_limit import Rate, check_shared
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.direct_calls import original, refused_in_orchestrators
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import user_frames
from airflow_provider_taskhub.engine.registry import ActivityDefinition, OrchestratorDefinition, Registry
from airflow_provider_taskhub.engine.retry import RetryPolicy
from airflow_provider_taskhub.engine.tasks import NAME, STANDALONE, Task, when_all, when_any
from airflow_provider_taskhub.errors import (
    ConfigurationError,
    OrchestrationError,
    SubOrchestrationFailedError,
    TaskCancelledError,
    TaskFailedError,
    TerminationRequested,
)
from airflow_provider_taskhub.instance_limit import MOST, NAME_FORM, is_limit_name
from airflow_provider_taskhub.memory import memory_of
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.spark_conf import OF_THE_WORKER
from airflow_provider_taskhub.tags import is_own
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL, POOL_FORM, is_pool

__all__ = [
    "App",
    "FailureDetails",
    "OrchestrationContext",
    "OrchestrationError",
    "Registry",
    "RetryPolicy",
    "SubOrchestrationFailedError",
    "Task",
    "TaskCancelledError",
    "TaskFailedError",
    "TerminationRequested",
    "load_app",
    "when_all",
    "when_any",
]

F = TypeVar("F", bound=Callable[..., Any])
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class App:
    """A named, versioned set of orchestrators and activities.

    :param name: name of the app, for logs and for the list of workers.
    :param version: version of the code; each new instance is stored with this version.
    :param compatible: other versions whose instances this code can continue; None: all versions. An instance of a
        version that is not compatible waits for a worker that has its version.
    :raises ConfigurationError: if an argument is not of the right type, or the name is empty.
    """

    def __init__(self, name: str, version: str = "", *, compatible: Iterable[str] | None = None) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigurationError(f"App: name is {name!r}; give a text, e.g. App('flights', version='3')")
        if not isinstance(version, str):
            raise ConfigurationError(f"App {name!r}: version is {version!r}; give it as a text, e.g. '3'")
        self._name = name
        self._version = version
        if isinstance(compatible, str):
            raise ConfigurationError(f"App {name!r}: compatible is {compatible!r}; give a list, e.g. ['2', '3']")
        self._compatible = None if compatible is None else frozenset(compatible)
        self._orchestrators: dict[str, OrchestratorDefinition] = {}
        self._activities: dict[str, ActivityDefinition] = {}

    @property
    def name(self) -> str:
        """The app's name."""
        return self._name

    @property
    def version(self) -> str:
        """The app's version; "" if it has none."""
        return self._version

    @property
    def orchestrators(self) -> MappingProxyType[str, OrchestratorDefinition]:
        """The declared orchestrators, by name."""
        return MappingProxyType(self._orchestrators)

    @property
    def activities(self) -> MappingProxyType[str, ActivityDefinition]:
        """The declared activities, by name."""
        return MappingProxyType(self._activities)

    def __repr__(self) -> str:
        return f"App({self._name!r}, version={self._version!r})"

    @overload
    def orchestrator(self, function: F) -> F: ...

    @overload
    def orchestrator(self, *, name: str | None = None) -> Callable[[F], F]: ...

    def orchestrator(self, function: F | None = None, *, name: str | None = None) -> F | Callable[[F], F]:
        """Declare an orchestrator: ``async def f(ctx)`` or ``async def f(ctx, input)``, or a generator with ``yield``.

        :param function: the function to declare. Python passes it if the decorator is written without parentheses.
        :param name: the name by which the orchestrator is started; None: the function's name.
        :raises ConfigurationError: if the app already has an orchestrator of this name, or the function needs other
            parameters.
        """

        def declare(function: F) -> F:
            self._declare_orchestrator(function, name)
            return function

        return declare if function is None else declare(function)

    @overload
    def activity(self, function: F) -> F: ...

    @overload
    def activity(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        queue_timeout: timedelta | None = None,
        record: bool = False,
        standalone: bool = False,
        limit: int | None = None,
        rate: str | None = None,
        limit_name: str | None = None,
        limit_key: str | None = None,
        pool: str = DEFAULT_POOL,
        memory: str | None = None,
        clean_up: bool = False,
    ) -> Callable[[F], F]: ...

    def activity(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        queue_timeout: timedelta | None = None,
        record: bool = False,
        standalone: bool = False,
        limit: int | None = None,
        rate: str | None = None,
        limit_name: str | None = None,
        limit_key: str | None = None,
        pool: str = DEFAULT_POOL,
        memory: str | None = None,
        clean_up: bool = False,
    ) -> F | Callable[[F], F]:
        """Declare an activity: a function with one parameter or none, plain or ``async``.

        A plain function runs in a separate thread. All ``async`` functions of an executor process share one event loop.
        So a blocking call in an ``async`` function (``time.sleep``, a request without ``await``) stalls all of them.

        Orchestrators run the activity with ``ctx.call_activity``. A direct call of the declared function in an
        orchestrator raises :class:`OrchestrationError`. Everywhere else, such as in tests, it is a plain call.

        :param function: the function to declare. Python passes it if the decorator is written without parentheses.
        :param name: the name by which the activity is called; None: the function's name.
        :param retry: how often and when a failed call is repeated, unless the call names its own policy; None: never.
        :param timeout: time limit of each attempt, from the moment when an executor takes it; None: no limit.
        :param queue_timeout: time limit of the wait for a free slot, a place of its limit and memory. It is looked at
            when the turn of the activity comes: then the activity fails instead of beginning. None: no limit.
        :param record: True: the worker writes a row in the hub for each attempt, and the row decides which worker runs
            the attempt. Then no other worker repeats the attempt while the worker that runs it lives. The rows cost
            some storage requests. With ``limit`` or ``rate``, each attempt has such a row in any case.
        :param standalone: True: also declare an orchestrator of the same name, which runs only this activity and
            returns its result. Then the activity can be started by itself, for example with ``@task.activity``.
        :param limit: how many attempts of the activity may run at once, on all workers of the hub together: at most
            10,000. The others wait in the hub and take no slot of a worker. Each attempt has a record, as with
            ``record=True``. None: as many as the workers have slots.
        :param rate: how many attempts may begin within a time, on all workers together: ``"5/s"``, ``"10/m"`` or
            ``"100/h"``, at most 100. The others wait as with ``limit``. None: no rate.
        :param limit_name: activities with the same name share one ``limit`` and one ``rate``. None: the activity's own.
        :param limit_key: name of a tag of the calls, such as ``"tenant"``: ``limit`` and ``rate`` hold for each value
            of the tag (``ctx.call_activity(load, x, tags={"tenant": "a"})``). Calls without the tag count together.
            None: for all calls together.
        :param pool: the pool of workers that run the activity: those that were started with ``--pools`` and this name.
            Workers without ``--pools`` are the pool ``default``.
        :param memory: how much memory of the worker one attempt uses, such as ``4g`` or ``512m``. The attempts that run
            at once in a worker never need more than the worker has (``--memory``). The others wait in the hub. None:
            the memory of the activity is not counted.
        :param clean_up: True: if nobody wants the activity any more after its worker has died, and it has saved a state
            with ``save_state``, it is called to end what it has left running in another system, perhaps twice. Then
            ``is_unwanted()`` is True from the beginning, and it has 60 seconds. Needs ``record=True``.
        :raises ConfigurationError: if the app already has an activity of this name, the function needs other
            parameters or is a generator, or an argument is wrong.
        """

        def declare(function: F) -> F:
            function = original(function)
            self._declare_activity(
                function,
                name,
                retry,
                timeout,
                queue_timeout,
                record=record,
                spark=False,
                limit=limit,
                rate=rate,
                limit_name=limit_name,
                limit_key=limit_key,
                pool=pool,
                memory=memory,
                clean_up=clean_up,
            )
            self._declare_alone(function, name, standalone)
            return refused_in_orchestrators(function, _name_of(function, name, "activity"))

        return declare if function is None else declare(function)

    @overload
    def spark_activity(self, function: F) -> F: ...

    @overload
    def spark_activity(
        self,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        queue_timeout: timedelta | None = None,
        record: bool = True,
        standalone: bool = False,
        conf: Mapping[str, str | int | float | bool] | None = None,
        limit: int | None = None,
        rate: str | None = None,
        limit_name: str | None = None,
        limit_key: str | None = None,
        pool: str = DEFAULT_POOL,
        memory: str | None = None,
    ) -> Callable[[F], F]: ...

    def spark_activity(
        self,
        function: F | None = None,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: timedelta | None = None,
        queue_timeout: timedelta | None = None,
        record: bool = True,
        standalone: bool = False,
        conf: Mapping[str, str | int | float | bool] | None = None,
        limit: int | None = None,
        rate: str | None = None,
        limit_name: str | None = None,
        limit_key: str | None = None,
        pool: str = DEFAULT_POOL,
        memory: str | None = None,
    ) -> F | Callable[[F], F]:
        """Declare an activity whose first argument is a SparkSession: ``f(spark)`` or ``f(spark, input)``.

        The method has the parameters of :meth:`App.activity` and raises the same errors. But the default of ``record``
        is True here.

        :param conf: settings of Spark for each attempt, such as ``{"spark.sql.shuffle.partitions": 8}``. If a running
            Spark cannot take one of them, such as ``spark.driver.memory`` or ``spark.jars``, the worker starts another
            Spark application for it. None: the settings of the worker.
        """

        def declare(function: F) -> F:
            function = original(function)
            self._declare_activity(
                function,
                name,
                retry,
                timeout,
                queue_timeout,
                record=record,
                spark=True,
                conf=conf,
                limit=limit,
                rate=rate,
                limit_name=limit_name,
                limit_key=limit_key,
                pool=pool,
                memory=memory,
            )
            self._declare_alone(function, name, standalone)
            return refused_in_orchestrators(function, _name_of(function, name, "activity"))

        return declare if function is None else declare(function)

    def _declare_orchestrator(self, function: Callable[..., Any], name: str | None) -> None:
        name = _name_of(function, name, "orchestrator")
        if inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"orchestrator {name!r} is an async generator: "
                "use `await` in an `async def`, or `yield` in a plain `def`"
            )
        parameter = _parameters(function, f"orchestrator {name!r}", first="ctx")
        self._refuse_twice(name, self._orchestrators, "orchestrator")
        self._orchestrators[name] = OrchestratorDefinition(
            name=name,
            function=function,
            version=self._version,
            parameter=parameter,
            app=self._name,
            compatible=self._compatible,
        )
        _mark(function, name)

    def _declare_activity(
        self,
        function: Callable[..., Any],
        name: str | None,
        retry: RetryPolicy | None,
        timeout: timedelta | None,
        queue_timeout: timedelta | None,
        *,
        record: bool,
        spark: bool,
        limit: int | None,
        rate: str | None,
        limit_name: str | None,
        limit_key: str | None,
        pool: str,
        memory: str | None,
        conf: Mapping[str, Any] | None = None,
        clean_up: bool = False,
    ) -> None:
        name = _name_of(function, name, "activity")
        what = f"activity {name!r}"
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"{what} is a generator: use `return` instead of `yield`")
        for label, value in (("timeout", timeout), ("queue_timeout", queue_timeout)):
            if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
                raise ConfigurationError(f"{what}: {label} is {value!r}; give a timedelta above 0, or None")
        if limit is not None and (type(limit) is not int or not 1 <= limit <= MOST):
            raise ConfigurationError(
                f"{what}: limit is {limit!r}; give a whole number from 1 to {MOST:,}, or leave `limit` out: without it "
                "there is none"
            )
        try:
            of_rate = None if rate is None else Rate.of(rate)
        except ValueError as error:
            raise ConfigurationError(f"{what}: rate is {rate!r}; {error}") from None
        for label, text in (("limit_name", limit_name), ("limit_key", limit_key)):
            if text is not None and not is_limit_name(text):
                raise ConfigurationError(f"{what}: {label} is {text!r}; give a text of {NAME_FORM}, or None")
            if text is not None and limit is None and rate is None:
                raise ConfigurationError(f"{what}: {label} is {text!r}, but nothing is limited: add limit or rate")
        if limit_key is not None and is_own(limit_key):
            raise ConfigurationError(
                f"{what}: limit_key is {limit_key!r}, a tag of TaskHub itself: name a tag of your calls, e.g. 'tenant'"
            )
        if spark and not record and (limit is not None or rate is not None):
            raise ConfigurationError(
                f"{what}: record is {record!r}, but each attempt of an activity with limit or rate has a record: leave "
                "`record` out"
            )
        if not isinstance(clean_up, bool):
            raise ConfigurationError(f"{what}: clean_up is {clean_up!r}; give True or False")
        if clean_up and not (record or limit is not None or rate is not None):
            raise ConfigurationError(f"{what}: clean_up needs the record that keeps its state: add record=True")
        if not is_pool(pool):
            raise ConfigurationError(f"{what}: pool is {pool!r}; give {POOL_FORM}")
        try:
            needs = None if memory is None else memory_of(memory)
        except ValueError as error:
            raise ConfigurationError(f"{what}: memory is {memory!r}; {error}, or None") from None
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise ConfigurationError(
                f"{what}: retry is {retry!r}; give a RetryPolicy, e.g. RetryPolicy(max_attempts=3)"
            )
        parameter = _parameters(function, what, first="spark" if spark else None)
        self._refuse_twice(name, self._activities, "activity")
        definition = ActivityDefinition(
            name=name,
            function=function,
            spark=spark,
            record=record or limit is not None or rate is not None,
            timeout=timeout,
            queue_timeout=queue_timeout,
            retry=retry,
            parameter=parameter,
            app=self._name,
            version=self._version,
            spark_conf=_spark_conf(what, conf),
            limit=limit,
            rate=of_rate,
            limit_name=limit_name or name,
            limit_key=limit_key or "",
            pool=pool,
            memory=needs,
            clean_up=clean_up,
        )
        check_shared(definition, self._activities.values())
        self._activities[name] = definition
        _mark(function, name)

    def _declare_alone(self, function: Callable[..., Any], name: str | None, standalone: bool) -> None:
        if not isinstance(standalone, bool):
            raise ConfigurationError(f"activity {name or function!r}: standalone is {standalone!r}; give True or False")
        if standalone:
            definition = self._activities[_name_of(function, name, "activity")]
            function.__dict__[STANDALONE] = definition.parameter or ""
            self._declare_orchestrator(_alone(definition), None)

    def _refuse_twice(self, name: str, known: dict[str, Any], kind: str) -> None:
        if name in known:
            raise ConfigurationError(
                f"{kind} {name!r} is declared twice in app {self._name!r}: rename one, e.g. with name='…'"
            )


_VALUES = ("str", "int", "float", "bool", "dict", "list", "bytes")
"""Names of types that the first parameter of an orchestrator, the context, cannot have."""


def _name_of(function: Callable[..., Any], name: str | None, kind: str) -> str:
    if not callable(function) or isinstance(function, type):
        raise ConfigurationError(f"@app.{kind} decorates {function!r}, which is not a function: put it on a function")
    if isinstance(function, staticmethod):
        raise ConfigurationError(
            f"@app.{kind} of {function.__qualname__!r} stands above @staticmethod: write @staticmethod above it"
        )
    if not hasattr(function, "__dict__"):
        raise ConfigurationError(
            f"@app.{kind} decorates {function!r}, which cannot carry its declared name: "
            f"write a function of your own that calls it, and put @app.{kind} on that"
        )
    found = name if name is not None else getattr(function, "__name__", "")
    if not isinstance(found, str) or not found or found == "<lambda>":
        raise ConfigurationError(f"{kind} {function!r} has no name: give one with name='…'")
    return found


def _parameters(function: Callable[..., Any], what: str, *, first: str | None) -> str | None:
    """Check the parameters of a function, and return the name of the parameter for its input.

    :param what: the function's kind and name, for the error text.
    :param first: what the first parameter is ("ctx" or "spark"); None: the input is the first parameter.
    :returns: the name of the input's parameter; None if the function has no such parameter.
    :raises ConfigurationError: if the function does not have the parameter ``first``, or needs more than one input.
    """
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    if positional and positional[0].name in ("self", "cls"):
        raise ConfigurationError(
            f"{what} is a method: nobody could give it {positional[0].name!r}. Declare a function outside of the class"
        )
    if first == "ctx" and positional:
        annotation = positional[0].annotation  # a type, or a text after `from __future__ import annotations`
        is_value = getattr(annotation, "__name__", annotation) in _VALUES
        if is_value or "ctx" in [p.name for p in positional[1:]]:
            raise ConfigurationError(
                f"{what} has {positional[0].name!r} as its first parameter, which gets the context: "
                "its parameters must be (ctx) or (ctx, input)"
            )
    lead = 0 if first is None else 1
    needed = [p for p in positional[lead + 1 :] if p.default is inspect.Parameter.empty]
    needed += [
        p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY and p.default is inspect.Parameter.empty
    ]
    shape = f"({first}) or ({first}, input)" if first else "() or (input)"
    if not positional and inspect.Parameter.VAR_POSITIONAL in [p.kind for p in parameters]:
        raise ConfigurationError(
            f"{what} has the parameter *{parameters[0].name}: its parameters must be {shape}. If it is the inner "
            "function of a decorator, put @functools.wraps(function) on it"
        )
    if len(positional) < lead:
        raise ConfigurationError(f"{what} has no parameter {first!r}: its parameters must be {shape}")
    if needed:
        names = ", ".join(p.name for p in needed)
        raise ConfigurationError(
            f"{what} has more than one input ({names}): its parameters must be {shape}; "
            "put several values into a dataclass or a dict"
        )
    return positional[lead].name if len(positional) > lead else None


def _spark_conf(what: str, conf: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the Spark settings of an activity as Spark writes them.

    :param what: the activity's name, for the error text.
    :raises ConfigurationError: if a name or a value cannot be right, or only the worker can set it.
    """
    if conf is not None and not isinstance(conf, Mapping):
        raise ConfigurationError(f"{what}: conf is {conf!r}: give a dict of Spark's settings by name")
    found: dict[str, str] = {}
    for name, value in (conf or {}).items():
        if not isinstance(name, str) or not name.startswith("spark."):
            raise ConfigurationError(f"{what}: conf has {name!r}: the names of Spark's settings begin with 'spark.'")
        if name.startswith(OF_THE_WORKER):
            raise ConfigurationError(
                f"{what}: conf has {name!r}, which is the worker's: set the master in "
                "TASKHUB_SPARK__MASTER, and others in TASKHUB_SPARK__CONF"
            )
        if not isinstance(value, str | int | float):
            raise ConfigurationError(
                f"{what}: conf has {name!r} of type {type(value).__name__}: give a text, a number or a bool"
            )
        found[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _alone(activity: ActivityDefinition) -> Callable[..., Any]:
    """Return an orchestrator that runs only this activity and returns its result."""

    async def alone(ctx: OrchestrationContext, input: Any = NO_INPUT) -> Any:
        return await ctx.call_activity(activity.name, *((input,) if activity.takes_input else ()))

    alone.__name__ = alone.__qualname__ = activity.name
    alone.__doc__ = f"Runs the activity {activity.name!r} and returns its result."
    return alone


def _mark(function: Callable[..., Any], name: str) -> None:
    """Store the declared name on the function, so that ``ctx.call_activity(function)`` finds the name."""
    known = getattr(function, NAME, name)
    if known != name:
        raise ConfigurationError(
            f"function {function.__qualname__!r} is declared as {known!r} and as {name!r}: use one name"
        )
    function.__dict__[NAME] = name


def load_app(path: str) -> App:
    """Import a module and return its app, as ``taskhub worker --app`` does.

    The current working directory is added to ``sys.path``, so modules in it can be imported.

    :param path: ``module:attribute``, such as ``flights_app:app``. Without ``:attribute``, the attribute is ``app``.
    :raises ConfigurationError: if the module cannot be imported (the text has the module's own error), if its import
        starts Spark, or if the attribute is not an App.
    """
    module_name, _, attribute = path.partition(":")
    attribute = attribute or "app"
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise ConfigurationError(f"app {path!r}: write it as module:attribute, e.g. flights_app:app")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    before = _spark_context()
    try:
        module = importlib.import_module(module_name)
    except ConfigurationError as error:
        raise ConfigurationError(f"app {path!r}: {error}") from error
    except (Exception, SystemExit) as error:  # without this, a module that calls sys.exit(0) would end the worker
        missing = isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.partition(".")[0])
        hint = "Install it, or put it into the working directory or on PYTHONPATH" if missing else _place(error)
        raise ConfigurationError(
            f"app {path!r}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}. {hint}"
        ) from error
    started = _spark_context()
    if started is not None and started is not before:
        site = started._callsite
        started.stop()
        raise ConfigurationError(
            f"app {path!r}: its import starts Spark at {site.file}:{site.linenum}. The worker starts Spark, and each "
            "Spark activity gets a session of its own as its first parameter: move the code into the activity"
        )
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"; it has {', '.join(apps)}" if apps else "; it declares no App"
        raise ConfigurationError(f"app {path!r}: {module_name!r} has no App named {attribute!r}{hint}")
    return found


def _spark_context() -> Any:
    """Return the Spark context of this process; None: there is none, or PySpark is not imported."""
    return getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None)


def _place(error: BaseException) -> str:
    """Return a sentence for an error text, with the line that failed.

    It is the last line outside of Python's import system and this package. Without such a line, no line is named.
    """
    frames = [frame for frame in user_frames(error) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if frame.filename != importlib.__file__]
    if not own:  # Python could not parse the file: the error's own text already names the line
        return "Fix the module"
    return f"It failed at {own[-1].filename}:{own[-1].lineno}"
