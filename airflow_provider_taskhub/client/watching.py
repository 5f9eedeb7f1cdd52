"""Which Airflow tasks wait for which instances, as the Airflow front stores it in the hub."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

import structlog

from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import NotFound, StorageError
from airflow_provider_taskhub.hub import watches
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import WATCHER, Member
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.storage.primitives import Compare, Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.supervision import owned

log = structlog.get_logger(__name__)

FORGOTTEN_AT_ONCE = 16
"""Requests that :meth:`Watches.forget` sends side by side."""


class Watches:
    """Waits of Airflow tasks for instances, and the hints that tell that a watched instance has ended."""

    def __init__(self, connection: Connection) -> None:
        self._hub, self._members, self._times = connection.hub, connection.members, connection.times

    async def add(self, watch: Watch) -> None:
        """Store that an Airflow task waits for an instance. Call it before the start.

        :param watch: the task and the instance.
        """
        await watches.write(self._hub.store, self._hub.names, watch)

    async def of(self, deployment: str) -> tuple[Watch, ...]:
        """The watches of one Airflow deployment. :param deployment: its name."""
        return await watches.read(self._hub.store, self._hub.names, deployment)

    async def remove(self, watch: Watch) -> None:
        """Delete a watch. One that was written again meanwhile stays. :param watch: as :meth:`of` returned it."""
        await watches.delete(self._hub.store, self._hub.names, watch)

    async def completions(self) -> tuple[str, ...]:
        """Ids of watched instances that have ended and were not forgotten yet.

        A hint: the instance's row decides whether it has ended.
        """
        rows = self._hub.store.rows(self._hub.names.completions, Compare("PartitionKey", "eq", ""))
        return tuple([unescape(entity.row_key) async for entity in rows])

    async def forget(self, instance_ids: Collection[str]) -> None:
        """Delete hints that were delivered. :param instance_ids: as :meth:`completions` returned them."""

        async def forget(instance_id: str) -> None:
            entity = Entity(partition_key="", row_key=escape(instance_id))
            row = RowOperation(verb=RowVerb.DELETE, entity=entity, etag="*")
            with suppress(NotFound):
                await self._hub.store.execute(Transact(table=self._hub.names.completions, rows=(row,)))

        await gather_bounded(forget, instance_ids, limit=FORGOTTEN_AT_ONCE)

    @asynccontextmanager
    async def attending(self, name: str) -> AsyncIterator[None]:
        """List this process as one that watches the hub's instances for Airflow, for the length of the block.

        Other processes see from the list whether a deferred task has a triggerer. Errors of the store are logged.

        :param name: of the process, for people.
        """
        me = f"{name}@{socket.gethostname()}/{uuid4().hex[:8]}"
        member = Member(
            worker=me, started=self._hub.clock.utc_now(), roles=(WATCHER,), apps={}, orchestrators=(), activities=()
        )
        try:
            async with owned() as start:
                start(self._attend(member), name="attend")
                yield
        finally:
            with suppress(StorageError):
                await self._members.withdraw(me)

    async def _attend(self, member: Member) -> None:
        while True:
            try:
                await self._members.renew(member)  # inserts the row if there is none yet
            except StorageError as error:
                log.info("watcher_not_listed", error=str(error))
            await self._hub.clock.sleep(self._times.renew.total_seconds())
