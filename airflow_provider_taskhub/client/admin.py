"""Administration of a hub: its partitions, its workers, its quarantine, and its creation and removal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.model import HubInfo, HubNames, InstanceState, Member, PartitionState
from airflow_provider_taskhub.hub.partitions import administration
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.waiting.reasons import Why
from airflow_provider_taskhub.hub.waiting.snapshot import SENTINELS, WaitingInstances
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.primitives import Store


async def create_hub(
    store: Store, settings: Settings, *, cap: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> HubInfo:
    """Make a hub over an open store. See :meth:`HubAdmin.create`."""
    return await administration.ensure_hub(
        store,
        HubNames(settings.hub),
        settings.asked_partitions,
        default=settings.partitions,
        lease_store=settings.lease_store,
        cap=cap,
        clock=clock,
    )


class HubAdmin:
    """What administrators ask of a hub and order in it. ``Client.admin`` is one.

    :ivar routes: which worker serves an instance, for a caller that must reach that worker.
    """

    def __init__(self, connection: Connection) -> None:
        self._hub, self._times = connection.hub, connection.times
        self._observer, self._members, self._snapshots = connection.observer, connection.members, connection.snapshots
        self.routes: Routes = connection.routes

    @staticmethod
    async def create(settings: Settings, *, cap: int | None = None) -> HubInfo:
        """Make the hub that the settings name, or finish one whose creation was interrupted.

        A hub that is ready stays as it is.

        :param settings: name the hub, its storage and the number of its partitions.
        :param cap: partitions that each worker may hold at most; None: no limit.
        :raises HubError: if the hub exists and differs from the settings.
        """
        async with open_store(settings) as store:
            return await create_hub(store, settings, cap=cap)

    @staticmethod
    async def delete(settings: Settings) -> None:
        """Delete the hub that the settings name, with all its instances, histories and logs.

        :param settings: name the hub and its storage.
        :raises HubError: if there is no such hub, or workers serve it.
        """
        async with open_store(settings, create=False) as store:
            await administration.delete_hub(store, HubNames(settings.hub))

    @property
    def info(self) -> HubInfo:
        """How the hub is made, as read when the client was opened."""
        return self._hub.info

    # workers and partitions

    async def workers(self, *, prove: bool = False) -> tuple[Member, ...]:
        """The workers that are listed in the hub. A worker that has died stays listed for a while.

        :param prove: look at the list twice, one renewal interval apart, and set ``alive`` by what has changed between
            the looks. Else ``alive`` says what this client has seen so far; at its first look all count as alive.
        """
        return await self._members.prove() if prove else await self._members.live()

    async def partitions(self, *, prove: bool = False) -> tuple[PartitionState, ...]:
        """Every partition: its owner, whether the owner lives, and how many messages wait.

        :param prove: look until each owner has renewed its lease, or has not for 1.5 renewal intervals. Else the state
            is as this client has seen it so far; at its first look it is ``unproven``.
        """
        return await administration.partition_states(self._hub.store, self._hub.names, self._observer, prove=prove)

    @property
    def partition_operations(self) -> PartitionOperations:
        """Orders to the partitions, and checks of them: kick, prohibit, offline, cap, drain, check."""
        return PartitionOperations(self._hub.store, self._hub.names, times=self._times, clock=self._hub.clock)

    # instances that do not go on

    async def waiting_of(
        self,
        states: Collection[InstanceState],
        *,
        members: Sequence[Member] | None = None,
        sentinels: int = SENTINELS,
    ) -> dict[str, tuple[Why, ...]]:
        """Why instances do not go on: as ``InstanceHandle.waiting``, for many instances at once.

        It costs some five requests every 5 s, and one request for each instance of ``sentinels``.

        :param states: instances as just read.
        :param members: workers as just read; None: read them now.
        :param sentinels: how many of the instances that have begun are asked what they await; those that are not
            suspended come first. For the others the reasons come from their rows and the workers alone.
        :returns: reasons by instance id, without instances that work or have ended.
        """
        live = await self.workers() if members is None else members
        return await self._snapshots.many(states, live, self._members.watching, sentinels=sentinels)

    async def waiting_instances(
        self, *, members: Sequence[Member] | None = None, watching: Sequence[Member] | None = None
    ) -> WaitingInstances:
        """Instances that do not go on, counted by their strongest reason, with examples.

        At most 500 rows of each open status are read, and 100 running or suspended instances are looked at:
        :attr:`WaitingInstances.complete` says whether these are all.

        :param members: workers as just read; None: read them now.
        :param watching: members that watch the hub for Airflow, read together with ``members``; None: as this client
            has seen them.
        """
        if members is None:
            members = await self.workers()
        return await self._snapshots.scan(members, self._members.watching if watching is None else watching)

    # quarantine

    async def quarantined(self, *, bodies: bool = True, limit: int | None = None) -> tuple[Quarantined, ...]:
        """Messages that could not be processed, with their causes.

        :param bodies: with the texts of the messages. :param limit: at most so many; None: all.
        """
        return tuple(await quarantine.listing(self._hub.store, self._hub.names, bodies=bodies, limit=limit))

    async def find_quarantined(self, message_id: str) -> Quarantined | None:
        """A message in quarantine, with its text. :param message_id: as :meth:`quarantined` lists it."""
        return await quarantine.find(self._hub.store, self._hub.names, message_id)

    async def put_back(self, message_id: str) -> bool:
        """Put a message from quarantine into its queue again, once the cause is fixed.

        :param message_id: as :meth:`quarantined` lists it.
        :returns: False if the message is not there, or somebody else puts it back or drops it at the same time.
        """
        return await self._out_of_quarantine(message_id, quarantine.put_back)

    async def drop_quarantined(self, message_id: str) -> bool:
        """Delete a message from quarantine for ever.

        :param message_id: as :meth:`quarantined` lists it. :returns: as :meth:`put_back`.
        """
        return await self._out_of_quarantine(message_id, quarantine.drop)

    async def _out_of_quarantine(self, message_id: str, how: Callable[..., Awaitable[None]]) -> bool:
        item = await self.find_quarantined(message_id)
        if item is None:
            return False
        try:
            await how(self._hub.store, self._hub.names, item)
        except (Conflict, NotFound):
            return False
        return True
