"""Evicted orchestrators are closed on a thread of their own, where they hold up no work."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.engine.driver import Driver
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.workers.orchestrations import coroutine_closer
from airflow_provider_taskhub.workers.orchestrations.coroutine_closer import CoroutineCloser
from airflow_provider_taskhub.workers.orchestrations.watchdog import SLOW, TICK


@pytest.fixture
def closer(monkeypatch: pytest.MonkeyPatch) -> Iterator[CoroutineCloser]:
    monkeypatch.setattr(coroutine_closer, "STOP_PATIENCE", 0.01)
    made = CoroutineCloser()
    yield made
    made.stop()


def look(closer: CoroutineCloser, seconds: float) -> None:
    for _ in range(round(seconds / TICK)):
        closer.look()


def waiting(tidy: Callable[[], object]) -> Driver:
    """An orchestrator that waits, with a ``finally``."""

    async def waits() -> None:
        try:
            await Task[None]()
        finally:
            tidy()

    return started(waits)


def started(function: Callable[[], object]) -> Driver:
    driver = Driver("waits", WaitRecorder())
    driver.start(function())
    return driver


def test_evicted_orchestrators_are_closed_in_turn_on_a_thread_of_their_own(closer: CoroutineCloser) -> None:
    seen: list[tuple[int, str]] = []
    over = threading.Event()
    for number in range(50):
        closer("one", waiting(lambda number=number: seen.append((number, threading.current_thread().name))).close)
    closer("one", over.set)
    assert over.wait(60)
    assert seen == [(number, "taskhub-closing") for number in range(50)]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_an_error_while_closing_ends_nothing(closer: CoroutineCloser, error: type[BaseException]) -> None:
    over = threading.Event()

    def fails() -> None:
        raise error

    closer("one", fails)
    closer("two", over.set)
    assert over.wait(60)


def test_an_orchestrator_that_swallows_generator_exit_is_a_warning_and_no_raw_text(
    closer: CoroutineCloser, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: list[object] = []
    monkeypatch.setattr(closer, "_hook_before", raw.append)

    async def swallows() -> None:
        while True:
            with suppress(BaseException):
                await Task[None]()

    def generates() -> Generator[Task[None], None, None]:
        while True:
            with suppress(BaseException):
                yield Task[None]()

    over = threading.Event()
    with capture_logs() as said:
        closer("the coroutine", started(swallows).close)
        closer("the generator", started(generates).close)
        closer("next", over.set)
        assert over.wait(60)
    assert [(entry["event"], entry["instance_id"]) for entry in said] == [
        ("orchestrator_goes_on", "the coroutine"),
        ("orchestrator_goes_on", "the generator"),
    ]
    assert "ignored GeneratorExit" in said[0]["error"]
    assert raw == []


def test_other_raw_messages_of_python_are_printed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    raw: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raw.append)
    before = sys.unraisablehook
    closer = CoroutineCloser()

    class Bad:
        def __del__(self) -> None:
            raise ValueError

    Bad()
    closer.stop()
    assert len(raw) == 1
    assert sys.unraisablehook is before


def test_a_finally_that_blocks_is_logged_once_and_holds_up_only_what_is_to_be_closed(closer: CoroutineCloser) -> None:
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    closer("blocked", waiting(lambda: (begun.set(), release.wait(60))).close)
    closer("next", over.set)
    assert begun.wait(60)
    with capture_logs() as said:
        look(closer, SLOW)
        assert not said
        look(closer, 5 * SLOW)
    assert not over.is_set()
    release.set()
    assert over.wait(60)
    assert [(entry["event"], entry["instance_id"]) for entry in said] == [("orchestrator_not_closed", "blocked")]
    assert "test_coroutine_closer.py" in said[0]["where"].split(", in ")[0]


def test_a_long_queue_behind_a_finally_that_blocks_is_logged_at_each_doubling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coroutine_closer, "BACKLOG", 4)
    closer = CoroutineCloser()
    begun, release = threading.Event(), threading.Event()
    closer("blocked", waiting(lambda: (begun.set(), release.wait(60))).close)
    assert begun.wait(60)
    with capture_logs() as said:
        for _ in range(20):
            closer("next", lambda: None)
            look(closer, TICK)
    release.set()
    closer.stop()
    found = [(entry["waiting"], entry["instance_id"]) for entry in said if entry["event"] == "orchestrators_not_closed"]
    assert found == [(4, "blocked"), (8, "blocked"), (16, "blocked")]


def test_what_is_not_closed_when_the_worker_stops_is_not_closed_by_python_on_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coroutine_closer, "STOP_PATIENCE", 0.01)
    closer = CoroutineCloser()
    begun, release = threading.Event(), threading.Event()
    seen: list[str] = []
    closer("blocked", waiting(lambda: (begun.set(), release.wait(60))).close)
    assert begun.wait(60)
    late = waiting(lambda: seen.append(threading.current_thread().name))
    closer("late", late.close)
    over = threading.Event()
    closer("last", over.set)
    closer.stop()
    del late, closer
    gc.collect()
    assert seen == []
    release.set()
    assert over.wait(60)
    assert seen == ["taskhub-closing"]
