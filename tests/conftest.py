"""Fixtures that every part's tests may use, the marks that select tests, and the order in which tests run."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import waiting
from tests.selection import FIRST, UnitScheduling, extras, reasons, start_order, unit

pytest_plugins = ("tests.azurite", "tests.leftovers")

# A shell that starts a job in the background lets it ignore SIGINT, and so would every process that tests start and
# then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis would fail an example that takes longer than 200 ms, and a test whose examples are made slowly. That says
# how busy the machine is.
hypothesis.settings.register_profile("taskhub", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("taskhub")

AZURITE = "azurite"
PROCESS_FIXTURES = {
    AZURITE,
    "azurite_place",
    "browser",
    "embedded",
    "emulator",
    "house",
    "lines",
    "make_pool",
    "pool",
    "real",
}
"""Fixtures that start a process: an emulator, workers, executors, Airflow, a browser."""
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
"""Events of Python's audit hooks."""
_HARMLESS = {"file", "ldconfig", "uname"}
"""Python's own modules ``platform`` and ``ctypes.util`` run them once, for whoever asks first."""
_now: pytest.Item | None = None
"""The test that runs without the marker ``process``."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without Python's garbage collector. What collecting makes lives until the end, and the collector
    took a quarter of the time, in each of the processes of pytest."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let Python's garbage collector leave out what lives until the end: modules and thousands of tests. It runs less
    often, too. It took an eighth of the time of simulations."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """Let a test that waits say so on the terminal: pytest shows what it captures only after a failure."""
    capture = config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(line, file=sys.stderr, flush=True)

    waiting.say = say


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that start a process by a fixture or run on Azurite by a parameter, and those of ``test-all``.

    Tests that take long come first, so that no core waits for one of them at the end.
    """
    extra: Mapping[str, str] = {}
    if list(config.args) == list(config.getini("testpaths")):  # all tests were collected
        extra = reasons(extras(), [item.nodeid for item in items])
    for item in items:
        values = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())) or any(value == AZURITE for value in values):
            item.add_marker(pytest.mark.process)
        if why := extra.get(item.nodeid):
            item.add_marker(pytest.mark.extra(why))
    items.sort(key=_order)


def _order(item: pytest.Item) -> int:
    if item.get_closest_marker("process"):
        return start_order(item.nodeid)
    return len(FIRST) + (item.get_closest_marker("long") is None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    """With ``--dist loadfile``, tests that share what is expensive to start run in one process."""
    return UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test without the marker ``process`` fails when it starts a process, so that the marker cannot be forgotten."""
    global _now
    _now = None if item.get_closest_marker("process") else item
    try:
        return (yield)
    finally:
        _now = None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the shared Airflow after its last test: other tests need the core on which it waits for tasks."""
    if nextitem is not None and unit(item.nodeid) == FIRST[0] != unit(nextitem.nodeid):
        from tests.airflow.real import stop_started  # imports what Airflow needs

        stop_started()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test that has failed at once: a run takes minutes, and pytest names it only at the end."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid}", flush=True)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS and _now is not None and not (arguments and Path(str(arguments[0])).name in _HARMLESS):
        raise AssertionError(f"{_now.nodeid} starts a process ({arguments}): mark it with pytest.mark.process")


sys.addaudithook(_refuse)
