"""Retry policies, and DurableTask's rules for the retry of a failed activity or child as one pure function.

Only failures of user code count as failed attempts. If a worker or executor process dies, a worker runs the activity
again without asking this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_provider_taskhub.engine.events import FailureDetails

_ZERO = timedelta(0)
LONGEST_DELAY = timedelta(days=6)
"""Longest delay between two attempts. An Azure queue hides one message for at most 7 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after which delays a failed task is tried again.

    :param max_attempts: maximum number of attempts, the first attempt included; at least 1.
    :param first_retry_interval: delay before the second attempt; at most six days.
    :param backoff_coefficient: each delay is the previous delay multiplied by this factor; at least 1.
    :param max_retry_interval: upper limit of each delay; None: six days, which is also the highest limit.
    :param retry_timeout: a failure later than this time after the first attempt is not retried; None: no limit.
    :param handle: function that returns True if a failure is retried; None: every failure is retried. A non-retriable
        failure is never retried, and ``handle`` is not called for it.
    :param max_number_of_attempts: the name of ``max_attempts`` in Microsoft's durabletask Python SDK.
    :raises ConfigurationError: a value is out of its range.
    """

    max_attempts: int = 0
    first_retry_interval: timedelta = timedelta(seconds=5)
    backoff_coefficient: float = 1.0
    max_retry_interval: timedelta | None = None
    retry_timeout: timedelta | None = None
    handle: Callable[[FailureDetails], bool] | None = None
    max_number_of_attempts: InitVar[int | None] = None

    def __post_init__(self, max_number_of_attempts: int | None) -> None:
        if max_number_of_attempts is not None:
            object.__setattr__(self, "max_attempts", max_number_of_attempts)
        self._check_types()
        if self.max_attempts < 1:
            raise ConfigurationError(f"RetryPolicy: max_attempts is {self.max_attempts}; give 1 or more")
        if self.first_retry_interval <= _ZERO:
            raise ConfigurationError(
                f"RetryPolicy: first_retry_interval is {self.first_retry_interval}; give more than 0"
            )
        if self.first_retry_interval > LONGEST_DELAY:
            raise ConfigurationError(
                f"RetryPolicy: first_retry_interval is {self.first_retry_interval}; give {LONGEST_DELAY} or less, or "
                "wait with ctx.create_timer and call again"
            )
        if not self.backoff_coefficient >= 1:
            raise ConfigurationError(f"RetryPolicy: backoff_coefficient is {self.backoff_coefficient}; give 1 or more")
        for name in ("max_retry_interval", "retry_timeout"):
            value: timedelta | None = getattr(self, name)
            if value is not None and value <= _ZERO:
                raise ConfigurationError(f"RetryPolicy: {name} is {value}; give more than 0, or None for no limit")

    def _check_types(self) -> None:
        if not isinstance(self.max_attempts, int) or isinstance(self.max_attempts, bool):
            raise ConfigurationError(f"RetryPolicy: max_attempts is {self.max_attempts!r}; give a whole number, e.g. 3")
        if not isinstance(self.backoff_coefficient, int | float):
            raise ConfigurationError(f"RetryPolicy: backoff_coefficient is {self.backoff_coefficient!r}; give a number")
        for name in ("first_retry_interval", "max_retry_interval", "retry_timeout"):
            value: object = getattr(self, name)
            if not isinstance(value, timedelta) and (value is not None or name == "first_retry_interval"):
                raise ConfigurationError(f"RetryPolicy: {name} is {value!r}; give a timedelta(seconds=…)")
        if self.handle is not None and (isinstance(self.handle, type) or not callable(self.handle)):
            raise ConfigurationError(
                f"RetryPolicy: handle is {self.handle!r}; give a function that takes a FailureDetails and returns True "
                "if the failure is retried, e.g. lambda failure: failure.error_type == 'ConnectionError'"
            )

    def delay(self, attempt: int) -> timedelta:
        """Return the delay after a failed attempt; at most six days.

        :param attempt: number of the attempt, from 0.
        """
        cap = min(self.max_retry_interval or LONGEST_DELAY, LONGEST_DELAY)
        try:
            seconds = self.first_retry_interval.total_seconds() * self.backoff_coefficient**attempt
        except OverflowError:
            return cap
        return cap if seconds >= cap.total_seconds() else timedelta(seconds=seconds)


class RetryDecision(StrEnum):
    """What follows a failed attempt. The values are part of the identities of retry timers: never change them."""

    AGAIN = "again"  # a timer is made, and then another attempt
    LAST = "last"  # no attempt follows: a timer without delay is made, as in DurableTask, and then the task fails
    STOP = "stop"  # the task fails at once


def decide_retry(
    policy: RetryPolicy | None, *, attempt: int, first: Timestamp, now: Timestamp, failure: FailureDetails
) -> tuple[RetryDecision, timedelta]:
    """Decide what follows a failed attempt, and after which delay.

    :param policy: the retry policy; None: no retry.
    :param attempt: number of the attempt that failed, from 0.
    :param first: the orchestrator's time when the first attempt was scheduled.
    :param now: the orchestrator's time after the failure.
    :param failure: the failure of the attempt.
    """
    if policy is None or failure.is_non_retriable:
        return RetryDecision.STOP, _ZERO
    if policy.handle is not None and not policy.handle(failure):
        return RetryDecision.STOP, _ZERO
    if policy.retry_timeout is not None and now - first >= policy.retry_timeout:
        return RetryDecision.STOP, _ZERO
    if attempt + 1 >= policy.max_attempts:
        return RetryDecision.LAST, _ZERO
    return RetryDecision.AGAIN, policy.delay(attempt)
