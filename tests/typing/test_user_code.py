"""A user's module passes ``mypy --strict`` with the types that he expects, and wrong calls are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import airflow_provider_taskhub
from tests.typing import flights_client

FOLDER = Path(__file__).parent
EXAMPLES = (
    "approval_app.py",
    "control_app.py",
    "first.py",
    "first_app.py",
    "flights_app.py",
    "flights_delays.py",
    "lineage_app.py",
    "on_retry.py",
    "on_retry_app.py",
    "outputs.py",
    "outputs_app.py",
    "taskflow_app.py",
    "time_limits.py",
    "waiting.py",
    "zero_slot.py",
)
MARK = re.compile(r"#\s*refused: (.+)$")
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*)$", re.M)


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, int], list[str]]:
    """What mypy says, by file and line."""
    assert find_spec("pyspark"), "types of Spark activities are checked with pyspark's own annotations"
    files = [str(path) for path in sorted(FOLDER.glob("*.py")) if not path.name.startswith("test_")]
    files += [str(FOLDER.parents[1] / "dags_examples" / name) for name in EXAMPLES]
    cache = str(FOLDER.parents[1] / ".mypy_cache")  # that of `make check`, which has just checked the package
    # a process of its own: mypy raises the recursion limit of the process that it runs in
    command = [sys.executable, "-m", "mypy", *files, "--config-file", str(FOLDER / "mypy.ini"), "--cache-dir", cache]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=240, check=False)
    assert not done.stderr, done.stderr
    found: dict[tuple[str, int], list[str]] = {}
    for match in ERROR.finditer(done.stdout):
        found.setdefault((Path(match["file"]).name, int(match["line"])), []).append(match["text"])
    return found


def marked() -> Iterator[tuple[int, str]]:
    for number, line in enumerate((FOLDER / "wrong_calls.py").read_text().splitlines(), start=1):
        if match := MARK.search(line):
            yield number, match[1]


@pytest.mark.process
def test_a_user_s_modules_and_the_examples_have_no_type_error(errors: dict[tuple[str, int], list[str]]) -> None:
    assert {at: texts for at, texts in errors.items() if at[0] != "wrong_calls.py"} == {}


@pytest.mark.process
def test_wrong_calls_are_refused_and_nothing_else(errors: dict[tuple[str, int], list[str]]) -> None:
    expected = dict(marked())
    found = {line: texts for (file, line), texts in errors.items() if file == "wrong_calls.py"}
    assert len(expected) > 25
    assert found.keys() == expected.keys()
    for line, part in expected.items():
        assert any(part in text for text in found[line]), f"line {line}: {found[line]}"


def test_the_types_are_those_of_a_real_run() -> None:
    """``assert_type`` says nothing at run time: a typed result that came back as something else would fail here."""
    flights_client.test_delays()


def test_the_marker_for_type_checkers_is_shipped() -> None:
    assert (Path(airflow_provider_taskhub.__file__).parent / "py.typed").is_file()
