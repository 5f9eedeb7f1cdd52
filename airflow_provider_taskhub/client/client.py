"""The client of a hub: it starts, lists and purges instances, and offers the common operations on one instance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from airflow_provider_taskhub import codec
from airflow_provider_taskhub.client import listing, purging
from airflow_provider_taskhub.client.admin import HubAdmin, ensure_hub
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.client.ends import Ends
from airflow_provider_taskhub.client.growing_logs import GrowingLogs
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.client.listing import EtagPage, InstancePage
from airflow_provider_taskhub.client.purging import PurgeResult
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.client.suspension import SUSPENDED_WITHIN
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
from airflow_provider_taskhub.instance_limit import InstanceLimit, priority_tags
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.settings import LeaseTimes, Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.primitives import Store


class Client:
    """A connection to one hub. Create a client with :meth:`open`, and use it only in the event loop that opened it.

    :ivar admin: operations on the hub's partitions, workers and quarantine.
    :ivar ends: finds instances that have ended; used by this package's trigger for Airflow's asset watchers.
    :ivar growing_logs: finds the logs of running attempts that have grown; used by this package's Airflow triggers.
    :ivar watches: says which Airflow tasks wait for which instances; used by this package's Airflow operators and
        triggers.
    :ivar hub: the open hub; internal.
    """

    def __init__(self, hub: Hub, times: LeaseTimes) -> None:
        self._connection = Connection(hub, times)
        self.hub = hub
        self.admin = HubAdmin(self._connection)
        self.watches = Watches(self._connection)
        self.ends = Ends(self._connection)
        self.growing_logs = GrowingLogs(self._connection)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
        """Open a client for the hub that the settings name.

        :param settings: the hub's name and storage, from ``load_settings()`` or created in code.
        :param create: True: create the hub if it does not exist.
        :raises HubError: if the hub does not exist, is not completely created, or is newer than this package.
        """
        async with open_store(settings, create=create) as store:
            yield await cls.over(store, settings, create=create)

    @classmethod
    async def over(
        cls, store: Store, settings: Settings, *, create: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> Client:
        """Create a client that uses a store which is already open. For tests and workers.

        :param store: the open store. The caller closes it.
        :param settings: the hub's name and the times of its leases.
        :param create: True: create the hub if it does not exist.
        :param clock: the source of the client's time; tests pass a clock of their own.
        :raises HubError: for the same reasons as :meth:`open`.
        """
        if create:
            info = await ensure_hub(store, settings, clock=clock)
        else:
            info = await read_hub(
                store, HubNames(settings.hub), partitions=settings.asked_partitions, lease_store=settings.lease_store
            )
        hub = Hub(store=store, names=HubNames(settings.hub), info=info, clock=clock)
        return cls(hub, settings.lease_times)

    def describe(self) -> str:
        """Return the hub's name and the place of its storage, to show to people. The text contains no secret."""
        return self._connection.describe()

    def instance(self, instance_id: str) -> InstanceHandle:
        """Return a handle for one instance. The call does not check whether the instance exists.

        :param instance_id: the id of an instance of this hub.
        """
        return InstanceHandle(self._connection, instance_id)

    async def start(
        self,
        orchestrator: str,
        input: Any = NO_INPUT,
        *,
        instance_id: str | None = None,
        version: str = "",
        tags: Mapping[str, str] | None = None,
        start_at: datetime | None = None,
        limit: InstanceLimit | None = None,
        priority: int = 0,
        policy: StartPolicy = StartPolicy.REFUSE,
        intake_timeout: timedelta | None = None,
    ) -> InstanceState:
        """Start an instance. When the call returns, the instance is stored, even if no worker is running.

        :param orchestrator: the name of an orchestrator that a worker's app declares.
        :param input: the orchestrator's input: one value, which is written as JSON. None is an input too.
            Without it, the orchestrator runs with the default of its parameter.
        :param instance_id: the id of the new instance; None: a new random id.
        :param version: only workers whose app declares this version compatible run the instance. "": every worker.
        :param tags: names and text values that are stored with the instance. :meth:`list` can filter by them.
        :param start_at: the instance does not begin before this time. A time without a zone is UTC.
        :param limit: at most so many instances that are started with a limit of this name run at once in the hub. If so
            many run, the new instance stays Pending until its turn comes. None: the instance begins at once.
        :param priority: among the instances that wait for the same limit, this one takes its turn as if it had been
            started so many hours earlier; below 0: later. Below 0, the activities of the instance and of its children
            also let all others go first. Nothing waits for ever.
        :param policy: what to do if an instance with this id exists: refuse the start, return the existing instance
            (``ATTACH``), or replace an instance that has ended.
        :param intake_timeout: how long the start waits for room if too many messages wait in the hub, and the policy of
            its intake limit is to wait; None: five minutes. See :meth:`HubAdmin.set_intake`.
        :returns: the state of the new instance; with ``ATTACH`` the state of the existing one, if there is one.
        :raises InstanceExists: if an instance with this id exists and the policy refuses the start.
        :raises IntakeFull: if too many messages wait in the hub, and no instance with this id exists. Nothing was
            stored. A start for later (``start_at``) is never refused for this reason.
        :raises InputError: if the input, id, name, version, tags or time cannot be stored, or the priority is wrong.
        """
        instance_id = uuid4().hex if instance_id is None else check_new_instance_id(instance_id)
        if not orchestrator:
            raise InputError("orchestrator is empty: give the name that a worker's app declares")
        check_column(orchestrator, f"orchestrator {orchestrator[:40]!r}…")
        check_column(version, f"version of orchestrator {orchestrator!r}")
        if limit is not None:
            if not isinstance(limit, InstanceLimit):
                raise InputError(f"limit is {limit!r}: give an InstanceLimit(name='nightly', instances=2), or None")
            tags = {**(tags or {}), **limit.tags}
        tags = {**(tags or {}), **priority_tags(priority, limit)}
        check_tags(tags, f"orchestrator {orchestrator!r}")
        if start_at is not None:
            check_time(Timestamp.from_datetime(start_at), f"start_at {start_at}")
        text = None if input is NO_INPUT else codec.dumps(input, what=f"input of orchestrator {orchestrator!r}")
        starter = Starter(self._connection)
        return await starter.begin(orchestrator, text, instance_id, version, tags, start_at, policy, intake_timeout)

    async def list(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        changed_since: Timestamp | None = None,
        orchestrator: str | None = None,
        roots: bool = False,
        failed_since: datetime | None = None,
        payloads: bool = True,
        limit: int = 100,
        continuation: str | None = None,
        order: listing.Order = "id",
    ) -> InstancePage:
        """Return one page of instances. Large inputs and outputs are None in their states.

        A filter that is empty or None leaves out no instance.

        :param statuses: return only instances with one of these statuses; empty: with any status.
        :param created_from: return only instances created at this time or later. A time without a zone is UTC.
        :param created_to: return only instances created at this time or earlier. A time without a zone is UTC.
        :param prefix: return only instances whose id begins with this text.
        :param tags: return only instances that have all of these tags. The client filters by tags, because the store
            cannot. A page may therefore be short or empty although more pages follow.
        :param changed_since: return only instances that the store has written after this time, by the clock of the
            store: ``InstancePage.newest`` of an earlier page. The store looks into all instances to find them, but not
            in the order ``changed``. It does not report purged instances.
        :param orchestrator: return only instances of the orchestrator with this name.
        :param roots: return only instances without a parent. The client filters them, as it does tags.
        :param failed_since: return only instances that failed at this time or later. A time without a zone is UTC.
        :param payloads: False: leave out inputs, custom statuses and the outputs of completed instances. Then a long
            list is read faster. The errors of failed instances and the reasons of terminated ones are not left out.
        :param limit: the largest number of instances to return, from 1 to 1000.
        :param continuation: ``InstancePage.continuation`` of the previous page; None: return the first page.
        :param order: ``id``: in the order of their ids. ``created``: the newest first. ``changed``: the instance that
            the store has written last comes first. The orders by time need :attr:`lists_by_time`. They leave out
            instances whose time of creation is damaged.
        :raises InputError: if the store cannot list instances in this order.
        """
        wanted = listing.Wanted(
            statuses=tuple(statuses),
            created_from=created_from,
            created_to=created_to,
            prefix=prefix or "",
            tags=tags,
            changed_since=changed_since,
            orchestrator=orchestrator or "",
            roots=roots,
            failed_since=failed_since,
        )
        return await listing.page(
            self.hub, wanted, payloads=payloads, limit=limit, continuation=continuation, order=order
        )

    @property
    def lists_by_time(self) -> bool:
        """True if :meth:`list` can order instances by time. An embedded hub has indexes for this; Azure has none."""
        return self.hub.store.local

    async def count(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        orchestrator: str | None = None,
        roots: bool = False,
        failed_since: datetime | None = None,
    ) -> Mapping[Status, int]:
        """Return the number of instances by status. Statuses without an instance are left out.

        A filter that is empty or None leaves out no instance. The store looks into all instances, but sends only a few
        short columns of those that match: on Azure with one request for each 1,000 of them.

        :param statuses: count only instances with one of these statuses; empty: with any status.
        :param created_from: count only instances created at this time or later. A time without a zone is UTC.
        :param created_to: count only instances created at this time or earlier. A time without a zone is UTC.
        :param prefix: count only instances whose id begins with this text.
        :param tags: count only instances that have all of these tags.
        :param orchestrator: count only instances of the orchestrator with this name.
        :param roots: count only instances without a parent.
        :param failed_since: count only instances that failed at this time or later. A time without a zone is UTC.
        """
        wanted = listing.Wanted(
            statuses=tuple(statuses),
            created_from=created_from,
            created_to=created_to,
            prefix=prefix or "",
            tags=tags,
            orchestrator=orchestrator or "",
            roots=roots,
            failed_since=failed_since,
        )
        return await listing.count(self.hub, wanted)

    async def etags(self, *, limit: int = 1000, continuation: str | None = None) -> EtagPage:
        """Return the ETags of one page of instances, in the order of their ids.

        An ETag changes with each write of its instance (``InstanceState.etag``). So a program that keeps states finds
        out which of them are out of date, and which instances were purged, without reading the instances.

        :param limit: the largest number of ETags to return, from 1 to 1000.
        :param continuation: ``EtagPage.continuation`` of the previous page; None: return the first page.
        """
        return await listing.etags(self.hub, limit=limit, continuation=continuation)

    async def purge_many(
        self,
        *,
        statuses: Collection[Status] = (),
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        prefix: str | None = None,
        tags: Mapping[str, str] | None = None,
        orchestrator: str | None = None,
        limit: int | None = None,
        timeout: timedelta | None = None,
        rate: float | None = None,
        progress: Callable[[int], None] = lambda purged: None,
    ) -> PurgeResult:
        """Purge the ended instances that match the filters. If the call is interrupted, call it again for the rest.

        A filter that is empty or None leaves out no ended instance. An instance is left, for at most a week after its
        end, while the Airflow task that waits for it may still read its result or rewind it. To delete such an instance
        nevertheless, call :meth:`purge`.

        :param statuses: purge only instances with one of these final statuses; empty: with any final status.
        :param created_from: purge only instances created at this time or later. A time without a zone is UTC.
        :param created_to: purge only instances created at this time or earlier. A time without a zone is UTC.
        :param prefix: purge only instances whose id begins with this text.
        :param tags: purge only instances that have all of these tags.
        :param orchestrator: purge only instances of the orchestrator with this name.
        :param limit: the largest number of instances to purge; None: no limit.
        :param timeout: do not begin to purge another instance after this time; None: no limit.
        :param rate: the largest number of instances to purge in one second, so that the store has capacity left for
            workers; None: no limit.
        :param progress: called repeatedly with the number of instances purged so far.
        :returns: the number of purged instances, the failures, and the instances that were left for Airflow. A failure
            of one instance does not stop the call.
        :raises InputError: for a status that is not final, or a rate that is not above 0.
        """
        wanted = listing.Wanted(
            statuses=tuple(statuses),
            created_from=created_from,
            created_to=created_to,
            prefix=prefix or "",
            tags=tags,
            orchestrator=orchestrator or "",
        )
        return await purging.purge_many(
            self.hub, self.instance, wanted, limit=limit, timeout=timeout, rate=rate, progress=progress
        )

    # operations on one instance: each calls the method of InstanceHandle with the same name

    async def get(self, instance_id: str, *, payloads: bool = True) -> InstanceState | None:
        """Short for :meth:`InstanceHandle.get`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).get(payloads=payloads)

    async def wait(
        self, instance_id: str, *, timeout: timedelta | None = None, longest: float = LONGEST_PAUSE
    ) -> InstanceState:
        """Short for :meth:`InstanceHandle.wait`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).wait(timeout=timeout, longest=longest)

    async def raise_event(self, instance_id: str, name: str, data: Any = None) -> None:
        """Short for :meth:`InstanceHandle.raise_event`. :param instance_id: the instance's id."""
        await self.instance(instance_id).raise_event(name, data)

    async def terminate(
        self,
        instance_id: str,
        reason: str = "",
        *,
        wait: bool = False,
        recurse: bool = True,
        grace: timedelta | None = None,
        timeout: timedelta | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> InstanceState:
        """Short for :meth:`InstanceHandle.terminate`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).terminate(
            reason, wait=wait, recurse=recurse, grace=grace, timeout=timeout, progress=progress
        )

    async def suspend(
        self,
        instance_id: str,
        reason: str = "",
        *,
        by: str | None = None,
        recurse: bool = False,
        timeout: timedelta | None = SUSPENDED_WITHIN,
    ) -> InstanceState:
        """Short for :meth:`InstanceHandle.suspend`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).suspend(reason, by=by, recurse=recurse, timeout=timeout)

    async def resume(self, instance_id: str, reason: str = "", *, recurse: bool = False) -> InstanceState:
        """Short for :meth:`InstanceHandle.resume`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).resume(reason, recurse=recurse)

    async def rewind(self, instance_id: str, reason: str = "", *, terminated: bool = False) -> InstanceState:
        """Short for :meth:`InstanceHandle.rewind`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).rewind(reason, terminated=terminated)

    async def restart(self, instance_id: str, *, new_id: bool = False) -> InstanceState:
        """Short for :meth:`InstanceHandle.restart`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).restart(new_id=new_id)

    async def purge(self, instance_id: str, *, recurse: bool = False) -> bool:
        """Short for :meth:`InstanceHandle.purge`. :param instance_id: the instance's id."""
        return await self.instance(instance_id).purge(recurse=recurse)
