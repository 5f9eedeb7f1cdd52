"""Inputs: their defaults, what does not fit their types, and keys that no type has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from typing_extensions import TypedDict

from airflow_provider_taskhub import testing
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.codec import dumps
from airflow_provider_taskhub.engine.events import ExecutionStarted, FailureDetails, Status
from airflow_provider_taskhub.engine.failures import failure_of
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.engine.replay import run
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.workers.executors.child.invocation import arguments
from tests.engine.play import INSTANCE, START, Play

app = App("inputs")


@dataclass
class Gate:
    max_bad: float = 0.5
    name: str = ""
    whole: str = field(default="", init=False)


@dataclass
class Required:
    year: int
    months: int = 0


@dataclass
class Orders:
    n: int = 1
    gate: Gate = field(default_factory=Gate)
    more: list[Gate] = field(default_factory=list)
    by_name: dict[str, Gate] = field(default_factory=dict)
    either: Gate | None = None


class Typed(TypedDict):
    n: int
    max_bad: NotRequired[float]
    gate: NotRequired[Gate]


class Model(BaseModel):
    n: int = 0
    renamed: int = Field(default=0, alias="other")
    gate: Gate | None = None


class Lax(BaseModel):
    model_config = ConfigDict(extra="ignore")
    n: int = 0


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("give an even number")
        return value


@app.orchestrator
async def naughty(ctx: OrchestrationContext, n: int = 7) -> int:
    return n


@app.orchestrator
async def asks(ctx: OrchestrationContext) -> Any:
    return await ctx.call_sub_orchestrator("naughty")


@app.orchestrator
async def orders(ctx: OrchestrationContext, value: Orders) -> float:
    await ctx.wait_for_external_event("go")
    return value.gate.max_bad


@app.orchestrator
async def even(ctx: OrchestrationContext, value: Even) -> None:
    return None


@app.activity
def load(n: int = 3) -> int:
    return n


@app.activity
def typed(value: Orders) -> None:
    return None


def decoded(annotation: Any, value: Any) -> Any:
    def function(value: Any) -> None: ...

    (found,) = input_arguments(function, "value", annotation, value, what="input of orchestrator 'orders'")
    return found


def failure(play: Play) -> FailureDetails:
    assert play.last.completed is not None
    assert play.last.completed.failure is not None
    return play.last.completed.failure


@pytest.mark.parametrize(("given", "output"), [(NO_INPUT, "7"), (0, "0"), (5, "5")])
def test_an_orchestrator_without_input_runs_with_its_default(given: Any, output: str) -> None:
    play = Play(app)
    play.start("naughty", given)
    assert (play.last.status, play.last.output) == (Status.COMPLETED, output)


@pytest.mark.parametrize(("given", "limit"), [(NO_INPUT, 100), (None, None), (5, 5)])
def test_an_explicit_none_is_none_for_starts_children_and_activities(given: Any, limit: int | None) -> None:
    own = App("own")

    @own.activity
    def take(limit: int | None = 100) -> int | None:
        return limit

    @own.orchestrator
    async def child(ctx: OrchestrationContext, limit: int | None = 100) -> list[int | None]:
        return [limit, await ctx.call_activity(take, given)]

    @own.orchestrator
    async def parent(ctx: OrchestrationContext, limit: int | None = 100) -> Any:
        return [limit, *await ctx.call_sub_orchestrator(child, given)]

    assert testing.run(parent, given, app=own) == [limit, limit, limit]


@pytest.mark.parametrize(("given", "output"), [(NO_INPUT, "7"), (None, "null")])
def test_a_new_generation_gets_the_none_that_it_was_given(given: Any, output: str) -> None:
    own = App("own")

    @own.orchestrator
    async def again(ctx: OrchestrationContext, n: int | None = 7) -> int | None:
        if n == 1:
            ctx.continue_as_new() if given is NO_INPUT else ctx.continue_as_new(given)
        return n

    play = Play(own)
    play.start("again", 1)
    assert play.last.output == output


def test_an_activity_that_is_started_by_itself_gets_the_input_of_its_instance() -> None:
    own = App("own")

    @own.activity(standalone=True)
    def take(limit: int | None = 100) -> int | None:
        return limit

    assert [testing.run("take", app=own), testing.run("take", None, app=own)] == [100, None]


def test_a_none_that_does_not_fit_is_refused_but_not_in_a_replay() -> None:
    fresh = Play(app)
    fresh.start("naughty", None)
    assert failure(fresh).error_message == "input of orchestrator 'naughty' does not fit int: value: None is not an int"

    def function(n: int = 7) -> None: ...

    # earlier versions have written "no input" as null, and their instances must go on
    assert input_arguments(function, "n", int, None, what="input", recorded=True) == ()


def test_an_activity_and_a_child_without_input_run_with_their_defaults() -> None:
    assert arguments(app.activities["load"], None) == ()
    assert arguments(app.activities["load"], "[]") == ()
    assert arguments(app.activities["load"], "[0]") == (0,)
    play = Play(app)
    play.start("asks")
    child = Play(app)
    child.take(play.outbound[0].event)
    assert child.last.output == "7"


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Orders, {"max_badd": 1}, "value has an unknown key 'max_badd'"),
        (Orders, {"gate": {"max_badd": 1}}, "value.gate has an unknown key 'max_badd', did you mean 'max_bad'?"),
        (Orders, {"more": [{}, {"nam": 1}]}, "value.more[1] has an unknown key 'nam', did you mean 'name'?"),
        (Orders, {"by_name": {"a": {"nam": ""}}}, "value.by_name.a has an unknown key 'nam'"),
        (Orders, {"either": {"nam": ""}}, "value.either has an unknown key 'nam'"),
        (list[Gate], [{"nam": ""}], "value[0] has an unknown key 'nam'"),
        (Orders | None, {"m": 1}, "value has an unknown key 'm'"),
        (Typed, {"n": 1, "max_badd": 1}, "value has an unknown key 'max_badd', did you mean 'max_bad'?"),
        (list[Typed], [{"n": 1, "zz": 1}], "value[0] has an unknown key 'zz' (known keys: gate, max_bad, n)"),
        (Typed, {"n": 1, "gate": {"nam": ""}}, "value.gate has an unknown key 'nam'"),
        (Model, {"nn": 1}, "value has an unknown key 'nn', did you mean 'n'?"),
        (Model, {"renamed": 1}, "value has an unknown key 'renamed'"),
        (Model, {"gate": {"nam": ""}}, "value.gate has an unknown key 'nam'"),
    ],
)
def test_a_key_that_no_type_has_is_refused_by_name(annotation: Any, value: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        decoded(annotation, value)
    assert str(caught.value).startswith(f"input of orchestrator 'orders': {text}")


@pytest.mark.parametrize(
    ("annotation", "value", "found"),
    [
        (
            Orders,
            {"n": 2, "gate": {"max_bad": 1, "whole": "x"}, "more": [{}], "by_name": {"a": {}}, "either": None},
            Orders(n=2, gate=Gate(max_bad=1), more=[Gate()], by_name={"a": Gate()}),
        ),
        (
            Orders,
            {"$type": "Orders, Shop", "gate": {"$type": "Gate, Shop", "max_bad": 1}},
            Orders(gate=Gate(max_bad=1)),
        ),
        (Typed, {"$type": "Typed, Shop", "n": 1}, {"n": 1}),
        (Model, {"other": 1, "n": 2}, Model(other=1, n=2)),
        (Lax, {"whatever": 1}, Lax()),
        (dict[str, int], {"whatever": 1}, {"whatever": 1}),
        (dict[int, Any], {"1": {"whatever": 1}}, {1: {"whatever": 1}}),
        (dict, {"whatever": {"a": 1}}, {"whatever": {"a": 1}}),
        (Any, {"whatever": 1}, {"whatever": 1}),
        (None, {"whatever": 1}, {"whatever": 1}),
    ],
)
def test_what_has_a_place_is_taken(annotation: Any, value: Any, found: Any) -> None:
    assert decoded(annotation, value) == found


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, "x", "does not fit int: value: 'x' is not an int"),
        (Orders, {"n": "x"}, "does not fit Orders: value.n: 'x' is not an int"),
        (Orders, {"more": [{"max_bad": []}]}, "does not fit Orders: value.more[0].max_bad: [] is not a float"),
        (Orders, 3, "does not fit Orders: value: 3 is not an object"),
        (Typed, {}, "does not fit Typed: value.n: Field required"),
        (Even, {"n": 3}, "does not fit Even: value.n: give an even number; it is 3"),
    ],
)
def test_what_does_not_fit_is_said_once_and_plainly(annotation: Any, value: Any, text: str) -> None:
    with pytest.raises(InputError) as caught:
        decoded(annotation, value)
    assert str(caught.value) == f"input of orchestrator 'orders' {text}"


def test_a_refused_input_fails_its_instance_without_frames_of_the_library() -> None:
    play = Play(app)
    play.start("orders", {"gate": {"max_badd": 0.1}})
    found = failure(play)
    assert found.is_non_retriable
    assert (found.error_type, found.stack_trace, found.inner_failure) == ("InputError", None, None)
    play = Play(app)
    play.start("naughty", "x")
    assert (failure(play).stack_trace, failure(play).inner_failure) == (None, None)
    assert failure(play).error_message == "input of orchestrator 'naughty' does not fit int: value: 'x' is not an int"


def test_an_activity_that_refuses_its_input_says_so_without_frames_of_the_library() -> None:
    for text in ('[{"n": "x"}]', '[{"gate": {"max_badd": 1}}]'):
        with pytest.raises(InputError) as caught:
            arguments(app.activities["typed"], text)
        found = failure_of(caught.value)
        assert found.inner_failure is None
        assert "pydantic" not in (found.stack_trace or "")
        assert "airflow_provider_taskhub/" not in (found.stack_trace or "")
        assert found.is_non_retriable


def test_the_error_of_a_users_validator_is_the_cause_with_the_users_frames() -> None:
    play = Play(app)
    play.start("even", {"n": 3})
    cause = failure(play).inner_failure
    assert cause is not None
    assert (cause.error_type, cause.error_message) == ("ValueError", "give an even number")
    assert "_even" in (cause.stack_trace or "")
    assert "pydantic" not in (cause.stack_trace or "")


@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        (Required, {"yeer": 1, "z": 2}, ["'yeer', did you mean 'year'?", "'z' (known keys: months, year)"]),
        (Required | None, {"YEAR": 1}, ["'YEAR', did you mean 'year'?"]),
        (Typed, {"N": 1}, ["'N', did you mean 'n'?"]),
        (Model, {"nn": 1, "n": "x"}, ["'nn', did you mean 'n'?"]),
    ],
)
def test_a_misspelt_key_of_a_value_that_does_not_fit_is_named_too(annotation: Any, value: Any, told: list[str]) -> None:
    with pytest.raises(InputError, match="does not fit") as caught:
        decoded(annotation, value)
    assert [text in str(caught.value) for text in told] == [True] * len(told)
    assert str(caught.value).count("unknown key") == len(told)


def test_an_instance_that_already_ran_goes_on_with_the_input_that_it_has() -> None:
    """Earlier versions dropped such a key without a word: their instances must replay as they ran."""
    play = Play(app)
    play.start("orders", {"gate": {"max_bad": 0.1}})
    text = dumps({"gate": {"max_bad": 0.1, "max_badd": 0.2}, "gone": 1})
    past = [replace(event, input=text) if isinstance(event, ExecutionStarted) else event for event in play.past]
    assert past != list(play.past)
    episode = run(play.registry, past, [play.raised("go")], instance=INSTANCE, now=START)
    assert (episode.status, episode.output) == (Status.COMPLETED, "0.1")
