"""A scenario lived through with one thing going wrong, and compared with the undisturbed life (K26, K27, K29).

What goes wrong is a :class:`Trouble`: which kind, and at which storage call or delivery. ``crash`` goes through all of
them; ``test_deaths`` through a sample.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, partial
from typing import Any

from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.storage.faults import Call, Fault, Plan, late, lost, straggling, unsent
from airflow_provider_taskhub.storage.primitives import DeleteBlob, Entity, RowOperation, RowVerb, Transact
from tests.simulation.scenarios import Scenario
from tests.simulation.world import (
    AFTER,
    BEFORE,
    MEMORY,
    POLLS,
    Death,
    Effects,
    Ended,
    Machine,
    Place,
    World,
    simulate,
)


class Crew(StrEnum):
    """Who works: one; two, with a partition each; one that serves the only partition, and another; two that both
    believe to serve it (K10)."""

    ALONE = "alone"
    NEIGHBOURS = "neighbours"
    PAIR = "pair"
    TWINS = "twins"


class Kind(StrEnum):
    """What goes wrong, at the n-th storage call of the first worker (receive or delivery where it is about those).

    Twins and neighbours count together: which of them does what is not decided.
    """

    BEFORE = BEFORE  # it dies before the call
    AFTER = AFTER  # it dies after it
    LOST = "lost"  # done, its answer lost
    UNSENT = "unsent"  # not done, and nobody can know
    OVERTAKEN = "overtaken"  # its sender gave up and went on; it is done half a second later
    BACKWARDS = "backwards"  # of what may be done at the same time, the last is done first, with time between
    UNHEARD = "unheard"  # messages were received, and the answer was lost
    TWICE = "twice"  # a message is delivered again while it is being processed
    MOVED = "moved"  # its partition is served by the other from now on, while its episode goes on
    SILENT = "silent"  # its lease is renewed no more, until the other has taken it
    TWINS = "twins"  # both serve the partition, and this call is late
    LEFT = "left"  # whoever makes the call dies after it, and its neighbour, at work as well, goes on


DEATHS = (Kind.BEFORE, Kind.AFTER)
CREWS = {
    Kind.BACKWARDS: Crew.NEIGHBOURS,
    Kind.TWICE: Crew.PAIR,
    Kind.MOVED: Crew.PAIR,
    Kind.SILENT: Crew.PAIR,
    Kind.TWINS: Crew.TWINS,
    Kind.LEFT: Crew.NEIGHBOURS,
}
COUNTED_TOGETHER = (Crew.TWINS, Crew.NEIGHBOURS)
STRAGGLES = 0.5
"""Seconds: behind the first repetition, 0.1 s later, and what follows it."""
LATE = 0.7
OVER = 2.0
"""Seconds after which what was on its way has arrived."""
SILENCE = 2.5
"""How long a lease is not renewed, in times after which another worker takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """:param point: number of the call or delivery; a name for the ``count``-th time of a named crash point."""

    kind: Kind
    point: int | str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}-{self.point}-{self.count}"

    @property
    def crew(self) -> Crew:
        return CREWS.get(self.kind, Crew.ALONE)


def trouble(text: str) -> Trouble:
    """What its text says."""
    kind, point, count = text.split("-")
    return Trouble(kind=Kind(kind), point=int(point) if point.isdigit() else point, count=int(count))


@dataclass(slots=True, kw_only=True)
class Run:
    """One life of a scenario.

    :param calls, receives, deliveries, points: of the first worker, calls of twins together. :param steps: of all.
    :param attempts: of recorded activities, by instance and task.
    :param executions: generations of each instance that were ever committed.
    """

    ended: Ended
    calls: int
    receives: int
    deliveries: int
    steps: int
    points: dict[str, int]
    effects: Effects
    hints: tuple[str, ...]
    attempts: dict[tuple[str, int], list[RecordState]] = field(default_factory=dict)
    executions: dict[str, int] = field(default_factory=dict)


def live(scenario: Scenario, wrong: Trouble | None = None, *, place: Place = MEMORY, crew: Crew | None = None) -> Run:
    """The scenario, with one thing going wrong. A worker that dies is followed by another."""
    effects = Effects()
    crew = crew or (wrong.crew if wrong else Crew.ALONE)

    async def play() -> Run:
        partitions = 2 if crew in (Crew.ALONE, Crew.NEIGHBOURS) else 1
        async with World(scenario.app_of(effects), partitions=partitions, place=place) as world:
            first = await world.join("first", **_options(wrong))
            if crew is not Crew.ALONE:
                await _crew(world, first, crew, wrong)

            async def follow() -> None:
                await first.died.wait()
                await world.join("follower")

            following = asyncio.ensure_future(follow())
            await scenario.drive(world)
            if wrong is not None:
                await world.clock.sleep(OVER)
            ended = await world.ended()
            following.cancel()
            return await _seen(world, crew, ended, effects)

    found = simulate(play)
    assert isinstance(found, Run)
    return found


@cache
def undisturbed(scenario: Scenario, place: Place = MEMORY, crew: Crew = Crew.ALONE) -> Run:
    """The scenario with nothing going wrong. It is lived once, because it always ends the same."""
    return live(scenario, place=place, crew=crew)


def _options(wrong: Trouble | None) -> dict[str, Any]:
    """How the first worker is made."""
    if wrong is None:
        return {}
    if wrong.kind in DEATHS:
        return {"death": Death(point=wrong.point, side=wrong.kind, count=wrong.count)}
    number = wrong.point
    assert isinstance(number, int)
    faults: dict[Kind, Callable[[], Fault]] = {
        Kind.LOST: lost,
        Kind.UNSENT: unsent,
        Kind.OVERTAKEN: lambda: straggling(STRAGGLES),
    }
    if wrong.kind in faults:
        return {"plan": nth(number, faults[wrong.kind])}
    return {wrong.kind.value: number} if wrong.kind in (Kind.TWICE, Kind.UNHEARD) else {}


def nth(number: int, happens: Callable[[], Fault | None], calls: Iterator[int] | None = None) -> Plan:
    """A plan with one fault, at the n-th call that is no poll. :param calls: counts them, those of others too."""
    calls = calls or itertools.count(1)

    def plan(call: Call) -> Fault | None:
        return happens() if call.kind not in POLLS and next(calls) == number else None

    return plan


async def _crew(world: World, first: Machine, crew: Crew, wrong: Trouble | None) -> None:
    await world.clock.sleep(1.0)
    second = await world.join("second")
    await world.clock.sleep(1.0)
    while crew is Crew.NEIGHBOURS and not (first.owner.tenures and second.owner.tenures):
        await world.clock.sleep(1.0)
    if crew is Crew.TWINS:
        share(first, second)
    if wrong is None or not isinstance(wrong.point, int):
        return

    def silence() -> None:
        until = world.clock.monotonic() + SILENCE * world.settings.lease_times.take.total_seconds()
        first.leases = lambda call: unsent() if world.clock.monotonic() < until else None

    if wrong.kind is Kind.BACKWARDS:
        world.backwards = wrong.point
    elif wrong.kind is Kind.TWINS:
        first.plan = second.plan = nth(wrong.point, lambda: late(LATE))
    elif wrong.kind is Kind.LEFT:
        calls = itertools.count(1)
        for one in (first, second):
            one.plan = nth(wrong.point, partial(leave, one), calls)
    elif wrong.kind is Kind.MOVED:
        first.plan = nth(wrong.point, lambda: move(first, second))
    elif wrong.kind is Kind.SILENT:
        first.plan = nth(wrong.point, silence)


def share(first: Machine, second: Machine) -> None:
    """Both believe to serve what one of them serves."""
    for tenure in first.owner.tenures:
        second.backend.taken(tenure)
    for tenure in second.owner.tenures:
        first.backend.taken(tenure)


def leave(machine: Machine) -> Fault:
    machine.die()
    return Fault(after=asyncio.CancelledError())


def move(first: Machine, second: Machine) -> None:
    """Without a drain, and without the loser's episodes being told."""
    for tenure in first.owner.tenures:
        first.backend.lost(tenure, "moved on purpose")
        second.backend.taken(tenure)


async def _seen(world: World, crew: Crew, ended: Ended, effects: Effects) -> Run:
    first = world.machines[0]
    run = Run(
        ended=ended,
        calls=sum(machine.calls for machine in world.machines) if crew in COUNTED_TOGETHER else first.calls,
        receives=first.store.receives,
        deliveries=first.store.deliveries,
        steps=world.steps,
        points=dict(first.points),
        effects=effects,
        hints=await world.client.watches.completions(),
        executions=_executions(world),
    )
    for instance_id in ended.states:
        for record in await world.client.instance(instance_id).activities():
            run.attempts.setdefault((instance_id, record.task_id), []).append(record.state)
    return run


def _executions(world: World) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for done in world.tape:
        if isinstance(done.operation, Transact) and done.operation.table == world.client.hub.names.history:
            sentinel = done.operation.rows[-1].entity
            found.setdefault(sentinel.partition_key, set()).add(str(sentinel.properties["ExecutionId"]))
    return {instance_id: len(ids) for instance_id, ids in found.items()}


def troubles(kind: Kind, run: Run) -> Iterator[Trouble]:
    """Everywhere that it can happen. :param run: undisturbed, of the kind's crew."""
    if kind in DEATHS:  # numbers, and each time of each name
        for name, times in run.points.items():
            side, _, point = name.partition("-")
            if side == kind:
                yield from (Trouble(kind=kind, point=point, count=count) for count in range(1, times + 1))
    counts = {Kind.TWICE: run.deliveries, Kind.UNHEARD: run.receives, Kind.BACKWARDS: run.steps}
    for number in range(1, counts.get(kind, run.calls) + 1):
        yield Trouble(kind=kind, point=number)


class Damage(StrEnum):
    LOST = "lost"
    DOUBLED = "doubled"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    damage: Damage
    text: str

    def __str__(self) -> str:
        return f"{self.damage}: {self.text}"


def compare(scenario: Scenario, undisturbed: Run, run: Run, wrong: Trouble) -> Iterator[Difference]:
    """What is not as in the undisturbed life. Recorded activities: one death may cost one attempt that was running."""
    if scenario.unordered and wrong.kind not in DEATHS:
        undisturbed, run = _sorted(undisturbed), _sorted(run)
    yield from _states(undisturbed, run)
    for name in undisturbed.ended.histories:
        before = Counter(undisturbed.ended.histories[name])
        after = Counter(run.ended.histories.get(name, ()))
        yield from (_lost(f"{name}: {text}") for text in (before - after).elements())
        yield from (_doubled(f"{name}: {text}") for text in (after - before).elements())
    yield from (_lost(f"hint of {name}") for name in set(undisturbed.hints) - set(run.hints))
    yield from (_doubled(f"hint of {name}") for name in set(run.hints) - set(undisturbed.hints))
    yield from _attempts(undisturbed, run, deaths=1 if wrong.kind in (*DEATHS, Kind.LEFT) else 0)
    for name, count in run.executions.items():
        if count != undisturbed.executions.get(name):
            yield _doubled(f"{count} generations of {name} were begun, not {undisturbed.executions.get(name)}")


def _states(undisturbed: Run, run: Run) -> Iterator[Difference]:
    before, after = undisturbed.ended.states, run.ended.states
    yield from (_lost(f"instance {name}") for name in before.keys() - after.keys())
    yield from (_doubled(f"instance {name}") for name in after.keys() - before.keys())
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            yield Difference(damage=Damage.CHANGED, text=f"{name} is {after[name]}, not {before[name]}")


def _attempts(undisturbed: Run, run: Run, *, deaths: int) -> Iterator[Difference]:
    """Side effects: what ran undisturbed ran; nothing else did; with a record as often as its records say."""
    ran, meant = run.effects.ran, undisturbed.effects.ran
    yield from (_lost(f"run of {what}") for what in meant if not ran[what])
    yield from (_doubled(f"run of {what}") for what in ran if not meant[what])
    yield from (_lost(f"attempt {place}") for place in undisturbed.attempts.keys() - run.attempts.keys())
    yield from (_doubled(f"attempt {place}") for place in run.attempts.keys() - undisturbed.attempts.keys())
    for place, states in run.attempts.items():
        meant_state = undisturbed.attempts.get(place, states)[-1]
        if states[-1] is not meant_state:
            damage = Damage.CHANGED if states[-1] in _OUTCOMES else Damage.LOST
            yield Difference(damage=damage, text=f"{place} ended {states}, not {meant_state}")
        if any(state is not RecordState.LOST for state in states[:-1]):
            yield _doubled(f"attempts of {place}: {states}")
    for what, count in ran.items():
        if what[0] == "kept" and count > 1 + deaths:
            yield _doubled(f"{count} runs of {what}")
    kept = sum(count for (name, _), count in ran.items() if name == "kept")
    if kept > sum(map(len, run.attempts.values())):
        yield _doubled(f"{kept} runs of recorded activities with {sum(map(len, run.attempts.values()))} records")


_OUTCOMES = (RecordState.COMPLETED, RecordState.FAILED, RecordState.CANCELLED)


def _lost(text: str) -> Difference:
    return Difference(damage=Damage.LOST, text=text)


def _doubled(text: str) -> Difference:
    return Difference(damage=Damage.DOUBLED, text=text)


def _sorted(run: Run) -> Run:
    """Queues promise no order, and what is put again comes later: which event came when is not compared.

    The outputs, lists of all events, are compared sorted, so none is missing and none is there twice.
    """
    states, histories = {}, {}
    for name, (status, output, custom_status) in run.ended.states.items():
        events = json.loads(output) if output and output.startswith("[") else None
        states[name] = (status, json.dumps(sorted(events)) if events else output, custom_status)
        histories[name] = [_VALUE.sub(r"\1: …", text) for text in run.ended.histories[name]]
    return replace(run, ended=Ended(histories=histories, states=states))


_VALUE = re.compile(r"('input'|'result'): '[^']*'")


async def without_blob(world: World) -> None:
    """Make the cut-off generation switch of the instance ``one`` a switch of an older version, which wrote no blob."""
    names = world.client.hub.names
    before = (await load(world.store, names, "one")).sentinel
    assert before is not None
    assert before.unwritten is not None
    assert not before.complete
    sentinel = Entity(partition_key="one", row_key="sentinel", properties={"TaskHubUnwritten": ""})
    merge = RowOperation(verb=RowVerb.MERGE, entity=sentinel, etag="*")
    await world.store.execute(Transact(table=names.history, rows=(merge,)))
    await world.store.execute(DeleteBlob(container=names.large_messages, name=before.unwritten))
