"""``make quick`` leaves out what two markers say, ``make test`` what extra.toml says, and ``make test-all`` nothing."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow import real
from tests.conftest import PROCESS_FIXTURES, pytest_runtest_teardown
from tests.run import GROUPS, command
from tests.selection import FIRST, Extra, extras, reasons, start_order, unit

CHECKOUT = Path(__file__).parents[1]
MARKERS = {"process", "long"}


@pytest.mark.process
def test_quick_leaves_out_nothing_but_what_is_marked() -> None:
    done = subprocess.run(["make", "-n", "quick"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if " -m pytest " in line]
    options = shlex.split(line.partition(" -m pytest ")[2])
    expression = options[options.index("-m") + 1]
    assert set(expression.split(" and ")) == {f"not {marker}" for marker in MARKERS}
    assert options == ["-q", "--numprocesses", "$(nproc)", "--dist", "worksteal", "-m", expression, *options[7:]]
    assert not options[7:], "no test is named, so pytest collects all"


@pytest.mark.process
@pytest.mark.parametrize(("target", "options"), [("test", []), ("test-all", ["--all"])])
def test_both_targets_run_the_tests_as_this_file_expects(target: str, options: list[str]) -> None:
    done = subprocess.run(["make", "-n", target], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    printed = [line for line in done.stdout.splitlines() if "--collect-only" not in line]
    lines = [line for line in printed if "tests.run" in line or "pytest" in line]
    assert [shlex.split(line)[1:] for line in lines] == [["-m", "tests.run", *options]]


@pytest.mark.parametrize(("everything", "more"), [(True, ""), (False, " and not extra")])
def test_the_two_groups_of_tests_leave_out_only_the_extra_tests(everything: bool, more: str) -> None:
    chosen = []
    for group in GROUPS:
        options = command(group, everything=everything, report=Path("report"))[3:]
        assert not {"-k", "--deselect", "--ignore"} & set(options)
        chosen.append(options[options.index("-m") + 1])
    assert chosen == [f"not process{more}", f"process{more}"]


def test_each_extra_test_has_a_reason() -> None:
    assert all(len(extra.why.split()) > 5 and extra.tests for extra in extras())


def test_an_entry_of_the_extra_tests_that_selects_nothing_is_refused() -> None:
    names = ("tests/a/", "tests/b.py", "tests/c.py::test_one", "tests/*::test_x[azurite]")
    entries = [Extra(why="a second store", tests=names)]
    ids = ["tests/a/test.py::test", "tests/b.py::test", "tests/c.py::test_one[1-2]", "tests/d/e.py::test_x[azurite]"]
    assert list(reasons(entries, ids)) == ids
    for number, name in enumerate(names):
        with pytest.raises(pytest.UsageError, match=re.escape(f"extra.toml: {name!r} selects no test")):
            reasons(entries, ids[:number] + ids[number + 1 :])
    others = ["tests/b.pyi::test", "tests/c.py::test_one_more", "tests/d/e.py::test_x[azurite-1]"]
    assert list(reasons(entries, ids + others)) == ids


def test_tests_that_share_something_run_in_one_process_and_long_ones_start_first() -> None:
    ids = [
        "tests/airflow/test_real.py::test_one",
        "tests/airflow/test_real_retry.py::test_one",
        "tests/browser/test_page.py::test_one[light]",
        "tests/airflow/test_real_sqlite.py::test_one",
        "tests/spark/test_sessions.py::test_one",
        "tests/spark/test_cluster.py::test_one",
    ]
    assert [unit(one) for one in ids] == [FIRST[0]] * 3 + ["tests/airflow/test_real_sqlite.py"] + ["tests/spark/"] * 2
    assert [start_order(one) for one in ids[2:5]] == [0, len(FIRST), FIRST.index("tests/spark/")]
    for name in FIRST[1:]:
        assert (CHECKOUT / name).exists(), name


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
        ("azurite_place", "simulation/conftest.py"),
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


@pytest.mark.parametrize(
    ("now", "following", "stops"),
    [
        ("tests/airflow/test_real.py::test_one", "tests/browser/test_page.py::test_one", False),
        ("tests/browser/test_page.py::test_one", "tests/demo/test_demo.py::test_one", True),
        ("tests/demo/test_demo.py::test_one", "tests/docs/test_blocks.py::test_one", False),
        ("tests/browser/test_page.py::test_one", None, False),  # it ends with the process
    ],
)
def test_the_shared_airflow_is_stopped_after_its_last_test(
    monkeypatch: pytest.MonkeyPatch, now: str, following: str | None, stops: bool
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(real, "stop_started", lambda: stopped.append(True))
    items: list[Any] = [None if node_id is None else SimpleNamespace(nodeid=node_id) for node_id in (now, following)]
    pytest_runtest_teardown(*items)
    assert bool(stopped) is stops
