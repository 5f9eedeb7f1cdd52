"""Stores in the hub which Airflow tasks wait for which instances, and reads the hints that workers leave for them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from uuid import uuid4

import structlog

from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import same_start
from airflow_provider_taskhub.errors import Conflict, StorageError
from airflow_provider_taskhub.hub import change_hints, hint_rows, watches
from airflow_provider_taskhub.hub.formats.instance_rows import released_row
from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import WATCHER, Member
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.retries import Retries, retry
from airflow_provider_taskhub.storage.primitives import Compare, Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.supervision import owned
from airflow_provider_taskhub.tags import OWNER_TAG

ATTEND = Retries(after=(Conflict,), tries=5, first=0.1, jitter=0.5)
"""How often the row of an instance is read and written again if other processes change it at the same time."""

log = structlog.get_logger(__name__)


class Watches:
    """Reads and writes the watch rows of a hub, and reads and deletes its hints.

    A watch row says that an Airflow task waits for an instance. A completion hint says that such an instance may have
    ended. A change hint says that an instance that a sensor waits for may have changed (:mod:`.hub.change_hints`).

    :param connection: the open hub.
    """

    def __init__(self, connection: Connection) -> None:
        self._hub, self._members, self._times = connection.hub, connection.members, connection.times
        self._me: Member | None = None

    async def add(self, watch: Watch, *, replaces: Watch | bool = True) -> bool:
        """Store that an Airflow task waits for an instance. Call this method before the instance is started.

        :param watch: names the task and the instance.
        :param replaces: False: if the instance has a watch row already, this row stays, and nothing is stored. A watch:
            only this row is replaced, and only if it has not changed since :meth:`get` has read it.
        :returns: whether the watch is stored.
        """
        return await watches.write(self._hub.store, self._hub.names, watch, replaces=replaces)

    async def of(self, deployment: str) -> tuple[Watch, ...]:
        """Return the watch rows of one Airflow deployment. :param deployment: the deployment's name."""
        return await watches.read(self._hub.store, self._hub.names, deployment)

    async def get(self, instance_id: str) -> Watch | None:
        """Return the watch row of an instance, of any Airflow deployment. None: no Airflow task waits for the instance.

        :param instance_id: id of the instance.
        """
        return await watches.read_one(self._hub.store, self._hub.names, instance_id)

    async def remove(self, watch: Watch) -> None:
        """Delete a watch row. If the row was written again after it was read, or is already deleted, do nothing.

        :param watch: a watch that :meth:`of` or :meth:`get` has returned.
        """
        await watches.delete(self._hub.store, self._hub.names, watch)

    async def release_ended(self, instance_id: str, statuses: Collection[Status]) -> bool:
        """Delete the watch row of an instance that will go on again without the Airflow task that waited for it.

        Call this method before the instance goes on. Else the sweep could terminate it, because the task has ended. A
        row that is newer than the end of the instance stays: the task of this row lets the instance go on itself.

        :param instance_id: id of the instance.
        :param statuses: final statuses. If the instance has none of them, it does not go on again, and its row stays.
        :returns: whether the instance has no watch row now.
        """
        entity = await self._hub.store.get(self._hub.names.instances, escape(instance_id), "")
        state = None if entity is None else self._hub.state_of(entity)
        if entity is None or state is None or state.status not in statuses:
            return False
        owner = (state.tags or {}).get(OWNER_TAG)
        if owner is not None:
            await watches.delete_older(
                self._hub.store, self._hub.names, instance_id, owner=owner, than=entity.timestamp
            )
        return await self.get(instance_id) is None

    async def attend(self, instance_id: str) -> None:
        """Store that the Airflow task which has started an instance waits for it again, after somebody has rewound it.

        :param instance_id: id of the instance.
        :raises Conflict: if other processes change the row of the instance in each of some tries.
        """
        await self._mark(instance_id, released=False)

    async def release(self, instance_id: str, run: str | None) -> None:
        """Store that another Airflow task has let an instance go on: the task that has started it takes the result if
        it is cleared.

        :param instance_id: id of the instance.
        :param run: execution id of the instance; if it was started again, nothing is stored.
        :raises Conflict: if other processes change the row of the instance in each of some tries.
        """
        await self._mark(instance_id, released=True, run=run)

    async def _mark(self, instance_id: str, *, released: bool, run: str | None = None) -> None:
        hub = self._hub

        async def once() -> None:
            state = await hub.instance(instance_id)
            if state is None or state.released is released:
                return
            if run is not None and not same_start(state.execution_id, run):
                return
            merge = released_row(instance_id, released=released)
            row = RowOperation(verb=RowVerb.MERGE, entity=merge, etag=state.etag)
            await hub.store.execute(Transact(table=hub.names.instances, rows=(row,)))

        await retry(once, ATTEND, hub.clock)

    async def completions(self) -> tuple[str, ...]:
        """Return the ids of instances that have a completion hint.

        A hint proves nothing: read the instance row to know whether the instance has ended.
        """
        rows = self._hub.store.rows(self._hub.names.completions, Compare("PartitionKey", "eq", ""))
        return tuple([unescape(entity.row_key) async for entity in rows])

    async def forget(self, instance_ids: Collection[str]) -> None:
        """Delete completion hints that are no longer needed. :param instance_ids: ids from :meth:`completions`."""
        keys = dict.fromkeys(map(escape, instance_ids))
        await self._delete(Entity(partition_key="", row_key=key) for key in keys)

    async def await_changes(self, instance_ids: Collection[str]) -> None:
        """Publish for which instances the sensors of this process wait, so that workers write change hints for them.

        Call this method inside the block of :meth:`attending`. Workers know it after :attr:`known_after` seconds.

        :param instance_ids: ids of all these instances. They replace the ids of an earlier call.
        """
        self._me = replace(self._attending(), awaited=frozenset(map(change_hints.fingerprint, instance_ids)))
        await self._members.renew(self._me)

    @property
    def known_after(self) -> float:
        """Seconds after which every worker that scans the hub in time has read what :meth:`await_changes` published."""
        return 2 * self._times.scan.total_seconds()

    async def changes(self) -> Mapping[str, str]:
        """Return the change hints for this process: by instance id, the ETag for :meth:`forget_changes`.

        A hint proves nothing: read the instance to know whether it has changed. Call this method inside the block of
        :meth:`attending`.
        """
        return await change_hints.read(self._hub.store, self._hub.names, self._attending().worker)

    async def forget_changes(self, hints: Mapping[str, str]) -> None:
        """Delete change hints after their instances were read. A hint that was written again meanwhile stays.

        :param hints: hints that :meth:`changes` has returned.
        """
        me = self._attending().worker
        rows = [change_hints.hint(me, instance_id, etag=etag) for instance_id, etag in hints.items()]
        await self._delete(rows)

    async def _delete(self, rows: Iterable[Entity]) -> None:
        await hint_rows.delete(self._hub.store, self._hub.names.completions, rows)

    def _attending(self) -> Member:
        assert self._me is not None, "call this method inside the block of attending()"
        return self._me

    @asynccontextmanager
    async def attending(self, name: str) -> AsyncIterator[None]:
        """List this process in the hub as a watcher of instances for Airflow while the ``with`` block runs.

        Other processes see in this list whether a triggerer waits for deferred tasks, and workers see for which
        instances its sensors wait (:meth:`await_changes`). Errors of the store do not end the block.

        :param name: the name of this process, to show to people.
        """
        me = f"{name}@{socket.gethostname()}/{uuid4().hex[:8]}"
        self._me = Member(
            worker=me, started=self._hub.clock.utc_now(), roles=(WATCHER,), apps={}, orchestrators=(), activities=()
        )
        try:
            async with owned() as start:
                start(self._attend(), name="attend")
                yield
        finally:
            self._me = None
            with suppress(StorageError):
                await self._members.withdraw(me)

    async def _attend(self) -> None:
        try:
            await self._delete_left_hints()
        except StorageError as error:
            log.info("left_hints_not_deleted", error=str(error))
        while True:
            try:
                await self._members.renew(self._attending())  # the first call inserts the row of this process
            except StorageError as error:
                log.info("watcher_not_listed", error=str(error))
            await self._hub.clock.sleep(self._times.renew.total_seconds())

    async def _delete_left_hints(self) -> None:
        """Delete the change hints for triggerers that have no row any more. They have ended, and nobody reads these.

        The hints are read before the rows, because a triggerer gets hints only after it has written its row.
        """
        found = await change_hints.read_all(self._hub.store, self._hub.names)
        if found:
            listed = await self._members.listed()
            rows = [row for name, rows in found.items() if name not in listed for row in rows]
            await self._delete(rows)
