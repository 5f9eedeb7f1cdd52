"""The app lease: it makes sure that all workers of a hub have the same app name.

DurableTask leases the container ``{hub}-applease`` under an id made of the AppName, so that all workers of one app hold
the lease together. TaskHub workers do the same under an id that no .NET app has. So a .NET app waits while TaskHub
workers run, and a TaskHub worker refuses to start beside a .NET app, whatever their names are. Older versions of
TaskHub used DurableTask's id. A worker that finds only such workers uses that id too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import structlog

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import HubError, LeaseLost, NotFound
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.hub.partitions.hashing import fnv1a32
from airflow_provider_taskhub.storage.primitives import PutBlob, Store

log = structlog.get_logger("taskhub.partitions")

SECONDS = 60
"""Seconds after which the app lease ends without a renewal: the default of DurableTask's AppLeaseOptions."""
RENEW = 20.0
"""Seconds between two renewals of the app lease. After a failed renewal there is time for two more tries. DurableTask
renews every 25 s, which leaves time for one more try only."""


_OURS = "5461-736b-4875-620000000000"
"""The last digits of the ids of TaskHub's app leases: the ASCII codes of ``TaskHub`` in hexadecimal, then zeros."""


def lease_id(app_name: str) -> str:
    """Return the id under which TaskHub workers with this AppName lease the hub."""
    return f"{fnv1a32(app_name):08x}-{_OURS}"


def dotnet_lease_id(app_name: str) -> str:
    """Return the id under which DurableTask leases the hub: the hash of the AppName as the first 8 digits of a GUID."""
    return f"{fnv1a32(app_name):08x}-0000-0000-0000-000000000000"


async def _nobody() -> bool:
    return False


class AppLease:
    """The hub's app lease. All workers with the same ``app_name`` hold it together.

    :param with_older: returns whether TaskHub workers of an older version hold the lease under DurableTask's id.
    """

    def __init__(
        self, store: Store, names: HubNames, app_name: str, *, with_older: Callable[[], Awaitable[bool]] = _nobody
    ) -> None:
        self._store = store
        self._names = names
        self._app_name = app_name
        self._id = lease_id(app_name)
        self._with_older = with_older

    async def acquire(self) -> None:
        """Take, join or renew the app lease.

        :raises HubError: another app holds the lease, or the hub does not exist.
        """
        owner: str | None = None
        self._id = lease_id(self._app_name)
        try:
            owner, desired = await self._info()
            try:
                await self._lease(owner, desired)
            except LeaseLost:
                if not await self._with_older():
                    raise
                self._id = dotnet_lease_id(self._app_name)
                await self._lease(owner, desired)
        except NotFound:
            raise HubError(
                f"hub {self._names.hub!r} has no container {self._names.app_lease}: run `taskhub hub create`"
            ) from None
        except LeaseLost:
            raise HubError(
                f"hub {self._names.hub!r} at {self._store.describe()} is served by another app (app lease "
                f"{owner or 'of an unknown app'}; app name {self._app_name!r} has {lease_id(self._app_name)}): stop it "
                f"and wait {SECONDS} s. If it is a TaskHub worker, give this one its TASKHUB_APP_NAME; if it is a .NET "
                "app, give this worker a hub of its own: the workers of a hub are all TaskHub's or all .NET"
            ) from None
        if owner != self._id or desired == self._id:
            await self._write_info()

    async def renew(self) -> None:
        """Renew the app lease. If it has ended or was released, take it again.

        :raises HubError: another app holds the lease now.
        """
        try:
            await self._store.renew_lease(self._names.app_lease, None, lease_id=self._id)
        except LeaseLost:
            await self.acquire()

    async def release(self) -> None:
        """Release the app lease, so that another app can take it at once. Only the last worker of an app may call this.

        It is no error if this app does not hold the lease.
        """
        try:
            await self._store.release_lease(self._names.app_lease, None, lease_id=self._id)
        except (LeaseLost, NotFound):
            return

    async def release_any(self) -> None:
        """Release the app lease of TaskHub workers, whatever their app name is.

        Call this only if all workers of the hub are proven dead. A lease under an id of DurableTask stays, because a
        .NET app may hold it.
        """
        owner, _ = await self._info()
        if owner is not None and owner.endswith(_OURS):
            self._id = owner
            await self.release()

    async def _lease(self, owner: str | None, desired: str | None) -> None:
        """Lease the container. If the info blob says that the holder's lease shall go to this app, change its id first.

        :param owner: id of the holder's lease in the info blob. None: unknown.
        :param desired: id in the info blob under which the container shall be leased next. None: no change is wanted.
        """
        container = self._names.app_lease
        if desired == self._id and owner and owner != self._id:
            with suppress(LeaseLost):  # the holder has no lease any more, so the container is leased as a free one
                await self._store.change_lease(container, None, lease_id=owner, new_lease_id=self._id)
        await self._store.acquire_lease(container, None, lease_id=self._id, seconds=SECONDS)

    async def _info(self) -> tuple[str | None, str | None]:
        """Return OwnerId and DesiredSwapId of the info blob. None stands for a value that is missing or damaged."""
        blob = await self._store.get_blob(self._names.app_lease, self._names.app_lease_info)
        try:
            info = json.loads(blob.data) if blob is not None else {}
        except ValueError:
            info = {}
        if not isinstance(info, dict):
            return None, None
        return _lease_id(info.get("OwnerId")), _lease_id(info.get("DesiredSwapId"))

    async def _write_info(self) -> None:
        data = json.dumps({"OwnerId": self._id, "DesiredSwapId": None}, separators=(",", ":")).encode()
        await self._store.execute(PutBlob(container=self._names.app_lease, name=self._names.app_lease_info, data=data))


def _lease_id(value: object) -> str | None:
    """Return the value if it is a valid lease id, otherwise None."""
    try:
        return value if isinstance(value, str) and UUID(value) else None
    except ValueError:
        return None


class HeldApp:
    """Holds the app lease for one worker, and remembers when it was last renewed.

    :param lost: called when another app has taken the lease.
    """

    def __init__(self, lease: AppLease, clock: Clock, *, lost: Callable[[], None]) -> None:
        self._lease = lease
        self._clock = clock
        self._lost = lost
        self._sent: float | None = None

    async def acquire(self) -> None:
        """Take or join the app lease.

        :raises HubError: another app holds the lease, or the hub does not exist.
        """
        sent = self._clock.monotonic()
        await self._lease.acquire()
        self._sent = sent

    async def renew(self) -> None:
        sent = self._clock.monotonic()
        try:
            await self._lease.renew()
        except HubError as error:
            self._sent = None
            log.error("app_lease_lost", error=str(error))
            self._lost()
        else:
            self._sent = sent

    async def held(self) -> bool:
        """Return whether this worker holds the app lease, so that it may take partitions.

        If the last renewal is longer ago than :data:`SECONDS`, the lease is renewed first.
        """
        if self._sent is not None and self._clock.monotonic() - self._sent > SECONDS:
            await self.renew()
        return self._sent is not None

    async def release(self) -> None:
        """Release the app lease. Only the last worker of an app may call this."""
        await self._lease.release()
