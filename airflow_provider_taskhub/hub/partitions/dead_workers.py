"""Frees the app lease of a hub whose workers are all proven dead, so that the hub can be deleted at once.

A killed worker does not release the app lease. Without a proof of its death, the lease must end by itself. That takes
a minute.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.hub.model import HubInfo, HubNames
from airflow_provider_taskhub.hub.partitions.app_lease import AppLease
from airflow_provider_taskhub.hub.partitions.lease_stores import leases_of
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.storage.primitives import Store


async def app_lease_freed(store: Store, names: HubNames, info: HubInfo, dead: Collection[str]) -> bool:
    """Release the app lease if every worker of the hub is proven dead.

    A worker that starts now joins the app lease before it writes its member row, and joins it once more after that. So
    the workers are read again after the release. Either this reader sees the new worker, or the new worker joins after
    this read: then the container of the app lease cannot be deleted any more, or the worker finds it deleted and does
    not start.

    :param dead: the full names of the workers that are proven dead.
    :returns: False if a worker may be alive, or if nothing names a worker. The app lease may be released even then; a
        live worker takes it again at its next renewal.
    """
    try:
        if not await _all_dead(store, names, info, dead):
            return False
        await AppLease(store, names, "").release_any()
        return await _all_dead(store, names, info, dead)
    except NotFound:  # a table of the hub is missing, so nothing is proven
        return False


async def _all_dead(store: Store, names: HubNames, info: HubInfo, dead: Collection[str]) -> bool:
    """Return True if the member rows and the leases name workers, and all of them are proven dead."""
    leases = await leases_of(store, names, info).scan()
    owners = {lease.owner for lease in leases if lease.owner}
    workers = owners | set(await Members(store, names).pace())
    return bool(workers) and workers <= set(dead)
