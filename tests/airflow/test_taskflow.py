"""``@task.orchestration``: which input a call makes, what is refused while Airflow parses the DAG, and mapped tasks."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from pydantic import BaseModel, Field

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.decorators.orchestration import orchestration_task
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.provider_info import get_provider_info
from airflow_provider_taskhub.triggers.input_fields import fields_of
from tests.airflow.conftest import Task, Ti

EXAMPLES = Path(__file__).parents[2] / "dags_examples"

app = App("flights")


@dataclass(frozen=True)
class Job:
    year: int
    month: Annotated[int, Field(ge=1, le=12)]
    threshold: float = 0.05
    days: list[int] = field(default_factory=list)


class Typed(TypedDict):
    year: int
    month: NotRequired[int]


class Model(BaseModel):
    year: int
    month: int = 1


@app.orchestrator
async def flights_delays(ctx: OrchestrationContext, job: Job) -> None: ...


@app.orchestrator
async def of_typed(ctx: OrchestrationContext, job: Typed) -> None: ...


@app.orchestrator
async def of_model(ctx: OrchestrationContext, job: Model | None = None) -> None: ...


@app.orchestrator
async def of_any(ctx: OrchestrationContext, job) -> None: ...  # type: ignore[no-untyped-def]


@app.orchestrator(name="said_hello")
async def of_list(ctx: OrchestrationContext, names: list[str]) -> None: ...


@app.orchestrator
async def with_body(ctx: OrchestrationContext) -> None:
    ctx.set_custom_status("begun")


@app.orchestrator
async def of_nothing(ctx: OrchestrationContext) -> None: ...


async def undeclared(ctx: OrchestrationContext, job: Job) -> None: ...


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("d", schedule=None) as made:
        yield made


def delays(year: int, month: int) -> dict[str, Any]: ...


def names_of(names: list[str]) -> None:
    """Says hello."""


@task
def numbers() -> list[int]:
    return [1]


def operator(call: Any) -> Any:
    return call.operator


# the input


def of_anything(value: Any) -> None: ...


def no_parameters() -> None:
    pass


def by_name(*, year: int) -> None: ...


def with_default(year: int, month: int = 6, *, note: str | None = None) -> None: ...


def of_run(ds: str, run_id: str | None = None) -> None: ...


@pytest.mark.parametrize(
    ("stub", "args", "kwargs", "made"),
    [
        (no_parameters, (), {}, NO_INPUT),
        (of_anything, (None,), {}, None),
        (names_of, (["Ada"],), {}, ["Ada"]),
        (names_of, (), {"names": ["Ada"]}, ["Ada"]),
        (by_name, (), {"year": 2013}, {"year": 2013}),
        (delays, (2013, 12), {}, {"year": 2013, "month": 12}),
        (delays, (2013,), {"month": "{{ params.month }}"}, {"year": 2013, "month": "{{ params.month }}"}),
        (with_default, (2013,), {}, {"year": 2013, "month": 6, "note": None}),
        (of_run, (), {}, {"ds": "{{ ds }}", "run_id": "{{ run_id }}"}),
        (of_run, ("2013-12-01",), {"run_id": "mine"}, {"ds": "2013-12-01", "run_id": "mine"}),
    ],
)
def test_the_input_is_made_from_the_arguments(
    stub: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
) -> None:
    one = operator(orchestration_task(stub, orchestrator="o")(*args, **kwargs))
    assert isinstance(one, TaskHubOperator)
    assert one.input == made
    assert one.task_id == stub.__name__


def test_the_decorator_is_one_of_airflows_task_decorators() -> None:
    @task.orchestration
    def flights_delays(year: int) -> None: ...

    @task.orchestration(orchestrator="other", retries=2, on_retry="restart", instance_id="i")
    def more(year: int) -> None: ...

    assert operator(flights_delays(2013)).orchestrator == "flights_delays", "without a name, the stub's"
    one = operator(more(2013))
    assert (one.orchestrator, one.retries, one.on_retry, one.instance_id) == ("other", 2, "restart", "i")
    assert one.operator_name == "@task.orchestration"
    assert {entry["name"] for entry in get_provider_info()["task-decorators"]} == {"orchestration", "activity"}


def test_outputs_of_tasks_are_arguments_and_upstream() -> None:
    stub = orchestration_task(delays, orchestrator="o")
    year = numbers()
    first = stub(year, 12)
    second = stub(2013, first["month"])
    assert operator(first).upstream_task_ids == {"numbers"}
    assert operator(second).upstream_task_ids == {"delays"}
    assert operator(second).task_id == "delays__1"
    assert operator(first).multiple_outputs, "as with @task: the annotation is a dict"
    assert not operator(orchestration_task(delays, orchestrator="o", multiple_outputs=False)(1, 2)).multiple_outputs
    assert operator(orchestration_task(names_of)(["Ada"])).doc_md == "Says hello."


def test_a_made_task_is_serialized_with_plain_arguments_as_those_of_the_operator(dag: DAG) -> None:
    orchestration_task(delays, orchestrator=flights_delays, multiple_outputs=False)(2013, "{{ params.month }}")
    TaskHubOperator(task_id="plain", orchestrator="flights_delays", input={"year": 2013, "month": "{{ params.month }}"})
    stub, plain = (one["__var"] for one in DagSerialization.to_dict(dag)["dag"]["tasks"])
    assert {name: stub[name] for name in TaskHubOperator.template_fields if name in stub} == {
        name: plain[name] for name in TaskHubOperator.template_fields if name in plain
    }
    assert stub["input"] == {"year": 2013, "month": "{{ params.month }}"}
    assert stub["template_fields"] == plain["template_fields"]


def of_texts(year: int, day: str, note: str | None = None) -> None: ...


def test_a_trigger_starts_a_stub_whose_templates_need_no_check(dag: DAG) -> None:
    stub = orchestration_task(of_texts, orchestrator="o")
    by_trigger = operator(stub(2013, "{{ ds }}", "{{ run_id }}"))
    assert by_trigger.placement().start == ()
    assert by_trigger.start_trigger_args.trigger_kwargs["input"]["day"] == "{{ ds }}"
    by_trigger = operator(stub("{{ params.year }}", "x"))
    assert by_trigger.placement().start == ()
    assert by_trigger.start_trigger_args.trigger_kwargs["input_types"] == {"year": "int"}


def of_rows(rows: list[dict[str, int | None]]) -> None: ...


def of_days(first: date, *, note: Any = None, last: str = "x") -> None: ...


def test_a_trigger_gets_the_types_of_what_it_reads(dag: DAG) -> None:
    with dag:
        before = TaskHubOperator(task_id="before", orchestrator="o").output
        rows = operator(orchestration_task(of_rows, orchestrator="o")(before))
        days = orchestration_task(of_days, orchestrator="o")
        known = operator(days("2026-01-01", note=before, last=before))
        unknown = operator(days(before))
    assert rows.start_trigger_args.trigger_kwargs["input_types"] == {
        "": ["list", ["dict", "str", ["|", "int", "None"]]]
    }
    assert known.start_trigger_args.trigger_kwargs["input_types"] == {"last": "str"}, "the output may be no text"
    assert unknown.placement().start == ("only a worker can check argument 'first' against the annotation of the stub",)


# what is refused


def has_a_body(year: int) -> int:
    return year


def calls(year: int) -> None:
    print(year)


async def is_async(year: int) -> None: ...


def any_names(**more: int) -> None: ...


def any_number(*years: int) -> None: ...


def of_context(params: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("stub", "says"),
    [
        (has_a_body, "'has_a_body': its body must be empty (`...`, `pass` or a docstring)"),
        (calls, "'calls': its body must be empty"),
        (is_async, "'is_async': its body must be empty"),
        (with_body, "if this function is the orchestrator, write a stub and @task.orchestration(orchestrator=…)"),
        (any_names, "'any_names': parameter '**more: int' has no names to check: name each parameter"),
        (any_number, "'any_number': parameter '*years: int' has no names to check"),
        (of_context, "'of_context': parameter 'params' has the name of an object of Airflow's context"),
        (print, "@task.orchestration decorates <built-in function print>: put it above a function"),
        ("flights", "@task.orchestration: got 'flights' by position: write orchestrator='flights'"),
    ],
)
def test_a_wrong_stub_is_refused_at_parse(stub: Any, says: str) -> None:
    with pytest.raises(InputError) as error:
        orchestration_task(stub)
    assert says in str(error.value)


def typed(
    year: int = 1, day: date | None = None, job: Job | None = None, kind: Literal["a", "b"] = "a", free: Any = 1
) -> None: ...


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"year": "2013x"}, "argument 'year' does not fit int: value: '2013x' is not an int: give a value of type int"),
        ({"year": None}, "argument 'year' does not fit int: value: None is not an int"),
        ({"year": 2013.5}, "argument 'year' does not fit int"),
        ({"day": "yesterday"}, "argument 'day' does not fit"),
        ({"job": {"year": 2013}}, "argument 'job' does not fit"),
        ({"kind": "c"}, "argument 'kind' does not fit"),
        ({"free": object()}, "argument 'free' of type object cannot be written as JSON"),
        ({"free": float("nan")}, "argument 'free' of type float cannot be written as JSON"),
        ({"yeer": 1}, "got an unexpected keyword argument 'yeer': its parameters are (year: int = 1"),
    ],
)
def test_a_wrong_argument_is_refused_at_parse(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        orchestration_task(typed, orchestrator="o")(**given)
    assert str(error.value).startswith("@task.orchestration 'typed': ")
    assert says in str(error.value)


def test_right_arguments_are_those_that_a_worker_could_decode() -> None:
    stub = orchestration_task(typed, orchestrator="o")
    stub(2013, date(2013, 12, 1), Job(2013, 12), "b", {1, 2})
    stub("{{ params.year }}", "{{ ds }}", {"year": numbers(), "month": 99}, numbers(), [numbers()])


def test_missing_and_superfluous_arguments_are_refused() -> None:
    stub = orchestration_task(delays, orchestrator="o")
    with pytest.raises(InputError, match="'delays': missing a required argument: 'month': its parameters are"):
        stub(2013)
    with pytest.raises(InputError, match="'delays': too many positional arguments"):
        stub(2013, 12, 1)
    with pytest.raises(InputError, match="multiple values for argument 'year'"):
        stub(2013, year=2013)


def test_wrong_arguments_of_the_operator_are_refused_as_the_operators_own() -> None:
    with pytest.raises(InputError, match=r"^@task\.orchestration 'delays': on_retry is 'again': choose from rewind"):
        orchestration_task(delays, orchestrator="o", on_retry="again")(2013, 12)
    with pytest.raises(InputError, match=r"@task\.orchestration: input is 7: give it as arguments when you call"):
        orchestration_task(delays, orchestrator="o", input=7)


# against the orchestrator


def misspelt(year: int, mont: int) -> None: ...


def year_only(*, year: int) -> None: ...


def lone_year(year: int) -> None: ...


def lone_job(job: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("stub", "orchestrator", "says"),
    [
        (misspelt, flights_delays, "orchestrator 'flights_delays' has no 'mont' in its input"),
        (misspelt, of_typed, "orchestrator 'of_typed' has no 'mont' in its input"),
        (misspelt, of_model, "orchestrator 'of_model' has no 'mont' in its input"),
        (year_only, flights_delays, "orchestrator 'flights_delays' needs month in its input"),
        (lone_year, flights_delays, "takes an object with the key 'year', and a lone parameter is the input itself: "),
        (lone_year, flights_delays, "write (*, year: int)"),
        (no_parameters, flights_delays, "needs an input (job: "),
        (delays, of_list, "orchestrator 'said_hello' takes names: list[str], and the parameters (year, month) make"),
        (delays, of_nothing, "orchestrator 'of_nothing' takes no input, and the stub has the parameters (year, month)"),
        (delays, undeclared, "orchestrator is undeclared, which no App has declared: decorate it with @app"),
    ],
)
def test_a_stub_that_does_not_fit_its_orchestrator_is_refused_before_any_call(
    stub: Any, orchestrator: Any, says: str
) -> None:
    with pytest.raises(InputError) as error:
        orchestration_task(stub, orchestrator=orchestrator)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("stub", "orchestrator"),
    [
        (delays, flights_delays),
        (delays, of_typed),
        (year_only, of_typed),
        (year_only, of_model),
        (no_parameters, of_model),
        (delays, of_any),
        (no_parameters, of_nothing),
        (names_of, of_list),
        (lone_job, flights_delays),
    ],
)
def test_a_stub_that_fits_is_taken(stub: Any, orchestrator: Any) -> None:
    assert orchestration_task(stub, orchestrator=orchestrator).kwargs["orchestrator"] is orchestrator


def untyped(year, month, threshold=0.1) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((2013, 13), "input of orchestrator 'flights_delays' does not fit Job: value.month: "),
        ((2013, 13), "it is 13: change the arguments of the call"),
        (("{{ params.year }}", 13), "argument 'month' of orchestrator 'flights_delays' does not fit"),
        (("{{ params.year }}", 1, "many"), "argument 'threshold' of orchestrator 'flights_delays' does not fit float"),
    ],
)
def test_values_are_checked_by_the_orchestrators_own_types(args: tuple[Any, ...], says: str) -> None:
    with pytest.raises(InputError) as error:
        orchestration_task(untyped, orchestrator=flights_delays)(*args)
    assert says in str(error.value)
    orchestration_task(untyped, orchestrator="flights_delays")(*args)  # of a name, nothing is known


def test_a_lone_argument_is_checked_by_the_orchestrators_type() -> None:
    def job(job) -> None: ...  # type: ignore[no-untyped-def]

    stub = orchestration_task(job, orchestrator=flights_delays)
    with pytest.raises(InputError, match="value has an unknown key 'mnth'"):
        stub({"year": 2013, "mnth": 1, "month": 1})
    stub({"year": "{{ params.year }}", "mnth": 1})
    stub({"year": 2013, "month": 1})


def test_an_app_gives_the_function_of_a_name() -> None:
    assert orchestration_task(names_of, orchestrator="said_hello", app=app).kwargs["orchestrator"] is of_list
    assert orchestration_task(names_of, orchestrator=of_list, app=app).kwargs["orchestrator"] is of_list
    assert operator(orchestration_task(names_of, orchestrator="said_hello", app=app)(["Ada"])).orchestrator == (
        "said_hello"
    )
    with pytest.raises(InputError, match=r"orchestrator is 'names_of', which App\('flights'.* does not declare: it"):
        orchestration_task(names_of, app=app)
    with pytest.raises(InputError, match="app is 'flights': give the App object"):
        orchestration_task(names_of, app="flights")  # type: ignore[arg-type]


def test_an_overridden_orchestrator_is_checked_too() -> None:
    stub = orchestration_task(delays, orchestrator="o")
    with pytest.raises(InputError, match="'said_hello' takes names"):
        stub.override(orchestrator=of_list)(2013, 12)
    other = operator(stub.override(orchestrator=flights_delays, task_id="other", retries=3)(2013, 12))
    assert (other.task_id, other.orchestrator, other.retries) == ("other", "flights_delays", 3)


def test_fields_are_known_only_of_types_that_leave_keys_to_us() -> None:
    class Aliased(BaseModel):
        year: int = Field(alias="Year")

    class Open(BaseModel):
        model_config = {"extra": "allow"}
        year: int

    assert set(fields_of(Job | None)) == {"year", "month", "threshold", "days"}
    assert {name for name, (_, required) in fields_of(Job).items() if required} == {"year", "month"}
    assert fields_of(Typed)["month"] == (int, False)
    assert fields_of(Model)["year"] == (int, True)
    for other in (Aliased, Open, dict[str, int], int, None, Job | Typed):
        assert fields_of(other) == {}


# mapped tasks


def test_a_mapped_stub_makes_one_input_for_each_row(dag: DAG) -> None:
    stub = orchestration_task(delays, orchestrator=flights_delays, on_retry="attach")
    mapped = operator(stub.partial(year=numbers()).expand(month=[1, "{{ params.month }}"]))
    assert mapped.upstream_task_ids == {"numbers"}
    one = mapped.unmap({"op_kwargs": {"month": 2}})
    assert (one.task_id, one.orchestrator, one.on_retry) == ("delays", "flights_delays", "attach")
    assert one.input["month"] == 2
    assert one.template_fields == TaskHubOperator.template_fields
    stored = next(one["__var"] for one in DagSerialization.to_dict(dag)["dag"]["tasks"] if "_is_mapped" in one["__var"])
    assert stored["partial_kwargs"]["orchestrator"] == "flights_delays"


@pytest.mark.parametrize("orchestrator", ["o", flights_delays])
def test_arguments_of_mapped_tasks_are_checked_at_parse(orchestrator: Any) -> None:
    stub = orchestration_task(delays, orchestrator=orchestrator)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: stub.partial(year="x"), "argument 'year' does not fit int"),
        (lambda: stub.partial(year=1).expand(month=[1, "y"]), "argument 'month' of row 1 does not fit int"),
        (lambda: stub.expand(month=[1]), "argument 'year' is missing"),
        (lambda: stub.expand_kwargs([{"year": 1, "month": 2}, {"year": 1}]), "argument 'month' of row 1 is missing"),
        (lambda: stub.partial(year=1).expand_kwargs([{"month": "y"}]), "argument 'month' of row 0 does not fit int"),
    ]
    for call, says in wrong:
        with pytest.raises(InputError) as error:
            call()
        assert says in str(error.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'yeer'"):
        stub.partial(year=1).expand(month=[1], yeer=[1])
    with pytest.raises(TypeError, match="unexpected keyword argument 'yeer'"):
        stub.expand_kwargs([{"year": 1, "month": 2, "yeer": 1}])
    assert operator(stub.expand_kwargs([{"year": 1, "month": numbers()}])).task_id == "delays"
    assert operator(stub.expand_kwargs(numbers())).task_id == "delays__1"


def test_a_mapped_row_is_checked_against_the_orchestrator() -> None:
    stub = orchestration_task(untyped, orchestrator=flights_delays)
    with pytest.raises(InputError, match="argument 'month' of orchestrator 'flights_delays' does not fit"):
        stub.partial(year=2013).expand(month=[12, 13])
    with pytest.raises(InputError, match="does not fit list"):
        orchestration_task(names_of, orchestrator=of_list).expand(names=[["Ada"], [1]])


# when the task runs


def test_rendered_arguments_are_checked_before_anything_starts(hub: Any) -> None:
    one = operator(orchestration_task(delays, orchestrator="o")("{{ params.year }}", 12))
    one.input = {"year": "later", "month": 12}  # as Airflow renders it
    with pytest.raises(AirflowFailException) as error:
        Task(one).run(Ti())
    assert "argument 'year' does not fit int: value: 'later' is not an int" in str(error.value)
    assert "unless the DAG has render_template_as_native_obj=True" in str(error.value)
    assert hub.starts == []
    one.input = {"year": "2013", "month": 12}
    Task(one).start(Ti())
    assert [state.input for state in hub.instances.values()] == ['{"year":"2013","month":12}']


def test_a_lone_rendered_argument_is_checked_too(hub: Any) -> None:
    one = operator(orchestration_task(names_of, orchestrator="o")("{{ params.names }}"))
    one.input = "['Ada']"
    with pytest.raises(AirflowFailException, match="argument 'names' does not fit"):
        Task(one).run(Ti())
    assert hub.starts == []


def test_a_mapped_row_that_is_wrong_fails_its_task_without_retries(hub: Any) -> None:
    mapped = operator(orchestration_task(delays, orchestrator="o").partial(year=1).expand(month=numbers()))
    with pytest.raises(AirflowFailException, match="argument 'month' does not fit int"):
        Task(mapped.unmap({"op_kwargs": {"month": "x"}})).run(Ti())
    assert hub.starts == []


# the example


def test_the_example_dag_makes_the_inputs_that_its_orchestrators_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    found = runpy.run_path(str(EXAMPLES / "taskflow.py"))
    tasks = found["dag"].task_dict
    assert tasks["first"].input == {"year": 2024, "month": 12}
    assert tasks["sales"].upstream_task_ids == {"months"}
    assert tasks["best"].upstream_task_ids == {"sales", "first"}
    orchestrators = runpy.run_path(str(EXAMPLES / "taskflow_app.py"))["app"].orchestrators
    for name, stub in (("month_sales", found["sales"]), ("best_month", found["best"])):
        assert orchestration_task(stub.function, orchestrator=orchestrators[name].function)


@pytest.mark.process
def test_a_stub_by_name_imports_neither_the_app_nor_spark() -> None:
    code = f"""
import runpy, sys
runpy.run_path({str(EXAMPLES / "taskflow.py")!r})
names = {{name.split('.')[0] for name in sys.modules}} & {{'pyspark', 'azure', 'fastapi', 'pandas', 'taskflow_app'}}
print(sorted(names), 'airflow_provider_taskhub.app' in sys.modules, 'airflow_provider_taskhub.client' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[] False False"
