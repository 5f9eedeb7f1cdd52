"""The one loop that repeats a call after an error, on virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from airflow_provider_taskhub.errors import Conflict, NotFound, StorageError, Throttled, Unavailable
from airflow_provider_taskhub.retries import LONGEST_ASKED, Retries, retry
from airflow_provider_taskhub.virtual_time import VirtualClock, run

POLICY = Retries(after=(Unavailable, Throttled), first=1.0, longest=5.0)


def failing(*errors: Exception) -> tuple[Callable[[], Awaitable[str]], list[float]]:
    """A call that raises these errors in turn and then returns "done", and the times of its calls."""
    clock, times, left = VirtualClock(), list[float](), list(errors)

    async def call() -> str:
        times.append(clock.monotonic())
        if left:
            raise left.pop(0)
        return "done"

    return call, times


def lost(count: int) -> list[Exception]:
    return [Unavailable(f"no answer {number}") for number in range(1, count + 1)]


def test_a_call_is_repeated_after_longer_and_longer_pauses_up_to_the_longest() -> None:
    async def main() -> None:
        call, times = failing(*lost(5))
        assert await retry(call, POLICY, VirtualClock()) == "done"
        assert [round(b - a, 3) for a, b in pairwise(times)] == [1, 2, 4, 5, 5]

    run(main())


def test_the_error_of_the_last_try_is_raised_and_every_failure_is_told() -> None:
    async def main() -> None:
        call, times = failing(*lost(9))
        told: list[tuple[str, int]] = []
        with pytest.raises(Unavailable, match="no answer 3"):
            await retry(
                call,
                Retries(after=(Unavailable,), tries=3, first=1.0),
                VirtualClock(),
                failed=lambda error, failures: told.append((str(error), failures)),
            )
        assert len(times) == 3
        assert told == [("no answer 1", 1), ("no answer 2", 2), ("no answer 3", 3)]

    run(main())


def test_the_last_try_begins_at_the_time_limit() -> None:
    async def main() -> None:
        call, times = failing(*lost(99))
        with pytest.raises(Unavailable):
            await retry(call, Retries(after=(Unavailable,), within=10.0, first=1.0), VirtualClock())
        assert [round(time - times[0], 3) for time in times] == [0, 1, 3, 7, 10]

    run(main())


def test_other_errors_are_raised_at_once_and_so_is_what_the_policy_excludes() -> None:
    async def main() -> None:
        for error, policy in (
            (NotFound("no table"), POLICY),
            (
                Conflict("changed"),
                Retries(after=(StorageError,), unless=lambda one: isinstance(one, Conflict), first=1),
            ),
        ):
            call, times = failing(error)
            with pytest.raises(type(error)):
                await retry(call, policy, VirtualClock())
            assert len(times) == 1

    run(main())


@pytest.mark.parametrize(("asked", "waits"), [(0.1, 1.0), (20.0, 20.0), (3600.0, LONGEST_ASKED)])
def test_a_store_may_ask_for_a_longer_pause_but_not_for_an_endless_one(asked: float, waits: float) -> None:
    assert POLICY.pause(1, Throttled("busy", retry_after=asked)) == waits


def test_jitter_spreads_the_pauses() -> None:
    spread = Retries(after=(Unavailable,), first=1.0, jitter=0.5)
    pauses = {spread.pause(1) for _ in range(50)}
    assert len(pauses) > 1
    assert all(0.5 <= pause <= 1.5 for pause in pauses)


def test_the_longest_pause_limits_the_jitter_too() -> None:
    limited = Retries(after=(Unavailable,), first=1.0, longest=1.0, jitter=0.5)
    pauses = [limited.pause(1) for _ in range(50)]
    assert max(pauses) == 1.0
    assert min(pauses) < 1.0
