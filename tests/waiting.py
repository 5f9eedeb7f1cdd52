"""Waiting for what another process or thread does: the one place where tests sleep in real time.

A test never asserts how long something took. It waits for a condition, with so much patience that only a broken product
exhausts it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 240.0
"""Seconds that a test waits for something that takes a few, on a machine that may stop for many."""
TELL_EVERY = 30.0
"""Seconds after which a wait says what it waits for, again and again."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25


def say(line: str) -> None:
    """Print a line. In a test, ``tests/conftest.py`` puts a function here that prints it past pytest's capture."""
    print(line, file=sys.stderr, flush=True)


def until(what: str, look: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """Call a function until it returns something true, and return that.

    :param what: the condition in words. A wait of 30 s prints it to the terminal.
    :raises AssertionError: if the function returns nothing true within ``seconds``. The error names the condition.
    """
    for pause in _pauses(what, seconds):
        if found := look():
            return found
        time.sleep(pause)
    raise AssertionError(f"not within {seconds:g} s: {what}")


async def until_async(what: str, look: Callable[[], T | Awaitable[T | None] | None], *, seconds: float = PATIENCE) -> T:
    """Do the same as :func:`until` while the event loop goes on.

    :param look: a function or a coroutine function.
    """
    for pause in _pauses(what, seconds):
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(pause)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def _pauses(what: str, seconds: float) -> Iterator[float]:
    """Yield the pause after each look. The last look begins after the deadline, even if the machine stood still."""
    began, told, pause = time.monotonic(), 0.0, _FIRST_PAUSE
    while (waited := time.monotonic() - began) < seconds:
        if waited - told >= TELL_EVERY:
            told = waited
            say(f"waiting for {waited:.0f} s: {what}")
        yield pause
        pause = min(1.5 * pause, _LONGEST_PAUSE)
    yield pause
