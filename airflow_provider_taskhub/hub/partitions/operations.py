"""What people may do with partitions: order, move, and find what is wrong. For the CLI, the client and monitors.

Nothing here takes or gives up a lease: it writes controls and marks, and the workers that own the partitions act on
them within one cycle.
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
"""Tries of a mark against renewals by the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A partition that nobody keeps. :param owner: as its row said last. :param deleted: it has no row, or no more."""

    partition: int
    owner: str | None
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a check found, and the controls in force, which are no fault but are forgotten easily.

    :param missing: partitions without a row. :param foreign: rows beyond the hub's partitions.
    :param unserved, silent, unproven: rows without an owner, with one that does not renew them, and with one that
        renews too seldom for a check to wait for it; offline ones aside.
    :param nowhere: partitions that nobody alive may serve.
    :param times: workers that live, by seconds between their renewals and of their take time.
    :param live: workers that count. :param floor: how many of them were asked for.
    :param members: all listed workers; ``alive`` as the check has proven it. :param watching: live members that watch
        the hub for Airflow; None: not known.
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
        """One line each; none: all is well."""
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
    """Orders and looks at the partitions of one hub.

    :param by: who orders; None: the user of this process.
    :param times: of leases whose owner does not list its own.
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
        self._by = by or _user()
        self._controls = Controls(store, names)

    async def complete(self) -> None:
        """Make again what is missing of a hub that is there: queues, leases, tables."""
        info = await read_hub(self._store, self._names)
        await create_hub(self._store, self._names, info.partitions, clock=self._clock)

    # orders

    async def controls(self) -> tuple[Control, ...]:
        """Everything in force, with who and when."""
        return await self._controls.read()

    async def offline(self, partitions: Iterable[int], reason: str = "") -> None:
        """Nobody serves them until :meth:`online`."""
        await self._order(ControlKind.OFFLINE, await self._checked(partitions), (None,), reason)

    async def online(self, partitions: Iterable[int]) -> int:
        """Lift :meth:`offline`. How many were offline."""
        return await self._lift(ControlKind.OFFLINE, await self._checked(partitions), (None,))

    async def prohibit(self, partitions: Iterable[int], nodes: Sequence[str], reason: str = "") -> None:
        """These workers never serve these partitions until :meth:`allow`."""
        await self._order(ControlKind.PROHIBIT, await self._checked(partitions), _nodes(nodes), reason)

    async def allow(self, partitions: Iterable[int], nodes: Sequence[str] = ()) -> int:
        """Lift :meth:`prohibit` for these workers, or for all that it names. How many bars were lifted."""
        numbers = await self._checked(partitions)
        if nodes:
            return await self._lift(ControlKind.PROHIBIT, numbers, _nodes(nodes))
        bars = [control for control in await self.controls() if control.kind is ControlKind.PROHIBIT]
        return sum([await self._controls.lift(bar) for bar in bars if bar.partition in numbers])

    async def cap(self, value: int | None, *, node: str | None = None, reason: str = "") -> bool:
        """No worker, or none that ``node`` names, holds more. None: lifted.

        :returns: whether the cap is, or for None was, in force.
        :raises InputError: for a cap above the number of partitions, which would cap nothing.
        """
        return await self._limit(ControlKind.CAP, value, node, reason)

    async def turn(self, value: int | None, *, reason: str = "") -> bool:
        """A worker takes or asks for no more in one scan; 0: nothing moves. None: lifted. Returns as :meth:`cap`."""
        return await self._limit(ControlKind.TURN, value, None, reason)

    async def drain_node(self, node: str, reason: str = "") -> None:
        """Workers that ``node`` names hand everything over, and take nothing until :meth:`undrain_node`."""
        await self._order(ControlKind.DRAIN, (None,), _nodes([node]), reason)

    async def undrain_node(self, node: str) -> bool:
        """Lift :meth:`drain_node`. Whether it was in force."""
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
        """:raises PartitionNotFound: before anything is ordered."""
        count = (await read_hub(self._store, self._names)).partitions
        numbers = tuple(dict.fromkeys(partitions))
        for number in numbers:
            if not 0 <= number < count:
                raise PartitionNotFound(f"hub {self._names.hub!r} has partitions 0 to {count - 1}, not {number}")
        return numbers

    # marks

    async def kick(self, partition: int, *, prohibit: Sequence[str] = (), reason: str = "") -> str | None:
        """Make its owner hand a partition over; then any worker that is allowed may take it, at once.

        The owner itself too, unless it is in ``prohibit``. The row keeps who kicked, and when.

        :returns: who owned it; None: nobody, and nothing was done.
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

    # looks

    async def owner(self, partition: int) -> Ownership:
        """Who serves a partition, and whether it lives: proven by looking for at most 1.5 renewal intervals."""
        await self._checked([partition])
        observer = await self._observer()
        await observer.prove(partition)
        return observer.ownership(partition)

    async def stale(self, seconds: float) -> tuple[Stale, ...]:
        """Partitions whose rows show no sign of life for ``seconds``, vanish or are missing: by looking twice.

        What is offline is not meant to live.

        :raises InputError: for what is no time, or is too short to tell: a live owner need not renew within it.
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
                continue  # made meanwhile: somebody is at it
            elif not newer(now.life, lease.life) and not observer.ownership(number).offline:
                found.append(Stale(partition=number, owner=now.owner))
        return tuple(found)

    async def check(self, *, floor: int = 1) -> Findings:
        """Everything that a monitor should know. :param floor: live workers that there should be; drained ones are not.

        Takes some seconds: whether a worker lives, and renews its leases, is proven by its rows changing.
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
    """:raises InputError: for a name that no worker can have."""
    for node in nodes:
        if not node.strip() or node == "@":
            raise InputError("give a worker: name@host, name, @host, or name@host/incarnation")
    return tuple(nodes)


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a process of a user without a name
        return "somebody"
