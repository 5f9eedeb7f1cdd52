"""The one loop that repeats a call after an error. Each caller states its policy as a :class:`Retries` value.

Not for users: the retries of activities are ``RetryPolicy`` in ``engine/retry.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_taskhub.clock import Clock

T = TypeVar("T")

LONGEST_ASKED = 60.0
"""Seconds. A store may ask for a longer pause (``retry_after``); it does not get one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """After which errors a call is repeated, how often, and after which pauses.

    :param after: types of errors after which the call is repeated; every other error is raised at once.
    :param unless: True for an error of these types that is raised at once all the same.
    :param tries: how often the call is made, the first time included; None: no limit.
    :param within: seconds from the first call. The last pause is shortened, so that the last call begins then. None: no
        limit.
    :param first: seconds of the first pause. :param factor: from one pause to the next.
    :param longest: seconds; no pause is longer, unless the error asks for one (``retry_after``).
    :param jitter: 0.5: each pause is multiplied by a random number between 0.5 and 1.5.
    """

    after: tuple[type[Exception], ...]
    unless: Callable[[Exception], bool] = lambda error: False
    tries: int | None = None
    within: float | None = None
    first: float
    factor: float = 2.0
    longest: float = math.inf
    jitter: float = 0.0

    def pause(self, failures: int, error: BaseException | None = None) -> float:
        """Seconds to wait. :param failures: in a row, at least 1. :param error: the last one."""
        doubled = self.first * self.factor ** min(failures - 1, 50)
        asked = min(LONGEST_ASKED, getattr(error, "retry_after", 0.0))
        return max(asked, min(self.longest, doubled) * random.uniform(1 - self.jitter, 1 + self.jitter))


async def retry(
    call: Callable[[], Awaitable[T]],
    policy: Retries,
    clock: Clock,
    *,
    failed: Callable[[Exception, int], None] = lambda error, failures: None,
) -> T:
    """The result of ``call``, repeated as ``policy`` says.

    :param failed: called after each error of the policy's types with the error and the number of failures, also after
        the last one.
    :raises Exception: the error of the last call.
    """
    end = math.inf if policy.within is None else clock.monotonic() + policy.within
    failures = 0
    while True:
        try:
            return await call()
        except policy.after as error:
            if policy.unless(error):
                raise
            failures += 1
            failed(error, failures)
            left = end - clock.monotonic()
            if failures == policy.tries or left <= 0:
                raise
            pause = min(left, policy.pause(failures, error))
        await clock.sleep(pause)
