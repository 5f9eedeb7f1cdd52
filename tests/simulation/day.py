"""``python -m tests.simulation.day``: a day of a hub with limits, priorities and three tenants. Workers die and join.

The tenants are DAGs. ``large`` starts fan-outs and may never hold up ``small``, which starts runs with a few calls
every ten minutes. ``back`` is a backfill of low priority. Each calls plain activities, some with a record, and
activities with a limit, with a limit for each tenant, with a rate, and with a need of memory. The instances of
``small`` have a limit too. Prints what was counted, and ends with 1 if a limit, a rate or the memory of a worker was
exceeded, an instance did not end, a call was not made or one was made twice without a death, or a tenant waited longer
than it may.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import InstanceLimit
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.settings import AZURE_LEASE
from airflow_provider_taskhub.tags import DAG_TAG
from airflow_provider_taskhub.virtual_time import START
from tests.simulation.world import World, machine, running, simulate

_START = START.datetime()
SLOTS, WORKERS = 4, 4
LIMIT = 2
"""Attempts of the limited activity that may run at once, and those of the divided one for each tenant."""
STARTS, SPAN = 5, 60
"""At most so many attempts of the activity with a rate begin within so many seconds."""
NEED, MEMORY = 3, 8
"""GiB that an attempt of the activity with a need uses, and that a worker has."""
SMALL = InstanceLimit(name="small", instances=3)
TAKE = AZURE_LEASE.take.total_seconds() + AZURE_LEASE.visibility.total_seconds() + 60
"""Seconds until the calls of a dead worker are begun again at the latest."""


@dataclass
class Book:
    """What the activities and orchestrators note."""

    sent: dict[str, float] = field(default_factory=dict)
    """When each call was made, by its name; of a repeated episode: for the first time."""
    begun: dict[str, float] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    inside: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """The attempts that run, by what counts them: the limited activity, a tenant, or the memory of a worker."""
    most: Counter[str] = field(default_factory=Counter)
    """The most of them at once."""
    asked: list[float] = field(default_factory=list)
    """When the attempts of the activity with a rate have begun."""
    small: set[str] = field(default_factory=set)
    """The instances of ``small`` that have begun and not ended."""
    most_small: int = 0
    on: dict[str, str] = field(default_factory=dict)
    """The worker of each call that runs."""
    lost: set[str] = field(default_factory=set)
    """The calls that ran in a worker when it died."""


@dataclass(frozen=True)
class Figures:
    """What a day came to.

    :ivar most: the most attempts at once, by what counts them. Each may be :data:`LIMIT`.
    :ivar waits: by tenant, the longest seconds from a call to its beginning, without those that waited for more than a
        slot or were in a worker that died.
    """

    instances: int
    calls: int
    deaths: int
    repeated: int
    most: dict[str, int]
    most_small: int
    shortest_span: float
    waits: dict[str, float]
    wrong: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        yield f"{self.instances:,} instances, {self.calls:,} activities, {self.deaths} workers died"
        for what, most in sorted(self.most.items()):
            yield f"most attempts at once, {what}: {most} of {LIMIT}"
        yield f"shortest span of {STARTS + 1} starts: {self.shortest_span:.1f} s, at least {SPAN}"
        yield f"most instances of the limit at once: {self.most_small} of {SMALL.instances}"
        yield f"calls made again after a death: {self.repeated}"
        for tenant, wait in sorted(self.waits.items()):
            yield f"longest wait of a call of {tenant}: {wait:.1f} s"
        yield from self.wrong


def app_of(book: Book, now: Any) -> App:
    """Return the app.

    :param now: returns the present second.
    """
    app = App("day")

    async def _run(name: str, seconds: float) -> None:
        book.begun.setdefault(name, now())
        book.runs[name] += 1
        book.on[name] = machine()
        await asyncio.sleep(seconds)
        del book.on[name]

    @app.activity
    async def plain(given: tuple[str, float]) -> None:
        await _run(*given)

    @app.activity(record=True)
    async def kept(given: tuple[str, float]) -> None:
        await _run(*given)

    async def _counted(what: str, given: tuple[str, float]) -> None:
        key, inside = (given[0], running().attempt), book.inside.setdefault(what, set())
        inside.add(key)
        book.most[what] = max(book.most[what], len(inside))
        try:
            await _run(*given)
        finally:
            inside.discard(key)

    @app.activity(limit=LIMIT)
    async def load(given: tuple[str, float]) -> None:
        await _counted("load", given)

    @app.activity(limit=LIMIT, limit_key="tenant")
    async def divided(given: tuple[str, float]) -> None:
        await _counted(f"divided of {running().tags['tenant']}", given)

    @app.activity(rate=f"{STARTS}/m")
    async def rated(given: tuple[str, float]) -> None:
        book.asked.append(now())
        await _run(*given)

    @app.activity(memory=f"{NEED}g")
    async def needing(given: tuple[str, float]) -> None:
        await _counted(f"memory of {machine()}", given)

    @app.orchestrator
    async def run(ctx: OrchestrationContext, given: list[tuple[str, float]]) -> int:
        """:param given: for each call, the name of the activity and its seconds."""
        if ctx.instance_id.startswith("small"):
            book.small.add(ctx.instance_id)
            book.most_small = max(book.most_small, len(book.small))
        calls = []
        for number, (activity, seconds) in enumerate(given):
            name = f"{ctx.instance_id}/{activity}/{number}"
            book.sent.setdefault(name, (ctx.current_utc_datetime - _START).total_seconds())
            tags = {"tenant": ctx.instance_id.partition("-")[0]}
            calls.append(ctx.call_activity(activity, (name, seconds), tags=tags))
        count = len(await ctx.when_all(calls))
        book.small.discard(ctx.instance_id)
        return count

    return app


def _calls(rng: random.Random, count: int, limited: float) -> list[tuple[str, float]]:
    others = ("load", "divided", "rated", "needing")
    weights = (0.6, 0.4 - 4 * limited, *(limited for _ in others))
    names = rng.choices(("plain", "kept", *others), weights, k=count)
    return [(name, round(rng.uniform(5, 60), 1)) for name in names]


def day(activities: int, *, hours: float = 24, seed: int = 1) -> Figures:
    """Run a day.

    :param activities: about so many calls.
    :param hours: how long the tenants start instances.
    """
    rng, book = random.Random(seed), Book()
    rounds = round(hours * 6)
    per_round = activities / rounds
    deaths, started, calls = 0, 0, 0
    wrong: list[str] = []

    async def main() -> None:
        nonlocal deaths, started, calls
        clock: list[Any] = []
        app = app_of(book, lambda: clock[0].monotonic())
        async with World(app, partitions=4, lease=AZURE_LEASE, activities=SLOTS) as world:
            clock.append(world.clock)
            alive = [await world.join(f"w{number}", proves=True, memory=f"{MEMORY}g") for number in range(WORKERS)]
            born, ids = WORKERS, []

            async def start(tenant: str, count: int, limited: float, **options: Any) -> None:
                nonlocal started, calls
                name = f"{tenant}-{started}"
                started, calls = started + 1, calls + count
                ids.append(name)
                given = _calls(rng, count, limited)
                await world.client.start("run", given, instance_id=name, tags={DAG_TAG: tenant}, **options)

            for number in range(rounds):
                for _ in range(rng.choice((1, 1, 5))):
                    await start("small", 5, 0.06, limit=SMALL)
                if number % 18 == 0:
                    await start("large", round(per_round * 18 * 0.6), 0.02)
                if number % 6 == 0:
                    for _ in range(3):
                        await start("back", max(1, round((per_round * 0.4 - 5) * 2)), 0.02, priority=-1000)
                await world.clock.sleep(rng.uniform(5, 60))
                if number % 3 == 2:
                    dying = alive.pop(rng.randrange(len(alive)))
                    book.lost |= {name for name, worker in book.on.items() if worker == dying.name}
                    for inside in book.inside.values():
                        inside -= {key for key in inside if book.on.get(key[0]) == dying.name}
                    dying.die()
                    deaths += 1
                    await world.clock.sleep(rng.uniform(1, 120))
                    alive.append(await world.join(f"w{born}", proves=True, memory=f"{MEMORY}g"))
                    born += 1
                await world.clock.sleep(rng.uniform(200, 800))
            for name in ids:
                state = await world.client.wait(name, timeout=timedelta(hours=48))
                if state.status is not Status.COMPLETED:
                    wrong.append(f"{name} is {state.status}: {state.output}")
            wrong.extend(str(one) for one in world.defects())

    simulate(main, limit=timedelta(days=4))
    again = {name for name, count in book.runs.items() if count > 1}
    wrong += [f"ran {book.runs[name]} times without a death: {name}" for name in sorted(again - book.lost)]
    wrong += [f"was never run: {name}" for name in sorted(book.sent.keys() - book.runs.keys())]
    waits: dict[str, float] = {}
    for name, begun in book.begun.items():
        tenant = name.partition("-")[0]
        if name.split("/")[1] in ("plain", "kept") and name not in book.lost:
            waits[tenant] = max(waits.get(tenant, 0.0), begun - book.sent[name])
    asked = sorted(book.asked)
    span = min((later - first for first, later in zip(asked, asked[STARTS:], strict=False)), default=float(SPAN))
    # A worker has memory for two: the same number as the limits.
    if max(book.most.values()) > LIMIT or book.most_small > SMALL.instances or span < SPAN:
        wrong.append("a limit was exceeded")
    # What ``large`` and ``back`` have in the first queues, and what runs: each takes a slot for 60 s at most.
    fair = 4 * (16 + 1) / (SLOTS * (WORKERS - 1)) * 60 + 2 * 60 + TAKE
    if waits.get("small", 0.0) > fair:
        wrong.append(f"a call of small waited {waits['small']:.0f} s, more than {fair:.0f} s")
    return Figures(
        instances=started,
        calls=calls,
        deaths=deaths,
        repeated=sum(book.runs.values()) - len(book.runs),
        most=_by_kind(book.most),
        most_small=book.most_small,
        shortest_span=span,
        waits=waits,
        wrong=tuple(wrong),
    )


def _by_kind(most: Counter[str]) -> dict[str, int]:
    """Return the most of any worker's memory, and the other counts as they are."""
    found: dict[str, int] = {}
    for what, count in most.items():
        kind = "memory of a worker" if what.startswith("memory") else what
        found[kind] = max(found.get(kind, 0), count)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.day", description=__doc__)
    parser.add_argument("--activities", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    found = day(options.activities, hours=options.hours, seed=options.seed)
    for line in found.lines():
        print(line)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
