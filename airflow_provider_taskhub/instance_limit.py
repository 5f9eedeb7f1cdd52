"""The limit of instances that a start names: at most so many of them have begun and not ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.tags import LIMIT_TAG, PRIORITY_TAG

LONGEST_NAME = 200
"""Most characters of the name of a limit."""
NAME_FORM = f"1 to {LONGEST_NAME} printable characters, not only spaces"
"""What the name of a limit may be, for errors."""
MOST_PRIORITY = 100_000
"""The highest priority: about eleven years."""
MOST = 10_000
"""Most instances, or attempts of activities, that a limit can let run at once. The hub has a row for each."""


def is_limit_name(name: Any) -> bool:
    """Return True if a value can be the name of a limit."""
    return isinstance(name, str) and bool(name.strip()) and len(name) <= LONGEST_NAME and name.isprintable()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimit:
    """At most so many instances of those that are started with a limit of this name run at once in the hub.

    The others wait in the hub, Pending, and begin in the order in which they were started, moved by their priority. An
    instance counts from its beginning to its end, also while it is suspended or waits for an event. Its children do not
    count. An instance that is rewound counts again, and may have to wait for its turn.

    If starts of one name give different numbers, the number of the start that was made last counts. Of two that are
    made on two machines at nearly the same time, it is that of either.

    :param name: name of the limit, the same for all that share it.
    :param instances: how many of them may run at once.
    :raises InputError: if the name is empty or too long or has a control character, or a number is not a whole number
        or outside its range.
    """

    name: str
    instances: int

    def __post_init__(self) -> None:
        if not is_limit_name(self.name):
            raise InputError(f"InstanceLimit: name is {self.name!r}; give a text of {NAME_FORM}")
        if type(self.instances) is not int or not 1 <= self.instances <= MOST:
            raise InputError(
                f"InstanceLimit {self.name!r}: instances is {self.instances!r}; give a whole number from 1 to {MOST:,}"
            )

    @property
    def tags(self) -> dict[str, str]:
        """The tags with which an instance is started."""
        return {LIMIT_TAG: f"{self.instances} {self.name}"}

    @classmethod
    def of(cls, tags: Mapping[str, str] | None) -> InstanceLimit | None:
        """Return the limit that an instance was started with. None: it has none.

        :param tags: the tags of the instance.
        """
        tags = tags or {}
        count, _, name = tags.get(LIMIT_TAG, "").partition(" ")
        try:
            return cls(name=name, instances=int(count))
        except (InputError, ValueError):
            return None


def priority_tags(priority: int, limit: InstanceLimit | None) -> dict[str, str]:
    """Return the tags of the priority that an instance is started with.

    :param limit: the limit that it is started with; None: no limit.
    :raises InputError: if the priority is not a whole number, is outside its range, or would order nothing.
    """
    if type(priority) is not int or abs(priority) > MOST_PRIORITY:
        raise InputError(f"priority is {priority!r}; give a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}")
    if priority > 0 and limit is None:
        raise InputError(
            f"priority is {priority}, but there is no limit: a priority above 0 orders the instances that wait for the "
            "same limit. Give a limit too, or a priority below 0, with which an instance lets all others go first"
        )
    return {PRIORITY_TAG: str(priority)} if priority else {}


def priority_of(tags: Mapping[str, str] | None) -> int:
    """Return the priority that an instance was started with; 0 if it has none.

    :param tags: the tags of the instance.
    """
    try:
        given = int((tags or {}).get(PRIORITY_TAG, "0"))
    except ValueError:
        return 0
    return max(-MOST_PRIORITY, min(MOST_PRIORITY, given))  # whoever starts an instance can give any tag


def turn(tags: Mapping[str, str] | None, started: Timestamp) -> Timestamp:
    """Return the time by which an instance takes its turn among those that wait for the same limit.

    :param tags: the tags of the instance.
    :param started: when it was started.
    """
    return started + timedelta(hours=-priority_of(tags))
