"""Warn about workers of the same hub that have other lease times or other apps than this worker."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.partitions.capabilities import difference, listed
from airflow_provider_taskhub.hub.partitions.members import Roster
from airflow_provider_taskhub.settings import LeaseTimes

log = structlog.get_logger("taskhub.partitions")


class Differences:
    """Compare the other workers with this one at each scan, and log a warning once for each difference.

    :param me: full name of this worker.
    :param times: lease times of this worker.
    """

    def __init__(self, me: str, times: LeaseTimes) -> None:
        self._me = me
        self._pace = times.renew.total_seconds(), times.take.total_seconds()
        self._strange: set[str] = set()
        self._compared: set[str] = set()

    def compare(self, roster: Roster, member: Member, dead: Collection[str]) -> None:
        """Log a warning for each difference that was not seen before.

        :param roster: the workers that have a member row.
        :param member: the member row of this worker.
        :param dead: full names of workers that are proven dead.
        """
        self._compare_times(roster)
        self._compare_apps(roster, member, dead)

    def _compare_times(self, roster: Roster) -> None:
        """Compare the lease times. With different times, one slowly renewing worker delays failover for all."""
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
        """Compare the apps. With different apps, some work can run only on some workers, and waits for them."""
        proven = {other.worker: other for other in roster.live if other.worker not in roster.newcomers | set(dead)}
        for worker in sorted(proven.keys() - self._compared - {self._me}):
            other = proven[worker]
            # if a row lists no apps, its names could not be read, so there is nothing to compare
            found = difference(member, other) if member.apps and other.apps else None
            if found is not None:
                log.warning(
                    "apps_differ",
                    worker=worker,
                    lacks=listed(found.lacks),
                    has_more=listed(found.more),
                    pools=", ".join(f"{name}: {ours!r} here, {its!r} there" for name, ours, its in found.pools),
                    versions=", ".join(f"{app}: {ours!r} here, {its!r} there" for app, ours, its in found.versions),
                    limits=", ".join(f"{name}: {ours!r} here, {its!r} there" for name, ours, its in found.limits),
                    hint="give all workers of a hub the same apps in the same versions, or use one hub for each app",
                )
        self._compared = set(proven)
