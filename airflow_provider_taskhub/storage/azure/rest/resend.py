"""What is sent again, and until when: the one rule for our own requests and for those of Microsoft's clients.

A read is sent up to three times. A write is sent again only when it certainly never reached the service (no connection
was made): after a lost answer a conditional write that had been done would be refused, and the caller must read back
instead. The clients' own retries are switched off: they repeat writes, and wait 15 s and more in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import AccessDenied, Unavailable
from airflow_provider_taskhub.retries import Retries, retry


def _is_refused(error: Exception) -> bool:
    """A short pause does not change a refusal, and tries with a wrong key may lock an identity."""
    return isinstance(error, AccessDenied)


def _may_be_done(error: Exception) -> bool:
    return _is_refused(error) or (isinstance(error, Unavailable) and error.maybe_done)


READS = Retries(after=(Unavailable,), unless=_is_refused, tries=3, first=0.2, jitter=0.5)
WRITES = Retries(after=(Unavailable,), unless=_may_be_done, tries=3, first=0.2, jitter=0.5)

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
            return await retry(attempt, READS if safe else WRITES, SYSTEM_CLOCK)
    except TimeoutError:
        raise Unavailable(f"{what}: no answer within {timeout:g} s") from None
