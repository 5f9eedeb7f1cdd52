"""The limit of instances that a start names: at most so many of them have begun and not ended."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.tags import LIMIT_TAG

LONGEST_NAME = 200
"""Most characters of the name of a limit."""
MOST = 10_000
"""Most instances that a limit can let run at once. The hub has a row for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimit:
    """At most so many instances of those that are started with a limit of this name run at once in the hub.

    The others wait in the hub, Pending, and begin in the order in which they were started. An instance counts from its
    beginning to its end, also while it is suspended or waits for an event. Its children do not count. An instance that
    is rewound counts again, and may have to wait for its turn.

    If starts of one name give different numbers, the number of the last start counts.

    :param name: name of the limit, the same for all that share it.
    :param instances: how many of them may run at once.
    :raises InputError: if the name is empty or too long, or the number is not a whole number from 1 on.
    """

    name: str
    instances: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > LONGEST_NAME:
            raise InputError(f"InstanceLimit: name is {self.name!r}; give a text of 1 to {LONGEST_NAME} characters")
        if type(self.instances) is not int or not 1 <= self.instances <= MOST:
            raise InputError(
                f"InstanceLimit {self.name!r}: instances is {self.instances!r}; give a whole number from 1 to {MOST:,}"
            )

    @property
    def tag(self) -> dict[str, str]:
        """The tag with which an instance is started."""
        return {LIMIT_TAG: f"{self.instances} {self.name}"}

    @classmethod
    def of(cls, tags: Mapping[str, str] | None) -> InstanceLimit | None:
        """Return the limit that an instance was started with. None: it has none.

        :param tags: the tags of the instance.
        """
        count, _, name = (tags or {}).get(LIMIT_TAG, "").partition(" ")
        if not (count.isascii() and count.isdigit()):
            return None
        try:
            return cls(name=name, instances=int(count))
        except InputError:
            return None
