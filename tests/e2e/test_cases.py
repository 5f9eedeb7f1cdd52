"""A sample of the cases of ``tests/simulation/cases``, played by worker processes on a real store.

The test first plays the case in virtual time and notes the order of what happens. The processes repeat this order: each
activity ends, and each command is given, only in its turn. So the test does not depend on real time.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import TaskHubError
from tests.e2e.house import House, Worker
from tests.simulation.case_files import FOLDER, Command, ask, check, load
from tests.simulation.cases import play
from tests.simulation.world import MEMORY
from tests.waiting import PATIENCE, until_async

LIMIT = timedelta(seconds=PATIENCE)
ROOT = Path(__file__).parents[2]
SAMPLE = [
    "cancel-an-activity-by-the-end",
    "cancel-the-slower-activity",
    "continue-as-new",
    "failover-and-an-event",
    "failover-by-a-drain",
    "failover-of-a-recorded-activity",
    "restart-a-failure",
    "retry-and-go-on",
    "rewind-a-failure",
    "suspend-a-family",
    "suspend-keeps-events",
    "terminate-a-family-with-a-failure",
    "terminate-a-family-with-time",
    "terminate-a-fan-out",
    "timeout-of-a-slow-activity",
]

ON_AZURITE = ["cancel-the-slower-activity", "failover-of-a-recorded-activity", "suspend-a-family"]


class Stage:
    """The processes that play a case.

    :ivar moments: what happened in the play in virtual time, in order (:class:`tests.simulation.cases.Stage`).
    """

    def __init__(self, house: House, file: Path) -> None:
        self.house, self.file, self.case = house, file, load(file)
        self.moments = play(self.case, MEMORY).moments
        self.ends: list[asyncio.Task[None]] = []

    async def play(self) -> None:
        """Play the case to its end, and check what came of it."""
        for name in self.case.workers:
            self._join(name)
        expect = self.case.expect
        async with self.house.client() as client:
            told = Counter[str]()
            for kind, name, number in self.moments:
                if kind == "begin":
                    told[name] = number
                    await until_async(f"{name} begins", partial(self._has_begun, name, number))
                elif kind == "end":
                    self.house.folder.joinpath(f"go-{name}-{number}").touch()
                    await until_async(f"{name} ends", partial(self._has_left, name, number))
                else:
                    command = self.case.do[number]
                    if command.resume:
                        await until_async("the workers have read every message", partial(_is_quiet, client))
                    assert self._begun() <= told, f"begun too early: {self._begun() - told}"
                    carried_out = asyncio.create_task(self._do(client, command))
                    if command.terminate or command.drain:  # it may end only after what the play does next
                        self.ends.append(carried_out)
                    else:
                        await carried_out
            for task in self.ends:
                await task
            rows = {name: await client.wait(name, timeout=LIMIT) for name in expect.instances}
            for row in (await client.list(limit=1000)).instances:
                rows.setdefault(row.instance_id, row)
        for worker in self.house.workers:
            if worker.process.poll() is None:
                assert worker.end() == 0
        done = [line.split()[1] for line in self.house.effects() if line.startswith("done ")]
        found = {name: (str(row.status), row.output) for name, row in rows.items()}
        check(expect, list(self._begun().elements()), done, self._at_once(), found)

    def _join(self, name: str) -> None:
        path = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
        options = ("--activities", str(self.case.slots))
        self.house.worker(name, *options, app="case_app:app", CASE=str(self.file), PYTHONPATH=path).ready()

    async def _do(self, client: Client, command: Command) -> None:
        refusal = None
        try:
            await self._carried_out(client, command)
        except TaskHubError as error:
            refusal = type(error).__name__
        assert refusal == command.refused, f"{command!r}: {refusal}"

    async def _carried_out(self, client: Client, command: Command) -> None:
        match command:
            case Command(join=str(name)):
                await asyncio.to_thread(self._join, name)
            case Command(kill=str(name)):
                self._worker(name).kill()
                with self.house.folder.joinpath("effects").open("a") as file:
                    file.write(f"killed - {name}\n")
            case Command(drain=str(name)):
                assert await asyncio.to_thread(self._worker(name).end) == 0
            case Command(see=str(instance_id), status=status):
                await until_async(f"{instance_id} is {status}", lambda: _is(client, instance_id, status))
            case Command(suspend=str(instance_id)):
                await ask(client, command)
                await until_async("it is suspended", lambda: _is(client, instance_id, str(Status.SUSPENDED)))
            case _:
                await ask(client, command)
                if command.send and any(worker.process.poll() is None for worker in self.house.workers):
                    await until_async("the workers have read the event", partial(_is_quiet, client))

    def _worker(self, name: str) -> Worker:
        return next(worker for worker in self.house.workers if worker.name == name)

    def _has_begun(self, name: str, attempt: int) -> bool:
        return self._begun()[name] >= attempt

    def _has_left(self, name: str, attempt: int) -> bool:
        """Return True if at least ``attempt`` attempts have ended, were cancelled, or died with their worker."""
        lines = [line.split() for line in self.house.effects()]
        killed = {line[2] for line in lines if line[0] == "killed"}
        runs = Counter(line[2] for line in lines if line[:2] == ["begin", name])
        runs.subtract(line[2] for line in lines if line[:2] == ["left", name])
        return runs.total() - sum(runs[worker] for worker in killed) <= self._begun()[name] - attempt

    def _begun(self) -> Counter[str]:
        return Counter(line.split()[1] for line in self.house.effects() if line.startswith("begin "))

    def _at_once(self) -> int:
        """Return the largest number of activities that ran at the same time."""
        runs, most = Counter[tuple[str, str]](), 0
        for what, name, worker, *_ in (line.split() for line in self.house.effects()):
            if what == "begin":
                runs[name, worker] += 1
            elif what == "left":
                runs[name, worker] -= 1
            elif what == "killed":
                runs = Counter({run: count for run, count in runs.items() if run[1] != worker})
            most = max(most, runs.total())
        return most


async def _is_quiet(client: Client) -> bool:
    return not any(state.messages for state in await client.admin.partitions())


async def _is(client: Client, instance_id: str, status: str | None) -> bool:
    row = await client.get(instance_id)
    return (None if row is None else str(row.status)) == status


@pytest.mark.process
@pytest.mark.rows("D109")
@pytest.mark.parametrize(
    ("house", "name"),
    [*(("embedded", name) for name in SAMPLE), *(("azurite", name) for name in ON_AZURITE)],
    indirect=["house"],
)
def test_worker_processes_play_a_case_as_its_file_says(house: House, name: str) -> None:
    asyncio.run(Stage(house, FOLDER / f"{name}.toml").play())
