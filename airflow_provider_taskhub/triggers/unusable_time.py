"""Measures how long no live worker could run an instance, or the hub could not be used.

If one of these times is too long, the task gives up its wait. A task that gives no ``no_worker_timeout`` gives up
within seconds while all workers have the same apps: then the name is probably misspelt, or the app was not deployed.
Workers with different apps may be a rollout, which will bring the function. Workers that were alive lately count too:
the only worker with an app may be restarting.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, FunctionKind
from airflow_provider_taskhub.hub.partitions.capabilities import agree
from airflow_provider_taskhub.hub.waiting.reasons import LACKING, Reason
from airflow_provider_taskhub.triggers.task_log import known, lacking, no_worker, served_by
from airflow_provider_taskhub.triggers.watcher import WatchedInstance

AGREED = 10.0
"""Seconds after which a wait ends if no live worker has the function, their apps agree, and the task gives no
``no_worker_timeout``. The workers are read at least twice in this time."""
_PATIENCE = "All live workers have the same apps. A task with no_worker_timeout waits longer for others"


class UnusableTime:
    """Measures how long no live worker could run the instance, and how long the hub could not be used at all.

    The hub cannot be used if reading it raises a ConfigurationError, for example because the hub does not exist. If the
    store does not answer, this time does not count, because the store may answer later. While the hub or the instance
    cannot be read, the time without a worker begins again.

    No worker can run the instance if no live worker knows its orchestrator or an activity that it awaits, if no live
    worker has its version, or if the worker that owns its partition cannot run it. Times come from this process's
    monotonic clock and count from the beginning of the wait in this process.

    :param orchestrator: the name of the instance's orchestrator; "": do not check the workers.
    :param limit: seconds after which the wait ends with an error.
    :param clock: the clock of this process.
    :param patient: True: the task itself gives the limit. False: the wait ends after :data:`AGREED` seconds if the apps
        of all live workers agree.
    """

    def __init__(self, orchestrator: str, limit: float, clock: Clock, *, patient: bool) -> None:
        self._clock = clock
        self._orchestrator = orchestrator
        self._limit = limit
        self._patient = patient
        self._last_usable = self._last_known = self._last_different = clock.monotonic()
        self._workers_text: str | None = None
        self._trouble, self._what = "", "the hub"

    def lines(self, seen: WatchedInstance) -> Iterator[str]:
        """Yield a line if the list of workers has changed, if the hub cannot be read, or if it can be read again."""
        trouble = f"{type(seen.trouble).__name__}: {seen.trouble}" if seen.trouble else ""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self._what = f"instance {seen.instance_id}" if seen.alone else "the hub"
                yield f"{self._what} cannot be read, trying again: {trouble}"
            else:
                yield f"{self._what} can be read again"
        if seen.members is None or not self._orchestrator:
            return
        text = served_by(seen.members, self._orchestrator)
        if text != self._workers_text:
            self._workers_text = text
            yield text

    def error(self, seen: WatchedInstance) -> str | None:
        """Return the error text with which the wait ends if one of the times is over its limit; else None."""
        now = self._clock.monotonic()
        if not isinstance(seen.trouble, ConfigurationError):
            self._last_usable = now
        elif now - self._last_usable >= self._limit:
            return f"the hub cannot be used: {seen.trouble}"
        starts_later = any(why.reason is Reason.STARTS_LATER for why in seen.whys)  # until then, it needs no worker
        if seen.members is None or seen.trouble or not self._orchestrator or starts_later:
            self._last_known = now
            return None
        is_known = known(seen.members, self._orchestrator)
        if is_known and lacking(seen.whys, 0) is None:
            self._last_known = now
            return None
        if self._patient or not self._agree(seen):
            self._last_different = now
        if now - self._last_known >= self._limit:
            return self._lack(seen, self._limit, is_known=is_known)
        if now - max(self._last_known, self._last_different) >= AGREED:
            return f"{self._lack(seen, AGREED, is_known=is_known)}. {_PATIENCE}"
        return None

    def _agree(self, seen: WatchedInstance) -> bool:
        """Return whether all workers that could have the missing functions have the same apps, also those of lately."""
        lacks = {why.reason for why in seen.whys if why.reason in LACKING} or {Reason.NO_ORCHESTRATOR}
        kinds: set[FunctionKind] = {ACTIVITY if reason is Reason.NO_ACTIVITY else ORCHESTRATOR for reason in lacks}
        live, lately = seen.members or (), (*(seen.members or ()), *seen.gone)
        # workers of a pool, or large ones, may be started only when there is work
        if lacks & {Reason.NOT_OWNER, Reason.NO_POOL, Reason.NO_MEMORY}:
            return False
        return all(agree(live, kind) and agree(lately, kind) for kind in kinds)

    def _lack(self, seen: WatchedInstance, seconds: float, *, is_known: bool) -> str:
        """Return the error text. :param is_known: whether a live worker knows the orchestrator."""
        lacks = lacking(seen.whys, seconds) if is_known else None
        return lacks or no_worker(seen.members or (), self._orchestrator, seconds)
