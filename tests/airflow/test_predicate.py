"""The condition of a sensor on the custom status: what it accepts at parse, and when it holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.triggers.predicate import check, compiled


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose import fails the test: a parse must only read it."""
    folder = tmp_path / "conditions_of_tests" / "inner"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "loads.py").write_text("def half(status):\n    return status['done'] * 2 >= status['all']\n")
    (folder / "heavy.py").write_text("raise RuntimeError('imported')\n\n\ndef half(status):\n    return True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "conditions_of_tests.inner"  # type: ignore[misc]
    for name in [name for name in sys.modules if name.startswith("conditions_of_tests")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (7, "custom_status is 7: give an expression, for example"),
        (" ", "give an expression"),
        ("custom_status.rows >", "give for example"),
        ("{{ custom_status }}", "write the expression without braces"),
        ("nowhere.at.all:half", "there is no module 'nowhere.at.all' here"),
    ],
)
def test_a_condition_that_cannot_be_right_is_refused(wrong: Any, text: str) -> None:
    with pytest.raises(InputError, match=f"sensor 'a': .*{text}"):
        check("sensor 'a'", wrong)


def test_a_function_is_found_without_an_import(package: str) -> None:
    check("a", f"{package}.loads:half")
    check("a", f"{package}.heavy:half")
    assert not [name for name in sys.modules if name.startswith("conditions_of_tests")]
    with pytest.raises(InputError, match=r"inner.loads' has no function 'third'"):
        check("a", f"{package}.loads:third")
    with pytest.raises(InputError, match="there is no module"):
        check("a", f"{package}.lost:half")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("custom_status.done >= 3", True),
        ("custom_status.done > 3", False),
        ("custom_status.rows > 3", False),
        ("custom_status.parts.rows > 3", False),
        ("'late' in custom_status.notes", True),
        ("custom_status.phase == 'load' and custom_status.done", True),
    ],
)
def test_an_expression_reads_the_custom_status(condition: str, holds: bool) -> None:
    check("a", condition)
    assert compiled(condition)({"done": 3, "phase": "load", "notes": ["late"]}) is holds


def test_an_expression_reaches_nothing_else() -> None:
    with pytest.raises(Exception, match="unsafe"):
        compiled("custom_status.__class__.__mro__")({})


def test_a_function_decides(package: str) -> None:
    half = compiled(f"{package}.loads:half")
    assert [half({"done": done, "all": 4}) for done in (1, 2)] == [False, True]
    with pytest.raises(InputError, match="cannot be imported here: RuntimeError"):
        compiled(f"{package}.heavy:half")
