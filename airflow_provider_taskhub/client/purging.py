"""Purges one instance, or many: page by page, a few at the same time, not faster than the caller allows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_taskhub.client import listing
from airflow_provider_taskhub.client.listing import Wanted
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import check_instance_id
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound, Throttled, Unavailable
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.history.purge import Watched, purge
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.refusals import refused
from airflow_provider_taskhub.retries import Retries, retry

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.handle import InstanceHandle

PURGES = Retries(after=(Throttled,), tries=5, first=1.0)
"""How the purge of one instance is tried again when the store answers that there are too many requests."""
PURGED_AT_ONCE = 8
"""The largest number of instances that are purged at the same time."""
TRIES = 5
"""The largest number of tries of one purge. A try fails if another process changes the instance at the same time."""
UNREAD = timedelta(days=7)
"""How long after its end an instance that an Airflow task may still read is left. A watch row that is there later than
that will perhaps never be deleted, for example because its Airflow deployment does not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeResult:
    """The result of ``Client.purge_many``.

    :param purged: the number of instances that were purged.
    :param complete: False if matching instances are left, because the timeout or the limit was reached, because some of
        them could not be purged, or because Airflow tasks may still read some of them. Call ``purge_many`` again to
        purge them.
    :param failed: the instances that the store could not purge: error texts by instance id.
    :param watched: the ids of instances that were left because an Airflow task may still read them.
    """

    purged: int
    complete: bool
    failed: Mapping[str, str] = field(default_factory=dict)
    watched: tuple[str, ...] = ()


async def purge_many(
    hub: Hub,
    handle: Callable[[str], InstanceHandle],
    wanted: Wanted,
    *,
    limit: int | None,
    timeout: timedelta | None,
    rate: float | None,
    progress: Callable[[int], None],
) -> PurgeResult:
    """Purge the ended instances that match the filters ``wanted``. Parameters and errors: ``Client.purge_many``."""
    if rate is not None and not rate > 0:
        raise InputError(f"rate is {rate}: give more than 0 instances a second, or None")
    if open_ones := [str(status) for status in wanted.statuses if not status.is_final]:
        raise InputError(f"{', '.join(open_ones)}: only instances that have ended can be purged")
    wanted = replace(wanted, statuses=wanted.statuses or tuple(status for status in Status if status.is_final))
    failed: dict[str, str] = {}
    watched: list[str] = []
    clock, began, purged = hub.clock, hub.clock.monotonic(), 0
    continuation: str | None = None
    while True:
        page = await listing.page(hub, wanted, continuation=continuation)
        left = list(page.instances)
        while left:
            late = timeout is not None and clock.monotonic() - began >= timeout.total_seconds()
            room = PURGED_AT_ONCE if limit is None else min(PURGED_AT_ONCE, limit - purged)
            if late or room <= 0:
                return PurgeResult(purged=purged, complete=False, failed=failed, watched=tuple(sorted(watched)))
            some, left = left[:room], left[room:]
            tries = (_purge_one(hub, handle(row.instance_id), failed, watched) for row in some)
            purged += sum(await asyncio.gather(*tries))
            progress(purged)
            if rate is not None:
                await clock.sleep(max(0.0, began + purged / rate - clock.monotonic()))
        continuation = page.continuation
        if continuation is None:
            complete = not failed and not watched
            return PurgeResult(purged=purged, complete=complete, failed=failed, watched=tuple(sorted(watched)))


async def purge_instance(instance: InstanceHandle, *, unread: timedelta = timedelta(0)) -> bool:
    """Delete an instance that has ended. Result and other errors: ``InstanceHandle.purge``.

    :param unread: An Airflow task that waits for the instance has a watch row for it. An instance with a watch row is
        deleted only this long after its end.
    :raises Watched: if the instance has a watch row and has ended later than that. Nothing is deleted then.
    """
    check_instance_id(instance.id)
    hub = instance.hub
    for _ in range(TRIES):
        row = await instance.get(payloads=False)
        if row is None:
            return False
        if not row.status.is_final:
            raise refused(row, "terminate it first, then purge it")
        age = hub.clock.utc_now() - row.completed if row.completed is not None else timedelta(0)
        try:
            await purge(hub.store, hub.names, row, watched=age >= unread)
            return True
        except (Conflict, NotFound) as error:  # another client restarted, rewound or purged the instance: try again
            last = error
    raise last


async def _purge_one(hub: Hub, instance: InstanceHandle, failed: dict[str, str], watched: list[str]) -> bool:
    """Purge one instance. An instance that was started again after it was listed is not purged.

    :param failed: receives the error text if the store cannot purge the instance.
    :param watched: receives the id if an Airflow task may still read the instance.
    :returns: whether the instance was purged.
    :raises Unavailable: if the store answers neither the purge nor another request. The whole call then ends.
    """
    try:
        return await retry(partial(purge_instance, instance, unread=UNREAD), PURGES, hub.clock)
    except Watched:
        watched.append(instance.id)
        return False
    except (InputError, Conflict, NotFound):
        return False
    except (Throttled, Unavailable) as error:
        failed[instance.id] = str(error)
        if isinstance(error, Unavailable):
            # If this reading succeeds, the store still answers, so the other instances can be purged.
            await instance.get(payloads=False)
    return False
