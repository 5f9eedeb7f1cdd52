"""The limits of activities, as the code of an app declares them: how many run at once, and how many begin in a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Protocol

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.fast_dataclass import dataclass

MOST_STARTS = 100
"""The highest number of a rate. The hub has a row for each, and reads these rows when an attempt begins."""
UNITS = {"s": 1, "m": 60, "h": 3600}
"""Seconds of the units of a rate."""
_RATE = re.compile(rf"([1-9][0-9]*)/([{''.join(UNITS)}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most so many attempts of an activity begin within a time.

    :param starts: how many begin within any span of this length.
    :param seconds: the length in seconds.
    """

    starts: int
    seconds: int

    def __str__(self) -> str:
        return shown(self.starts, self.seconds)

    @classmethod
    def of(cls, text: Any) -> Rate:
        """Return the rate in a text such as ``10/m``.

        :raises ValueError: if it is none. The text says which rates there are.
        """
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError("give a number and a unit: '5/s', '10/m' (a minute) or '100/h' (an hour)")
        starts, seconds = int(found[1]), UNITS[found[2]]
        if starts > MOST_STARTS:
            shorter = [
                f"{starts * unit // seconds}/{name}"
                for name, unit in UNITS.items()
                if unit < seconds and starts * unit % seconds == 0 and starts * unit // seconds <= MOST_STARTS
            ]
            other = f", or in a shorter unit {shorter[-1]!r}" if shorter else ""
            raise ValueError(
                f"the maximum is {MOST_STARTS} in each unit: give '{MOST_STARTS}/{found[2]}' at most{other}"
            )
        return cls(starts=starts, seconds=seconds)


def shown(starts: int, seconds: int) -> str:
    """Return a rate as its author writes it, such as ``10/m``."""
    unit = next((name for name, unit in UNITS.items() if unit == seconds), f"{seconds}s")
    return f"{starts}/{unit}"


class Limited(Protocol):
    """What a limit needs to know of an activity."""

    @property
    def name(self) -> str: ...
    @property
    def app(self) -> str: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def rate(self) -> Rate | None: ...
    @property
    def limit_name(self) -> str: ...
    @property
    def limit_key(self) -> str: ...


def check_shared(activity: Limited, others: Iterable[Limited]) -> None:
    """Check that activities that share a limit declare the same numbers.

    :param activity: an activity that may have a limit.
    :param others: the activities that were declared before.
    :raises ConfigurationError: if one of them shares the limit and declares another number.
    """
    for other in others:
        if other.limit_name != activity.limit_name or not (_numbers(other) and _numbers(activity)):
            continue
        if _numbers(other) != _numbers(activity):
            raise ConfigurationError(
                f"activities {other.name!r} of app {other.app!r} and {activity.name!r} of app {activity.app!r} share "
                f"the limit {activity.limit_name!r}, but one declares {_numbers(other)} and the other "
                f"{_numbers(activity)}: give both the same, or another limit_name"
            )


def _numbers(activity: Limited) -> str:
    """Return the limit and the rate of an activity as its author writes them; "" if it has none."""
    numbers = [] if activity.limit is None else [f"limit={activity.limit}"]
    numbers += [] if activity.rate is None else [f"rate={str(activity.rate)!r}"]
    return ", ".join([*numbers, f"limit_key={activity.limit_key!r}"] if numbers and activity.limit_key else numbers)
