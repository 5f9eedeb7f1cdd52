"""The limit of instances that a start names: at most so many of them have begun and not ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.tags import LIMIT_TAG, PRIORITY_TAG

LONGEST_NAME = 200
"""Most characters of the name of a limit."""
MOST_PRIORITY = 100_000
"""The highest priority: about eleven years."""
MOST = 10_000
"""Most instances that a limit can let run at once. The hub has a row for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimit:
    """At most so many instances of those that are started with a limit of this name run at once in the hub.

    The others wait in the hub, Pending, and begin in the order in which they were started, moved by their priority. An
    instance counts from its beginning to its end, also while it is suspended or waits for an event. Its children do not
    count. An instance that is rewound counts again, and may have to wait for its turn.

    If starts of one name give different numbers, the number of the last start counts.

    :param name: name of the limit, the same for all that share it.
    :param instances: how many of them may run at once.
    :param priority: an instance takes its turn as if it had been started so many hours earlier; below 0: later. So an
        instance of priority 5 overtakes what was started within the last 5 hours, and nothing waits for ever.
    :raises InputError: if the name is empty or too long, or a number is not a whole number or outside its range.
    """

    name: str
    instances: int
    priority: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > LONGEST_NAME:
            raise InputError(f"InstanceLimit: name is {self.name!r}; give a text of 1 to {LONGEST_NAME} characters")
        if type(self.instances) is not int or not 1 <= self.instances <= MOST:
            raise InputError(
                f"InstanceLimit {self.name!r}: instances is {self.instances!r}; give a whole number from 1 to {MOST:,}"
            )

        if type(self.priority) is not int or abs(self.priority) > MOST_PRIORITY:
            raise InputError(
                f"InstanceLimit {self.name!r}: priority is {self.priority!r}; give a whole number from "
                f"-{MOST_PRIORITY:,} to {MOST_PRIORITY:,}"
            )

    @property
    def tags(self) -> dict[str, str]:
        """The tags with which an instance is started."""
        priority = {PRIORITY_TAG: str(self.priority)} if self.priority else {}
        return {LIMIT_TAG: f"{self.instances} {self.name}", **priority}

    def turn(self, started: Timestamp) -> Timestamp:
        """Return the time by which an instance takes its turn. :param started: when it was started."""
        return started + timedelta(hours=-self.priority)

    @classmethod
    def of(cls, tags: Mapping[str, str] | None) -> InstanceLimit | None:
        """Return the limit that an instance was started with. None: it has none.

        :param tags: the tags of the instance.
        """
        tags = tags or {}
        count, _, name = tags.get(LIMIT_TAG, "").partition(" ")
        try:
            return cls(name=name, instances=int(count), priority=int(tags.get(PRIORITY_TAG, "0")))
        except (InputError, ValueError):
            return None
