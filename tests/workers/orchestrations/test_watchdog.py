"""An episode that does not end is reported, then ended, and its process with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.engine.driver import Driver
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.workers.orchestrations import watchdog
from airflow_provider_taskhub.workers.orchestrations.watchdog import STATUS, Episodes, EpisodeWatchdog, Running


class Desk:
    """A watch whose looks are made by the test."""

    def __init__(self, keep: Coroutine[Any, Any, None] | None = None, *, thread: int | None = None) -> None:
        self.episodes = Episodes()
        self.kept: list[tuple[str, str]] = []
        self.exits: list[int] = []
        self._other = keep
        self.watch = EpisodeWatchdog(
            self.episodes,
            thread=thread or threading.get_ident(),
            keep=self._keep,
            end=lambda status: self.exits.append(status),
        )

    async def _keep(self, running: Running, cause: str) -> None:
        self.kept.append((running.instance_id, cause))
        if self._other is not None:
            await self._other

    def look(self, seconds: float) -> None:
        for _ in range(round(seconds / watchdog.TICK)):
            self.watch.look()


def test_a_slow_episode_is_reported_once_with_its_line() -> None:
    begun, over = threading.Event(), threading.Event()

    async def dawdles() -> None:
        begun.set()
        over.wait(60)

    thread = threading.Thread(target=lambda: Driver("dawdles", WaitRecorder()).start(dawdles()))
    thread.start()
    assert begun.wait(60)
    desk = Desk(thread=thread.ident)
    with capture_logs() as said, desk.episodes.computing("slow", "one", ()):
        desk.look(0.9)
        assert not said
        desk.look(5)
    over.set()
    thread.join()
    assert [entry["event"] for entry in said] == ["episode_slow"]
    assert said[0]["instance_id"] == "slow"
    orchestrator, called = said[0]["where"].split(", in ")
    assert "test_watchdog.py" in orchestrator
    assert orchestrator.endswith("in dawdles: `over.wait(60)`")
    assert "threading.py" in called
    assert not desk.exits


def test_a_stuck_episode_is_kept_and_ends_the_process() -> None:
    desk = Desk()
    with capture_logs() as said, desk.episodes.computing("endless", "one", ()):
        desk.look(9.9)
        assert not desk.exits
        desk.look(0.5)
    assert desk.exits[0] == STATUS == 70
    assert desk.kept[0][0] == "endless"
    assert "did not end within 10 s" in desk.kept[0][1]
    last = said[-1]
    assert (last["event"], last["instance_id"], last["log_level"]) == ("episode_stuck", "endless", "critical")


def test_many_short_episodes_are_no_long_one() -> None:
    desk = Desk()
    with capture_logs() as said:
        for number in range(200):
            with desk.episodes.computing("busy", str(number), ()):
                desk.watch.look()
        desk.look(20)
    assert (said, desk.exits) == ([], [])


async def _fails() -> None:
    raise ConnectionError("no store")


async def _hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("keep", [_fails, _hangs])
def test_a_store_that_does_not_take_the_messages_keeps_no_process_alive(
    monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    monkeypatch.setattr(watchdog, "QUARANTINE_PATIENCE", 0.01)
    desk = Desk(keep())
    with capture_logs() as said, desk.episodes.computing("endless", "one", ()):
        desk.look(10.5)
    assert desk.exits[0] == STATUS
    assert [entry["event"] for entry in said][-2:] == ["quarantine_failed", "episode_stuck"]


def test_an_error_of_who_looks_too_does_not_end_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "TICK", 0.001)
    over, errors = threading.Event(), [RuntimeError("can't start new thread")]

    def also() -> None:
        if errors:
            raise errors.pop()
        over.set()

    async def keep(running: Running, cause: str) -> None: ...

    watch = EpisodeWatchdog(Episodes(), thread=threading.get_ident(), keep=keep, also=also)
    with capture_logs() as said:
        watch.start()
        assert over.wait(60)
        watch.stop()
    assert [entry["event"] for entry in said] == ["look_failed"]
