"""Many calls side by side, at most so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from airflow_provider_taskhub.supervision import owned

T = TypeVar("T")
R = TypeVar("R")


async def gather_bounded(action: Callable[[T], Awaitable[R]], items: Iterable[T], *, limit: int) -> list[R]:
    """Call ``action`` for every item, at most ``limit`` calls at once.

    After an error no further call begins, but the calls that run are waited for and not cancelled: a request that is
    cancelled may have been done, and nobody would know. If the caller is cancelled, the calls are cancelled too.

    Rejected: a semaphore and ``asyncio.gather``. It makes a task for every item, and after an error it leaves the
    other calls running unseen.

    :returns: the results in the order of the items.
    :raises Exception: the error of the first item (in their order) whose call failed.
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
