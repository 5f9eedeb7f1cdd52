"""Runs many calls concurrently, but only a limited number of them at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from airflow_provider_taskhub.supervision import owned

T = TypeVar("T")
R = TypeVar("R")


async def gather_bounded(action: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int) -> list[R]:
    """Call ``action`` for every item, with at most ``limit`` calls at the same time.

    After an error no further call begins, but this function waits for the end of the calls that run. It does not cancel
    them, because a cancelled request is perhaps carried out, and the caller could not know. If the caller is cancelled,
    the calls are cancelled too.

    Rejected: a semaphore with ``asyncio.gather``. It makes a task for every item, and after an error the other calls
    run on without an owner.

    :returns: the results, in the order of the items.
    :raises Exception: the error of a failed call. If several calls failed, it is the error of the first of
        their items.
    """
    waiting = list(items)
    results: list[R | None] = [None] * len(waiting)
    errors: dict[int, Exception] = {}
    numbered = iter(enumerate(waiting))

    async def take_turns() -> None:
        for number, item in numbered:
            try:
                results[number] = await action(item)
            except Exception as error:
                errors[number] = error
            if errors:
                return

    async with owned() as start:
        await asyncio.gather(*(start(take_turns()) for _ in range(min(limit, len(waiting)))))
    if errors:
        raise errors[min(errors)]
    return cast("list[R]", results)
