"""``make quick`` leaves out what two markers say and nothing else; ``make test`` leaves out nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
MARKERS = {"process", "long"}


def commands(target: str) -> list[list[str]]:
    """What make would run."""
    done = subprocess.run(["make", "-n", target], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    lines = [line.rstrip("\\") for line in done.stdout.splitlines() if " -m pytest " in line]
    return [shlex.split(line) for line in lines]


@pytest.mark.process
def test_quick_leaves_out_nothing_but_what_is_marked() -> None:
    (command,) = commands("quick")
    options = command[command.index("pytest") + 1 :]
    expression = options[options.index("-m") + 1]
    assert set(expression.split(" and ")) == {f"not {marker}" for marker in MARKERS}
    rest = [option for option in options if option not in ("-m", expression, "-q", "--numprocesses")]
    assert all(re.fullmatch(r"\$\(nproc\)", option) for option in rest), rest


@pytest.mark.process
def test_what_quick_leaves_out_is_run_by_test() -> None:
    both = commands("test")
    assert len(both) == 2, "what waits for processes beside what computes"
    every = [word for command in both for word in command if word.startswith("tests/")]
    for command in both:
        assert not {"-m", "-k", "--deselect", "--ignore"} & set(command[command.index("pytest") + 1 :])
    for file in CHECKOUT.glob("tests/**/test_*.py"):
        name = str(file.relative_to(CHECKOUT))
        assert sum(name.startswith(path) for path in every) == 1, name


def test_no_option_of_pytest_leaves_out_a_test() -> None:
    options = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["testpaths"] == ["tests"]
    assert options["addopts"].split() == ["-ra", "--strict-markers"]
    assert {name.partition(":")[0] for name in options["markers"]} >= MARKERS


def test_a_test_that_starts_a_process_without_saying_so_fails() -> None:
    with pytest.raises(AssertionError, match=r"test_a_test_that_starts.* starts a process .*: mark it"):
        subprocess.run(["true"], check=True)
