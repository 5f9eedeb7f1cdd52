"""Repeats a call after an error. Each caller passes its policy as a :class:`Retries` value.

This module is for calls inside TaskHub. Users describe the retries of activities by ``RetryPolicy``
(``engine/retry.py``).
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
"""Longest pause in seconds that an error can ask for (``retry_after``). A longer ``retry_after`` is cut to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """A policy: after which errors a call is repeated, how often, and after which pauses.

    :param after: types of errors after which the call is repeated. Every other error is raised at once.
    :param unless: returns True for an error that must be raised at once although its type is in ``after``.
    :param tries: largest number of calls, including the first call; None: no limit.
    :param within: seconds from the first call until the last call begins. The pause before the last call is shortened
        to fit. None: no limit.
    :param first: length of the first pause in seconds.
    :param factor: each pause is the previous pause multiplied by this number. With 2, pauses double.
    :param longest: largest length of a pause in seconds. A pause is longer only if the error asks for a longer pause
        (``retry_after``). It is then as long as the error asks, but at most :data:`LONGEST_ASKED`.
    :param jitter: random part of a pause. With 0.5, each pause is multiplied by a random number from 0.5 to 1.5, and
        then limited to ``longest``. A pause that the error asks for has no random part.
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
        """Return the number of seconds to wait before the next call.

        :param failures: number of failed calls in a row, at least 1.
        :param error: the error of the last call; its ``retry_after`` can make the pause longer. None: no such error.
        """
        doubled = self.first * self.factor ** min(failures - 1, 50)
        asked = min(LONGEST_ASKED, getattr(error, "retry_after", 0.0))
        return max(asked, min(self.longest, doubled * random.uniform(1 - self.jitter, 1 + self.jitter)))


async def retry(
    call: Callable[[], Awaitable[T]],
    policy: Retries,
    clock: Clock,
    *,
    failed: Callable[[Exception, int], None] = lambda error, failures: None,
) -> T:
    """Call ``call`` until it succeeds or the policy ends the retries, and return its result.

    :param call: makes one try.
    :param policy: says when to repeat the call.
    :param clock: measures the pauses.
    :param failed: called after each error after which the policy repeats the call (by ``after`` and ``unless``), also
        if no further call is made because the policy's limit is reached. The arguments are the error and the number of
        failures so far.
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
