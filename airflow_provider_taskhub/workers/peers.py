"""Watches the other workers of the hub: which live, which are proven dead, and which have released a partition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import structlog

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.supervision import Supervisor

log = structlog.get_logger(__name__)

RELEASE_CHECK = 3600.0
"""Seconds after which ``partitions_free`` is called although the store has announced no release of a partition."""
DEATH_CHECK = 0.1
"""Seconds between two checks of the lock files of other workers on this machine. A check needs no storage request."""
ALONE_CHECK = 1.0
"""Seconds between two checks while this worker is the only one on its machine, as most embedded workers are. A worker
that dies in its first second is noticed up to a second later."""


def _no_workers() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Watches the other workers of the hub, and reports partitions that may be free.

    :param live: reads the live members of the hub.
    :param dead: returns the full names of the workers on this machine that are proven dead, because their lock files
        could be locked. None: this worker proves no deaths, and ``partitions_free`` is never called.
    :param alone: whether no other worker runs on this machine, as far as ``dead`` has seen.
    :param partitions_free: called when partitions may be free: after another worker was proven dead and its messages
        were made visible, after a worker on this machine has released a partition, and at least every
        :data:`RELEASE_CHECK` seconds.
    """

    live: Callable[[], Coroutine[Any, Any, Sequence[Member]]]
    dead: Callable[[], Collection[str]] | None = None
    alone: Callable[[], bool] = lambda: False
    partitions_free: Callable[[], None] = lambda: None

    def is_dead(self, worker: str) -> bool:
        """Return True if a worker is proven dead, because the lock file of its incarnation could be locked.

        :param worker: the full name of the worker.
        """
        return worker in (self.dead or _no_workers)()

    def watch(self, hub: Hub, supervisor: Supervisor) -> None:
        """Start the loops that react to dead workers and to released partitions.

        Do nothing if this worker proves no deaths.
        """
        if self.dead is None:
            return
        supervisor.keep("deaths", lambda: self._watch_deaths(hub))
        supervisor.keep("releases", lambda: self._watch_releases(hub))

    async def _watch_releases(self, hub: Hub) -> None:
        """Report free partitions when the store announces that a worker on this machine has released a partition."""
        async with hub.store.subscribe(hub.names.partitions) as released:
            while True:
                await released(RELEASE_CHECK)
                self.partitions_free()

    async def _watch_deaths(self, hub: Hub) -> None:
        """Make the messages of dead workers visible at once. Otherwise they stay hidden until their visibility ends."""
        known: frozenset[str] = frozenset()
        while True:
            dead = frozenset((self.dead or _no_workers)())
            pause = ALONE_CHECK if self.alone() else DEATH_CHECK
            if fresh := dead - known:
                try:
                    released = await hub.store.release_claims(fresh)
                except StorageError as error:
                    pause = 1.0
                    log.warning("claims_not_released", workers=sorted(fresh), error=str(error))
                else:
                    known = dead
                    if released:
                        log.info("claims_released", workers=sorted(fresh), messages=released)
                    self.partitions_free()
            await hub.clock.sleep(pause)
