"""The app lease: at any time the workers of a hub are all of one app.

DurableTask leases the container ``{hub}-applease`` under an id made of the AppName, so all workers of one app hold it
together. Ours hold it the same way under an id that no .NET app has, so that a .NET app waits for us and we refuse to
start beside one, whatever the names. Older versions used DurableTask's id: a worker that finds only
such workers joins them.
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
"""AppLeaseOptions' lease interval."""
RENEW = 20.0
"""Seconds between renewals; the original's 25 leave one try, these leave two."""


_OURS = "5461-736b-4875-620000000000"
"""``TaskHub`` in ASCII."""


def lease_id(app_name: str) -> str:
    """The id under which TaskHub's workers lease the hub for an AppName."""
    return f"{fnv1a32(app_name):08x}-{_OURS}"


def dotnet_lease_id(app_name: str) -> str:
    """DurableTask's id of an AppName: its hash as the first 8 digits of a GUID."""
    return f"{fnv1a32(app_name):08x}-0000-0000-0000-000000000000"


async def _nobody() -> bool:
    return False


class AppLease:
    """The hub's app lease, held in common by all workers with the same ``app_name``.

    :param with_older: whether the lease under DurableTask's id is held by TaskHub workers of an older version.
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
        """Take it, share it, or renew it.

        :raises HubError: another app holds it, or the hub is not there.
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
        """Keep it; one that ran out or was released by a worker of the same app is taken again.

        :raises HubError: another app holds it now.
        """
        try:
            await self._store.renew_lease(self._names.app_lease, None, lease_id=self._id)
        except LeaseLost:
            await self.acquire()

    async def release(self) -> None:
        """Let another app in at once. Only for the last worker of this app; a lease that is not ours is no error."""
        try:
            await self._store.release_lease(self._names.app_lease, None, lease_id=self._id)
        except (LeaseLost, NotFound):
            return

    async def _lease(self, owner: str | None, desired: str | None) -> None:
        """Take the container's lease, by the swap that its holder was asked for where that was for us."""
        container = self._names.app_lease
        if desired == self._id and owner and owner != self._id:
            with suppress(LeaseLost):  # its holder is gone: take it as a free one
                await self._store.change_lease(container, None, lease_id=owner, new_lease_id=self._id)
        await self._store.acquire_lease(container, None, lease_id=self._id, seconds=SECONDS)

    async def _info(self) -> tuple[str | None, str | None]:
        """OwnerId and DesiredSwapId; a missing or damaged blob says nothing."""
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
    """None for a value that cannot be the id of a lease."""
    try:
        return value if isinstance(value, str) and UUID(value) else None
    except ValueError:
        return None


class HeldApp:
    """The app lease as a worker's loop holds it. :param lost: called when another app has taken the hub."""

    def __init__(self, lease: AppLease, clock: Clock, *, lost: Callable[[], None]) -> None:
        self._lease = lease
        self._clock = clock
        self._lost = lost
        self._sent: float | None = None

    async def acquire(self) -> None:
        """:raises HubError: another app holds it, or the hub is not there."""
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
        """Whether partitions may be taken; after an outage longer than the app lease it is asked for first."""
        if self._sent is not None and self._clock.monotonic() - self._sent > SECONDS:
            await self.renew()
        return self._sent is not None

    async def release(self) -> None:
        """Only for the last worker of the app."""
        await self._lease.release()
