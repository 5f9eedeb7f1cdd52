"""Who should serve which partition: a pure function over what one worker has just read.

Every worker computes the whole assignment and carries out only its own part. Workers that read the same rows compute
the same assignment, so they neither collide nor overshoot; workers that read different ones are told apart by the
ETags of the rows. Rejected: stealing one partition per turn from the biggest (16 turns for two workers and 32
partitions, and a rule that must guess what the other thieves do; spec seed_systems §2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A partition as one worker sees it.

    :param owner: who serves it; None when it is free. :param next_owner: who has asked for it.
    :param free: nobody serves it: it may be taken at once.
    :param overdue: free for longer than its heir needs to take it: anybody's.
    """

    partition: int
    owner: str | None = None
    next_owner: str | None = None
    free: bool = False
    overdue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this worker does now.

    :param take: free partitions to claim. :param ask: partitions to ask their owners for.
    """

    take: tuple[int, ...] = ()
    ask: tuple[int, ...] = ()


def plan(rows: Sequence[Row], members: Collection[str], loads: Mapping[int, float], me: str) -> Plan:
    """Fair shares (max − min ≤ 1), the whole deficit at once, as few moves as possible, none when shares are fair.

    :param rows: every partition. :param members: workers that take part, ``me`` included.
    :param loads: of partitions; of those that could move, the least loaded does. Loads alone move nothing.
    :param me: a worker that is not a member does nothing.
    """
    if me not in members:
        return Plan()
    heirs = {row.partition: _heir(row, members) for row in rows}
    held = Counter(heir for heir in heirs.values() if heir is not None)
    targets = shares(len(rows), members, held)
    pool = _movable(rows, heirs, held, targets, loads)
    mine = _allotted(pool, held, targets, me)
    # what is free and already this worker's by a finished handover comes on top of the allotment
    mine += [row for row in rows if row.free and (heirs[row.partition] == me or (row.overdue and row not in mine))]
    return Plan(
        take=tuple(row.partition for row in mine if row.free),
        ask=tuple(row.partition for row in mine if not row.free),
    )


def shares(partitions: int, members: Collection[str], held: Mapping[str, int]) -> dict[str, int]:
    """How many partitions each member should have; the remainder goes to those that hold most (fewest moves)."""
    share, rest = divmod(partitions, len(members))
    ranked = sorted(members, key=lambda member: (-held.get(member, 0), member))
    return {member: share + (rank < rest) for rank, member in enumerate(ranked)}


def _heir(row: Row, members: Collection[str]) -> str | None:
    """Who has the partition once every handover under way has ended; None: up for allotment."""
    if row.next_owner in members:
        return row.next_owner
    return row.owner if row.owner in members else None


def _movable(
    rows: Sequence[Row],
    heirs: Mapping[int, str | None],
    held: Mapping[str, int],
    targets: Mapping[str, int],
    loads: Mapping[int, float],
) -> list[Row]:
    """Rows up for allotment: the free first, then those of leavers, then what others hold above their share."""
    pool = sorted((row for row in rows if heirs[row.partition] is None), key=lambda row: (not row.free, row.partition))
    surplus = {member: held.get(member, 0) - targets[member] for member in targets}
    for row in sorted(rows, key=lambda row: (loads.get(row.partition, 0.0), row.partition)):
        owner = row.owner
        if owner is not None and owner == heirs[row.partition] and surplus[owner] > 0:
            surplus[owner] -= 1
            pool.append(row)
    return pool


def _allotted(pool: Sequence[Row], held: Mapping[str, int], targets: Mapping[str, int], me: str) -> list[Row]:
    """This worker's part of the pool, dealt out to every member below its share."""
    needs = sorted(((held.get(member, 0) - target, member) for member, target in targets.items()))
    start = 0
    for balance, member in needs:
        need = max(0, -balance)
        if member == me:
            return list(pool[start : start + need])
        start += need
    return []
