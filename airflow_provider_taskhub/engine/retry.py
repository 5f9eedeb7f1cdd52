"""When a failed activity or child is tried again: DurableTask's rules as one pure function.

Only failures that user code raised count. The loss of a worker or an executor is the workers' affair and never
reaches this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.errors import ConfigurationError

_ZERO = timedelta(0)
LONGEST_DELAY = timedelta(days=6)
"""Between two attempts: one queue message must be able to hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after which delays a failed task is tried again.

    :param max_attempts: attempts in all, the first included; at least 1.
    :param first_retry_interval: delay before the second attempt; six days at most.
    :param backoff_coefficient: factor from one delay to the next; at least 1.
    :param max_retry_interval: no delay is longer; nor is any longer than six days.
    :param retry_timeout: no retry later than this after the first attempt.
    :param handle: says whether a failure may be retried; non-retryable failures never are.
    :param max_number_of_attempts: the name of ``max_attempts`` in Microsoft's durabletask Python SDK.
    :raises ConfigurationError: for values that cannot work.
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

    def delay(self, attempt: int) -> timedelta:
        """The delay after a failed attempt; six days at most. :param attempt: its number, from 0."""
        cap = min(self.max_retry_interval or LONGEST_DELAY, LONGEST_DELAY)
        try:
            seconds = self.first_retry_interval.total_seconds() * self.backoff_coefficient**attempt
        except OverflowError:
            return cap
        return cap if seconds >= cap.total_seconds() else timedelta(seconds=seconds)


class RetryDecision(StrEnum):
    """What follows a failed attempt. The values are part of the identities of retry timers: never change them."""

    AGAIN = "again"  # a timer, then another attempt
    LAST = "last"  # DurableTask's dummy timer that fires at once after the last attempt, then the failure
    STOP = "stop"  # the failure at once


def decide_retry(
    policy: RetryPolicy | None, *, attempt: int, first: Timestamp, now: Timestamp, failure: FailureDetails
) -> tuple[RetryDecision, timedelta]:
    """What follows a failed attempt, and after which delay.

    :param attempt: number of the attempt that failed, from 0. :param first: when the first attempt was scheduled.
    :param now: the orchestrator's time.
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
