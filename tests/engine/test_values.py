"""Values on their way through a hub: what keeps its meaning, and what is refused with its path."""

from __future__ import annotations

import decimal
import enum
import io
import time
import uuid
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
import pytest
from pydantic import AwareDatetime, BaseModel, Field, NaiveDatetime, SecretStr
from structlog.testing import capture_logs
from typing_extensions import TypedDict

from airflow_provider_taskhub import testing
from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.codec import decode, dumps, loads
from airflow_provider_taskhub.engine.events import TaskCompleted
from airflow_provider_taskhub.engine.registry import Registry, result_annotation_of
from airflow_provider_taskhub.errors import InputError, OrchestrationError
from airflow_provider_taskhub.workers.host import tell_unknown_results
from tests.engine.play import Play

pd: Any = pytest.importorskip("pandas")
NOON = datetime(2026, 12, 1, 12)
FRAME = pd.DataFrame({"x": [1, 2]})


class Row(NamedTuple):
    a: int
    b: str


class Color(enum.Enum):
    RED = "red"


class Plan(enum.Enum):
    """An enum whose values JSON has in another form."""

    SMALL = (5.9, 6.3)
    DAY = date(2026, 12, 1)
    PRICE = decimal.Decimal("1.10")
    HALF = 0.5
    PAIRS = (("a", 1),)


@dataclass
class Totals:
    amount: decimal.Decimal
    by_year: dict[int, str] = field(default_factory=dict)
    at: datetime = NOON


@dataclass
class Chosen:
    plan: Plan | None


@dataclass
class Login:
    user: str
    password: SecretStr


class LoginModel(BaseModel):
    password: SecretStr


class Model(BaseModel):
    at: datetime
    more: list[Model] = []


class Typed(TypedDict):
    at: datetime


@dataclass
class Ok:
    value: int


@dataclass
class Err:
    value: int


@dataclass
class Tagged:
    value: int
    kind: Literal["tagged"] = "tagged"


@dataclass
class OtherTag:
    value: int
    kind: Literal["other"] = "other"


class Colour(StrEnum):
    RED = "red"


@dataclass
class Painted:
    colour: Colour


@dataclass
class Judged:
    path: Path
    what: Ok | Err | None
    size: int = 0


class ErrModel(BaseModel):
    value: int


class Shade(enum.StrEnum):
    RED = "red"


@dataclass
class Counted:
    """Its ``total`` is not given, ``twice`` comes from another field, and ``seen`` is no part of its value."""

    round: float
    total: int = field(default=0, init=False)
    twice: float = field(init=False)
    seen: list[int] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.round

    def after(self, **changes: Any) -> Counted:
        for name, value in changes.items():
            setattr(self, name, value)
        return self


@dataclass
class Animal:
    name: str


@dataclass
class Dog(Animal):
    breed: str = "mutt"


@dataclass
class Cat(Animal):
    pass


@dataclass
class Nicknamed(Animal):
    nick: str = field(default="", compare=False)


class Pet(BaseModel):
    name: str


class Parrot(Pet):
    words: list[str] = []


class Hidden(Pet):
    note: str = Field(default="", exclude=True)


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


class Pair(NamedTuple, Generic[T]):
    content: T
    size: int


class FirstRow(TypedDict):
    content: Ok


class SecondRow(TypedDict):
    content: Err


@dataclass
class Note:
    at: datetime
    data: dict[str, Any]


class NoteRow(TypedDict):
    at: datetime
    data: dict[str, Any]


class Kind(enum.Enum):
    FIRST = "first"
    SECOND = 2


@dataclass
class FirstKind:
    kind: Literal[Kind.FIRST] = Kind.FIRST


@dataclass
class SecondKind:
    kind: Literal[Kind.SECOND] = Kind.SECOND


@dataclass
class Named:
    """Both fields can have the same short text. Python keeps one object of it."""

    where: str | Path
    what: str | Color


# results


def declared(annotation: Any, value: Any) -> Any:
    """What an orchestrator gets from an activity that declares this type."""
    own, got = App("own"), []

    def give() -> Any:
        return value

    give.__annotations__["return"] = annotation
    own.activity(give)

    @own.orchestrator
    async def get(ctx: OrchestrationContext) -> None:
        got.append(await ctx.call_activity("give"))

    testing.run(get, app=own)
    return got[-1]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Totals, Totals(decimal.Decimal("1.10"), {2025: "a"}, NOON.replace(tzinfo=UTC))),
        (list[Totals] | None, [Totals(decimal.Decimal(1), at=NOON.replace(tzinfo=UTC))]),
        (Row, Row(1, "x")),
        (list[Row], [Row(1, "x")]),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (dict[int, str], {2025: "a"}),
        (dict[date, int], {date(2026, 1, 2): 3}),
        (dict[Color, int], {Color.RED: 3}),
        (set[int], {10, 9}),
        (tuple[int, str], (1, "x")),
        (uuid.UUID, uuid.UUID(int=7)),
        (Color, Color.RED),
        *((Plan, plan) for plan in Plan),
        (list[Plan], [*Plan]),
        (Chosen, Chosen(Plan.DAY)),
        (timedelta, timedelta(hours=3)),
        (datetime, NOON.replace(tzinfo=UTC)),
        (bytes, b"text"),
        (None, None),
    ],
)
def test_a_result_comes_back_as_its_declared_type(annotation: Any, value: Any) -> None:
    found = declared(annotation, value)
    assert (found, type(found)) == (value, type(value))


def test_a_type_that_no_value_can_be_decoded_to_leaves_plain_json() -> None:
    assert declared("Nowhere", {"a": 1}) == {"a": 1}
    assert declared(pd.DataFrame, [1]) == [1]
    assert declared(Generator[int, None, None], [1]) == [1]
    assert declared(Any, (1, 2)) == [1, 2]


def test_a_child_is_decoded_by_its_declared_type_and_by_the_type_of_the_call() -> None:
    own, got = App("own"), []

    @own.orchestrator
    async def child(ctx: OrchestrationContext) -> Totals:
        return Totals(decimal.Decimal("1.10"))

    @own.orchestrator
    def old(ctx: OrchestrationContext) -> Generator[Any, Any, Totals]:
        yield ctx.create_timer(timedelta(0))
        return Totals(decimal.Decimal("2.20"))

    @own.orchestrator
    async def parent(ctx: OrchestrationContext) -> None:
        for given in (child, "child", old, "old"):
            got.append((await ctx.call_sub_orchestrator(given)).amount)
        got.append(await ctx.call_sub_orchestrator("child", result_type=dict[str, Any]))
        got.append((await ctx.call_activity("theirs", result_type=Totals)).amount)
        got.extend(one.amount for one in await ctx.when_all([ctx.call_sub_orchestrator(child)]))

    testing.run(parent, app=own, activities={"theirs": lambda: {"amount": "3.30"}})
    assert got[:4] == [decimal.Decimal(one) for one in ("1.10", "1.10", "2.20", "2.20")]
    assert got[4]["amount"] == "1.10"
    assert got[5:] == [decimal.Decimal("3.30"), decimal.Decimal("1.10")]


def test_a_result_that_does_not_fit_raises_where_it_is_awaited() -> None:
    own = App("own")

    @own.activity
    def give() -> Totals:
        return {"amount": "much"}  # type: ignore[return-value]

    @own.orchestrator
    async def get(ctx: OrchestrationContext) -> Any:
        call = ctx.call_activity(give)
        first = await ctx.when_any([call])
        assert (first.is_complete, first.is_failed, type(first.get_exception())) == (True, True, InputError)
        try:
            await ctx.when_all([call])
        except InputError as error:
            return str(error)

    text = "result of activity 'give' does not fit Totals: value.amount: 'much' is not a number"
    assert testing.run(get, app=own) == text


def test_a_result_that_nobody_looks_at_is_not_decoded() -> None:
    """A history of an earlier version may have results that do not fit, and code that does not mind."""
    own = App("own")

    @own.activity
    def give() -> Totals:
        raise NotImplementedError

    @own.orchestrator
    async def waits(ctx: OrchestrationContext) -> str:
        await ctx.when_any([ctx.call_activity(give)])
        return "done"

    play = Play(own)
    play.start("waits")
    sent = play.outbound[0]
    play.take(
        TaskCompleted(
            timestamp=play.now, task_scheduled_id=sent.event.event_id, result="7", taskhub_action_id=sent.action_id
        )
    )
    assert play.last.output == '"done"'


def test_a_type_of_a_call_that_cannot_be_decoded_to_is_refused_at_the_call() -> None:
    own = App("own")

    @own.orchestrator
    async def get(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("give", result_type=pd.DataFrame)

    with pytest.raises(OrchestrationError, match="result_type of activity 'give': values cannot be decoded"):
        testing.run(get, app=own)


@pytest.mark.parametrize("given", [{"approved": False}, [int], True])
def test_a_value_in_place_of_a_type_is_refused_at_the_call(given: Any) -> None:
    own = App("own")

    @own.orchestrator
    async def get(ctx: OrchestrationContext) -> list[str]:
        told = []
        for call in (
            lambda: ctx.wait_for_external_event("go", given),
            lambda: ctx.call_activity("give", result_type=given),
        ):
            with pytest.raises(InputError) as caught:
                call()
            told.append(str(caught.value))
        return told

    event, result = testing.run(get, app=own)
    assert event.startswith(f"data_type of event 'go' is {given!r}, which is no type")
    if given is not True:
        assert event.endswith("give a type, such as dict[str, int]")
    assert (
        result == f"result_type of activity 'give' is {given!r}, which is no type: give a type, such as dict[str, int]"
    )


def test_a_coroutine_that_was_not_awaited_is_named() -> None:
    own = App("own")

    async def helper(ctx: OrchestrationContext) -> int: ...  # type: ignore[empty-body]

    @own.orchestrator
    async def get(ctx: OrchestrationContext) -> Any:
        call = helper(ctx)
        with pytest.raises(InputError) as caught:
            ctx.call_activity("give", {"a": call})
        call.close()
        return str(caught.value)

    told = testing.run(get, app=own)
    assert "value.a is the coroutine of " in told
    assert "helper, which was not awaited: write await before the call" in told


def test_an_annotation_is_resolved_once() -> None:
    def give() -> Totals: ...  # type: ignore[empty-body]

    assert result_annotation_of(give) is Totals


# what a reader would not get


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (Ok | Err, Err(1), "value is of type Err, and comes back as Ok, because its JSON fits both types of the union"),
        (Err | Ok, Ok(1), "value is of type Ok, and comes back as Err"),
        (list[Ok] | list[Err], [Err(1)], "value[0] is of type Err, and comes back as Ok"),
        (dict[str, list[Ok | Err]], {"a": [Ok(1), Err(2)]}, "value.a[1] is of type Err, and comes back as Ok"),
        (Judged, Judged(Path("a"), Err(1)), "value.what is of type Err, and comes back as Ok"),
        (Tagged | Err, Err(1), "value is of type Err, and comes back as Tagged"),
        (Ok | ErrModel, ErrModel(value=1), "value is of type ErrModel, and comes back as Ok"),
        (str | datetime, NOON, "value is of type datetime, and comes back as str"),
        (set[uuid.UUID | str], {uuid.UUID(int=7)}, "value[0] is of type UUID, and comes back as str"),
        (float | decimal.Decimal, decimal.Decimal("1.5"), "value is of type Decimal, and comes back as float"),
        (set[int] | list[int], {1}, "value is of type set, and comes back as list"),
        (Color | Shade, Shade.RED, "value is of type Shade, and comes back as Color"),
        (Path | str, Path("a"), "and comes back as str"),
        (
            Literal["a"] | Path,
            Path("a"),
            "comes back as str, because its JSON fits both types of the union. Declare one",
        ),
        (Literal["red"] | Color, Color.RED, "or a dataclass with a field for each type"),
        (Box[Ok] | Box[Err], Box(Err(1)), "value.content is of type Err, and comes back as Ok"),
        (list[Box[Ok]] | list[Box[Err]], [Box(Err(1))], "value[0].content is of type Err, and comes back as Ok"),
        (Box[Box[Ok]] | Box[Box[Err]], Box(Box(Err(1))), "value.content.content is of type Err, and comes back as Ok"),
        (Ok | list[Ok] | list[Err], [Err(1)], "value[0] is of type Err, and comes back as Ok"),
        (FirstRow | SecondRow, {"content": Err(1)}, "value.content is of type Err, and comes back as Ok"),
        (Pair[Ok] | Pair[Err], Pair(Err(1), 2), "value[0] is of type Err, and comes back as Ok"),
        (Colour | Shade, Shade.RED, "value is of type Shade, and comes back as Colour"),
        (Named, Named(Path("a"), "a"), "value.where is of type PosixPath, and comes back as str"),
        (Counted, Counted(1).after(total=10), "value.total would be lost: its field has init=False"),
        (list[Counted], [Counted(1), Counted(1).after(twice=3)], "value[1].twice would be lost"),
        (
            Animal,
            Dog("rex"),
            "value is of type Dog, and comes back as Animal, without breed. Declare Dog, or the union",
        ),
        (dict[str, Animal], {"a": Dog("rex")}, "value.a is of type Dog, and comes back as Animal"),
        (Pet, Parrot(name="jo"), "value is of type Parrot, and comes back as Pet, without words"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_where_it_is_written(
    annotation: Any, value: Any, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        dumps(value, annotation, what="result of activity 'check'")
    assert str(caught.value).startswith("result of activity 'check': ")
    assert says in str(caught.value)
    dumps(value)  # a reader without a type gets all of it


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Ok | Err, Ok(1)),
        (Err | Ok, Err(1)),
        (Ok | Tagged, Tagged(1)),
        (Tagged | OtherTag, OtherTag(1)),
        (Annotated[Tagged | OtherTag, Field(discriminator="kind")], OtherTag(1)),
        (Judged, Judged(Path("a"), None)),
        (list[int | Plan], [1, Plan.DAY]),
        (str | int | None, None),
        (Row | str, Row(1, "x")),
        (Counted, Counted(1.0)),
        (Counted, Counted(1)),
        (Counted | None, Counted(1).after(seen=[3])),
        (Animal | Dog, Dog("rex")),
        (Box[int] | Box[str], Box("1")),
        (FirstKind | SecondKind, SecondKind()),
        (Literal[Color.RED] | None, Color.RED),
        (Literal["red", Color.RED], "red"),
        (Box[Path] | Box[str], Box("a")),
        (Box[Ok] | Box[Err], Box(Ok(1))),
    ],
)
def test_what_comes_back_as_it_was_is_written(annotation: Any, value: Any) -> None:
    found = decode(loads(dumps(value, annotation)), annotation)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Painted | str, Painted("red")),  # type: ignore[arg-type]  # a dataclass does not check its fields
        (dict[str, datetime] | list[datetime], {"a": "2026-01-01T00:00:00Z"}),
        (list[UUID] | str, ["0f8fad5b-d9cb-469f-a165-70867728950e"]),
        (Colour | str, Colour.RED),
        (Pet, Hidden(name="jo")),
        (Animal, Nicknamed("tom")),
        (Note | list[Note], Note(NOON, {"at": NOON})),
        (NoteRow | None, {"at": NOON, "data": {"at": NOON}}),
    ],
)
def test_what_the_reader_makes_by_its_declared_type_is_written(annotation: Any, value: Any) -> None:
    """No union chooses here, the values are equal, or a field is lost that is no part of the value."""
    decode(loads(dumps(value, annotation)), annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Ok | Err, {"value": 1}),
        (Animal, Cat("tom")),
        (Judged, Judged("a", Ok(1))),  # type: ignore[arg-type]
        (dict[str, float | decimal.Decimal], {"a": 3}),
        (list[int | str], (1, "a")),
        (Ok | Err, {"value": "much"}),
    ],
)
def test_what_is_of_no_type_of_the_union_is_left_to_the_reader(annotation: Any, value: Any) -> None:
    dumps(value, annotation)


def test_the_types_of_a_union_have_the_order_of_the_code() -> None:
    """The annotations are equal, so one must not take the place of the other."""
    assert Ok | Err == Err | Ok
    for first, other in ((Ok, Err), (Err, Ok)):
        assert type(decode({"value": 1}, first | other)) is first
        assert type(decode([{"value": 1}], list[first | other])[0]) is first  # type: ignore[valid-type]


def test_an_input_of_a_call_and_of_the_next_generation_is_compared_too() -> None:
    own = App("own")

    @own.activity
    def check(given: Ok | Err) -> None: ...

    @own.orchestrator
    async def child(ctx: OrchestrationContext, given: Ok | Err) -> None: ...

    @own.orchestrator
    async def parent(ctx: OrchestrationContext, counted: Counted) -> list[str]:
        told = []
        counted.total += 10
        for call in (
            lambda: ctx.call_activity(check, Err(1)),
            lambda: ctx.call_sub_orchestrator(child, Err(1)),
            lambda: ctx.continue_as_new(counted),
        ):
            with pytest.raises(InputError) as caught:
                call()
            told.append(str(caught.value).partition(",")[0])
        return told

    assert testing.run(parent, Counted(1), app=own) == [
        "input of activity 'check': value is of type Err",
        "input of orchestrator 'child': value is of type Err",
        "input of orchestrator 'parent': value.total would be lost: its field has init=False",
    ]


# what JSON has


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Row(1, "x"), '{"a":1,"b":"x"}'),
        ([Row(1, "x")], '[{"a":1,"b":"x"}]'),
        ({"a": {"rows": FRAME["x"].sum()}}, '{"a":{"rows":3}}'),
        (np.bool_(True), "true"),
        (np.float32(1.5), "1.5"),
        (np.str_("x"), '"x"'),
        (np.datetime64("2026-01-02T03:04:05"), '"2026-01-02T03:04:05"'),
        (pd.Timestamp("2026-01-02"), '"2026-01-02T00:00:00"'),
        (pd.Timestamp(1), '"1970-01-01T00:00:00.000000001"'),
        ({"b", "a"}, '["a","b"]'),
        ({10, 9}, "[9,10]"),
        ({"a", 1}, '["a",1]'),
        ({"k": Color.RED}, '{"k":"red"}'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (Totals(decimal.Decimal(1), {2025: "a"}), '{"amount":"1","by_year":{"2025":"a"},"at":"2026-12-01T12:00:00"}'),
        (FRAME.to_dict("records"), '[{"x":1},{"x":2}]'),
    ],
)
def test_values_are_written_with_their_meaning(value: Any, text: str) -> None:
    assert dumps(value) == text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [{"mean": float("nan")}]}, "value.a[0].mean is NaN"),
        ({"a": [{"mean": np.float64("nan")}]}, "value.a[0].mean is NaN"),
        ([0.5, float("-inf")], "value[1] is -Infinity"),
        (Totals(decimal.Decimal("NaN")), "value.amount is NaN"),
        ({"a": pd.NaT}, "value.a is NaT"),
        ({"a": np.datetime64("NaT")}, "value.a is NaT"),
        ([pd.NA], "value[0] is <NA>"),
        ({"a": np.array([1])}, "value.a is of type numpy.ndarray: give a list"),
        ({"a": FRAME}, 'value.a is of type pandas.DataFrame: give a list of objects, such as its .to_dict("records")'),
        ([range(3)], "value[0] is of type range: give a list"),
        ({"a": [SecretStr("x")]}, "value.a[0] has a secret, which the hub must not store"),
        (Login("ann", SecretStr("x")), "value.password has a secret"),
        (LoginModel(password=SecretStr("x")), "value has a secret"),
        ({"a": io.StringIO("x")}, "value.a is an open file: read it, or give its path"),
        ({"a": [10**5_000]}, "value.a[0] has more than 4,200 digits"),
        ({"a": b"\xff"}, "value.a is of type bytes: give a text"),
        ({"a": [Row(1, Ellipsis)]}, "value.a[0].b is of type ellipsis"),  # type: ignore[arg-type]
        ({2025: "a"}, "value has the key 2025 of type int"),
        (FRAME.to_dict(), "value.x has the key 0 of type int"),
        ({(1, 2): 3}, "value has the key (1, 2) of type tuple"),
        ([Totals(decimal.Decimal(1), {1.5: "a"})], "value[0].by_year has the key 1.5 of type float"),  # type: ignore[dict-item]
    ],
)
def test_what_json_does_not_have_is_refused_with_its_path(value: Any, says: str) -> None:
    with pytest.raises(InputError) as caught:
        dumps(value, what="result of activity 'give'")
    assert f"result of activity 'give' of type {type(value).__name__} cannot be written as JSON: {says}" in str(
        caught.value
    )


def test_a_key_is_kept_where_the_declared_type_makes_it_again() -> None:
    assert dumps({2025: "a"}, dict[int, str]) == '{"2025":"a"}'
    for annotation in (dict, dict[str, str], Any, None):
        with pytest.raises(InputError, match="the key 2025 of type int"):
            dumps({2025: "a"}, annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "way"),
    [
        ({1: "a"}, None, "use texts, or declare a type such as dict[int, str] where a function takes or returns the"),
        ({1: "a"}, dict[str, str], "or declare a type such as dict[int, str]: with dict[str, str], the value comes "),
        ({1: "a"}, dict, "or declare a type such as dict[int, str]: with dict, the value comes back as {'1': 'a'}."),
        ({1: 5}, dict[int, str], "or make the value fit its declared type: value does not fit dict[int, str]: value.1"),
        (
            [Totals(decimal.Decimal(1), {1.5: "a"})],
            None,
            "or make the value fit its declared type: value does not fit Totals: ",
        ),  # type: ignore[dict-item]
        ({(1, 2): 3}, None, "JSON has only texts as keys: use texts. Pass"),
        ({(1, 2): 3}, dict[tuple[int, int], int], "JSON has only texts as keys: use texts. Pass"),
    ],
)
def test_a_refused_key_has_a_way_out_that_fits_the_declared_type(value: Any, annotation: Any, way: str) -> None:
    with pytest.raises(InputError) as caught:
        dumps(value, annotation)
    assert way in str(caught.value)


def test_a_subclass_without_fields_of_its_own_comes_back_as_the_declared_class() -> None:
    @dataclass
    class Special(Totals):
        pass

    text = dumps(Special(decimal.Decimal(1)), Totals)
    assert type(decode(loads(text), Totals)) is Totals


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    for one in (value, {"a": [Color.RED, value]}):
        with pytest.raises(InputError, match="contains itself"):
            dumps(one)


def test_an_input_with_keys_of_its_type_reaches_its_function() -> None:
    own = App("own")

    @own.activity
    def names(by_year: dict[int, str]) -> list[int]:
        return [*by_year]

    @own.orchestrator
    async def get(ctx: OrchestrationContext, by_year: dict[int, str]) -> list[int]:
        return [*by_year, *await ctx.call_activity(names, by_year)]

    assert testing.run(get, {2025: "a"}, app=own) == [2025, 2025]


# times


@pytest.mark.parametrize(
    "annotation", [datetime, datetime | None, str | datetime, list[datetime], dict[str, datetime], Typed, Totals, Model]
)
def test_a_time_without_a_zone_is_utc(annotation: Any) -> None:
    text = "2026-12-01T12:00:00"
    one = {"at": text, "amount": 1} if annotation is Totals else {"at": text}
    shapes = {list[datetime]: [text], dict[str, datetime]: {"at": text}, Typed: one, Totals: one, Model: one}
    found = decode(shapes.get(annotation, text), annotation)
    found = found[0] if isinstance(found, list) else found["at"] if isinstance(found, dict) else found
    if annotation == str | datetime:
        assert found == text, "a text that fits a text stays one"
    else:
        assert getattr(found, "at", found) == NOON.replace(tzinfo=UTC)


def test_a_field_can_have_the_name_of_a_key_of_pydantic() -> None:
    class Named(BaseModel):
        values: datetime

    assert decode({"values": "2026-12-01T12:00:00"}, Named).values.tzinfo is UTC


def test_models_inside_of_models_and_types_with_a_rule_of_their_own() -> None:
    text = "2026-12-01T12:00:00"
    assert decode({"at": text, "more": [{"at": text}]}, Model).more[0].at.tzinfo is UTC
    assert decode(text, NaiveDatetime).tzinfo is None
    with pytest.raises(InputError):
        decode(text, AwareDatetime)
    assert decode("2026-12-01T12:00:00+05:30", datetime).utcoffset() == timedelta(hours=5, minutes=30)


def test_inputs_and_events_can_be_compared_with_the_time_of_the_orchestrator() -> None:
    own = App("own")

    @own.orchestrator
    async def until(ctx: OrchestrationContext, at: datetime) -> list[bool]:
        raised = await ctx.wait_for_external_event("at", datetime)
        return [ctx.current_utc_datetime < at, ctx.current_utc_datetime < raised, ctx.get_input(datetime) == at]

    events = [testing.Event(name="at", data=NOON.replace(year=2100))]
    assert testing.run(until, NOON.replace(year=2100), app=own, events=events) == [True, True, True]
    assert loads(dumps(NOON)) == "2026-12-01T12:00:00"


def test_a_worker_tells_which_results_it_cannot_decode() -> None:
    made = App("made")

    @made.activity
    def unresolved() -> Missing:  # type: ignore[name-defined]  # noqa: F821
        return 1

    @made.activity
    def stamp() -> pd.Timestamp:
        return pd.Timestamp(0)

    @made.activity
    def known() -> Totals:
        return Totals(decimal.Decimal(1))

    @made.orchestrator
    def generator(ctx: OrchestrationContext) -> Generator[Any, Any, None]:
        yield ctx.call_activity(known)

    with capture_logs() as told:
        tell_unknown_results(Registry.of([made]))
    assert [(one["event"], one["function"]) for one in told] == [
        ("result_type_unknown", "unresolved"),
        ("result_type_unknown", "stamp"),
    ]


def test_keys_of_numpy_are_numbers_if_the_type_says_so() -> None:
    assert dumps({np.int64(3): 0.5}, dict[int, float]) == '{"3":0.5}'
    with pytest.raises(InputError, match="has the key 3 of type int"):
        dumps({np.int64(3): 0.5})


def test_a_row_of_pyspark_keeps_the_names_of_its_columns() -> None:
    from pyspark.sql import Row as SparkRow

    row = SparkRow(year=2013, delays=[SparkRow(carrier="AA", count=2)])
    assert loads(dumps(row, what="result")) == {"year": 2013, "delays": [{"carrier": "AA", "count": 2}]}
    assert loads(dumps(SparkRow(1, "a"), what="result")) == [1, "a"], "a row without names is a list"
    with pytest.raises(InputError, match=r"value\[0\] is a row with two columns 'id': give them names of their own"):
        dumps([SparkRow("id", "id")(1, 2)], what="result")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_time_of_spark_that_has_lost_its_zone_is_refused(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark gives a timestamp as a time of the process's zone. A reader would take it for a time of UTC."""
    from pyspark.sql import Row as SparkRow

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        row = SparkRow(at=datetime(2024, 1, 1, 12))
        if zone == "UTC":
            assert loads(dumps(row, what="result")) == {"at": "2024-01-01T12:00:00"}
        else:
            with pytest.raises(InputError, match="time 'at' is in the zone of this process, CET, and does not say so"):
                dumps(row, what="result")
    finally:
        monkeypatch.undo()
        time.tzset()
