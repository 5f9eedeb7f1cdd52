"""The intake limit of a hub: how many messages may wait for a worker before the hub takes no new start."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from airflow_provider_taskhub.errors import InputError, IntakeFull
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.retries import Retries

MOST = 1_000_000_000
"""The largest intake limit."""
WAITS_FOR = timedelta(minutes=5)
"""How long a start waits for room in a hub whose policy is ``wait``, unless its caller says otherwise."""


class IntakePolicy(StrEnum):
    """What a new start does while the intake limit of the hub is reached."""

    REFUSE = "refuse"  # it raises IntakeFull at once
    WAIT = "wait"  # it waits until the hub has room; it raises IntakeFull if the hub is still full at the deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimit:
    """A hub takes no new start of a client while so many messages, or more, wait in its control queues for a worker.

    The messages stand for the starts that no worker has begun, because counting them costs one short request for each
    partition. Events, answers of activities and other messages that no worker has received yet count too. If 32 or more
    wait in the queue of a partition, its hidden messages count as well: those of timers and of starts for later.

    :param messages: how many messages may wait.
    :param policy: what a new start does while the limit is reached.
    :param by: who has ordered the limit, to show to people.
    :param waiting: about how many messages wait; None: it was not asked.
    :raises InputError: if ``messages`` is not a whole number or is outside its range, or there is no such policy.
    """

    messages: int
    policy: IntakePolicy = IntakePolicy.REFUSE
    by: str = ""
    waiting: int | None = None

    def __post_init__(self) -> None:
        if type(self.messages) is not int or not 1 <= self.messages <= MOST:
            raise InputError(f"the intake limit is {self.messages!r}; give a whole number from 1 to {MOST:,}")
        if self.policy not in [*IntakePolicy]:
            known = " or ".join(IntakePolicy)
            raise InputError(f"the policy of the intake limit is {self.policy!r}; give {known}")


def waiting_for_room(within: timedelta) -> Retries:
    """Return how a start is repeated while it waits for room.

    :param within: for how long it waits.
    """
    return Retries(
        after=(IntakeFull,),
        unless=lambda error: not getattr(error, "waits", False),
        within=within.total_seconds(),
        first=1.0,
        longest=30.0,
        jitter=0.5,
    )
