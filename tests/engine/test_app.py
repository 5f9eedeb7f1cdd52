"""Declarations: what a user's module may say, and how mistakes are named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_taskhub.activity_limit import Rate
from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy, load_app
from airflow_provider_taskhub.engine.events import ExecutionStarted
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.errors import ConfigurationError, OrchestrationError, UnknownActivity, UnknownOrchestrator
from airflow_provider_taskhub.testing import run
from tests.engine.play import INSTANCE, START, Play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Job:
    year: int
    day: date


def test_decorators_register_functions_with_their_options() -> None:
    app = App("flights", version="3")
    retry = RetryPolicy(max_attempts=3)

    @app.spark_activity(retry=retry, timeout=timedelta(minutes=30))
    def delays(spark: SparkSession, month: int) -> dict[str, int]:
        return {}

    @app.spark_activity
    def warm(spark: SparkSession) -> None: ...

    @app.activity(name="publish", queue_timeout=timedelta(minutes=1), record=True)
    def put(summary: dict[str, int]) -> str:
        return "done"

    @app.activity
    def nothing() -> None: ...

    @app.activity(limit=2)
    def few() -> None: ...

    @app.activity(rate="100/h", limit_name="partner")
    def seldom() -> None: ...
    @app.activity(memory="4g")
    def large() -> None: ...

    @app.orchestrator
    async def flights(ctx: OrchestrationContext, job: Job) -> None: ...

    registry = Registry.of([app])
    assert dict(registry.apps) == {"flights": "3"}
    spark = registry.activity("delays")
    assert (spark.spark, spark.record, spark.retry, spark.takes_input) == (True, True, retry, True)
    assert (spark.timeout, spark.input_annotation) == (timedelta(minutes=30), int)
    assert (registry.activity("warm").takes_input, registry.activity("warm").input_annotation) == (False, None)
    assert registry.activity("publish").function is put.__wrapped__  # type: ignore[attr-defined]
    assert registry.activity("publish").record
    assert registry.activity("publish").queue_timeout == timedelta(minutes=1)
    assert not registry.activity("nothing").record
    limited, rated = registry.activity("few"), registry.activity("seldom")
    assert (limited.limit, limited.rate, limited.limit_name, limited.record) == (2, None, "few", True)
    assert (rated.limit, rated.rate, rated.limit_name) == (None, Rate(starts=100, seconds=3600), "partner")
    assert rated.record
    needing = registry.activity("large")
    assert (needing.memory, needing.record, needing.limit, needing.has_queue) == (4 * 1024**3, False, None, True)
    assert registry.memory_of == {"large": 4 * 1024**3}
    flight = registry.orchestrator("flights")
    assert (flight.version, flight.input_annotation, flight.app) == ("3", Job, "flights")
    assert put({}) == "done", "outside of an orchestrator, a declared function is called as before"


def test_a_call_by_function_uses_the_declared_name() -> None:
    app = App("named")

    @app.activity(name="publish")
    def put(x: int) -> None: ...

    @app.orchestrator
    async def work(ctx: OrchestrationContext, job: Job) -> Any:
        await ctx.call_activity(put, job.year)

    play = Play(app)
    play.start("work", {"year": "2013", "day": "2013-01-31"})
    sent = play.outbound[0].event
    assert getattr(sent, "name", None) == "publish"
    assert getattr(sent, "input", None) == "[2013]"


@pytest.mark.parametrize("kind", ["orchestrator", "activity", "spark_activity"])
def test_an_annotation_that_cannot_be_resolved_is_named_when_the_app_is_loaded(kind: str) -> None:
    app = App("typed")
    if kind == "orchestrator":

        @app.orchestrator
        async def work(ctx: OrchestrationContext, job: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    elif kind == "activity":

        @app.activity
        def work(job: list[Missing]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    else:

        @app.spark_activity
        def work(spark: SparkSession, job: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    says = rf"app 'typed': {kind.removeprefix('spark_')} 'work': annotation '.*Missing.*' of parameter 'job' of .*work"
    with pytest.raises(ConfigurationError, match=f"{says} cannot be resolved"):
        Registry.of([app])


@dataclass
class Unfinished:
    part: Missing  # type: ignore[name-defined]  # noqa: F821


class Foreign:
    """Nothing that a value could be decoded to."""


@pytest.mark.parametrize(
    ("annotation", "says"),
    [(Unfinished, "name 'Missing' is not defined"), (Foreign, "values cannot be decoded to annotation")],
)
def test_an_input_that_nothing_can_be_decoded_to_is_named_when_the_app_is_loaded(annotation: type, says: str) -> None:
    app = App("typed")

    def work(job: Any) -> None: ...

    work.__annotations__["job"] = annotation
    app.activity(work)

    with pytest.raises(
        ConfigurationError, match=rf"app 'typed': activity 'work': its input: (?=.*{annotation.__name__}).*{says}"
    ):
        Registry.of([app])


def test_only_the_annotation_of_the_input_must_resolve() -> None:
    app = App("typed")

    @app.orchestrator
    async def flow(ctx: Missing, job: Late) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    @app.spark_activity
    def load(spark: SparkSession, job: Late, more: Missing = None) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821

    registry = Registry.of([app])
    assert (registry.orchestrator("flow").input_annotation, registry.activity("load").input_annotation) == (Late, Late)


@dataclass
class Late:
    """Declared after what names it."""


def test_unknown_names_say_what_there_is() -> None:
    app = App("a")
    app.activity(name="x")(lambda: None)
    with pytest.raises(UnknownActivity, match="activity 'y'; known here: x"):
        Registry.of([app]).activity("y")
    with pytest.raises(UnknownOrchestrator, match="orchestrator 'y'; known here: none"):
        Registry.of([app]).orchestrator("y")


def _twice(app: App) -> None:
    app.activity(name="same")(lambda: None)
    app.activity(name="same")(lambda: None)


def _two_orchestrators(app: App) -> None:
    app.orchestrator(name="same")(lambda ctx: None)
    app.orchestrator(name="same")(lambda ctx: None)


def _two_names(app: App) -> None:
    def work(x: int) -> None: ...

    app.activity(name="one")(work)
    app.activity(name="two")(work)


def _async_generator(app: App) -> None:
    @app.orchestrator
    async def odd(ctx: OrchestrationContext) -> Any:
        yield 1


def _generator_activity(app: App) -> None:
    @app.activity
    def odd() -> Any:
        yield 1


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (_twice, "activity 'same' is declared twice in app 'wrong': rename one"),
        (_two_orchestrators, "orchestrator 'same' is declared twice"),
        (_two_names, "is declared as 'one' and as 'two'"),
        (_async_generator, "orchestrator 'odd' is an async generator"),
        (_generator_activity, "activity 'odd' is a generator"),
        (
            lambda app: app.orchestrator(name="o")(lambda: None),
            r"orchestrator 'o' has no parameter 'ctx': .* \(ctx\) or \(ctx, input\)",
        ),
        (lambda app: app.orchestrator(name="o")(lambda ctx, a, b: None), r"has more than one input \(b\)"),
        (lambda app: app.activity(name="a")(lambda a, *, key: None), r"activity 'a' has more than one input \(key\)"),
        (lambda app: app.spark_activity(name="s")(lambda: None), r"activity 's' has no parameter 'spark'"),
        (lambda app: app.spark_activity(name="s")(lambda spark, a, b: None), r"has more than one input \(b\)"),
        (lambda app: app.activity(lambda: None), "has no name"),
        (lambda app: app.activity(name="a")(5), "decorates 5, which is not a function"),
        (lambda app: app.activity(name="a", timeout=30)(lambda: None), "timeout is 30; give a timedelta"),
        (lambda app: app.activity(name="a", queue_timeout=timedelta(0))(lambda: None), "queue_timeout is "),
        *(
            (
                lambda app, limit=limit: app.activity(name="a", limit=limit)(lambda: None),
                f"limit is {limit!r}; give a whole number from 1 to 10,000, or leave",
            )
            for limit in (0, -1, True, 1.5, "2", 10_001)
        ),
        *(
            (lambda app, rate=rate: app.activity(name="a", rate=rate)(lambda: None), f"rate is {rate!r}; {text}")
            for rate, text in {
                10: "give a number and a unit",
                "0/m": "give a number and a unit",
                "10": "give a number and a unit: '5/s', '10/m'",
                "10/d": "give a number and a unit",
                "600/m": "the maximum is 100 in each unit: give '100/m' at most, or in a shorter unit '10/s'$",
                "101/m": "the maximum is 100 in each unit: give '100/m' at most$",
                "101/s": "the maximum is 100 in each unit: give '100/s' at most$",
            }.items()
        ),
        (lambda app: app.activity(name="a", limit=1, limit_name="")(lambda: None), "limit_name is ''; give a text"),
        (lambda app: app.activity(name="a", limit=1, limit_key=5)(lambda: None), "limit_key is 5; give a text"),
        (
            lambda app: app.activity(name="a", limit=1, limit_name="a\nb")(lambda: None),
            r"limit_name is 'a\\nb'; give a text of 1 to 200 printable characters, not only spaces, or None",
        ),
        (lambda app: app.activity(name="a", limit=1, limit_key="  ")(lambda: None), "limit_key is '  '; give a text"),
        (
            lambda app: app.activity(name="a", limit=1, limit_key="TaskHub.x")(lambda: None),
            "limit_key is 'TaskHub.x', a tag of TaskHub itself: name a tag of your calls",
        ),
        (
            lambda app: app.spark_activity(name="a", limit=1, record=False)(lambda spark: None),
            "record is False, but each attempt of an activity with limit or rate has a record: leave `record` out",
        ),
        (lambda app: app.activity(name="a", limit_key="x")(lambda: None), "limit_key is 'x', but nothing is limited"),
        (lambda app: app.activity(name="a", limit_name="x")(lambda: None), "limit_name is 'x', but nothing is limited"),
        *(
            (
                lambda app, memory=memory: app.activity(name="a", memory=memory)(lambda: None),
                f"activity 'a': memory is {memory!r}; give a number with k, m, g or t, such as '4g' or '512m', above 0",
            )
            for memory in ("", "4", "0g", "-4g", "much", 4, True)
        ),
        (
            lambda app: app.spark_activity(name="a", memory="4x")(lambda spark: None),
            "activity 'a': memory is '4x'; give a number",
        ),
        (lambda app: app.activity(name="a", retry=3)(lambda: None), "retry is 3; give a RetryPolicy"),
        (lambda app: app.activity(name="a", standalone="yes")(lambda: None), "standalone is 'yes'; give True or False"),
        (lambda app: app.activity(name="a", clean_up="yes")(lambda: None), "clean_up is 'yes'; give True or False"),
        (
            lambda app: app.activity(name="a", clean_up=True)(lambda: None),
            "clean_up needs the record .*: add record=True",
        ),
        (lambda app: app.spark_activity(name="a", conf=["x"])(lambda spark: None), r"conf is \['x'\]: give a dict"),
        (lambda app: app.spark_activity(name="a", conf={"x": 1})(lambda spark: None), "conf has 'x': the names of"),
        (
            lambda app: app.spark_activity(name="a", conf={"spark.master": "yarn"})(lambda spark: None),
            "activity 'a': conf has 'spark.master', which is the worker's: set the master in TASKHUB_SPARK__MASTER",
        ),
        (
            lambda app: app.spark_activity(name="a", conf={"spark.x": None})(lambda spark: None),
            "conf has 'spark.x' of type NoneType: give a text, a number or a bool",
        ),
    ],
)
def test_mistakes_show_where_they_are_made(declare: Callable[[App], Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        declare(App("wrong"))


@pytest.mark.rows("K50")
@pytest.mark.parametrize(
    ("compatible", "version", "runs"),
    [(None, "1", True), ([], "1", False), (["1"], "1", True), (["1"], "2", False), ([], "3", True), ([], "", True)],
)
def test_an_instance_runs_on_compatible_versions_only(compatible: Any, version: str, runs: bool) -> None:
    app = App("versions", version="3", compatible=compatible)
    app.orchestrator(name="work")(lambda ctx: None)
    live = Execution(Registry.of([app]), (), instance=INSTANCE)
    start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="work", version=version)
    if runs:
        assert live.advance([start], now=START).completed is not None
    else:
        with pytest.raises(
            UnknownOrchestrator, match=rf"'work' of version '{version}': app 'versions' here is version '3'"
        ):
            live.advance([start], now=START)


def test_a_standalone_activity_is_started_by_its_name() -> None:
    app = App("alone", version="3", compatible=["2"])

    @app.activity(standalone=True)
    def double(number: int) -> int:
        return 2 * number

    @app.activity(name="now", standalone=True)
    def time_of_day() -> str:
        return "noon"

    assert run("double", 21, app=app) == 42
    assert run("now", app=app) == "noon"
    assert app.orchestrators["double"].accepts("2")
    assert not app.orchestrators["double"].accepts("1"), "as the other orchestrators of the app"
    with pytest.raises(ConfigurationError, match="orchestrator 'double' is declared twice"):
        app.orchestrator(name="double")(lambda ctx: None)
    with pytest.raises(OrchestrationError, match="does not fit int"):
        run("double", "many", app=app)


def test_names_are_unique_across_apps() -> None:
    one, two = App("one"), App("two")
    one.activity(name="same")(lambda: None)
    two.activity(name="same")(lambda: None)
    with pytest.raises(ConfigurationError, match="activity 'same' is declared by app 'one' and by app 'two'"):
        Registry.of([one, two])
    with pytest.raises(ConfigurationError, match="app 'one' is loaded twice"):
        Registry.of([one, App("one")])


@pytest.mark.parametrize(("name", "version"), [("", ""), ("  ", ""), (None, ""), ("a", 3)])
def test_an_app_has_a_name_and_a_version(name: Any, version: Any) -> None:
    with pytest.raises(ConfigurationError):
        App(name, version=version)


class Test_loading:
    @pytest.fixture(autouse=True)
    def modules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "good_one.py").write_text(
            "from airflow_provider_taskhub.app import App\napp = App('good')\nother = App('other')\n"
        )
        (tmp_path / "bad_one.py").write_text("import no_such_library\n")
        (tmp_path / "wrong_one.py").write_text(
            "from airflow_provider_taskhub.app import RetryPolicy\nRetryPolicy(first_interval=1)\n"
        )
        (tmp_path / "unread_one.py").write_text("def :\n")
        (tmp_path / "ending_one.py").write_text("import sys\nsys.exit(0)\n")
        (tmp_path / "twice_one.py").write_text(
            "from airflow_provider_taskhub.app import App\napp = App('t')\n"
            "app.activity(name='x')(lambda: 1)\napp.activity(name='x')(lambda: 1)\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        for name in ("good_one", "bad_one", "ending_one", "twice_one", "wrong_one", "unread_one"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    def test_by_module_and_attribute(self) -> None:
        assert load_app("good_one:app").name == "good"
        assert load_app("good_one").name == "good"
        assert load_app("good_one:other").name == "other"

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            (
                "bad_one:app",
                "module 'bad_one' cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
            ),
            ("missing_one:app", "module 'missing_one' cannot be imported.*put it into the working directory"),
            ("wrong_one:app", r"TypeError: .*'first_interval'\. It failed at .*wrong_one\.py:2$"),
            ("unread_one:app", "SyntaxError: .*Fix the module"),
            ("ending_one:app", "module 'ending_one' cannot be imported: SystemExit: 0"),
            ("twice_one:app", "app 'twice_one:app': activity 'x' is declared twice"),
            ("good_one:nothing", "'good_one' has no App named 'nothing'; it has app, other"),
            ("json:app", "'json' has no App named 'app'; it declares no App"),
            ("../good_one.py", "write it as module:attribute"),
            ("", "write it as module:attribute"),
        ],
    )
    def test_what_cannot_be_loaded(self, path: str, text: str) -> None:
        with pytest.raises(ConfigurationError, match=text):
            load_app(path)


def test_activities_that_share_a_limit_declare_the_same_numbers() -> None:
    one, two = App("one"), App("two")
    one.activity(name="orders", limit=2, limit_name="database")(lambda: None)
    one.activity(name="stock", limit=2, limit_name="database")(lambda: None)
    text = "share the limit 'database', but one declares limit=2 and the other limit=3: give both the same"
    with pytest.raises(ConfigurationError, match=f"activities 'orders' of app 'one' and 'prices' of app 'one' {text}"):
        one.activity(name="prices", limit=3, limit_name="database")(lambda: None)
    two.activity(name="prices", limit=3, limit_name="database")(lambda: None)
    with pytest.raises(ConfigurationError, match=f"'orders' of app 'one' and 'prices' of app 'two' {text}"):
        Registry.of([one, two])
    with pytest.raises(ConfigurationError, match="declares limit=2 and the other limit=2, rate='10/m'"):
        one.activity(name="prices", limit=2, rate="10/m", limit_name="database")(lambda: None)
    with pytest.raises(ConfigurationError, match="declares limit=2 and the other limit=2, limit_key='tenant'"):
        one.activity(name="prices", limit=2, limit_name="database", limit_key="tenant")(lambda: None)
    one.activity(name="database")(lambda: None)
    Registry.of([one])


def test_an_activity_in_two_apps_is_named_before_the_limits_that_it_declares() -> None:
    """With another ``limit_name`` it would still be declared twice."""
    one, two = App("one"), App("two")
    one.activity(name="load", limit=2)(lambda: None)
    two.activity(name="load", limit=3)(lambda: None)
    with pytest.raises(ConfigurationError, match="'load' is declared by app 'one' and by app 'two': rename one"):
        Registry.of([one, two])
