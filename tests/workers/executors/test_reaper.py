"""The reaper lets the executors of a host stand still that is stopped or blocked, before other workers take over."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.reaper import Reaper, Watched

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
    assert (watched.look(10.0), watched.look(19.5), told) == (10.0, 0.5, [])
    assert (watched.look(20.0), watched.look(25.0), told) == (None, None, [("stands still", 7)])
    watched.hear("+7 22.0", 25.0)
    assert told == [("stands still", 7)], "the renewal came too late: another worker may have the attempt"
    watched.hear("+7 40.0", 25.0)
    assert (told[1:], watched.look(25.0)) == ([("goes on", 7)], 15.0)
    watched.look(40.0)
    assert told[2:] == [("stands still", 7)], "it can stand still again"


def test_a_session_that_cannot_stand_still_is_killed(told: list[tuple[str, int]]) -> None:
    watched = Watched()
    watched.hear("!7 20.0", 10.0)
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
    assert (watched.look(30.0), watched.sessions, told) == (None, {}, [])


class FullPipe:
    """The reaper's process, which reads nothing."""

    def __init__(self) -> None:
        self.stdin, self.room, self.status = self, 30, None
        self.lines = list[bytes]()

    def fileno(self) -> int:
        return 0

    def write(self, line: bytes) -> int | None:
        if len(line) > self.room:
            return None
        self.room -= len(line)
        self.lines.append(line)
        return len(line)

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.status = -9


def test_a_reaper_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe is full. The event loop of the worker does not wait for it."""
    pipes: Iterator[FullPipe] = iter([(hangs := FullPipe()), (works := FullPipe())])
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **named: next(pipes))
    monkeypatch.setattr("os.set_blocking", lambda fd, blocking: None)
    reaper = Reaper(lock_fd=None)
    reaper.start()
    reaper.watch(7)
    reaper.stands_still_at(7, 20.0, kills=False)
    reaper.stands_still_at(7, 30.0, kills=False)
    assert (hangs.status, hangs.lines) == (None, [b"+7 inf\n", b"+7 20.0\n", b"+7 30.0\n"])
    reaper.stands_still_at(7, 40.0, kills=False)
    assert hangs.status == -9
    reaper.stands_still_at(7, 50.0, kills=True)
    assert works.lines == [b"!7 50.0\n"]
