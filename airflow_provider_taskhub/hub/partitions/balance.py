"""Decide which worker should serve which partition: a pure function of what one worker has just read.

Each worker computes the whole assignment and carries out only its own part. Workers that read the same rows compute the
same assignment, so two of them do not take the same partition. If workers read different rows, the ETags of the leases
let only one of them take a partition. Rejected: in each scan a worker takes one partition from the worker that has
most. This needs 16 scans for two workers and 32 partitions, and a rule that guesses what the other workers do (``make
bench-balance`` compares the two).

The rules, the most important first: orders of administrators, which workers can run the waiting work, caps (the most
partitions of a worker), fair numbers of partitions, loads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

HYSTERESIS = 0.5
"""A partition moves for its load only if the loads of two members differ by more than this fraction of the mean load.
"""
NOTICEABLE = 1.0
"""A partition moves for its load only if the loads of two members differ by more than this: messages in a second. A hub
with almost no load has nothing to balance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A partition as one worker sees it.

    :param owner: full name of the worker that serves the partition. None: the partition is free.
    :param next_owner: full name of the worker that has asked for the partition. None: no worker has asked.
    :param free: True if no worker serves the partition, so that it may be taken at once.
    :param overdue: True if the partition is free for longer than the planned worker needs to take it, so that any
        worker may take it.
    :param silent: True if the partition is free because its owner does not renew the lease. A worker that has just
        started has not watched the lease for long enough to know this.
    :param load: messages in a second, as the owner last published it. None: the owner does not know it yet.
    :param back: full name of a worker that owned the partition before its restart. If it has too few partitions, it
        gets this one first. None: there is no such worker.
    """

    partition: int
    owner: str | None = None
    next_owner: str | None = None
    free: bool = False
    overdue: bool = False
    silent: bool = False
    load: float | None = None
    back: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """How many partitions a member (a worker that takes part in the balance) may have.

    :param weight: a member with weight 2 gets twice as many partitions as one with weight 1.
    :param cap: the most partitions that the member may have. None: no limit.
    :param newcomer: True if the member is too new to know that an owner is silent.
    """

    weight: int = 1
    cap: int | None = None
    newcomer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The orders of administrators, and which workers cannot run the waiting work, as one worker reads them.

    :param offline: partitions that no worker may serve.
    :param barred: for each partition, the workers that may not serve it.
    :param turn: the most partitions that a member takes or asks for in one scan. None: as many as it has too few.
    :param unfit: for each partition, the members that cannot run what its instances need, although another member can.
        An unfit owner keeps the partition until a fit member asks for it.
    """

    offline: frozenset[int] = frozenset()
    barred: Mapping[int, frozenset[str]] = field(default_factory=dict)
    turn: int | None = None
    unfit: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def allow(self, partition: int, member: str) -> bool:
        """Return whether the orders of administrators allow a member (a worker) to serve a partition."""
        return partition not in self.offline and member not in self.barred.get(partition, ())

    def suits(self, partition: int, member: str) -> bool:
        """Return whether a member (a worker) should serve a partition: the orders of administrators allow it, and no
        other member is better able to run what the instances of the partition need.
        """
        return self.allow(partition, member) and member not in self.unfit.get(partition, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    """What one worker must do now.

    :param take: numbers of the free partitions to take.
    :param ask: numbers of the partitions for which the worker must ask their owners.
    :param shed: numbers of the worker's own partitions that it must give up, although no worker has asked for them.
    """

    take: tuple[int, ...] = ()
    ask: tuple[int, ...] = ()
    shed: tuple[int, ...] = ()


NO_RULES = Rules()
"""The rules if there are no orders of administrators, and all members can run everything."""


def plan(rows: Sequence[Row], members: Mapping[str, Seat], me: str, rules: Rules = NO_RULES) -> BalancePlan:
    """Compute what this worker should do, so that all members have fair shares.

    Fair means that the largest and the smallest share differ by at most 1 (with equal weights). A worker takes or asks
    for all partitions that it has too few at once. As few partitions as possible move, and none if the shares are fair.

    :param rows: all partitions of the hub.
    :param members: the workers that take part, ``me`` included.
    :param me: full name of this worker. If it is not a member, it takes nothing and gives up what it has.
    """
    mine = [row for row in rows if row.owner == me]
    if me not in members:
        return BalancePlan(shed=tuple(row.partition for row in mine))
    seating = _Seating(rows, members, rules)
    # take first the free partitions that were handed over to this worker
    wanted = [row for row in rows if row.free and row.next_owner == me and seating.of[row.partition] == me]
    wanted += [row for row in seating.pool if seating.of[row.partition] == me and me not in (row.owner, row.next_owner)]
    room = seating.room(me)
    for row in rows:
        if row.free and row.overdue and room > 0 and seating.of[row.partition] != me and rules.allow(row.partition, me):
            wanted.append(row)
            room -= 1
    wanted.sort(key=lambda row: not row.free)
    if rules.turn is not None:
        wanted = wanted[: rules.turn]
    return BalancePlan(
        take=tuple(row.partition for row in wanted if row.free),
        ask=tuple(row.partition for row in wanted if not row.free),
        shed=tuple(row.partition for row in mine if not rules.allow(row.partition, me) or seating.must_give_up(row)),
    )


def shares(partitions: int, members: Mapping[str, Seat], held: Mapping[str, int]) -> dict[str, int]:
    """Return how many partitions each member should have, by its weight and at most its cap.

    If the partitions cannot be divided evenly, the members that already have more get one more, so that fewer
    partitions move. If all members are at their caps, the sum is less than ``partitions``.

    :param partitions: how many partitions to divide.
    :param held: how many partitions each member has now.
    """
    targets: dict[str, int] = {}
    left, rest = dict(members), partitions
    while True:  # a member whose cap is below its fair share leaves more for the others
        total = sum(seat.weight for seat in left.values())
        capped = {
            member: seat.cap
            for member, seat in left.items()
            if seat.cap is not None and seat.cap * total <= rest * seat.weight
        }
        if not capped:
            break
        targets |= capped
        rest -= sum(capped.values())
        left = {member: seat for member, seat in left.items() if member not in capped}
    if not left:
        return targets
    whole = {member: divmod(rest * seat.weight, total) for member, seat in left.items()}
    spare = rest - sum(share for share, _ in whole.values())
    ranked = sorted(whole, key=lambda member: (held.get(member, 0) <= whole[member][0], -whole[member][1], member))
    return targets | {member: whole[member][0] + (rank < spare) for rank, member in enumerate(ranked)}


class _Seating:
    """Assigns partitions to members.

    :ivar of: for each partition the member that gets it. None: no member gets it.
    :ivar pool: the partitions that are not offline, in the order in which they are moved.
    """

    def __init__(self, rows: Sequence[Row], members: Mapping[str, Seat], rules: Rules) -> None:
        self._members = members
        self._rules = rules
        self._rows = {row.partition: row for row in rows if row.partition not in rules.offline}
        self.future_owners = {number: self._future_owner(row) for number, row in self._rows.items()}
        self.of: dict[int, str | None] = {row.partition: self.future_owners.get(row.partition) for row in rows}
        self._counts = Counter(holder for holder in self.future_owners.values() if holder is not None)
        targets = shares(len(self._rows), members, self._counts)
        needy = {member for member, target in targets.items() if self._counts[member] < target}
        # a member gets the partitions back that it had before its restart, but only while it has too few partitions
        self.pool = sorted(
            self._rows.values(),
            key=lambda row: (
                self.of[row.partition] is not None,
                not row.free,
                row.back not in needy,
                _load(row, unknown=inf),
            ),
        )
        self._assign(targets, needy)
        if any(rules.barred.values()) or any(rules.unfit.values()):
            self._move_along_chains()
        if self._nothing_moves():
            self._exchange_for_load()

    def room(self, member: str) -> int:
        """Return how many more partitions a member may have. Negative if the member is above its cap."""
        cap = self._members[member].cap
        return len(self._rows) if cap is None else cap - self._counts[member]

    def must_give_up(self, row: Row) -> bool:
        """Return whether the owner must give up a partition although no other member can take it.

        This happens when the owner's cap (the most partitions that it may have) was lowered.
        """
        unfit = self._rules.unfit.get(row.partition)  # an unfit owner keeps the partition until a fit member asks
        return row.partition in self._rows and self.of[row.partition] is None and not row.next_owner and not unfit

    def _future_owner(self, row: Row) -> str | None:
        """Return which member has the partition when all running handovers have ended. None: it must be assigned."""
        for member in (row.next_owner, row.owner):
            if member is not None and member in self._members and self._rules.suits(row.partition, member):
                return member
        return None

    def _move(self, partition: int, member: str | None) -> None:
        """Assign a partition to another member. None: to no member."""
        before = self.of[partition]
        if before is not None:
            self._counts[before] -= 1
        if member is not None:
            self._counts[member] += 1
        self.of[partition] = member

    def _assign(self, targets: Mapping[str, int], below: Collection[str]) -> None:
        """Assign partitions to members below their shares: free ones first, then those of workers that leave, then
        those of members above their shares.
        """
        needy = sorted(below, key=lambda member: (self._counts[member] - targets[member], member))
        for row in self.pool:
            holder = self.of[row.partition]
            if holder is not None and self._counts[holder] <= targets[holder]:
                continue
            if holder is not None and row.owner != holder and self.room(holder) >= 0:
                continue  # this partition is already being handed over
            for member in sorted(needy, key=lambda member: member != row.back) if row.back else needy:
                if self._may(row.partition, member):
                    self._move(row.partition, member)
                    if self._counts[member] >= targets[member]:
                        needy.remove(member)
                    break
            else:
                if holder is None or self.room(holder) < 0:
                    self._move(row.partition, self._emptiest(row.partition))

    def _may(self, partition: int, member: str) -> bool:
        """Return whether a member should serve a partition and can take it now.

        A new worker cannot take the partition of a silent owner, because it has not watched the owner for long enough.
        """
        barred = self._rows[partition].silent and self._members[member].newcomer
        return not barred and self._rules.suits(partition, member)

    def _emptiest(self, partition: int) -> str | None:
        """Return the member with the fewest partitions that may serve this one and has room. None: there is none."""
        fit = [member for member in self._members if self._may(partition, member) and self.room(member) > 0]
        return min(fit, key=lambda member: (self._fill(member), member), default=None)

    def _fill(self, member: str, more: int = 0) -> float:
        """Return how many partitions a member has for each unit of its weight.

        :param more: count this many partitions in addition to those that the member has.
        """
        return (self._counts[member] + more) / self._members[member].weight

    # methods for orders and unfit members: a partition must sometimes move by way of a third member

    def _move_along_chains(self) -> None:
        """Move partitions along chains, until no chain makes the numbers of two members more equal. Then no assignment
        that the rules allow is fairer.
        """
        while chain := next(self._chains(), None):
            for partition, member in chain:
                self._move(partition, member)

    def _chains(self) -> Iterator[list[tuple[int, str]]]:
        """Yield chains of moves that make two members more equal, first those from the member with most partitions."""
        holdings: dict[str, list[int]] = defaultdict(list)
        for row in self.pool:
            member = self.of[row.partition]
            if member is not None and row.next_owner != member:
                holdings[member].append(row.partition)
        for source in sorted(holdings, key=lambda member: (-self._fill(member), member)):
            chain = self._chain(source, holdings)
            if chain is not None:
                yield chain

    def _chain(self, source: str, holdings: Mapping[str, Sequence[int]]) -> list[tuple[int, str]] | None:
        """Return the shortest chain of moves from one member to a member with at least two partitions fewer. None:
        there is no such chain.

        Each member of the chain gives one partition to the next member. The search is breadth first.
        """
        reached: dict[str, list[tuple[int, str]]] = {source: []}
        queue = [source]
        for member in queue:
            for other in sorted(self._members.keys() - reached.keys(), key=lambda name: (self._fill(name), name)):
                step = next((number for number in holdings.get(member, ()) if self._rules.suits(number, other)), None)
                if step is None:
                    continue
                reached[other] = [*reached[member], (step, other)]
                if self._fill(source) > self._fill(other, 1) and self.room(other) > 0:
                    return reached[other]
                queue.append(other)
        return None

    # methods that balance the loads

    def _nothing_moves(self) -> bool:
        """Return whether no partition is moving and all loads are known. Only then are loads balanced.

        The new owner of a partition measures almost no load at first. This measurement must not cause more moves.
        """
        return all(
            row.owner is not None and row.owner == self.of[number] and row.load is not None
            for number, row in self._rows.items()
        )

    def _exchange_for_load(self) -> None:
        """Exchange one partition between the members with the most and the least load, if it at least halves the
        difference.

        The member with the least load begins: it asks for a partition. Then it has one more than its share, so the
        other member asks for its lightest partition in return. Rejected: both ask at the same time. One half of the
        exchange could end before the other begins, and would then be undone. A member at its cap cannot begin.
        """
        loads = dict.fromkeys(self._members, 0.0)
        holdings: dict[str, list[Row]] = defaultdict(list)
        for row in self.pool:
            member = self.of[row.partition]
            assert member is not None  # _nothing_moves() has checked this
            holdings[member].append(row)
            loads[member] += _load(row) / self._members[member].weight
        hot = max(loads, key=lambda member: (loads[member], member))
        cold = min(loads, key=lambda member: (loads[member], member))
        between = loads[hot] - loads[cold]
        fair = self._fill(hot) >= self._fill(cold, 1)  # both have fair numbers even if one partition moves
        other = None if fair else next((row for row in holdings[cold] if self._rules.suits(row.partition, hot)), None)
        noticeable = between > max(NOTICEABLE, HYSTERESIS * sum(loads.values()) / len(loads))
        if not noticeable or self.room(cold) <= 0 or not (fair or other):
            return
        weights = self._members[hot].weight, self._members[cold].weight
        found = [
            (abs(between - difference / weights[0] - difference / weights[1]), row.partition)
            for row in holdings[hot]
            if self._rules.suits(row.partition, cold) and (difference := _load(row) - _load(other)) > 0
        ]
        left, partition = min(found, default=(between, -1))
        if left <= between / 2:
            self._move(partition, cold)


def _load(row: Row | None, *, unknown: float = 0.0) -> float:
    """Return the load of a partition, or ``unknown`` if it is not known."""
    if row is None:
        return 0.0
    return unknown if row.load is None else row.load


def seats(members: Collection[str]) -> dict[str, Seat]:
    """Return for each member a seat with weight 1 and without a cap."""
    return dict.fromkeys(members, Seat())
