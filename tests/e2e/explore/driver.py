"""Carries programs out on real workers that are killed, and compares what becomes of them with the model.

``python -m tests.e2e.explore --count 3000 --seed 1 --store sqlite``. Of a mismatch the program, the instance's history
and the folder with the workers' logs and the hub are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError, InstanceNotFound
from airflow_provider_taskhub.hub.model import InstanceState
from tests.e2e.explore.generator import Program, make
from tests.e2e.explore.model import Prediction, differences, predict
from tests.e2e.house import House
from tests.e2e.storm import Fleet, corruption, place
from tests.waiting import until_async

APP = "explore.app:app"
CHUNK = 500
"""Programs on one hub."""
TOGETHER = 150
"""Programs that run at the same time."""
DEADLINE = timedelta(minutes=3)
"""From the start of a program to its end."""
ABSENT = 60.0
"""Seconds for which events are offered to a child that is not there, after the program's end."""
PAUSE = 0.1
OPTIONS = ("--activities", "8")


Wrong = dict[str, list[str]]
"""What is wrong, a line each, by instance id. Has a default: no line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """What was found otherwise than predicted."""

    instance_id: str
    texts: Sequence[str]
    program: Program | None


@dataclass(slots=True)
class Explored:
    """What an exploration did and found."""

    programs: int = 0
    instances: int = 0
    kills: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)


async def explore(
    house: House, programs: Sequence[Program], *, seed: int = 1, together: int = TOGETHER, apart: bool = False
) -> Explored:
    """Run programs on two workers until all have ended, and compare.

    One of the workers is killed when the first activity has run, and then one every 2 to 4 s.
    """
    (house.folder / "effects").mkdir()
    began, found = time.monotonic(), Explored(programs=len(programs))
    fleet = Fleet(house, 2, app=APP, seed=seed, options=OPTIONS, apart=apart)
    wrong: Wrong = defaultdict(list)
    async with house.client() as client:
        killing = asyncio.create_task(_kill(fleet, random.Random(seed), house.folder / "effects"))
        try:
            await carry_out(client, programs, wrong, together=together)
            await until_async("the first kill", lambda: fleet.kills)
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        found.kills = fleet.kills
        rows = await check(client, programs, wrong, by_program(_lines(house.folder / "effects")))
        found.instances = len(rows)
        found.statuses.update(str(row.status) for row in rows)
    await asyncio.to_thread(fleet.end)
    by_id = {program["id"]: program for program in programs}
    for instance_id, texts in wrong.items():
        root = "-".join(instance_id.split("-")[:2])
        found.mismatches.append(Mismatch(instance_id=instance_id, texts=texts, program=by_id.get(root)))
    found.seconds = time.monotonic() - began
    return found


async def carry_out(client: Client, programs: Sequence[Program], wrong: Wrong, *, together: int = TOGETHER) -> None:
    """Start programs, give their orders, and wait until all instances of the hub have ended."""
    room = asyncio.Semaphore(together)
    await asyncio.gather(*(_carry_out(client, program, room, wrong) for program in programs))
    expected = {name: one for program in programs for name, one in predict(program).instances.items()}
    await _settle(client, {name for name, one in expected.items() if one.sure and not one.may_terminate}, wrong)


async def _kill(fleet: Fleet, dice: random.Random, effects: Path) -> None:
    await until_async("an activity has run", lambda: any(effects.iterdir()))
    while True:
        new = await asyncio.to_thread(fleet.kill)
        await asyncio.to_thread(new.ready)  # on a busy machine a worker starts in more than 4 s: none would ever work
        await asyncio.sleep(dice.uniform(2.0, 4.0))


async def _carry_out(client: Client, program: Program, room: asyncio.Semaphore, wrong: Wrong) -> None:
    async with room:
        await client.start("program", {"steps": program["steps"], "out": []}, instance_id=program["id"])
        own = [order for order in program["orders"] if order["to"] == program["id"]]
        others = [order for order in program["orders"] if order["to"] != program["id"]]
        over = asyncio.Event()
        giving = [asyncio.create_task(_give(client, [order], over)) for order in others]
        giving.append(asyncio.create_task(_give(client, own, over)))
        try:
            await client.wait(program["id"], timeout=DEADLINE)
        except TimeoutError as error:
            wrong[program["id"]].append(str(error))
        over.set()
        await asyncio.gather(*giving)


async def _give(client: Client, orders: Sequence[Mapping[str, Any]], over: asyncio.Event) -> None:
    """Give orders to an instance, each at its time. :param over: set when the program has ended."""
    now = client.hub.clock.monotonic
    began = now()
    for order in orders:
        await asyncio.sleep(max(0.0, began + order["at"] - now()))
        given_up: float | None = None
        while given_up is None or now() < given_up:
            try:
                await _order(client, order)
                break
            except InputError:  # the instance has ended
                return
            except InstanceNotFound:  # a child that has not begun
                if over.is_set() and given_up is None:
                    given_up = now() + ABSENT
                await asyncio.sleep(PAUSE)


async def _order(client: Client, order: Mapping[str, Any]) -> None:
    match order["do"]:
        case "event":
            await client.raise_event(order["to"], order["name"], order["value"])
        case "suspend":
            await client.suspend(order["to"], "explored")
        case "resume":
            await client.resume(order["to"], "explored")
        case "terminate":
            grace = order.get("grace")
            await client.terminate(order["to"], "explored", grace=None if grace is None else timedelta(seconds=grace))


async def _all(client: Client) -> list[InstanceState]:
    found: list[InstanceState] = []
    continuation: str | None = None
    while True:
        page = await client.list(limit=1000, continuation=continuation)
        found += page.instances
        continuation = page.continuation
        if continuation is None:
            return found


async def _settle(client: Client, sure: Set[str], wrong: Wrong) -> None:
    """Wait for the instances for which no program waited: children that were forgotten, or lost a race.

    :param sure: ids that must appear: a forgotten child may begin after its parent has ended.
    """
    deadline = client.hub.clock.monotonic() + DEADLINE.total_seconds() / 3
    while True:
        rows = await _all(client)
        running = [row for row in rows if not row.status.is_final and row.instance_id not in wrong]
        if not running and sure <= {row.instance_id for row in rows} | wrong.keys():
            return
        if client.hub.clock.monotonic() > deadline:
            for row in running:
                wrong[row.instance_id].append(f"is {row.status} for ever")
            return
        await asyncio.sleep(0.5)


async def check(
    client: Client, programs: Sequence[Program], wrong: Wrong, effects: Mapping[str, Sequence[str]]
) -> list[InstanceState]:
    """Compare everything with the model. :param effects: lines of activities by program. :returns: all instances."""
    for kept in await client.admin.quarantined():
        wrong[kept.instance_id or "quarantine"].append(f"in quarantine: {kept.cause}")
    rows = await _all(client)
    predictions = {program["id"]: predict(program) for program in programs}
    there = {row.instance_id for row in rows}
    for name, prediction in predictions.items():
        for instance_id, expected in prediction.instances.items():
            if instance_id not in there and expected.sure and not expected.may_terminate:
                wrong[instance_id].append("was never started")
            elif instance_id in there and instance_id not in wrong:
                told = await _differences(client, instance_id, prediction)
                if told:
                    wrong[instance_id] += told
        if name not in wrong and (texts := list(miscalled(prediction, effects.get(name, ())))):
            wrong[name] += texts
    for row in rows:
        if row.status.is_final and (texts := await corruption(client, row.instance_id, all_answered=False)):
            wrong[row.instance_id] += texts
    return rows


async def _differences(client: Client, instance_id: str, prediction: Prediction) -> list[str]:
    row = await client.get(instance_id)
    assert row is not None
    output: Any = row.output
    if row.status is Status.COMPLETED and isinstance(output, str):
        output = json.loads(output)
    status = None if row.custom_status is None else json.loads(row.custom_status)
    return differences(prediction.instances[instance_id], status=str(row.status), output=output, custom_status=status)


def _lines(folder: Path) -> Iterable[str]:
    for file in folder.iterdir():
        yield from file.read_text().splitlines()


def by_program(lines: Iterable[str]) -> dict[str, list[str]]:
    """The lines that activities wrote, by their program's instance."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        found[line.partition(" ")[0].rpartition("-k")[0]].append(line)
    return found


def miscalled(prediction: Prediction, effects: Iterable[str]) -> Iterable[str]:
    """What activities did otherwise than predicted, a line each.

    :param effects: what they wrote: key, execution, call, attempt, and ``begin`` or ``end``.
    """
    runs = Counter(effects)
    calls: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in runs:
        key, execution, call, _, _ = line.split()
        calls[key][execution].add(call)
    for key, expected in prediction.calls.items():
        most = max((len(made) for made in calls[key].values()), default=0)
        if not expected.least <= most <= expected.most:
            yield f"activity {key} was called {most} times, not {expected.least} to {expected.most}"
    for line, count in runs.items():
        key, execution, call, attempt, what = line.split()
        wanted = prediction.calls.get(key)
        if wanted is None:
            yield f"activity {key} was called, which is never reached"
        elif wanted.record and count > 1:
            yield f"attempt {attempt} of {key}, {execution} {call}: {what} {count} times"


async def _story(house: House, mismatch: Mismatch) -> list[str]:
    """The history of an instance, a line for each event."""
    async with house.client() as client:
        with suppress(InstanceNotFound):
            events, unreadable = await client.instance(mismatch.instance_id).readable_history()
            return [repr(event)[:400] for event in events] + list(unreadable)
    return []


def report(house: House, found: Explored) -> None:
    """Tell of each mismatch, and keep what is needed to find its cause."""
    kept = Path(tempfile.mkdtemp(prefix="explore-"))
    for number, mismatch in enumerate(found.mismatches[:20]):
        told = {
            "instance": mismatch.instance_id,
            "wrong": list(mismatch.texts),
            "program": mismatch.program,
            "history": asyncio.run(_story(house, mismatch)),
        }
        (kept / f"mismatch{number}.json").write_text(json.dumps(told, indent=1))
        print(f"{mismatch.instance_id}: " + "; ".join(mismatch.texts), file=sys.stderr)
        print(f"  program: {json.dumps(mismatch.program)[:3000]}", file=sys.stderr)
    shutil.copytree(house.folder, kept / "house", ignore=shutil.ignore_patterns(".hub.db-*"))
    print(f"kept in {kept}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    options = _parser().parse_args(arguments)
    total, left, first = 0, options.count, options.first
    while left > 0:
        size = min(left, CHUNK)
        programs = [make(options.seed, number) for number in range(first, first + size)]
        with place(options.store) as house:
            running = explore(
                house, programs, seed=options.seed + first, together=options.together, apart=options.apart
            )
            found = asyncio.run(running)
            if found.mismatches:
                report(house, found)
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(found.statuses.items()))
        print(
            f"{options.store}: programs {first} to {first + size - 1} of seed {options.seed}: {found.instances} "
            f"instances ({statuses}), {found.kills} kills, {found.seconds:.0f} s, mismatches {len(found.mismatches)}",
            flush=True,
        )
        total += len(found.mismatches)
        left, first = left - size, first + size
    print(f"{options.store}: {options.count} programs, mismatches {total}")
    return 1 if total else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.explore", description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--together", type=int, default=TOGETHER, help="programs at the same time")
    parser.add_argument("--apart", action="store_true", help="no worker's lock file proves its death to the other")
    parser.add_argument("--store", default="sqlite", choices=("sqlite", "azurite"))
    return parser
