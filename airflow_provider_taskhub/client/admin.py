"""Administers a hub: its partitions and workers, its quarantine, and its creation and removal.

A worker serves a partition while it holds the partition's lease, which it renews at intervals. The quarantine is the
table of the messages that could not be processed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.activity_limit import MOST_STARTS
from airflow_provider_taskhub.client.connection import Connection
from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.errors import Conflict, InputError, NotFound
from airflow_provider_taskhub.hub import intake
from airflow_provider_taskhub.hub.history.places import Limit, LimitKind, LimitState, order, states
from airflow_provider_taskhub.hub.instance_places import InstancePlaces
from airflow_provider_taskhub.hub.model import HubInfo, HubNames, InstanceState, Member, PartitionState
from airflow_provider_taskhub.hub.partitions import administration
from airflow_provider_taskhub.hub.partitions.incarnation import dead_workers
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations, this_user
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.waiting.counts import counted, waiting_calls_of
from airflow_provider_taskhub.hub.waiting.reasons import Why, without_memory, without_slot
from airflow_provider_taskhub.hub.waiting.snapshot import SENTINELS, WaitingInstances
from airflow_provider_taskhub.instance_limit import MOST
from airflow_provider_taskhub.intake_limit import IntakeLimit, IntakePolicy
from airflow_provider_taskhub.near_names import did_you_mean
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.primitives import Store

_AT_ONCE = 16
"""The most requests of :meth:`HubAdmin.limits` at the same time."""


async def ensure_hub(
    store: Store, settings: Settings, *, cap: int | None = None, clock: Clock = SYSTEM_CLOCK
) -> HubInfo:
    """Like :meth:`HubAdmin.create`, in a store that is already open.

    :param store: the open store. The caller closes it.
    :param clock: the clock for the date that people see and for the pauses between tries.
    """
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
    """The operations of a hub's administrator. ``Client.admin`` is an object of this class.

    :ivar routes: finds the worker that serves an instance, for a caller that must connect to that worker.
    """

    def __init__(self, connection: Connection) -> None:
        self._hub, self._times = connection.hub, connection.times
        self._observer, self._members, self._snapshots = connection.observer, connection.members, connection.snapshots
        self.routes: Routes = connection.routes

    @staticmethod
    async def create(settings: Settings, *, cap: int | None = None) -> HubInfo:
        """Create the hub that the settings name. If an earlier creation was interrupted, finish it.

        A hub that already exists and is complete is not changed.

        :param settings: the hub's name, its storage and the number of its partitions.
        :param cap: the cap (largest number of partitions of one worker) that the caller orders afterwards with
            :attr:`partition_operations`. The call only checks that the hub has so many partitions. None: no check.
        :returns: the properties of the hub.
        :raises HubError: if the hub exists and differs from the settings.
        :raises InputError: if the cap is larger than the number of partitions. Nothing was created.
        """
        async with open_store(settings) as store:
            return await ensure_hub(store, settings, cap=cap)

    @staticmethod
    async def delete(settings: Settings) -> None:
        """Delete the hub that the settings name, with all its instances, histories and logs.

        :param settings: the hub's name and its storage.
        :raises HubError: if there is no such hub, or if workers serve the hub. A worker that was killed on this machine
            does not count. A worker that was killed elsewhere counts for a minute.
        """
        async with open_store(settings, create=False) as store:
            await administration.delete_hub(store, HubNames(settings.hub), dead=dead_workers)

    @property
    def info(self) -> HubInfo:
        """The properties of the hub, for example its number of partitions. The client read them when it opened."""
        return self._hub.info

    # operations on workers and partitions

    async def workers(self, *, prove: bool = False) -> tuple[Member, ...]:
        """Return the workers that are listed in the hub. A worker that has died stays in the list for a while.

        :param prove: True: find out which workers are alive. The list is read again until each worker has renewed its
            row, or has not renewed it for 1.5 renewal intervals, at most for two minutes. A worker whose interval is
            too long for this limit counts as alive. False: read the list once, and compare it with the earlier
            readings of this client. In the first reading of a client every worker counts as alive.
        """
        return await self._members.prove() if prove else await self._members.live()

    async def partitions(self, *, prove: bool = False) -> tuple[PartitionState, ...]:
        """Return the state of every partition: its owner, whether the owner is alive, and how many messages wait.

        :param prove: True: find out which owners are alive. The leases are read again until each owner has renewed its
            lease, or has not renewed it for 1.5 renewal intervals, at most for two minutes. False: read the leases
            once, and compare them with the earlier readings of this client. In the first reading of a client every
            owner is ``unproven``.
        """
        return await administration.partition_states(self._hub.store, self._hub.names, self._observer, prove=prove)

    @property
    def partition_operations(self) -> PartitionOperations:
        """The operations of an administrator on partitions.

        An administrator can make the owner hand a partition over, prohibit a partition to workers, take a partition
        offline, limit how many partitions a worker holds, drain a worker, and check the whole hub.
        """
        return self.partition_operations_by(None)

    def partition_operations_by(self, by: str | None) -> PartitionOperations:
        """Like :attr:`partition_operations`, with the name of another author of the orders.

        :param by: who gives the orders, to show to people; None: ``user@host`` of this process.
        """
        return PartitionOperations(self._hub.store, self._hub.names, by=by, times=self._times, clock=self._hub.clock)

    # operations that say why instances make no progress

    async def waiting_of(
        self,
        states: Collection[InstanceState],
        *,
        members: Sequence[Member] | None = None,
        sentinels: int = SENTINELS,
    ) -> dict[str, tuple[Why, ...]]:
        """Return why instances make no progress, like ``InstanceHandle.waiting``, for many instances at once.

        Cost: about five requests, whose answers are used again for 5 s, and one request for each instance whose
        sentinel (the last row of its history) is read.

        :param states: the rows of the instances, which the caller has just read.
        :param members: the workers, if the caller has just read them; None: read them now.
        :param sentinels: the largest number of started instances whose sentinel is read. The sentinel says what the
            instance awaits. Instances that are not suspended come first. For the other instances the reasons come only
            from their rows and from the list of workers.
        :returns: the reasons by instance id. Instances that make progress or have ended are left out.
        """
        live = await self.workers() if members is None else members
        return await self._snapshots.many(states, live, self._members.watching, sentinels=sentinels)

    async def waiting_instances(
        self, *, members: Sequence[Member] | None = None, watching: Sequence[Member] | None = None
    ) -> WaitingInstances:
        """Count the instances that make no progress by their most important reason, and give examples.

        The call reads at most 500 rows of each status that is not final, and the sentinels (the last rows of the
        histories) of at most 100 running or suspended instances. :attr:`WaitingInstances.complete` says whether these
        limits were enough.

        :param members: the workers, if the caller has just read them; None: read them now.
        :param watching: the triggerers that watch the hub for Airflow, read together with ``members``; None: the
            triggerers that this client found when it last read the list of workers.
        """
        if members is None:
            members = await self.workers()
        return await self._snapshots.scan(members, self._members.watching if watching is None else watching)

    async def limits(self) -> tuple[LimitState, ...]:
        """Return the limits of activities and of instances, who has their places, and about how many wait for one.

        Cost: one query, one for each limit of instances, and six to twelve for each activity with a
        limit. Of instances that wait, and of calls that wait for a divided limit, at most 1,000 are counted.
        """
        store, names = self._hub.store, self._hub.names
        found = await states(store, names)

        async def one(state: LimitState) -> LimitState:
            return await counted(store, names, found, state)

        return tuple(await gather_bounded(one, [found[name] for name in sorted(found)], limit=_AT_ONCE))

    async def waiting_for_memory(self, members: Sequence[Member]) -> dict[str, int]:
        """Return about how many calls wait for memory, by activity. Cost: six to twelve requests for each activity that
        needs more memory than any worker has free.

        :param members: the workers of the hub.
        """
        needing = {name for member in members for name in member.memory_of}
        found = await self._waiting_calls(needing, members, {}, without_memory)
        return {name: count for names, count in found.items() for name in names}

    async def waiting_for_slots(self, members: Sequence[Member]) -> dict[tuple[str, ...], int]:
        """Return about how many calls wait for a slot, by the names of the activities that wait in the same queues.
        Calls that also wait for a limit or for memory are not counted. Cost: one query, and six to twelve requests for
        each kind of activities and pool, and each activity with a limit or a need of memory, without a free slot.

        :param members: the workers of the hub.
        """
        activities = {name for one in members if one.alive for name in one.activities if without_slot(name, members)}
        if not activities:
            return {}
        limits = await states(self._hub.store, self._hub.names)
        full = {name for state in limits.values() if state.is_full for name in state.activities}
        others = {name for name in activities - full if not without_memory(name, members)}
        return await self._waiting_calls(others, members, limits, without_slot)

    async def _waiting_calls(
        self,
        activities: Collection[str],
        members: Sequence[Member],
        limits: Mapping[tuple[LimitKind, str], LimitState],
        lacking: Callable[[str, Iterable[Member]], Sequence[Member]],
    ) -> dict[tuple[str, ...], int]:
        found = await waiting_calls_of(self._hub.store, self._hub.names, activities, members, limits, lacking)
        return {names: count for names, count in found.items() if count}

    async def set_limit(self, name: str, places: int | None, *, kind: str = "", by: str | None = None) -> LimitState:
        """Order how many may run at once under a limit, whatever the code or a start says. What runs goes on.

        :param name: name of an activity with a limit, or of a limit.
        :param places: the number, from 1 to 10,000; None: the order is lifted, and the declared number counts again.
        :param kind: ``activity``, ``rate`` or ``instances``, needed only if there are several limits of this name.
        :param by: who gives the order, to show to people; None: the user of this process.
        :returns: the limit after the order.
        :raises InputError: if there is no such limit, or the number is wrong.
        """
        if places is not None and (type(places) is not int or not 1 <= places <= MOST):
            raise InputError(
                f"limit {name!r}: {places!r} is no number of places; give a whole number from 1 to {MOST:,}. "
                "To let nothing begin, suspend the instances"
            )
        store, names = self._hub.store, self._hub.names
        found = await states(store, names)
        same = [state for (of, known), state in found.items() if known == name and kind in ("", of)]
        if len(same) != 1:
            raise InputError(_no_one_limit(name, found) + " To see all limits: taskhub limits list")
        (state,) = same
        if state.kind is LimitKind.RATE and places is not None and places > MOST_STARTS:
            raise InputError(f"the rate {name!r}: {places} is too many; give a whole number from 1 to {MOST_STARTS}")
        limit = Limit(
            name=name, places=places or state.declared, kind=state.kind, seconds=state.seconds, key_tag=state.key_tag
        )
        await store.execute(order(names, limit, places, by=by or this_user()))
        if state.kind is LimitKind.INSTANCES:
            await InstancePlaces(self._hub).advance(name)
        return (await states(store, names)).get((state.kind, name), state)

    async def intake(self) -> IntakeLimit | None:
        """Return the intake limit of the hub, and about how many messages wait; None: the hub has no limit.

        Cost: one request. If there is a limit, one or two more for each partition.
        """
        store, names = self._hub.store, self._hub.names
        limit = await intake.read(store, names)
        if limit is None:
            return None
        waiting, _ = await intake.count(store, names, self._hub.info.partitions)
        return replace(limit, waiting=waiting)

    async def set_intake(
        self, messages: int | None, *, policy: IntakePolicy = IntakePolicy.REFUSE, by: str | None = None
    ) -> IntakeLimit | None:
        """Order how many messages may wait for a worker before the hub takes no new start. What waits goes on.

        It holds for the starts of clients, of Airflow's tasks and of the command line, and for restarts: at once for
        clients that open later, and within ten seconds for others. Starts of orchestrators, and starts for later, are
        never bounded. Clients of DurableTask for .NET do not know the limit.

        :param messages: the number, at least 1; None: the limit is lifted.
        :param policy: what a start does while the limit is reached: raise an error, or wait for room.
        :param by: who gives the order, to show to people; None: the user of this process.
        :returns: the limit, as :meth:`intake` returns it.
        :raises InputError: if the number or the policy is wrong.
        """
        store, names = self._hub.store, self._hub.names
        limit = None if messages is None else IntakeLimit(messages=messages, policy=policy, by=by or this_user())
        await store.execute(intake.ordered(names, limit))
        return await self.intake()

    # operations on the quarantine

    async def quarantined(self, *, bodies: bool = True, limit: int | None = None) -> tuple[Quarantined, ...]:
        """Return the messages that could not be processed, with the cause of each.

        :param bodies: True: also read the content of the messages.
        :param limit: the largest number of messages to return; None: return all.
        """
        return tuple(await quarantine.listing(self._hub.store, self._hub.names, bodies=bodies, limit=limit))

    async def find_quarantined(self, message_id: str) -> Quarantined | None:
        """Return a message in quarantine with its content; None if the message is not in quarantine.

        :param message_id: the message's id from :meth:`quarantined`.
        """
        return await quarantine.find(self._hub.store, self._hub.names, message_id)

    async def put_back(self, message_id: str) -> bool:
        """Move a message from quarantine back into its queue. Fix the cause first.

        :param message_id: the message's id from :meth:`quarantined`.
        :returns: False if the message is not in quarantine, or if another client moved or deleted it at the same time.
        """
        return await self._out_of_quarantine(message_id, quarantine.put_back)

    async def drop_quarantined(self, message_id: str) -> bool:
        """Delete a message in quarantine, so that no worker will process it. The deletion cannot be undone.

        :param message_id: the message's id from :meth:`quarantined`.
        :returns: False if the message is not in quarantine, or if another client moved or deleted it at the same time.
        """
        return await self._out_of_quarantine(message_id, quarantine.drop)

    async def _out_of_quarantine(self, message_id: str, operation: Callable[..., Awaitable[None]]) -> bool:
        item = await self.find_quarantined(message_id)
        if item is None:
            return False
        try:
            await operation(self._hub.store, self._hub.names, item)
        except (Conflict, NotFound):
            return False
        return True


def _no_one_limit(name: str, found: Collection[tuple[LimitKind, str]]) -> str:
    """Return why a name, with the kind that was given, is not that of one limit.

    :param found: the kinds and names of all limits. The kind that was given is not that of a limit of this name.
    """
    kinds = sorted(of for of, known in found if known == name)
    if len(kinds) > 1:
        return f"{name!r} is the name of several limits: add --of {' or '.join(kinds)}."
    if kinds:
        return f"{name!r} is a limit of the kind {kinds[0]}: use --of {kinds[0]}."
    near = did_you_mean(name, {known for _, known in found})
    return f"{name!r} is the name of no limit.{' D' + near[1:] if near else ''}"
