"""What a running orchestration waits for at the end of its last episode. Replay never reads it.

It explains an instance to people, and to Airflow's trigger. :mod:`.waits` has what one episode changed.
"""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.fast_dataclass import dataclass

MAX_EXAMINED = 200
"""Open tasks of one kind that are looked at, at most: a wide fan-out would cost too much in each episode."""
MAX_NAMES = 20
"""Names of one kind that are kept, at most."""
LONGEST_NAME = 200
"""Characters of a name that are stored: 60 names at most, so a column stays within Azure's 64 KiB."""
CHILD_IDS = 3
"""Ids of children that are kept, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """An external event that has not come. :param since: the orchestration's time when the wait began."""

    name: str
    since: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaits:
    """What an instance waits for.

    :param activities, children: names of tasks that were scheduled and have not completed, each once, the oldest first.
    :param child_ids: of the oldest open children, :data:`CHILD_IDS` at most. :param child_count: of all open children.
    :param events: in the order of the waits, each name once. :param timer: when the first of its timers fires.
    :param complete: False if there is more than is listed here.
    :param unreadable: what of its history its worker could not read, so that it does not go on; "" if nothing.
    """

    activities: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    child_ids: tuple[str, ...] = ()
    child_count: int = 0
    events: tuple[AwaitedEvent, ...] = ()
    timer: Timestamp | None = None
    complete: bool = True
    unreadable: str = ""

    def __bool__(self) -> bool:
        return bool(self.activities or self.children or self.events or self.timer or self.unreadable)


NOTHING = Awaits()
