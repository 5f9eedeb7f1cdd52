"""What a running orchestration waits for, as its last episode left it: for people, and for nobody's decisions."""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.values import dataclass

LOOKED_AT = 200
"""Open tasks of one kind that an episode looks at: a wide fan-out must not pay for its width in each episode."""
NAMED = 20
"""Names of one kind that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """An external event that has not come. :param since: the orchestration's time when the wait began."""

    name: str
    since: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaits:
    """What an instance waits for.

    :param activities, children: names of what was asked for and has not answered, each once, the oldest first.
    :param events: in the order of the waits, each name once. :param timer: when the first of its timers fires.
    :param complete: False if there is more than is listed here.
    """

    activities: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    events: tuple[AwaitedEvent, ...] = ()
    timer: Timestamp | None = None
    complete: bool = True

    def __bool__(self) -> bool:
        return bool(self.activities or self.children or self.events or self.timer)


NOTHING = Awaits()
