"""Who should serve which partition: a pure function over what one worker has just read.

Every worker computes the whole assignment and carries out only its own part. Workers that read the same rows compute
the same assignment, so they neither collide nor overshoot; workers that read different ones are told apart by the
ETags of the rows. Rejected: stealing one partition per turn from the biggest (16 turns for two workers and 32
partitions, and a rule that must guess what the other thieves do; ``make bench-balance`` compares them).

In this order: what an administrator forbids, who can run what waits, caps, fair shares by number, loads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

HYSTERESIS = 0.5
"""Loads of two members may differ by so much of the mean before a partition moves for it."""
NOTICEABLE = 1.0
"""And by so much load at least: a hub that does next to nothing has nothing to even out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A partition as one worker sees it.

    :param owner: who serves it; None when it is free. :param next_owner: who has asked for it.
    :param free: nobody serves it: it may be taken at once.
    :param overdue: free for longer than its holder needs to take it: anybody's.
    :param silent: free for its owner's silence, which a newcomer has not yet watched for long enough to act on.
    :param load: as its owner has published it with its last renewal; None: it does not know yet.
    :param back: a member that had it under an earlier incarnation: if it lacks any, it gets this one.
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
    """What a member may hold.

    :param weight: its share against that of others. :param cap: never more than these.
    :param newcomer: not there for long enough to have proof of anybody's silence.
    """

    weight: int = 1
    cap: int | None = None
    newcomer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What administrators have ordered, as one worker reads it.

    :param offline: partitions that nobody may serve. :param barred: who may not serve a partition.
    :param turn: partitions that a member takes or asks for in one turn; None: as many as it lacks.
    :param unfit: by partition, the members that cannot run what waits there while another member can. An unfit owner
        keeps the partition until a fit member asks for it.
    """

    offline: frozenset[int] = frozenset()
    barred: Mapping[int, frozenset[str]] = field(default_factory=dict)
    turn: int | None = None
    unfit: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def allow(self, partition: int, member: str) -> bool:
        return partition not in self.offline and member not in self.barred.get(partition, ())

    def suits(self, partition: int, member: str) -> bool:
        """Whether a member should serve a partition: it may, and it can run what waits there."""
        return self.allow(partition, member) and member not in self.unfit.get(partition, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePlan:
    """What this worker does now.

    :param take: free partitions to claim. :param ask: partitions to ask their owners for.
    :param shed: own partitions to hand over to whoever may take them, or to nobody.
    """

    take: tuple[int, ...] = ()
    ask: tuple[int, ...] = ()
    shed: tuple[int, ...] = ()


NO_RULES = Rules()


def plan(rows: Sequence[Row], members: Mapping[str, Seat], me: str, rules: Rules = NO_RULES) -> BalancePlan:
    """Fair shares (max − min ≤ 1), the whole deficit at once, as few moves as possible, none when shares are fair.

    :param rows: every partition. :param members: workers that take part, ``me`` included.
    :param me: a worker that is not a member takes nothing, and gives up what it has.
    """
    mine = [row for row in rows if row.owner == me]
    if me not in members:
        return BalancePlan(shed=tuple(row.partition for row in mine))
    seating = _Seating(rows, members, rules)
    # what is free and this worker's already, by a finished handover, comes first
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
        shed=tuple(row.partition for row in mine if not rules.allow(row.partition, me) or seating.homeless(row)),
    )


def shares(partitions: int, members: Mapping[str, Seat], held: Mapping[str, int]) -> dict[str, int]:
    """How many partitions each member should have, by weight and up to its cap.

    The remainder goes to those that hold more than the rest already: the fewest moves. Where all are at their caps,
    the sum is less than ``partitions``.
    """
    targets: dict[str, int] = {}
    left, rest = dict(members), partitions
    while True:  # who is capped below a fair share leaves the others more
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
    """The assignment: partition → member, or None. :param pool: every row in the order in which it would move."""

    def __init__(self, rows: Sequence[Row], members: Mapping[str, Seat], rules: Rules) -> None:
        self._members = members
        self._rules = rules
        self._rows = {row.partition: row for row in rows if row.partition not in rules.offline}
        self.future_owners = {number: self._future_owner(row) for number, row in self._rows.items()}
        self.of: dict[int, str | None] = {row.partition: self.future_owners.get(row.partition) for row in rows}
        self._counts = Counter(holder for holder in self.future_owners.values() if holder is not None)
        targets = shares(len(self._rows), members, self._counts)
        needy = {member for member, target in targets.items() if self._counts[member] < target}
        # to who has just started all others are new: only who lacks some has anything to come back to
        self.pool = sorted(
            self._rows.values(),
            key=lambda row: (
                self.of[row.partition] is not None,
                not row.free,
                row.back not in needy,
                _load(row, unknown=inf),
            ),
        )
        self._deal(targets, needy)
        if any(rules.barred.values()) or any(rules.unfit.values()):
            self._level()
        if self._settled():
            self._ease()

    def room(self, member: str) -> int:
        cap = self._members[member].cap
        return len(self._rows) if cap is None else cap - self._counts[member]

    def homeless(self, row: Row) -> bool:
        """Whether its owner must let it go although nobody has room for it: a cap was lowered."""
        unfit = self._rules.unfit.get(row.partition)  # then it stays where it is until a fit member asks for it
        return row.partition in self._rows and self.of[row.partition] is None and not row.next_owner and not unfit

    def _future_owner(self, row: Row) -> str | None:
        """Who has the partition once every handover under way has ended; None: up for allotment."""
        for member in (row.next_owner, row.owner):
            if member is not None and member in self._members and self._rules.suits(row.partition, member):
                return member
        return None

    def _move(self, partition: int, member: str | None) -> None:
        before = self.of[partition]
        if before is not None:
            self._counts[before] -= 1
        if member is not None:
            self._counts[member] += 1
        self.of[partition] = member

    def _deal(self, targets: Mapping[str, int], below: Collection[str]) -> None:
        """The free first, then those of leavers, then what members hold above their share, to those below theirs."""
        needy = sorted(below, key=lambda member: (self._counts[member] - targets[member], member))
        for row in self.pool:
            holder = self.of[row.partition]
            if holder is not None and self._counts[holder] <= targets[holder]:
                continue
            if holder is not None and row.owner != holder and self.room(holder) >= 0:
                continue  # on its way already
            for member in sorted(needy, key=lambda member: member != row.back) if row.back else needy:
                if self._may(row.partition, member):
                    self._move(row.partition, member)
                    if self._counts[member] >= targets[member]:
                        needy.remove(member)
                    break
            else:
                if holder is None or self.room(holder) < 0:
                    self._move(row.partition, self._anybody(row.partition))

    def _may(self, partition: int, member: str) -> bool:
        """Whether it may serve it, and can take it now: an orphan must not wait for who cannot."""
        barred = self._rows[partition].silent and self._members[member].newcomer
        return not barred and self._rules.suits(partition, member)

    def _anybody(self, partition: int) -> str | None:
        """The emptiest member that may serve it and has room: those below their shares may not."""
        fit = [member for member in self._members if self._may(partition, member) and self.room(member) > 0]
        return min(fit, key=lambda member: (self._fill(member), member), default=None)

    def _fill(self, member: str, more: int = 0) -> float:
        return (self._counts[member] + more) / self._members[member].weight

    # bars: a partition that one member may not have must go round by a third

    def _level(self) -> None:
        """Shift along chains until no chain makes two members more equal: no allowed assignment is fairer."""
        while chain := next(self._chains(), None):
            for partition, member in chain:
                self._move(partition, member)

    def _chains(self) -> Iterator[list[tuple[int, str]]]:
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
        """The shortest way from a full member to one emptier by two: breadth first."""
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

    # loads

    def _settled(self) -> bool:
        """Whether shares are fair, nothing is on its way and every load is known: only then do loads count.

        What has just moved looks like next to nothing to its new owner, and is no reason to move more.
        """
        return all(
            row.owner is not None and row.owner == self.of[number] and row.load is not None
            for number, row in self._rows.items()
        )

    def _ease(self) -> None:
        """One exchange between the most and the least loaded member, if it at least halves what lies between them.

        It begins with the least loaded, which asks for a partition. That unbalances the two, so the other one gets the
        lightest in return: begun by both at once, one half could end before the other begins, and be turned back. Who
        is at its cap already cannot begin.
        """
        loads = dict.fromkeys(self._members, 0.0)
        holdings: dict[str, list[Row]] = defaultdict(list)
        for row in self.pool:
            member = self.of[row.partition]
            assert member is not None  # settled
            holdings[member].append(row)
            loads[member] += _load(row) / self._members[member].weight
        hot = max(loads, key=lambda member: (loads[member], member))
        cold = min(loads, key=lambda member: (loads[member], member))
        between = loads[hot] - loads[cold]
        fair = self._fill(hot) >= self._fill(cold, 1)  # one more here and one less there is as fair
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
    if row is None:
        return 0.0
    return unknown if row.load is None else row.load


def seats(members: Collection[str]) -> dict[str, Seat]:
    """Members that are all alike."""
    return dict.fromkeys(members, Seat())
