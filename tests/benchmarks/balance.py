"""``make bench-balance``: the rules that others publish for sharing partitions out, beside ours: cycles and moves.

The rules of the Event Hubs SDKs are modelled as they are described and read (Python 5.15 greedy, .NET v4, .NET v5);
ours is the very function that workers run. The table gives the figures that its authors published beside what is
measured here; in the last column these are of the rule that the specification sketches, not of TaskHub.

A *cycle* is one turn of every host: it reads all leases, then writes what its rule wants. *In turn*: each reads what
the one before has left. *Together*: all read first, then act in random order; each renews its own leases as its turn
begins, so whoever wants one of them later in that cycle is refused, like the second who wants a free one. Rejected: a
coin for each lease whether its renewal comes first; who wants many would never get them all in one cycle, and the
others' figures would not be those of the specification. A *move* is a change of owner of a partition that was served.
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
RUNS, FEW_RUNS = 30, 4
LIMIT = 300
"""Cycles after which a rule counts as one that never ends."""
SPECIFIED = {
    "Python SDK": (
        "never / never in 15 of 20",
        "never / never in 19 of 20",
        "never / never in 12 of 20",
        "16 / 34",
        "4 / 11, 12 moves",
        "16 / 71, 512 to 589 moves",
    ),
    ".NET v4": ("3 / 9", "7 / 39", "4 / 24", "16 / 32", "4 / 19, 12 to 13 moves", "16 / never"),
    ".NET v5": ("3 / 7", "7 / 18", "4 / 10", "16 / 34", "4 / 5, 0 moves", "16 / 45"),
    "TaskHub": ("1 / 3", "2 / 3", "2 / 3", "1 / 1", "1 / 3, 0 moves", "1 / 6, 512 moves"),
}
"""The specification's medians of cycles, in turn / together, by case."""


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
    """A random free one a cycle, up to the fair share; else a random one of all hosts above theirs.

    Steals below the floor, or at it with nobody below and somebody above floor + 1. Unlike the Python SDK it does not
    go for the biggest alone, which all thieves take for the same. Its greedy strategy lets cycles follow at once.
    """
    counts, free = _seen(owners, me)
    least, uneven = divmod(len(owners), len(counts))
    if free:
        return [dice.choice(free)] if counts[me] < least + bool(uneven) else []
    starving = any(number < least for number in counts.values())
    above = {host for host, number in counts.items() if number > least + 1}
    if counts[me] < least or (counts[me] == least and not starving and above):
        rich = above or {host for host, number in counts.items() if number == least + 1}
        return [dice.choice([number for number, owner in enumerate(owners) if owner in rich])]
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
            if together:
                written.update(number for number, owner in enumerate(owners) if owner == host)
            for number in rule(read if together else owners, hosts, host, dice):
                if not together or number not in written:
                    moves += owners[number] is not None
                    owners[number] = host
                    written.add(number)
    return Outcome(cycles=None, moves=moves)


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
    """Median of cycles, or in how many runs it never ended."""
    ended = [outcome.cycles for outcome in outcomes if outcome.cycles is not None]
    never = len(outcomes) - len(ended)
    if not ended:
        return "never"
    return f"never in {never} of {len(outcomes)}" if never else f"{statistics.median(ended):g}"


def moves(outcomes: Sequence[Outcome]) -> str:
    return f"{statistics.median(outcome.moves for outcome in outcomes):g}"


def main() -> int:
    title = f"Cycles until shares are fair, hosts in turn / together; medians of {RUNS} runs, of {FEW_RUNS} for 1,024"
    table = Table(title=title, show_lines=True)
    table.add_column("partitions, hosts")
    for name in RULES:
        table.add_column(name)
    for place, ((partitions, before, after), results) in enumerate(compare().items()):
        row = [
            f"{cell(turn)} / {cell(together)}\nmoves {moves(turn)} / {moves(together)}\n"
            f"[dim]spec: {SPECIFIED[name][place]}[/dim]"
            for name, (turn, together) in results.items()
        ]
        table.add_row(f"{partitions}, {before}→{after}", *row)
    console = Console(width=160)
    console.print(table)
    console.print((__doc__ or "").partition("\n\n")[2], markup=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
