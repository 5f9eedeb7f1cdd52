"""Tests of :mod:`tests.leftovers`: what it says of a test that fails, and of one that leaves a process running."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
SUITE = """
import subprocess, sys, threading
import pytest
from tests import waiting

pytestmark = pytest.mark.process
CODE = "print('the last line', flush=True); import time; time.sleep(600)"


def start(folder):
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", CODE], stdout=log, start_new_session=True)
    while b"last line" not in (folder / "worker.log").read_bytes():
        assert process.poll() is None
    return process


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    process = start(tmp_path_factory.mktemp("shared"))
    yield process
    process.kill()
    process.wait()


def test_ends_what_it_starts(tmp_path):
    start(tmp_path).kill()


def test_fails(tmp_path):
    start(tmp_path).kill()
    assert False


def test_fails_with_a_program(tmp_path):
    code = "import sys; print('what it has printed'); print('and its error', file=sys.stderr); sys.exit(3)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_takes_long(monkeypatch):
    told, say = threading.Event(), waiting.say
    monkeypatch.setattr(waiting, "say", lambda line: (say(line), told.set()))
    assert told.wait(waiting.PATIENCE)


def test_leaves_a_process(tmp_path):
    print("left:", start(tmp_path).pid)


def test_uses_a_process_of_the_module(shared):
    assert shared.poll() is None


def test_uses_it_again(shared):
    assert shared.poll() is None
"""


def test_a_failure_has_the_last_lines_and_what_is_left_is_ended_and_told(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers = process\n")
    (tmp_path / "conftest.py").write_text(
        "import tests.leftovers\ntests.leftovers.PATIENCE = 0.1\ntests.leftovers.waiting.TELL_EVERY = 0.5\n"
    )
    options = [
        "-p",
        "tests.leftovers",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--color=no",
        f"--basetemp={tmp_path / 'base'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outcomes = {line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))}
    assert {line.partition(" - ")[0] for line in outcomes} == {
        "PASSED test_suite.py::test_ends_what_it_starts",
        "FAILED test_suite.py::test_fails",
        "FAILED test_suite.py::test_fails_with_a_program",
        "PASSED test_suite.py::test_takes_long",
        "PASSED test_suite.py::test_leaves_a_process",
        "ERROR test_suite.py::test_leaves_a_process",
        "PASSED test_suite.py::test_uses_a_process_of_the_module",
        "PASSED test_suite.py::test_uses_it_again",
    }, done.stdout
    failure = done.stdout.partition(" test_fails ")[2]
    assert "worker.log" in failure.partition("the last line")[0]
    assert "what it has printed" in done.stdout
    assert "and its error" in done.stdout
    told = done.stderr + done.stdout
    assert re.search(r"test_takes_long has run for \d s: at test_suite.py:\d+, test_takes_long", told), told
    assert "the test leaves processes running:" in done.stdout
    left = int(done.stdout.partition("left: ")[2].split()[0])
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE
