"""Many calls side by side, at most so many at once."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.virtual_time import run


def test_results_come_in_the_order_of_the_items_and_never_more_than_the_limit_run() -> None:
    running, most = 0, 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(10 - item)  # later items end first
        running -= 1
        return item * item

    assert run(gather_bounded(work, range(10), limit=3)) == [number * number for number in range(10)]
    assert most == 3


@pytest.mark.parametrize("items", [[], [7]])
def test_no_items_give_no_results_and_one_item_gives_one(items: list[int]) -> None:
    async def work(item: int) -> int:
        return item

    assert run(gather_bounded(work, items, limit=3)) == items


def test_after_an_error_nothing_more_begins_what_runs_is_waited_for_and_the_first_error_is_raised() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def work(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(3 - item)  # of items 0 to 2 the last one ends first
        if item in (1, 2):
            raise ValueError(str(item))
        ended.append(item)

    with pytest.raises(ValueError, match="1"):
        run(gather_bounded(work, range(10), limit=3))
    assert begun == [0, 1, 2]
    assert ended == [0]


def test_a_cancelled_caller_cancels_the_calls_and_waits_for_them() -> None:
    cleaned: list[int] = []

    async def work(item: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            cleaned.append(item)

    async def main() -> None:
        async with owned() as start:
            task = start(gather_bounded(work, range(9), limit=2))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert cleaned == [0, 1]

    run(main())
