"""``make crash``: everything that can go wrong at every storage call of every scenario, on both stores.

Each crash point is one life of a scenario: a worker dies before or after the n-th storage operation, or the operation's
answer is lost, or it arrives late … (``lives.Kind``), for every n. Prints counts, and for each damage the line that
reproduces it; ends with 1 when there was any.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field

from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.simulation.azurite_clock import Still, still_azurite
from tests.simulation.lives import (
    CREWS,
    Crew,
    Damage,
    Kind,
    Run,
    Trouble,
    compare,
    live,
    trouble,
    troubles,
    undisturbed,
)
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.world import MEMORY, WHOLE, Place

STORES = ("sqlite", "sqlite-units", "azurite")
MODULE = "python -m tests.simulation.crash"
LIVES = 100
"""In one emulator: it keeps in memory what was deleted."""


@dataclass(slots=True)
class Count:
    """What was found for one kind on one store. :param told: what was damaged, one line each."""

    scenarios: set[str] = field(default_factory=set)
    points: int = 0
    seconds: float = 0.0
    damages: Counter[Damage] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def line(self, store: str, kind: str) -> str:
        damages = "".join(f"{self.damages[damage]:>9}" for damage in Damage)
        return f"{store:<13} {kind:<10} {len(self.scenarios):>9} {self.points:>13}{damages} {self.seconds:>8.0f} s"


HEAD = f"{'store':<13} {'what':<10} {'scenarios':>9} {'crash points':>13}" + "".join(f"{d:>9}" for d in Damage)


def damages_of(scenario: Scenario, whole: Run, wrong: Trouble, place: Place) -> Iterator[tuple[Damage, str]]:
    """What one trouble damaged. What does not end, or leaves messages, is lost.

    :param whole: the life in which nothing goes wrong.
    """
    try:
        found = live(scenario, wrong, place=place)
    except Exception as error:
        yield Damage.LOST, f"{type(error).__name__}: {error}"[:2000]
        return
    for difference in compare(scenario, whole, found, wrong):
        yield difference.damage, difference.text


def points(kind: Kind, run: Run, *, sample: int | None, seed: str) -> list[Trouble]:
    """All, or so many. :param run: undisturbed, of the kind's crew."""
    every = list(troubles(kind, run))
    return every if sample is None else random.Random(seed).sample(every, min(sample, len(every)))


def go_through(
    scenario: Scenario,
    kinds: Sequence[Kind],
    place: Place,
    *,
    sample: int | None = None,
    half: int | None = None,
    only: Sequence[Trouble] | None = None,
) -> Iterator[tuple[Kind, Count]]:
    """One scenario on one store: a count for each kind.

    :param sample: so many points of each kind, instead of all. :param half: one half of them, 0 or 1.
    :param only: these points, whatever there are.
    """
    for kind in kinds:
        count, began = Count({scenario.name}), time.monotonic()
        chosen = [wrong for wrong in only or () if wrong.kind is kind]
        if only is None:
            run = undisturbed(scenario, place, CREWS.get(kind, Crew.ALONE))
            chosen = points(kind, run, sample=sample, seed=f"{scenario} {place}")[half or 0 :: 1 if half is None else 2]
        for wrong in chosen:
            count.points += 1
            for damage, text in damages_of(scenario, undisturbed(scenario, place), wrong, place):
                count.damages[damage] += 1
                line = f"{MODULE} --store {place} --scenario {scenario} --only {wrong}"
                count.told.append(f"{damage} ({line}): {text}")
        count.seconds = time.monotonic() - began
        yield kind, count


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    options = _options().parse_args(arguments)
    stores, names = options.store or STORES, options.scenario or list(SCENARIOS)
    if options.only:
        return max(_once(SCENARIOS[name], trouble(options.only), store) for store in stores for name in names)
    kinds = [Kind(kind) for kind in options.kind] or list(Kind)
    counts: dict[tuple[str, Kind], Count] = {(store, kind): Count() for store in stores for kind in kinds}
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = {
            pool.submit(_part, store, name, kind, options.sample): (store, name, kind)
            for store in stores
            for name in names
            for kind in kinds
        }
        for done in as_completed(parts):
            (store, name, kind), count = parts[done], done.result()
            print(f"{store} {name} {kind}: {count.points} in {count.seconds:.0f} s", file=sys.stderr, flush=True)
            for line in count.told:
                print(line, file=sys.stderr, flush=True)
            _add(counts[store, kind], count)
    total = Count()
    print(HEAD)
    for (store, kind), count in counts.items():
        print(count.line(store, kind))
        _add(total, count)
    print(total.line("all", ""))
    return 1 if total.told else 0


def _part(store: str, name: str, kind: Kind, sample: int | None) -> Count:
    """In a process of its own."""
    with ExitStack() as stack:
        ((_, count),) = go_through(SCENARIOS[name], [kind], _place(store, stack), sample=sample)
    return count


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    parser.add_argument("--store", action="append", choices=STORES, help="else all; repeats")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="else all; repeats")
    parser.add_argument("--kind", action="append", choices=list(Kind), default=[], help="else all; repeats")
    parser.add_argument("--sample", type=int, help="so many points of each kind and scenario, instead of all")
    parser.add_argument("--only", help="one trouble, as printed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    return parser


def _place(store: str, stack: ExitStack) -> Place:
    if store != "azurite":
        return MEMORY if store == "sqlite" else WHOLE
    emulators = stack.enter_context(ExitStack())
    lives = itertools.count()
    current: list[Still] = []

    def open(clock: VirtualClock) -> AzureStore:
        if next(lives) % LIVES == 0:
            emulators.close()
            current[:] = [emulators.enter_context(still_azurite())]
        return current[0].store()

    return azurite_at(open)


def azurite_at(open: Callable[[VirtualClock], AzureStore]) -> Place:
    """An emulator, with the lease times of Azure."""
    return Place(name="azurite", open=open, shared=True, lease=AZURE_LEASE)


def _once(scenario: Scenario, wrong: Trouble, store: str) -> int:
    with ExitStack() as stack:
        place = _place(store, stack)
        found = list(damages_of(scenario, undisturbed(scenario, place), wrong, place))
    print("\n".join(f"{damage}: {text}" for damage, text in found) or "nothing lost, nothing doubled")
    return 1 if found else 0


def _add(total: Count, count: Count) -> None:
    total.scenarios |= count.scenarios
    total.points += count.points
    total.seconds += count.seconds
    total.damages += count.damages
    total.told += count.told


if __name__ == "__main__":
    sys.exit(main())
