"""The hub's other workers, as far as this worker cares: who lives, who is proven dead, who has released a partition."""

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
"""Seconds between two scans for free partitions beside the regular scans, while no release is announced."""
DEATH_CHECK = 0.1
"""Seconds between two looks at the lock files of this machine's other workers; a look asks the store nothing."""


def _nobody() -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where a worker learns about the hub's other workers, and whom it tells.

    :param live: reads the live members of the hub.
    :param dead: full names of the workers that are proven dead; None: this worker proves no deaths.
    :param partitions_free: called when partitions may be free: another worker is proven dead, and its messages can be
        received again, or a worker has released a partition.
    """

    live: Callable[[], Coroutine[Any, Any, Sequence[Member]]]
    dead: Callable[[], Collection[str]] | None = None
    partitions_free: Callable[[], None] = lambda: None

    def is_dead(self, worker: str) -> bool:
        """Whether a worker is proven dead (its incarnation's lock could be taken)."""
        return worker in (self.dead or _nobody)()

    def watch(self, hub: Hub, supervisor: Supervisor) -> None:
        """React to deaths and releases from now on; does nothing for a worker that proves no deaths."""
        if self.dead is None:
            return
        supervisor.keep("deaths", lambda: self._watch_deaths(hub))
        supervisor.keep("releases", lambda: self._watch_releases(hub))

    async def _watch_releases(self, hub: Hub) -> None:
        """On one machine the store announces a release."""
        async with hub.store.subscribe(hub.names.partitions) as released:
            while True:
                await released(RELEASE_CHECK)
                self.partitions_free()

    async def _watch_deaths(self, hub: Hub) -> None:
        """Release the messages of dead workers at once; otherwise they stay invisible until their time is over."""
        known: frozenset[str] = frozenset()
        while True:
            dead, pause = frozenset((self.dead or _nobody)()), DEATH_CHECK
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
