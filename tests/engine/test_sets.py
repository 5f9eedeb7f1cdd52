"""A set is written sorted, so that its text is the same in each process.

Python hashes texts differently in each process, so the order of a set of 20 texts is sorted by chance only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

import pydantic
import pytest

from airflow_provider_taskhub.codec import dumps

NAMES = [f"name-{number:02}" for number in range(20)]


@dataclass(frozen=True, slots=True)
class Frozen:
    names: frozenset[str] = frozenset(NAMES)
    more: dict[str, set[str]] = field(default_factory=lambda: {"a": set(NAMES)}, hash=False)


class Model(pydantic.BaseModel):
    names: set[str] = pydantic.Field(default_factory=lambda: set(NAMES), serialization_alias="NAMES")
    frozen: frozenset[str] = frozenset(NAMES)
    either: list[str] | set[str] = pydantic.Field(default_factory=lambda: set(NAMES))
    inner: Frozen = Frozen()


@pydantic.dataclasses.dataclass
class Checked:
    names: frozenset[str] = frozenset(NAMES)


class Color(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


FROZEN = {"names": NAMES, "more": {"a": NAMES}}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (set(NAMES), NAMES),
        ([frozenset(NAMES)], [NAMES]),
        ({"a": (set(NAMES), 1)}, {"a": [NAMES, 1]}),
        ({10, 9, 100, 0.5}, [0.5, 9, 10, 100]),
        ({None, "b", 1, "a"}, ["a", "b", 1, None]),
        ({frozenset(NAMES[:3]), frozenset(NAMES[1:])}, [NAMES[:3], NAMES[1:]]),
        ({Color.RED, Color.BLUE, Color.GREEN}, ["blue", "green", "red"]),
        ({UUID(int=number) for number in range(20)}, [str(UUID(int=number)) for number in range(20)]),
        (Frozen(), FROZEN),
        ({Frozen()}, [FROZEN]),
        (Model(), {"NAMES": NAMES, "frozen": NAMES, "either": NAMES, "inner": FROZEN}),
        ([Checked()], [{"names": NAMES}]),
        (set(), []),
    ],
)
def test_a_set_is_written_sorted_wherever_it_stands(value: Any, written: Any) -> None:
    assert json.loads(dumps(value)) == written


def test_the_value_that_is_written_does_not_change() -> None:
    model = Model()
    before = model.model_copy(deep=True)
    dumps(model)
    assert model == before
    assert type(model.names) is set
