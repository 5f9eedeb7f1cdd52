"""A test with real processes leaves none behind. If it fails, its report has the last lines of their output. While it
runs, it says every 30 s where it is.

Every process inherits an environment variable that names the test. So a process is found even if its parent is gone.
What a fixture of a wider scope starts, such as Airflow, belongs to no single test.

A plugin of pytest; the root ``conftest.py`` registers it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_taskhub.demo.processes import marked, tail
from tests import waiting

MARK = "STARTED_BY_TEST"
"""The environment variable. Its value is the number of the process of pytest, and the id of the test.

Tests that give a process an environment without ``TASKHUB_`` leave it in.
"""
SHARED = f"{os.getpid()} shared"
PATIENCE = 20.0
"""Seconds in which processes of a worker that was killed may notice it and end."""
LINES = 15
SHARING = {"shared_pool"}
"""Fixtures of a wider scope that start processes while a test uses them."""
_begun = pytest.StashKey[float]()


def _mark(item: pytest.Item) -> str:
    return SHARED if SHARING & set(getattr(item, "fixturenames", ())) else f"{os.getpid()} {item.nodeid}"


@contextmanager
def _named(mark: str) -> Iterator[None]:
    before = os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    item.stash[_begun] = time.time()
    with _named(_mark(item)):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    with _named(SHARED):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say every 30 s where a test with real processes is, whatever it waits with."""
    over, test = threading.Event(), threading.get_ident()

    def tell() -> None:
        began = time.monotonic()
        while not over.wait(waiting.TELL_EVERY):
            waiting.say(f"{item.nodeid} has run for {time.monotonic() - began:.0f} s: {_place(test)}")

    if item.get_closest_marker("process") is None:
        return (yield)
    thread = threading.Thread(target=tell, name="where a test is", daemon=True)
    thread.start()
    try:
        return (yield)
    finally:
        over.set()
        thread.join()


def _place(thread: int) -> str:
    """Return the line of a test, or of what helps it, at which a thread is."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "tests" in path.parts or path.name.startswith("test_"):
            return f"at {path.name}:{frame.f_lineno}, {frame.f_code.co_name}"
        frame = frame.f_back
    return "in its event loop"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """End what the test has left running, and fail."""
    result = yield
    if item.get_closest_marker("process") and _mark(item) != SHARED:
        _, alive = psutil.wait_procs(marked(_mark(item), MARK), timeout=PATIENCE)
        told = [_told(process) for process in alive]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert not told, "the test leaves processes running:\n" + "\n".join(told)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.get_closest_marker("process"):
        report.sections += [(f"last lines of {path}", tail(path, LINES)) for path in _outputs(item)]
        report.sections += _of_error(call.excinfo.value if call.excinfo else None)
    return report


def _of_error(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Yield what a program has printed that has failed or took too long: its error has it, and does not show it."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
            for name in ("stdout", "stderr"):
                if printed := getattr(error, name):
                    text = printed.decode(errors="replace") if isinstance(printed, bytes) else str(printed)
                    yield f"last lines of the {name} of {error.cmd}"[:200], "\n".join(text.splitlines()[-LINES:])
        error = error.__cause__ or error.__context__


def _outputs(item: pytest.Item) -> Sequence[Path]:
    """Return the files into which processes of a test write, and those into which ended ones have written since it
    began. A process that has written nothing since is shown too: it may stand still."""
    files, running = set(), set()
    for process in (*marked(_mark(item), MARK), *marked(SHARED, MARK)):
        with contextlib.suppress(psutil.Error, OSError):
            running |= {Path(file.path) for file in process.open_files() if file.fd in (1, 2)}
    folders = {file.parent for file in running if file.suffix == ".out"}  # also of processes that have ended
    files |= {path for folder in folders for path in folder.glob("*.out")}
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if folder is not None:
        files |= {path for pattern in ("*.log", "*.out") for path in folder.rglob(pattern) if path.is_file()}
    begun = item.stash[_begun]
    ended = {path for path in files - running if path.exists() and path.stat().st_mtime >= begun}
    return sorted({path for path in running if path.exists()} | ended)


def _told(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid}: {' '.join(process.cmdline())[:300]}"
    return str(process.pid)
