"""Orchestrators that are put aside are closed where they hold up nobody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.engine.driver import Driver
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.workers import closing
from airflow_provider_taskhub.workers.closing import Closer
from airflow_provider_taskhub.workers.episodes import SLOW, STUCK, TICK


@pytest.fixture
def closer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Closer]:
    monkeypatch.setattr(closing, "LAST_CALLS", 0.01)
    made = Closer()
    yield made
    made.stop()


def look(closer: Closer, seconds: float) -> None:
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
    driver = Driver("waits")
    driver.start(function())
    return driver


def test_whoever_is_put_aside_is_closed_elsewhere_in_turn(closer: Closer) -> None:
    seen: list[tuple[int, str]] = []
    over = threading.Event()
    for number in range(50):
        closer("one", waiting(lambda number=number: seen.append((number, threading.current_thread().name))).close)
    closer("one", over.set)
    assert over.wait(60)
    assert seen == [(number, "taskhub-closing") for number in range(50)]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_an_error_while_closing_ends_nothing(closer: Closer, error: type[BaseException]) -> None:
    over = threading.Event()

    def fails() -> None:
        raise error

    closer("one", fails)
    closer("two", over.set)
    assert over.wait(60)


def test_an_orchestrator_that_swallows_its_end_is_a_record_and_no_raw_text(
    closer: Closer, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: list[object] = []
    monkeypatch.setattr(closer, "_said_before", raw.append)

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


def test_what_else_python_has_to_say_is_said_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    raw: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raw.append)
    before = sys.unraisablehook
    closer = Closer()

    class Bad:
        def __del__(self) -> None:
            raise ValueError

    Bad()
    closer.stop()
    assert len(raw) == 1
    assert sys.unraisablehook is before


def test_a_finally_that_blocks_is_told_once_and_holds_up_nobody(closer: Closer) -> None:
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    blocked = waiting(lambda: (begun.set(), release.wait(60)))
    closer("blocked", blocked.close)
    closer("next", over.set)
    assert begun.wait(60)
    with capture_logs() as said:
        look(closer, SLOW)
        assert not said
        look(closer, SLOW)
        assert over.wait(60), "another thread goes on"
        look(closer, 5.0)
    release.set()
    assert [(entry["event"], entry["instance_id"]) for entry in said] == [("orchestrator_not_closed", "blocked")]
    assert "test_closing.py" in said[0]["where"].split(", in ")[0]


def test_a_finally_that_loops_is_interrupted(closer: Closer) -> None:
    begun = threading.Event()
    threads: list[threading.Thread] = []

    def loops() -> None:
        threads.append(threading.current_thread())
        begun.set()
        while True:
            pass

    closer("loops", waiting(loops).close)
    assert begun.wait(60)
    look(closer, SLOW + STUCK - 2 * TICK)
    assert threads[0].is_alive()
    look(closer, 4 * TICK)
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_threads_are_not_left_without_a_limit(closer: Closer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "MOST", 2)
    begun, over = threading.Semaphore(0), threading.Event()
    release = [threading.Event() for _ in range(3)]
    threads: list[threading.Thread] = []

    def blocks(event: threading.Event) -> None:
        threads.append(threading.current_thread())
        begun.release()
        event.wait(60)

    for number, event in enumerate(release):
        closer(f"blocked-{number}", waiting(lambda event=event: blocks(event)).close)
    closer("next", over.set)
    with capture_logs() as said:
        for _ in release:
            assert begun.acquire(timeout=60)
            look(closer, 3 * SLOW)
        assert [entry["instance_id"] for entry in said] == ["blocked-0", "blocked-1"]
        release[0].set()
        threads[0].join(60)
        look(closer, SLOW)
        assert over.wait(60), "one has ended, another one may be left"
        assert [entry["instance_id"] for entry in said][2:] == ["blocked-2"]
    for event in release:
        event.set()


def test_where_no_thread_can_be_started_the_one_that_closes_is_looked_at_again(
    closer: Closer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    closer("blocked", waiting(lambda: (begun.set(), release.wait(60))).close)
    closer("next", over.set)
    assert begun.wait(60)
    look(closer, SLOW)

    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with capture_logs() as said:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuses)
            for _ in range(3):
                with pytest.raises(RuntimeError):
                    look(closer, 2 * TICK)
        look(closer, 2 * TICK)
        assert over.wait(60)
    release.set()
    assert [entry["instance_id"] for entry in said] == ["blocked"]


def test_what_is_not_closed_when_the_worker_ends_is_never_closed(closer: Closer) -> None:
    """Python would do it on the thread that ends the process."""
    begun, release = threading.Event(), threading.Event()
    seen: list[str] = []
    closer("blocked", waiting(lambda: (begun.set(), release.wait(60))).close)
    assert begun.wait(60)
    closer("late", waiting(lambda: seen.append("late")).close)
    closer.stop()
    release.set()
    done = threading.Event()
    closer("", done.set)
    assert done.wait(60), "the thread goes on"
    assert seen == []
