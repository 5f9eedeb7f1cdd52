"""``make bench-balance``: the rules that others publish for sharing partitions out, beside ours: cycles and moves.

The rules of the Event Hubs SDKs are modelled as they are described and read (Python 5.15 greedy, .NET v4, .NET v5);
ours is the very function that workers run. Two ways to act: hosts one after another, each on what the one before has
left; or all on one reading, where the first writer of a partition wins and an owner has renewed first now and then.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from airflow_provider_taskhub.hub.partitions.balance import Row, plan, seats

Owners: TypeAlias = list[str | None]
Rule: TypeAlias = Callable[[Sequence[str | None], Sequence[str], str, random.Random], list[int]]
"""What a host wants of what it reads: partitions to claim or to take from others."""

CASES = ((8, 1, 3), (32, 1, 5), (20, 1, 6), (32, 1, 2), (16, 0, 4), (1024, 32, 64))
"""Partitions, hosts before, hosts after."""
RUNS, FEW_RUNS = 20, 2
LIMIT = 300
"""Cycles after which a rule counts as one that never ends."""
RENEWED = 0.5
"""How often, acting together, an owner's renewal comes before a thief's write, which is then refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one run. :param cycles: until max - min <= 1, None: never. :param moves: changes of owner of served ones."""

    cycles: int | None
    moves: int


def _seen(owners: Sequence[str | None], me: str) -> tuple[Counter[str], list[int]]:
    """Partitions by host as a host without membership rows can tell, itself included, and the free ones."""
    counts = Counter(owner for owner in owners if owner is not None)
    counts.setdefault(me, 0)
    return counts, [number for number, owner in enumerate(owners) if owner is None]


def python_sdk(owners: Sequence[str | None], hosts: Sequence[str], me: str, dice: random.Random) -> list[int]:
    """Free ones up to ceil at once; steals one of the biggest only while below floor(P / hosts)."""
    counts, free = _seen(owners, me)
    least, most = len(owners) // len(counts), ceil(len(owners) / len(counts))
    if free and counts[me] < most:
        return dice.sample(free, min(len(free), most - counts[me]))
    if counts[me] < least:
        biggest = max(counts, key=lambda host: (counts[host], host))
        return [dice.choice([number for number, owner in enumerate(owners) if owner == biggest])]
    return []


def dotnet_v4(owners: Sequence[str | None], hosts: Sequence[str], me: str, dice: random.Random) -> list[int]:
    """Free ones up to ceil; then the first of the biggest, one a cycle, while the difference is 2 or more.

    Counts the owners only: a host that owns nothing does not count itself.
    """
    counts, free = _seen(owners, me)
    others = sum(1 for host, number in counts.items() if number) or 1
    target = ceil(len(owners) / others) - counts[me]
    if free and target > 0:
        return free[:target]
    biggest = max(counts, key=lambda host: (counts[host], host))
    if counts[biggest] - counts[me] >= 2:
        return [owners.index(biggest)]
    return []


def dotnet_v5(owners: Sequence[str | None], hosts: Sequence[str], me: str, dice: random.Random) -> list[int]:
    """One free one a cycle; else one of whoever is above, below the floor or at it with nobody below."""
    counts, free = _seen(owners, me)
    least = len(owners) // len(counts)
    if free:
        return [dice.choice(free)] if counts[me] <= least else []
    biggest = max(counts, key=lambda host: (counts[host], host))
    starving = any(number < least for number in counts.values())
    if counts[me] < least or (counts[me] == least and not starving and counts[biggest] > least + 1):
        return [dice.choice([number for number, owner in enumerate(owners) if owner == biggest])]
    return []


def ours(owners: Sequence[str | None], hosts: Sequence[str], me: str, dice: random.Random) -> list[int]:
    rows = [Row(partition=number, owner=owner, free=owner is None) for number, owner in enumerate(owners)]
    decided = plan(rows, seats(hosts), me)
    return [*decided.take, *decided.ask]


RULES: dict[str, Rule] = {
    "Python SDK": python_sdk,
    ".NET v4": dotnet_v4,
    ".NET v5": dotnet_v5,
    "TaskHub": ours,
}


def run(rule: Rule, case: tuple[int, int, int], *, together: bool, seed: int) -> Outcome:
    """Cycles of all hosts until shares are fair and nobody wants anything."""
    partitions, before, after = case
    dice = random.Random(f"{case}/{together}/{seed}")
    owners: Owners = [f"w{number % before:02d}" if before else None for number in range(partitions)]
    hosts = [f"w{number:02d}" for number in range(after)]
    moves = 0
    for cycle in range(LIMIT + 1):
        if _fair(owners, hosts):
            return Outcome(cycles=cycle, moves=moves)
        dice.shuffle(hosts)
        read = list(owners)
        written: set[int] = set()
        for host in hosts:
            for number in rule(read if together else owners, hosts, host, dice):
                refused = together and (number in written or _renewed(rule, read[number], dice))
                if not refused:
                    moves += owners[number] is not None
                    owners[number] = host
                    written.add(number)
    return Outcome(cycles=None, moves=moves)


def _renewed(rule: Rule, owner: str | None, dice: random.Random) -> bool:
    return owner is not None and dice.random() < RENEWED


def _fair(owners: Owners, hosts: Sequence[str]) -> bool:
    counts = Counter(owners)
    return counts[None] == 0 and max(counts[host] for host in hosts) - min(counts[host] for host in hosts) <= 1


def compare() -> dict[tuple[int, int, int], dict[str, tuple[list[Outcome], list[Outcome]]]]:
    """Per case and rule: the runs in turn, and the runs together."""
    found = {}
    for case in CASES:
        runs = FEW_RUNS if case[0] > 100 else RUNS
        found[case] = {
            name: (
                [run(rule, case, together=False, seed=seed) for seed in range(runs)],
                [run(rule, case, together=True, seed=seed) for seed in range(runs)],
            )
            for name, rule in RULES.items()
        }
    return found


def cell(outcomes: Sequence[Outcome]) -> str:
    """Median of cycles, how many runs never ended, median of moves."""
    ended = [outcome.cycles for outcome in outcomes if outcome.cycles is not None]
    never = len(outcomes) - len(ended)
    moves = statistics.median(outcome.moves for outcome in outcomes)
    if not ended:
        return "never"
    text = f"{statistics.median(ended):g}" + (f" (never in {never} of {len(outcomes)})" if never else "")
    return f"{text}, {moves:g} moves"


def main() -> int:
    table = Table(title="Cycles until shares are fair, and moves: hosts in turn / all on one reading", show_lines=True)
    table.add_column("partitions, hosts")
    for name in RULES:
        table.add_column(name)
    for (partitions, before, after), results in compare().items():
        row = [f"{cell(turn)} /\n{cell(together)}" for turn, together in results.values()]
        table.add_row(f"{partitions}, {before}→{after}", *row)
    Console(width=160).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
