"""Random programs (``tests.e2e.explore``) on workers that die at random storage calls, in virtual time.

``python -m tests.simulation.random_programs --worlds 100 --seed 1``: each world is a hub with two workers and some
programs. A worker dies at one of its next storage calls again and again, and another takes its place. Answers get lost,
and requests come late. The outcome of the programs is compared with the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import ExecutionStarted, Status, TaskScheduled
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.storage.faults import Call, Fault, Plan, lost, straggling, unsent
from tests.e2e.explore.app import outcome, program
from tests.e2e.explore.driver import Wrong, by_program, carry_out, check
from tests.e2e.explore.generator import Program, Step, make
from tests.simulation.world import AFTER, BEFORE, MEMORY, POLLS, WHOLE, Death, Place, World, simulate

PROGRAMS = 20
"""Of one world."""
TOGETHER = 4
"""Programs that run at the same time: a world lasts long enough for some deaths."""
CALLS = 40
"""Storage calls within which a worker dies."""
FAULTY = 0.01
"""Part of the storage calls of a world with faults that go wrong."""


class Ran:
    """What the activities of a world did.

    :ivar lines: a line for each begin and end of a run, in the order of time: key, execution id, call, attempt, and
        ``begin`` or ``end``.
    :ivar undone: of those, the calls of checkpoints that were cut off: the orchestrator made the call again with
        another number, because other messages had come first.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._actions: dict[tuple[str, ...], str] = {}
        self._places: dict[tuple[str, str], str] = {}
        self.undone: set[tuple[str, ...]] = set()
        self.client: Client | None = None

    def app(self) -> App:
        """The app of the real workers, but for activities that sleep in virtual time."""
        app = App("explored")
        app.orchestrator(program)

        @app.activity
        async def plain(step: dict[str, Any]) -> Any:
            return await self._carry_out(step)

        @app.activity(record=True)
        async def recorded(step: dict[str, Any]) -> Any:
            return await self._carry_out(step)

        return app

    async def counted(self) -> list[str]:
        """The lines of calls that count. Of the last generation of an instance, its history tells which."""
        for place, instance_id in self._places.items():
            calls = {line.split()[2] for line in self.lines if line.startswith(f"{' '.join(place)} ")}
            if len(calls) > 1:
                actions = await self._scheduled(instance_id, place[1])
                self.undone |= {
                    (*place, call)
                    for call in calls
                    if actions is not None and actions.get(int(call)) != self._actions[*place, call]
                }
        return [line for line in self.lines if tuple(line.split()[:3]) not in self.undone]

    async def _carry_out(self, step: dict[str, Any]) -> Any:
        info, key = activity_info(), step["key"]
        call = f"{key} {info.execution_id} {info.task_id} {info.attempt}"
        self.lines.append(f"{call} begin")
        self._actions[key, str(info.execution_id), str(info.task_id)] = info.idempotency_key
        self._places[key, str(info.execution_id)] = info.instance_id
        earlier = {int(line.split()[2]) for line in self.lines if line.startswith(f"{key} {info.execution_id} ")}
        earlier = {number for number in earlier if number < info.task_id}
        if earlier:
            names = {number: (key, str(info.execution_id), str(number)) for number in earlier}
            actions = await self._scheduled(info.instance_id, str(info.execution_id))
            undone = {
                number
                for number, name in names.items()
                if actions is not None and actions.get(number) != self._actions[name]
            }
            self.undone |= {names[number] for number in undone}
            earlier -= undone
        await asyncio.sleep(step["seconds"])
        self.lines.append(f"{call} end")
        return outcome(step, len(earlier) + 1)

    async def _scheduled(self, instance_id: str, execution_id: str) -> dict[int, str | None] | None:
        """Return the identities of the calls in the history of a generation, by number; None: a later one is there. A
        retry is made when the failed call is in the history.
        """
        assert self.client is not None
        try:
            events, _ = await self.client.instance(instance_id).readable_history()
        except InstanceNotFound:
            return None
        started = next((event for event in events if isinstance(event, ExecutionStarted)), None)
        if started is None or started.instance.execution_id != execution_id:
            return None
        return {event.event_id: event.taskhub_action_id for event in events if isinstance(event, TaskScheduled)}


def faults(dice: random.Random) -> Plan:
    """Some calls are lost, or their answers, or they come late."""

    def plan(call: Call) -> Fault | None:
        if call.kind in POLLS or dice.random() >= FAULTY:
            return None
        return dice.choice([lost, unsent, lambda: straggling(0.5)])()

    return plan


def explored(
    seed: int, *, place: Place = MEMORY, faulty: bool = False, branches: bool = True
) -> tuple[Wrong, Sequence[Program], int]:
    """One world. :returns: what is wrong, the programs, and how many workers died."""
    dice = random.Random(seed)
    programs = [make(seed, number, branches=branches) for number in range(PROGRAMS)]
    ran = Ran()
    wrong: Wrong = defaultdict(list)

    async def play() -> int:
        async with World(ran.app(), partitions=2, place=place) as world:
            ran.client = world.client
            deaths = world.spawn(_die_again_and_again(world, dice, faulty=faulty))
            await carry_out(world.client, programs, wrong, together=TOGETHER)
            deaths.cancel()
            await check(world.client, programs, wrong, by_program(await ran.counted()))
            rows = (await world.client.list(limit=1000)).instances
            ended = {row.execution_id or "" for row in rows if row.status is Status.TERMINATED}
            for made in programs:
                if texts := outlived(made["steps"], ran.lines, ended, only_recorded=faulty):
                    wrong[made["id"]] += texts
            for name in wrong:
                with suppress(InstanceNotFound):
                    events, _ = await world.client.instance(name).readable_history()
                    wrong[name] += [f"    {event!r:.400}" for event in events]
            for entry in world.defects():
                wrong["defects"].append(f"{entry!r:.2000}")
            return sum(machine.dead for machine in world.machines)

    return wrong, programs, simulate(play)


def outlived(
    steps: Sequence[Step], effects: Sequence[str], ended: Collection[str], *, only_recorded: bool
) -> list[str]:
    """Return which activities of children ran after their parent had seen the end of the child that it cancelled.

    The parent does not wait for what a grandchild has left running that has failed or returned by itself, and not for
    calls from before a ``continue_as_new``.

    :param effects: what activities wrote, in the order of time.
    :param ended: execution ids of the instances that were terminated.
    :param only_recorded: a worker may have been cut off from the store: then it may still run an activity without a
        record, as ``docs/how-to/branches.md`` says.
    """
    told: list[str] = []
    for step in _parts(steps):
        if "after" not in step:
            continue
        parts = [part for part in _parts([step["of"]], children=True) if "key" in part]
        keys = {part["key"] for part in parts if part.get("record") or not only_recorded}
        marks = [at for at, line in enumerate(effects) if line.startswith(f"{step['after']['key']} ")]
        late = effects[marks[0] :] if marks else ()
        told += [
            f"after the end of its instance, which was cancelled: {line}"
            for line in late
            if line.split()[0] in keys and line.split()[1] in ended
        ]
    return told


def _parts(steps: Sequence[Step], *, children: bool = False) -> Iterator[Step]:
    """These steps and what they consist of. :param children: also the steps of children."""
    for step in steps:
        yield step
        of = step.get("of", [])
        yield from _parts([of] if isinstance(of, dict) else of, children=children)
        if children:
            yield from _parts(step.get("steps", []), children=children)


async def _die_again_and_again(world: World, dice: random.Random, *, faulty: bool) -> None:
    numbers = iter(range(1_000_000))

    async def join() -> Any:
        plan = faults(dice) if faulty else lambda call: None
        return await world.join(f"w{next(numbers)}", proves=dice.random() < 0.5, plan=plan)

    machines = [await join(), await join()]
    while True:
        await asyncio.sleep(dice.uniform(0.0, 0.5))
        at = dice.randrange(2)
        victim = machines[at]
        victim.death = Death(point=victim.calls + dice.randint(1, CALLS), side=dice.choice([BEFORE, AFTER]))
        with suppress(TimeoutError):
            await asyncio.wait_for(victim.died.wait(), 2.0)
        await victim.bury()
        await asyncio.sleep(dice.choice([0.0, 0.2]))
        machines[at] = await join()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.random_programs", description=__doc__)
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--whole", action="store_true", help="checkpoints are there or not, as in the embedded store")
    parser.add_argument("--faulty", action="store_true", help="some storage calls go wrong, too")
    options = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.worlds):
        try:
            wrong, programs, deaths = explored(seed, place=WHOLE if options.whole else MEMORY, faulty=options.faulty)
        except Exception as error:  # of the world: it is told, and the next one is looked at
            print(f"world {seed}: {type(error).__name__}: {error!s:.2000}", file=sys.stderr, flush=True)
            counts["worlds broken"] += 1
            continue
        counts["programs"] += len(programs)
        counts["deaths"] += deaths
        counts["mismatches"] += len(wrong)
        for name, texts in wrong.items():
            root = "-".join(name.split("-")[:2])
            print(f"world {seed}, {name}:", *texts, sep="\n  ", file=sys.stderr)
            print(json.dumps(next((one for one in programs if one["id"] == root), None))[:4000], file=sys.stderr)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["mismatches"] or counts["worlds broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
