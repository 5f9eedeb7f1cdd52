"""What an instance waits for at the end of its last episode.

People and the Airflow trigger see these values; replay never reads them. :mod:`.wait_changes` has the waits that one
episode began and ended.
"""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.fast_dataclass import dataclass

MAX_EXAMINED = 200
"""Maximum number of open tasks that are examined. Without this limit a wide fan-out would make each episode slow."""
MAX_NAMES = 20
"""Maximum number of names that are kept for activities, for children and for events."""
LONGEST_NAME = 200
"""Maximum characters of a stored name. A column has at most 60 names, so it stays within Azure's limit of 64 KiB."""
CHILD_IDS = 3
"""Maximum number of instance ids of children that are kept for people."""
NEEDED_CHARACTERS = 8000
"""Maximum characters of the ids of the children without which the instance cannot go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEvent:
    """An external event that an instance waits for.

    :param name: name of the event.
    :param since: the orchestrator's time when the wait began.
    """

    name: str
    since: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaits:
    """What an instance waits for.

    :param activities: names of the activities that have not completed, each name once, the oldest first.
    :param children: names of the children's orchestrators that have not completed, each name once, the oldest first.
    :param child_ids: instance ids of the oldest open children, at most :data:`CHILD_IDS`.
    :param child_count: number of open children among the examined tasks.
    :param needed: the open children without which the code cannot go on, each with its instance id and the name of its
        run (``identity.run_name``), the oldest first. A child in a ``when_any`` is not listed, because the code can go
        on without it. The list has at most :data:`NEEDED_CHARACTERS` characters.
    :param events: the awaited events in the order of the waits, each name once.
    :param timer: when the first of its timers fires; None if there is no timer.
    :param complete: whether the other fields list everything; False if some names are left out.
    :param unreadable: the part of the instance's history that the worker cannot read, so that the instance does not go
        on; "" if the whole history is readable.
    """

    activities: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    child_ids: tuple[str, ...] = ()
    child_count: int = 0
    needed: tuple[tuple[str, str], ...] = ()
    events: tuple[AwaitedEvent, ...] = ()
    timer: Timestamp | None = None
    complete: bool = True
    unreadable: str = ""

    def __bool__(self) -> bool:
        return bool(self.activities or self.children or self.events or self.timer or self.unreadable)


NOTHING = Awaits()
