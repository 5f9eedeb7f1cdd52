"""Fixtures that every part's tests may use, and which tests ``make quick`` leaves out."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ("tests.azurite",)

# A shell that starts a job in the background lets it ignore SIGINT, and so would every process that tests start and
# then interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start a process by a fixture, or that run on Azurite by a parameter."""
    for item in items:
        values = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())) or any(value == AZURITE for value in values):
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test without the marker ``process`` fails when it starts a process, so that the marker cannot be forgotten."""
    global _now
    _now = None if item.get_closest_marker("process") else item
    try:
        return (yield)
    finally:
        _now = None


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS and _now is not None and not (arguments and Path(str(arguments[0])).name in _HARMLESS):
        raise AssertionError(f"{_now.nodeid} starts a process ({arguments}): mark it with pytest.mark.process")


sys.addaudithook(_refuse)
