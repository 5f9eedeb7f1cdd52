"""``make quick`` leaves out what two markers say and nothing else; ``make test`` leaves out nothing."""

from __future__ import annotations

import ast
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conftest import PROCESS_FIXTURES

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
    assert options == ["-q", "--numprocesses", "$(nproc)", "--dist", "worksteal", "-m", expression, *options[7:]]
    assert not options[7:], "no test is named, so pytest collects all"


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


def test_a_fixture_with_the_name_of_one_that_starts_a_process_starts_one_too() -> None:
    """The marker goes by the fixture's name, so a harmless fixture of this name would take its tests out of quick."""
    defined = set()
    for file in CHECKOUT.glob("tests/**/*.py"):
        for node in ast.parse(file.read_text()).body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in PROCESS_FIXTURES
            if named and any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list):
                defined.add((node.name, str(file.relative_to(CHECKOUT / "tests"))))
    assert defined == {
        ("azurite", "azurite.py"),
        ("azurite_place", "simulation/test_worker_deaths.py"),
        ("browser", "browser/conftest.py"),
        ("embedded", "e2e/conftest.py"),
        ("emulator", "hub/partitions/conftest.py"),
        ("house", "e2e/conftest.py"),
        ("lines", "benchmarks/test_bench.py"),
        ("make_pool", "workers/conftest.py"),
        ("pool", "spark/conftest.py"),
        ("pool", "spark/test_cluster.py"),
        ("pool", "spark/test_connect.py"),
        ("pool", "workers/conftest.py"),
        ("real", "airflow/conftest.py"),
        ("real", "airflow/test_real_deployment.py"),
        ("real", "browser/conftest.py"),
    }


def test_no_option_of_pytest_leaves_out_a_test() -> None:
    options = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["testpaths"] == ["tests"]
    assert options["addopts"].split() == ["-ra", "--strict-markers"]
    assert {name.partition(":")[0] for name in options["markers"]} >= MARKERS


def test_a_test_that_starts_a_process_without_saying_so_fails() -> None:
    with pytest.raises(AssertionError, match=r"test_a_test_that_starts.* starts a process .*: mark it"):
        subprocess.run(["true"], check=True)
