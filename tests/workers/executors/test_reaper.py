"""The reaper lets the executors of a host stand still that is stopped or blocked, before other workers take over."""

from __future__ import annotations

import subprocess

import pytest

from airflow_provider_taskhub.workers.executors import process_session, reaper
from airflow_provider_taskhub.workers.executors.reaper import Watched

SIGNALS = {"stop": "stands still", "resume": "goes on", "kill": "is killed"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the sessions get."""
    told = list[tuple[str, int]]()
    for name, what in SIGNALS.items():
        monkeypatch.setattr(process_session, name, lambda session, what=what: told.append((what, session)))
    return told


@pytest.mark.rows("D99")
def test_a_session_stands_still_from_its_time_on_until_it_is_put_off(told: list[tuple[str, int]]) -> None:
    watched = Watched()
    watched.hear("+7 20.0", 10.0)
    watched.hear("+8 inf", 10.0)
    told.clear()
    assert (watched.look(10.0), watched.look(19.5), told) == (1.0, 0.5, [])
    assert (watched.look(20.0), watched.look(25.0), told) == (None, None, [("stands still", 7)])
    watched.hear("+7 22.0", 25.0)
    assert told == [("stands still", 7)], "the renewal came too late: another worker may have the attempt"
    watched.hear("+7 40.0", 25.0)
    assert (told[1:], watched.look(39.5)) == ([("goes on", 7)], 0.5)
    watched.look(40.0)
    assert told[2:] == [("stands still", 7)], "it can stand still again"


def test_a_session_that_cannot_stand_still_is_killed(told: list[tuple[str, int]]) -> None:
    watched = Watched()
    watched.hear("!7 20.0", 10.0)
    told.clear()
    watched.look(19.0)
    assert told == []
    watched.look(20.0)
    watched.look(21.0)
    assert told == [("is killed", 7)]


def test_a_session_that_has_ended_gets_nothing(told: list[tuple[str, int]]) -> None:
    """The system may have given its id to another program."""
    watched = Watched()
    watched.hear("+7 20.0", 10.0)
    watched.hear("-7 0", 15.0)
    told.clear()
    assert (watched.look(30.0), watched.sessions, told) == (None, {}, [])


def test_a_new_reaper_lets_go_on_what_the_last_one_has_stopped(told: list[tuple[str, int]]) -> None:
    watched = Watched(again=True)
    watched.hear("+7 20.0", 10.0)
    watched.hear("+9 -inf", 10.0)
    assert told == [("goes on", 7)], "the host itself has stopped 9"
    watched.hear("+8 20.0", 30.0)
    watched.look(30.0)
    assert told[1:] == [("stands still", 7), ("stands still", 9), ("stands still", 8)]


def test_a_late_reaper_lets_nothing_go_on_that_its_host_has_stopped_since(told: list[tuple[str, int]]) -> None:
    """It reads a line late, for example because it has just been started."""
    watched = Watched()
    watched.hear("+7 inf", 10.0)
    assert told == []
    watched.hear_all(["+7 20.0"], 21.0)
    watched.look(21.0)
    watched.hear_all(["+7 40.0", "+7 -inf"], 22.0)
    watched.look(22.0)
    assert told == [("stands still", 7)], "the pause has begun again"
    watched.hear_all(["+7 60.0"], 23.0)
    assert told[1:] == [("goes on", 7)]


class FullPipe:
    """The reaper's process, which reads nothing."""

    def __init__(self) -> None:
        self.stdin, self.room, self.status = self, 30, None
        self.lines = list[bytes]()

    def fileno(self) -> int:
        return 0

    def write(self, line: bytes) -> int | None:
        if self.status is not None:
            raise BrokenPipeError
        if len(line) > self.room:
            return None
        self.room -= len(line)
        self.lines.append(line)
        return len(line)

    def poll(self) -> int | None:
        return None

    def kill(self) -> None:
        self.status = -9


class Now:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_reaper_that_hangs_is_replaced_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe is full. The event loop of the worker does not wait for it, and errors do not end attempts."""
    pipes = [hangs, works] = [FullPipe(), FullPipe()]
    clock, tries = Now(), 0

    def popen(*args: object, **named: object) -> FullPipe:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise OSError("no more processes")
        return pipes.pop(0)

    monkeypatch.setattr(reaper, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr("os.set_blocking", lambda fd, blocking: None)
    one = reaper.Reaper(lock_fd=None)
    one.start()
    one.watch(7)
    for due in (20.0, 30.0, 40.0):
        one.stop_at(7, due, kills=False)
    assert (tries, hangs.status, hangs.lines) == (1, None, [b"+7 inf\n", b"+7 20.0\n", b"+7 30.0\n"])
    for passes in (1.0, 0.5, 0.5):  # one start fails, then it is too early, then one succeeds
        clock.now += passes
        one.stop_at(7, clock.now, kills=True)
    assert (tries, hangs.status, works.lines) == (3, -9, [b"!7 102.0\n"])
