"""What people can do with partitions: give orders, move partitions, and find faults. For the CLI, the client and
monitors.

This module takes and releases no leases. It writes orders of administrators into the controls table, and requests to
owners into leases. The workers carry them out at their next scan.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from getpass import getuser

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import Conflict, HubError, InputError, PartitionNotFound
from airflow_provider_taskhub.hub.model import Control, ControlKind, HubNames, Member, Ownership, OwnerState
from airflow_provider_taskhub.hub.partitions.administration import create_hub, read_hub
from airflow_provider_taskhub.hub.partitions.lease import newer
from airflow_provider_taskhub.hub.partitions.lease_stores import Leases, leases_of
from airflow_provider_taskhub.hub.partitions.members import PATIENCE, Members
from airflow_provider_taskhub.hub.partitions.observer import LeaseObserver
from airflow_provider_taskhub.hub.partitions.orders import Controls, orders
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.primitives import Store

_WRITES = 5
"""How often a write of a lease is tried while the owner renews the lease at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A partition whose lease no worker renews.

    :param owner: full name of the worker in the lease. None: there was none.
    :param deleted: True if the lease does not exist.
    """

    partition: int
    owner: str | None
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check found. The orders of administrators are listed too: they are no fault, but people forget them.

    ``unserved``, ``silent``, ``unproven`` and ``nowhere`` leave offline partitions out.

    :param missing: numbers of the partitions without a lease.
    :param foreign: numbers of leases beyond the hub's partitions.
    :param unserved: numbers of the partitions without an owner.
    :param silent: partitions whose owner does not renew the lease.
    :param unproven: partitions whose owner renews the lease too seldom for the check to wait for it.
    :param nowhere: numbers of the partitions that the orders prohibit to every live worker. Empty if no worker is live.
    :param times: full names of the live workers, by the seconds between their renewals and their take time in seconds.
    :param live: full names of the live workers that may serve partitions.
    :param floor: how many such workers there should be at least.
    :param controls: the orders in force.
    :param members: all workers with a row. ``alive`` says what the check has proven.
    :param watching: live members that watch the hub for Airflow. None: not known.
    """

    missing: tuple[int, ...]
    foreign: tuple[int, ...]
    unserved: tuple[int, ...]
    silent: tuple[Ownership, ...]
    unproven: tuple[Ownership, ...]
    nowhere: tuple[int, ...]
    times: Mapping[tuple[float, float], Sequence[str]]
    live: tuple[str, ...]
    floor: int
    controls: tuple[Control, ...]
    members: tuple[Member, ...] = ()
    watching: tuple[Member, ...] | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each fault. Empty: the check found no fault."""
        told = {
            "no lease row: run `taskhub partitions create`": self.missing,
            "there is a lease row, but the hub has no such partition": self.foreign,
            "no worker owns it": self.unserved,
            "orders prohibit it to every live worker": self.nowhere,
        }
        lines = [f"partition {number}: {text}" for text, numbers in told.items() for number in numbers]
        lines += [f"partition {found.partition}: its owner {found.owner} does not renew it" for found in self.silent]
        lines += [
            f"partition {found.partition}: it is unknown whether its owner {found.owner} is alive"
            for found in self.unproven
        ]
        if len(self.live) < self.floor:
            lines.append(f"live workers that may serve partitions: {len(self.live)}, fewer than {self.floor}")
        if len(self.times) > 1:
            times = "; ".join(f"{renew:g}/{take:g} s {', '.join(who)}" for (renew, take), who in self.times.items())
            lines.append(f"workers have different lease times (renew/take): {times}")
        return tuple(lines)


class PartitionOperations:
    """Give orders about the partitions of one hub, and read their state.

    :param by: who gives the orders. None: the user of this process.
    :param times: lease times for owners whose own times are not known.
    """

    def __init__(
        self,
        store: Store,
        names: HubNames,
        *,
        by: str | None = None,
        times: LeaseTimes = AZURE_LEASE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._names = names
        self._times = times
        self._clock = clock
        self._by = by or this_user()
        self._controls = Controls(store, names)

    async def complete(self) -> None:
        """Create those queues, leases, tables and containers of an existing hub that are missing."""
        info = await read_hub(self._store, self._names)
        await create_hub(self._store, self._names, info.partitions, clock=self._clock)

    # orders of administrators

    async def controls(self) -> tuple[Control, ...]:
        """Return all orders in force, with their author, time and reason."""
        return await self._controls.read()

    async def offline(self, partitions: Iterable[int], reason: str = "") -> None:
        """Order that no worker serves these partitions until :meth:`online`."""
        await self._order(ControlKind.OFFLINE, await self._checked(partitions), (None,), reason)

    async def online(self, partitions: Iterable[int]) -> int:
        """Lift the order of :meth:`offline` for these partitions. Return how many of them were offline."""
        return await self._lift(ControlKind.OFFLINE, await self._checked(partitions), (None,))

    async def prohibit(self, partitions: Iterable[int], nodes: Sequence[str], reason: str = "") -> None:
        """Order that these workers do not serve these partitions until :meth:`allow`.

        :param nodes: names of workers as administrators write them, see ``orders.names``.
        """
        await self._order(ControlKind.PROHIBIT, await self._checked(partitions), _nodes(nodes), reason)

    async def allow(self, partitions: Iterable[int], nodes: Sequence[str] = ()) -> int:
        """Lift the orders of :meth:`prohibit` for these partitions.

        :param nodes: names of workers as they were given to :meth:`prohibit`. Empty: all workers.
        :returns: how many prohibitions were lifted.
        """
        numbers = await self._checked(partitions)
        if nodes:
            return await self._lift(ControlKind.PROHIBIT, numbers, _nodes(nodes))
        bars = [control for control in await self.controls() if control.kind is ControlKind.PROHIBIT]
        return sum([await self._controls.lift(bar) for bar in bars if bar.partition in numbers])

    async def cap(self, value: int | None, *, node: str | None = None, reason: str = "") -> bool:
        """Order how many partitions a worker may have at most.

        :param value: the most partitions. None: lift the order.
        :param node: the order is for the workers with this name. None: for all workers.
        :returns: True, or for the value None: whether the order was in force.
        :raises InputError: the value is larger than the number of partitions, so it would have no effect.
        """
        return await self._limit(ControlKind.CAP, value, node, reason)

    async def turn(self, value: int | None, *, reason: str = "") -> bool:
        """Order how many partitions a worker may take or ask for in one scan.

        :param value: the most partitions. 0: no partition moves. None: lift the order.
        :returns: True, or for the value None: whether the order was in force.
        :raises InputError: the value is larger than the number of partitions.
        """
        return await self._limit(ControlKind.TURN, value, None, reason)

    async def drain_node(self, node: str, reason: str = "") -> None:
        """Order that the workers with this name hand over all partitions, and take none until :meth:`undrain_node`."""
        await self._order(ControlKind.DRAIN, (None,), _nodes([node]), reason)

    async def undrain_node(self, node: str) -> bool:
        """Lift the order of :meth:`drain_node`. Return whether the order was in force."""
        return bool(await self._lift(ControlKind.DRAIN, (None,), _nodes([node])))

    async def _limit(self, kind: ControlKind, value: int | None, node: str | None, reason: str) -> bool:
        partitions = (await read_hub(self._store, self._names)).partitions
        if value is None:
            return bool(await self._lift(kind, (None,), (node,)))
        if not 0 <= value <= partitions:
            raise InputError(
                f"hub {self._names.hub!r} has {partitions} partitions: give 0 to {partitions}, not {value}"
            )
        await self._controls.put(replace(self._control(kind, None, node, reason), value=value))
        return True

    async def _order(
        self, kind: ControlKind, partitions: Sequence[int | None], nodes: Sequence[str | None], reason: str
    ) -> None:
        for partition in partitions:
            for node in nodes:
                await self._controls.put(self._control(kind, partition, node, reason))

    async def _lift(self, kind: ControlKind, partitions: Sequence[int | None], nodes: Sequence[str | None]) -> int:
        meant = [self._control(kind, partition, node, "") for partition in partitions for node in nodes]
        return sum([await self._controls.lift(control) for control in meant])

    def _control(self, kind: ControlKind, partition: int | None, node: str | None, reason: str) -> Control:
        return Control(kind=kind, partition=partition, node=node, by=self._by, at=self._clock.utc_now(), reason=reason)

    async def _checked(self, partitions: Iterable[int]) -> tuple[int, ...]:
        """Check partition numbers, and return them without duplicates.

        :raises PartitionNotFound: the hub does not have one of these partitions. Then the caller changes nothing for
            any of them.
        """
        count = (await read_hub(self._store, self._names)).partitions
        numbers = tuple(dict.fromkeys(partitions))
        for number in numbers:
            if not 0 <= number < count:
                raise PartitionNotFound(f"hub {self._names.hub!r} has partitions 0 to {count - 1}, not {number}")
        return numbers

    # requests in leases

    async def kick(self, partition: int, *, prohibit: Sequence[str] = (), reason: str = "") -> str | None:
        """Make the owner of a partition hand it over. Then any worker that is allowed may take it at once.

        The former owner may take it too, unless it is in ``prohibit``. The lease keeps who kicked the owner, and when.

        :param prohibit: workers that must not serve the partition any more, see :meth:`prohibit`.
        :returns: the owner. None: the partition had no owner, and nothing was done.
        """
        await self._checked([partition])
        leases = await self._leases()
        if prohibit:
            await self.prohibit([partition], prohibit, reason)
        for _ in range(_WRITES):
            lease = await leases.read(self._names.control(partition))
            if lease is None or lease.owner is None:
                return None
            try:
                await leases.mark(lease.kicked(self._by, self._clock.utc_now(), reason))
            except Conflict:
                continue
            return lease.owner
        raise HubError(f"the lease row of partition {partition} kept changing: try again")

    # reading the state of partitions

    async def owner(self, partition: int) -> Ownership:
        """Return the owner of a partition, and whether it is alive. This takes at most 1.5 renewal intervals."""
        await self._checked([partition])
        observer = await self._observer()
        await observer.prove(partition)
        return observer.ownership(partition)

    async def stale(self, seconds: float) -> tuple[Stale, ...]:
        """Return the partitions whose leases show no sign of life for ``seconds``, disappear in that time, or are
        missing.

        The leases are read twice. Offline partitions are left out.

        :param seconds: time between the two reads.
        :raises InputError: ``seconds`` is not a time, or is shorter than 1.5 renewal intervals of a worker that owns a
            partition: even a live worker has perhaps not renewed its lease then.
        """
        if not 0 <= seconds < math.inf:
            raise InputError(f"give the seconds between the two reads, not {seconds:g}")
        observer = await self._observer()
        await observer.refresh()
        least, owner = observer.longest_patience()
        if seconds < least:
            raise InputError(
                f"{seconds:g} s are too short: worker {owner} renews its leases every {least / PATIENCE:g} s. "
                f"Give {least:g} or more seconds"
            )
        before = observer.leases
        await self._clock.sleep(seconds)
        await observer.refresh()
        found = []
        for number in range(observer.partitions):
            lease, now = before.get(number), observer.leases.get(number)
            if now is None:
                found.append(Stale(partition=number, owner=lease.owner if lease else None, deleted=True))
            elif lease is None:
                continue  # the lease was created between the two reads
            elif not newer(now.life, lease.life) and not observer.ownership(number).offline:
                found.append(Stale(partition=number, owner=now.owner))
        return tuple(found)

    async def check(self, *, floor: int = 1) -> Findings:
        """Return everything that a monitor should know.

        This takes some seconds: whether a worker is alive shows only when its rows change.

        :param floor: how many live workers there should be that may serve partitions. Drained workers do not count.
        """
        observer = await self._observer()
        members = Members(self._store, self._names, clock=self._clock)
        _, listed, controls = await asyncio.gather(observer.prove(), members.prove(), self.controls())
        paces = observer.paces
        times: dict[tuple[float, float], list[str]] = {}
        for member in listed:
            if member.alive and member.worker in paces:
                times.setdefault(paces[member.worker], []).append(member.worker)
        leases = observer.leases
        able = [member.worker for member in listed if member.alive and "orchestrator" in member.roles]
        meant = orders(controls, able)
        live = tuple(worker for worker in able if worker not in meant.drained and meant.caps.get(worker, 1) > 0)
        expected = range(observer.partitions)
        wanted = [number for number in expected if number not in meant.rules.offline]
        owners = [found for number in expected if not (found := observer.ownership(number)).offline]
        return Findings(
            missing=tuple(number for number in expected if number not in leases),
            foreign=tuple(sorted(leases.keys() - set(expected))),
            unserved=tuple(number for number in wanted if number in leases and leases[number].owner is None),
            silent=tuple(found for found in owners if found.state is OwnerState.SILENT),
            unproven=tuple(found for found in owners if found.state is OwnerState.UNPROVEN),
            nowhere=tuple(
                number for number in wanted if live and not any(meant.rules.allow(number, worker) for worker in live)
            ),
            times=times,
            live=live,
            floor=floor,
            controls=controls,
            members=listed,
            watching=members.watching,
        )

    async def _observer(self) -> LeaseObserver:
        info = await read_hub(self._store, self._names)
        return LeaseObserver(self._store, self._names, info, times=self._times, clock=self._clock)

    async def _leases(self) -> Leases:
        return leases_of(self._store, self._names, await read_hub(self._store, self._names))


def _nodes(nodes: Sequence[str]) -> tuple[str, ...]:
    """Check names of workers, and return them.

    :raises InputError: no worker can have such a name.
    """
    for node in nodes:
        if not node.strip() or node == "@":
            raise InputError("give a worker: name@host, name, @host, or name@host/incarnation")
    return tuple(nodes)


def this_user() -> str:
    """Return the name of the user of this process, to show to people."""
    try:
        return getuser()
    except (KeyError, OSError):  # the user of this process has no name
        return "somebody"
