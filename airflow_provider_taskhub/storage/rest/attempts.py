"""What is sent again, and until when: the one rule for our own requests and for those of Microsoft's clients.

A read is sent up to three times. A write is sent again only when it certainly never reached the service (no connection
was made): after a lost answer a conditional write that had been done would be refused, and the caller must read back
instead (DESIGN §7). The clients' own retries are switched off: they repeat writes, and wait 15 s and more in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_provider_taskhub.errors import AccessDenied, Unavailable

ATTEMPTS = 3
BACK_OFF = 0.2
"""Seconds before the second attempt, doubled for the third, times 0.5 to 1.5."""

T = TypeVar("T")


async def persistently(attempt: Callable[[], Awaitable[T]], *, what: str, timeout: float, safe: bool) -> T:
    """Carry out an attempt, again where that is safe.

    :param attempt: sends once; only its ``Unavailable`` is tried again, but for a refusal (``AccessDenied``).
    :param what: what is asked, for the text of an error.
    :param timeout: seconds, all attempts together.
    :param safe: a read: may be sent again whatever became of the first.
    :raises Unavailable: without an answer in time, or when the last attempt had none.
    """
    try:
        async with asyncio.timeout(timeout):
            for number in range(1, ATTEMPTS):
                try:
                    return await attempt()
                except AccessDenied:
                    raise  # a short pause changes nothing, and tries with a wrong key may lock an identity
                except Unavailable as error:
                    if error.maybe_done and not safe:
                        raise
                await asyncio.sleep(BACK_OFF * number * random.uniform(0.5, 1.5))
            return await attempt()
    except TimeoutError:
        raise Unavailable(f"{what}: no answer within {timeout:g} s") from None
