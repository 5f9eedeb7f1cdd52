"""``python -m tests.e2e.takeover``: the only worker is killed while many instances are open, and a new one goes on."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE
from tests.e2e.house import House, Worker
from tests.e2e.storm import place
from tests.waiting import until, until_async

APP = "tests.benchmarks.app:app"
AT_ONCE = 32
"""Requests of the client at the same time."""
PATIENCE = 3600.0
"""Seconds for all instances."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What was measured.

    :ivar begun: instances that waited for an event when the worker was killed.
    :ivar pending: instances that had not begun.
    :ivar owned: seconds from the start of the new worker until it had all partitions.
    :ivar first: seconds from the start of the new worker until it had answered an event to an instance.
    :ivar rest: seconds from then until all instances had got their event and ended.
    :ivar before: MiB of memory of the new worker when it was ready.
    :ivar most: MiB of its memory at most.
    :ivar wrong: instances that are not Completed.
    """

    begun: int
    pending: int
    owned: float
    first: float
    rest: float
    before: float
    most: float
    wrong: int

    def __str__(self) -> str:
        return (
            f"{self.begun} instances had begun, {self.pending} had not; the new worker had all partitions after "
            f"{self.owned:.1f} s and answered after {self.first:.1f} s, all others within {self.rest:.0f} s more; its "
            f"memory: {self.before:.0f} MiB when it was ready, at most {self.most:.0f} MiB; wrong {self.wrong}"
        )


async def take_over(house: House, instances: int) -> TakenOver:
    """Start so many instances, kill the worker when it has begun half of them, and start another one."""
    names = [f"i{number:06}" for number in range(instances)]
    async with house.client() as client:

        async def start(name: str) -> None:
            await client.start("waiting", 1, instance_id=name)

        async def answer(name: str) -> None:
            await client.instance(name).raise_event("go")

        await gather_bounded(start, names, limit=AT_ONCE)
        one = house.worker("one", app=APP).ready()
        await until_async(
            "half of them have begun", lambda: _are(client, Status.RUNNING, instances // 2), seconds=PATIENCE
        )
        one.kill()
        found = await client.count()
        began = time.monotonic()
        two = house.worker("two", app=APP).ready()
        before = _most_memory(two)
        until("all partitions are taken", lambda: two.text().count("partition_owner_changed") >= house.partitions)
        owned = time.monotonic() - began
        await answer(names[0])
        await client.wait(names[0], timeout=timedelta(seconds=PATIENCE))
        first = time.monotonic() - began
        await gather_bounded(answer, names[1:], limit=AT_ONCE)
        await until_async("all have ended", lambda: _have_ended(client), seconds=PATIENCE)
        return TakenOver(
            begun=found.get(Status.RUNNING, 0),
            pending=found.get(Status.PENDING, 0),
            owned=owned,
            first=first,
            rest=time.monotonic() - began - first,
            before=before,
            most=_most_memory(two),
            wrong=instances - (await client.count()).get(Status.COMPLETED, 0),
        )


async def _have_ended(client: Client) -> bool:
    return not await client.count(statuses=[Status.PENDING, Status.RUNNING])


async def _are(client: Client, status: Status, count: int) -> bool:
    return (await client.count(statuses=[status])).get(status, 0) >= count


def _most_memory(worker: Worker) -> float:
    """Return the most memory that the process of a worker has had, in MiB."""
    lines = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; the status to exit with."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.takeover", description=__doc__)
    parser.add_argument("--store", action="append", choices=("sqlite", "azurite"), help="else SQLite")
    parser.add_argument("--instances", type=int, default=100_000)
    options = parser.parse_args(arguments)
    wrong = 0
    for store in options.store or ("sqlite",):
        with place(store, EMBEDDED_LEASE if store == "sqlite" else AZURE_LEASE) as house:
            done = asyncio.run(take_over(house, options.instances))
        print(f"{store}: {done}", flush=True)
        wrong += done.wrong
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
