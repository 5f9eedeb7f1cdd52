"""The one wait of the tests: what it returns, what it says meanwhile, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests import waiting
from tests.waiting import until, until_async


class FakeTime:
    """A clock that only ``sleep`` moves, and that may stand still in a look."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(waiting, "time", fake)
    return fake


def counting(end: int) -> Iterator[int | None]:
    yield from [None] * end
    yield end


def test_it_returns_what_the_look_returns(clock: FakeTime) -> None:
    looks = counting(5)
    assert until("five", lambda: next(looks)) == 5


def test_it_says_every_30_seconds_what_it_waits_for(clock: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "say", said.append)
    until("the worker is ready", lambda: clock.now > 1100.0)
    assert said == [f"waiting for {seconds} s: the worker is ready" for seconds in (30, 60, 90)]


def test_it_says_so_on_the_terminal_while_the_test_runs(capfd: pytest.CaptureFixture[str]) -> None:
    waiting.say("waiting for 30 s: nothing, this is a test of the line")
    assert capfd.readouterr().err == "", "pytest shows what it captures only after a failure"


def test_its_error_names_the_condition(clock: FakeTime) -> None:
    with pytest.raises(AssertionError, match=r"not within 60 s: the worker is ready"):
        until("the worker is ready", lambda: False, seconds=60.0)
    assert clock.now >= 1060.0


def test_it_looks_once_more_after_a_standstill_past_the_deadline(clock: FakeTime) -> None:
    def look() -> bool:
        happened = clock.now > 2000.0
        clock.now += 3600.0
        return happened

    assert until("an hour later", look, seconds=60.0)


async def test_the_event_loop_goes_on_while_it_waits() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)

    async def look() -> str:
        return "seen" if event.is_set() else ""

    assert await until_async("the event", event.is_set)
    assert await until_async("the event", look) == "seen"
    with pytest.raises(AssertionError, match="not within 0 s: never"):
        await until_async("never", lambda: None, seconds=0.0)
