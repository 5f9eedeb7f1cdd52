"""The jumping loop: virtual time, deadlocks named, threads waited for."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import timedelta

import pytest

from airflow_provider_taskhub.virtual_time import START, Deadlock, TimeLimit, VirtualClock, run


def test_an_hour_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        clock, seen = VirtualClock(), []

        async def note(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic()))

        await asyncio.gather(note("late", 3600.0), note("early", 0.1), note("now", -1))
        assert clock.utc_now() == START + timedelta(hours=1)
        return seen

    assert run(main()) == [("now", 0.0), ("early", 0.1), ("late", 3600.0)]


def test_a_deadline_fires_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400 * 3):
                await asyncio.Event().wait()
        return VirtualClock().monotonic()

    assert run(main()) == pytest.approx(86_400 * 3)


def test_waiting_for_nothing_is_an_error_and_cleans_up() -> None:
    ended = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(Deadlock, match="every task waits"):
        run(main())
    assert ended == [True]


def test_ticking_for_ever_ends_at_the_limit() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(TimeLimit):
        run(main(), limit=timedelta(seconds=100))


def test_time_stands_still_while_a_thread_works() -> None:
    async def main() -> tuple[str, float]:
        timer = asyncio.create_task(asyncio.sleep(3600))
        answer = await asyncio.to_thread(lambda: time.sleep(0.05) or "done")
        at = VirtualClock().monotonic()
        timer.cancel()
        return answer, at

    assert run(main()) == ("done", 0.0)


def test_machines_differ_in_skew_and_rate() -> None:
    async def main() -> tuple[float, float]:
        fast = VirtualClock(skew=timedelta(hours=-1), rate=1.001)
        await fast.sleep(1.001)
        assert fast.utc_now() == START + timedelta(hours=-1, seconds=1)
        return fast.monotonic(), VirtualClock().monotonic()

    assert run(main()) == (pytest.approx(1.001), pytest.approx(1.0))
