"""Plays the cases of :mod:`case_files`. The workers are the real ones, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from airflow_provider_taskhub.app import OrchestrationError
from airflow_provider_taskhub.errors import TaskHubError, Unavailable
from airflow_provider_taskhub.storage.faults import Call, Fault
from tests.simulation.case_files import Case, Command, Expect, Step, app_of, ask, check
from tests.simulation.world import RARE_RENEWALS, Machine, Place, World, simulate


class Stage:
    """A world in which a case is played.

    :ivar begun: the activities that began, and at which second, in order.
    :ivar done: the activities that came to their end without an error.
    :ivar moments: what happened, in order: ``("begin", name, attempt)``, ``("end", name, attempt)``,
        ``("do", "", number of the command)``. A cancelled attempt has no end.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.begun: list[tuple[str, float]] = []
        self.done: list[str] = []
        self.moments: list[tuple[str, str, int]] = []
        self.began = 0.0
        self.running = self.at_once = 0
        self.app = app_of(case, self._activity)

    async def _activity(self, step: Step) -> None:
        name = str(step.call)
        self.begun.append((name, asyncio.get_running_loop().time() - self.began))
        tries = sum(one == name for one, _ in self.begun)
        self.moments.append(("begin", name, tries))
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        try:
            await asyncio.sleep(step.seconds)
        finally:
            self.running -= 1
        self.moments.append(("end", name, tries))
        if tries <= step.fails:
            raise OrchestrationError(f"{name} does not work", retryable=not step.final)
        self.done.append(name)


def play(case: Case, place: Place) -> Stage:
    """Play a case, and check what came of it.

    :raises AssertionError: if the result is not what the case expects.
    """
    stage = Stage(case)
    if not any(command.kill or command.drain or command.cut for command in case.do):
        place = replace(place, lease=RARE_RENEWALS)

    async def main() -> None:
        async with World(stage.app, place=place, activities=case.slots) as world:
            stage.began = world.clock.monotonic()
            for name in case.workers:
                await world.join(name)
            script = [world.spawn(_do(world, stage, at)) for at in range(len(case.do))]
            try:
                await asyncio.gather(*script)
                ids = case.expect.instances
                for instance_id in ids:
                    await world.wait(instance_id)
                ended = await world.ended()
            except BaseException:
                for task in script:
                    task.cancel()
                raise
            found = {name: (state[0], state[1]) for name, state in ended.states.items()}
            check(case.expect, [name for name, _ in stage.begun], stage.done, stage.at_once, found)
            _check_times(case.expect, stage.begun)

    simulate(main)
    return stage


def _check_times(expect: Expect, begun: list[tuple[str, float]]) -> None:
    for first, last in expect.quiet:
        early = [one for one in begun if first <= one[1] <= last]
        assert not early, f"begun between {first} s and {last} s: {early}"
    for name, second in expect.before:
        assert min(at for one, at in begun if one == name) < second, f"{name} began late: {begun}"
    for name, second in expect.after:
        assert max(at for one, at in begun if one == name) > second, f"{name} began early: {begun}"


async def _do(world: World, stage: Stage, number: int) -> None:
    command = stage.case.do[number]
    await world.clock.sleep(command.at)
    stage.moments.append(("do", "", number))
    refusal: TaskHubError | None = None
    try:
        await _carried_out(world, command)
    except TaskHubError as error:
        refusal = error
    found = None if refusal is None else type(refusal).__name__
    assert found == command.refused, f"{command!r}: {refusal!r}"


async def _carried_out(world: World, command: Command) -> None:
    match command:
        case Command(join=str(name)):
            await world.join(name)
        case Command(kill=str(name)):
            await _worker(world, name).bury()
        case Command(drain=str(name)):
            await _worker(world, name).stop()
        case Command(cut=str(name)):
            await _cut(world, name, command.seconds)
        case _:
            await ask(world.client, command)


def _worker(world: World, name: str) -> Machine:
    return next(machine for machine in world.machines if machine.name == name and not machine.dead)


async def _cut(world: World, name: str, seconds: float) -> None:
    def silent(call: Call) -> Fault:
        return Fault(before=Unavailable("no answer (fault)"))

    machines = [machine for machine in world.machines if not machine.dead and name in ("*", machine.name)]
    kept = [(machine, machine.plan, machine.leases) for machine in machines]
    for machine in machines:
        machine.plan = machine.leases = silent
    await world.clock.sleep(seconds)
    for machine, plan, leases in kept:
        machine.plan, machine.leases = plan, leases
