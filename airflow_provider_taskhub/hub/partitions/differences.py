"""Warnings about workers of one hub that were started with other lease times or other apps."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.partitions.capabilities import difference, listed
from airflow_provider_taskhub.hub.partitions.members import Roster
from airflow_provider_taskhub.settings import LeaseTimes

log = structlog.get_logger("taskhub.partitions")


class Differences:
    """Compares the other workers with this one at every scan, and warns once of each difference.

    :param me: full name of this worker. :param times: its lease times.
    """

    def __init__(self, me: str, times: LeaseTimes) -> None:
        self._me = me
        self._pace = times.renew.total_seconds(), times.take.total_seconds()
        self._strange: set[str] = set()
        self._compared: set[str] = set()

    def compare(self, roster: Roster, member: Member, dead: Collection[str]) -> None:
        """:param roster: the workers that list themselves. :param member: this worker. :param dead: proven dead."""
        self._compare_times(roster)
        self._compare_apps(roster, member, dead)

    def _compare_times(self, roster: Roster) -> None:
        """With different times, one slowly renewing worker delays failover for all."""
        strange = {one.worker for one in roster.live if roster.paces.get(one.worker, self._pace) != self._pace}
        for worker in sorted(strange - self._strange):
            (renew, take), (my_renew, my_take) = roster.paces[worker], self._pace
            log.warning(
                "lease_times_differ",
                worker=worker,
                renew=renew,
                take=take,
                my_renew=my_renew,
                my_take=my_take,
                hint="give all workers of a hub the same TASKHUB_LEASE__ settings",
            )
        self._strange = strange

    def _compare_apps(self, roster: Roster, member: Member, dead: Collection[str]) -> None:
        """With different apps, some work can only run on some workers and waits for them."""
        proven = {other.worker: other for other in roster.live if other.worker not in roster.newcomers | set(dead)}
        for worker in sorted(proven.keys() - self._compared - {self._me}):
            other = proven[worker]
            found = difference(member, other) if member.apps and other.apps else None  # else its names are unreadable
            if found is not None:
                log.warning(
                    "apps_differ",
                    worker=worker,
                    lacks=listed(found.lacks),
                    has_more=listed(found.more),
                    versions=", ".join(f"{app}: {ours!r} here, {its!r} there" for app, ours, its in found.versions),
                    hint="give all workers of a hub the same apps in the same versions, or use one hub for each app",
                )
        self._compared = set(proven)
