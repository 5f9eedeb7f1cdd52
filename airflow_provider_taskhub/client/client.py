"""The client of a hub: it starts instances, lists them, and has short ways to one instance by its id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.client import admin as administration
from airflow_provider_taskhub.client import listing, purging
from airflow_provider_taskhub.client.admin import HubAdmin
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.client.listing import InstancePage
from airflow_provider_taskhub.client.purging import PurgeResult
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.client.termination import LONGEST_PAUSE
from airflow_provider_taskhub.client.watching import Watches
from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.identity import check_new_instance_id
from airflow_provider_taskhub.engine.validation import check_column, check_tags, check_time
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import HubNames, InstanceState, StartPolicy
from airflow_provider_taskhub.hub.partitions.administration import read_hub
from airflow_provider_taskhub.settings import LeaseTimes, Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.primitives import Store


class Client:
    """A hub as its users see it. Make one with :meth:`open`; it is bound to the event loop that opened it.

    :ivar admin: the hub's partitions, workers and quarantine.
    :ivar watches: which Airflow tasks wait for which instances; for the Airflow front.
    :ivar hub: the open hub; internal.
    """

    def __init__(self, hub: Hub, times: LeaseTimes) -> None:
        self._connection = Connection(hub, times)
        self.hub = hub
        self.admin = HubAdmin(self._connection)
        self.watches = Watches(self._connection)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
        """Open a client for the hub that the settings name.

        :param settings: from ``load_settings()`` or made by hand.
        :param create: make the hub if it is missing.
        :raises HubError: if the hub is missing, not ready, or newer than this package.
        """
        async with open_store(settings, create=create) as store:
            yield await cls.over(store, settings, create=create)

    @classmethod
    async def over(
        cls, store: Store, settings: Settings, *, create: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> Client:
        """Make a client over a store that is open already. For tests and workers.

        :param store: open; the caller closes it. :param settings: name the hub and its times.
        :param create: make the hub if it is missing. :param clock: the client's time.
        :raises HubError: as :meth:`open`.
        """
        if create:
            info = await administration.create_hub(store, settings, clock=clock)
        else:
            info = await read_hub(
                store, HubNames(settings.hub), partitions=settings.asked_partitions, lease_store=settings.lease_store
            )
        hub = Hub(store=store, names=HubNames(settings.hub), info=info, clock=clock)
        return cls(hub, settings.lease_times)

    def describe(self) -> str:
        """The hub's name and place, for people; never a secret."""
        return self._connection.describe()

    def instance(self, instance_id: str) -> InstanceHandle:
        """A handle for one instance. Nothing is read: the instance need not exist.

        :param instance_id: of any instance of the hub.
        """
        return InstanceHandle(self._connection, instance_id)

    async def start(
        self,
        orchestrator: str,
        input: Any = None,
        *,
        instance_id: str | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        start_at: datetime | None = None,
        policy: StartPolicy = StartPolicy.REFUSE,
    ) -> InstanceState:
        """Start an instance. It is stored when this returns, whether a worker runs or not.

        :param orchestrator: the name that a worker's app declares.
        :param input: one value; it is written as JSON.
        :param instance_id: None: a new random id.
        :param version: the instance goes on only on a worker whose app declares this version compatible. "": on any.
        :param tags: texts by name, to find the instance by.
        :param start_at: the instance does not begin before this time. A time without a zone is UTC.
        :param policy: what to do if the id is taken: refuse, attach to the instance, or replace one that has ended.
        :returns: the instance's state: of the new one, or with ``ATTACH`` of the existing one.
        :raises InstanceExists: if the id is taken, by the policy.
        :raises InputError: if the input, id, name, version, tags or time cannot be stored.
        """
        instance_id = uuid4().hex if instance_id is None else check_new_instance_id(instance_id)
        if not orchestrator:
            raise InputError("orchestrator is empty: give the name that a worker's app declares")
        check_column(orchestrator, f"orchestrator {orchestrator[:40]!r}…")
        check_column(version, f"version of orchestrator {orchestrator!r}")
        check_tags(tags or {}, f"orchestrator {orchestrator!r}")
        if start_at is not None:
            check_time(Timestamp.from_datetime(start_at), f"start_at {start_at}")
        text = codec.dumps(input, what=f"input of orchestrator {orchestrator!r}")
        return await Starter(self.hub).begin(orchestrator, text, instance_id, version, tags, start_at, policy)

    async def list(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        continuation: str | None = None,
    ) -> InstancePage:
        """A page of instances in the order of their ids, without large inputs and outputs.

        :param statuses: only instances in one of these; empty: in any.
        :param created_from: only instances created at this time or later. A time without a zone is UTC.
        :param created_to: only instances created at this time or earlier.
        :param prefix: only instances whose id begins with this text.
        :param tags: only instances that have all of these. The client filters by tags and not the store, so a page may
            be short, or empty, although more pages follow.
        :param limit: 1 to 1000 instances.
        :param continuation: of the page before; None: the first page.
        """
        wanted = listing.Wanted(
            statuses=tuple(statuses), created_from=created_from, created_to=created_to, prefix=prefix or "", tags=tags
        )
        return await listing.page(self.hub, wanted, limit=limit, continuation=continuation)

    async def purge_many(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = None,
        timeout: timedelta | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] = lambda purged: None,
    ) -> PurgeResult:
        """Purge the ended instances that match, page by page. If it is cut off, run it again: it does the rest.

        :param statuses: final ones only; empty: all final ones.
        :param created_from: as in :meth:`list`, inclusive. :param created_to: as in :meth:`list`, inclusive.
        :param prefix: as in :meth:`list`. :param tags: as in :meth:`list`.
        :param limit: purge at most so many instances. :param timeout: begin no instance after this time.
        :param rate: at most so many instances a second, to leave the store free for workers; None: no limit.
        :param progress: called with the number of instances purged so far.
        :returns: what was purged and what failed. One failure does not stop the others.
        :raises InputError: for a status that is not final, or a rate that is not above 0.
        """
        wanted = listing.Wanted(
            statuses=tuple(statuses), created_from=created_from, created_to=created_to, prefix=prefix or "", tags=tags
        )
        return await purging.purge_many(
            self.hub, self.instance, wanted, limit=limit, timeout=timeout, rate=rate, progress=progress
        )

    # short ways to one instance

    async def get(self, instance_id: str, *, payloads: bool = True) -> InstanceState | None:
        """Short for :meth:`InstanceHandle.get`. :param instance_id: of the instance."""
        return await self.instance(instance_id).get(payloads=payloads)

    async def wait(
        self, instance_id: str, *, timeout: timedelta | None = None, longest: float = LONGEST_PAUSE
    ) -> InstanceState:
        """Short for :meth:`InstanceHandle.wait`. :param instance_id: of the instance."""
        return await self.instance(instance_id).wait(timeout=timeout, longest=longest)

    async def raise_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Short for :meth:`InstanceHandle.raise_event`. :param instance_id: of the instance."""
        await self.instance(instance_id).raise_event(name, data)

    async def terminate(
        self,
        instance_id: str,
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        timeout: timedelta | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> InstanceState:
        """Short for :meth:`InstanceHandle.terminate`. :param instance_id: of the instance."""
        return await self.instance(instance_id).terminate(
            reason, wait=wait, recurse=recurse, timeout=timeout, progress=progress
        )

    async def suspend(self, instance_id: str, reason: str = "", *, by: str | None = None) -> InstanceState:
        """Short for :meth:`InstanceHandle.suspend`. :param instance_id: of the instance."""
        return await self.instance(instance_id).suspend(reason, by=by)

    async def resume(self, instance_id: str, reason: str = "") -> InstanceState:
        """Short for :meth:`InstanceHandle.resume`. :param instance_id: of the instance."""
        return await self.instance(instance_id).resume(reason)

    async def rewind(self, instance_id: str, reason: str = "") -> InstanceState:
        """Short for :meth:`InstanceHandle.rewind`. :param instance_id: of the instance."""
        return await self.instance(instance_id).rewind(reason)

    async def restart(self, instance_id: str, *, new_id: bool = False) -> InstanceState:
        """Short for :meth:`InstanceHandle.restart`. :param instance_id: of the instance."""
        return await self.instance(instance_id).restart(new_id=new_id)

    async def purge(self, instance_id: str) -> bool:
        """Short for :meth:`InstanceHandle.purge`. :param instance_id: of the instance."""
        return await self.instance(instance_id).purge()
