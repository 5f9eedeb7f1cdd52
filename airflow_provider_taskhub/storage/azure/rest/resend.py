"""Repeats requests after errors, by one rule for ``rest`` and for Microsoft's clients (``sdk``).

A read is sent up to three times. A write is sent again only if it certainly did not reach the service, because no
connection was made. If the answer of a write is lost, the caller must read the data instead: the write may be done, and
a second conditional write would then be refused. The retries of Microsoft's clients are switched off, because they also
repeat writes, and wait 15 s and more between two tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import AccessDenied, Unavailable
from airflow_provider_taskhub.retries import Retries, retry


def _is_refused(error: Exception) -> bool:
    """Return True if the credentials were refused. Retries would not help, and could lock the identity."""
    return isinstance(error, AccessDenied)


def _may_be_done(error: Exception) -> bool:
    """Return True if a write must not be sent again: it may be done already, or the credentials were refused."""
    return _is_refused(error) or (isinstance(error, Unavailable) and error.maybe_done)


READS = Retries(after=(Unavailable,), unless=_is_refused, tries=3, first=0.2, jitter=0.5)
WRITES = Retries(after=(Unavailable,), unless=_may_be_done, tries=3, first=0.2, jitter=0.5)

T = TypeVar("T")


async def persistently(attempt: Callable[[], Awaitable[T]], *, what: str, timeout: float, safe: bool) -> T:
    """Call ``attempt``, and call it again after an error if that is safe.

    :param attempt: function that sends the request once. Only its error ``Unavailable`` is followed by another call.
    :param what: description of the request for error texts.
    :param timeout: longest time for all attempts together, in seconds.
    :param safe: True if the request changes nothing, so that it may be sent again after any ``Unavailable``.
    :raises Unavailable: if no answer comes in time, or if the last attempt gets no answer.
    """
    try:
        async with asyncio.timeout(timeout):
            return await retry(attempt, READS if safe else WRITES, SYSTEM_CLOCK)
    except TimeoutError:
        raise Unavailable(f"{what}: no answer within {timeout:g} s") from None
