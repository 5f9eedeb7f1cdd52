"""``make publish-kills``: processes are killed while activities publish, and a reader polls all the time.

Each round starts one activity that publishes, kills a process at a random moment, waits for the end and compares what
the target has with what it must have. The reader must never see anything but the data of before or of after the round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.publishing import published
from airflow_provider_taskhub.publishing.stores import LocalFiles
from tests.e2e.house import House, Worker, housed
from tests.e2e.publishing_app import PARTS, ROWS
from tests.publishing.world import Target
from tests.waiting import until

APP = "publishing_app:app"
KINDS = {
    "executor": ("executor", False),
    "worker": ("worker", False),
    "spark executor": ("executor", True),
    "spark worker": ("worker", True),
    "jvm": ("jvm", True),
}
"""What is killed, and whether Spark writes."""
MODES = ("append", "overwrite_partitions", "append", "overwrite")
Data = Counter[tuple[int, int]]
"""Rows by load and partition."""


@dataclass
class Counts:
    """What a kind of kills has done."""

    kills: int = 0
    writing: int = 0
    """Kills after the attempt had begun and before its data were visible."""
    repeated: int = 0
    doubled: int = 0
    lost: int = 0
    orphans: int = 0
    reads: int = 0
    half: int = 0
    told: list[str] = field(default_factory=list)

    def line(self, kind: str, seconds: float) -> str:
        return (
            f"{kind:15} kills {self.kills:3}, in the middle of writes {self.writing:3}, repeated {self.repeated:3}; "
            f"rows doubled {self.doubled}, lost {self.lost}; orphans {self.orphans}; "
            f"reads {self.reads:6}, half-visible {self.half}; {seconds:.0f} s"
        )


def read(target: str) -> Data:
    """What a reader of one commit finds."""
    import pyarrow.parquet

    found: Data = Counter()
    commit = published(target)
    for path in commit.paths if commit else ():
        part = int(path.rpartition("part=")[2])
        for file in Path(path).glob("*.parquet"):
            loads = pyarrow.parquet.ParquetFile(file).read(columns=["load"])["load"].to_pylist()
            found.update((load, part) for load in loads)
    return found


class Reader(threading.Thread):
    """Polls a target, and compares each reading with what is allowed now."""

    def __init__(self, target: str) -> None:
        super().__init__(daemon=True)
        self.allowed: list[Data] = [Counter()]
        self.counts = Counts()
        self.stopped = threading.Event()
        self._target = target

    def run(self) -> None:
        while not self.stopped.wait(0.005):  # the killed processes need the cores, too
            begun = self.allowed
            try:
                found: Any = read(self._target)
            except Exception as error:  # a file that is not there any more, or not there yet
                found = repr(error)
            self.counts.reads += bool(found)  # before the first commit, nothing is read
            if found not in (*begun, *self.allowed):  # a round may have ended while the reader read
                self.counts.half += 1
                self.counts.told.append(f"a reader saw {found}")


def after(before: Data, mode: str, load: int, parts: Sequence[int]) -> Data:
    """What the target must have after a load."""
    kept = {
        "append": before,
        "overwrite": Counter[tuple[int, int]](),
        "overwrite_partitions": Counter({key: n for key, n in before.items() if key[1] not in parts}),
    }[mode]
    return kept + Counter({(load, part): ROWS for part in parts})


def told(file: Path) -> dict[str, int]:
    """What the newest attempt has said of itself."""
    with suppress(FileNotFoundError):
        return dict(json.loads(file.read_text()))
    return {}


async def kills(house: House, kind: str, count: int, seed: int) -> Counts:
    """Kill processes of one kind in ``count`` rounds on a new target."""
    victim, spark = KINDS[kind]
    target = str(house.folder / f"target-{kind.replace(' ', '-')}")
    chance, reader = random.Random(seed), Reader(target)
    options = ("--activities", "2", *(() if spark else ("--no-warm",)))
    number = 0

    def worker() -> Worker:
        nonlocal number
        number += 1
        return house.worker(f"{kind.replace(' ', '-')}-{number}", *options, app=APP, TASKHUB_SPARK__MASTER="local[2]")

    running = worker().ready()
    counts, expected = reader.counts, reader.allowed[0]
    reader.start()
    async with house.client() as client:
        for turn in range(count):
            mode, parts = MODES[turn % len(MODES)], sorted(chance.sample(range(2 * PARTS), PARTS))
            before, expected = expected, after(expected, mode, turn, parts)
            reader.allowed = [before, expected]
            file = house.folder / f"{Path(target).name}-{turn}.json"
            call = {"target": target, "mode": mode, "load": turn, "parts": parts, "told": str(file), "spark": spark}
            name = f"{kind.replace(' ', '-')}-{turn}"
            version = getattr(published(target), "version", 0)
            await client.start("publishing", call, instance_id=name)
            found = await asyncio.to_thread(lambda file=file: until("an attempt", lambda: told(file), seconds=240))
            await asyncio.sleep(chance.uniform(0.0, 1.5 if spark else 0.7))
            counts.writing += getattr(published(target), "version", 0) == version
            if victim == "worker":
                running.kill()
                running = worker()
            else:
                with suppress(ProcessLookupError):
                    os.kill(found[victim], signal.SIGKILL)
            counts.kills += 1
            state = await client.wait(name, timeout=timedelta(minutes=6))
            if state.status != "Completed":
                counts.told.append(f"{name} is {state.status}: {state.failure}")
            counts.repeated += told(file)["attempt"] > 1
            real = read(target)
            counts.doubled += (real - expected).total()
            counts.lost += (expected - real).total()
            left = Target(files=LocalFiles(target), keep=3).orphans()  # type: ignore[arg-type]
            counts.orphans += len(left)
            if real != expected or left:
                counts.told.append(
                    f"{name}, {mode}: {real - expected} too many, {expected - real} missing, left {left}"
                )
                expected = real
    reader.stopped.set()
    reader.join(60)
    running.end()
    return counts


def wrong(counts: Counts) -> bool:
    """Whether anything was not as it must be."""
    return bool(counts.told or counts.doubled or counts.lost or counts.orphans or counts.half)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="kills of each kind")
    parser.add_argument("--kind", choices=list(KINDS), action="append", help="only this kind; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bad = False
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory() as name, housed(Path(name), f"sqlite:///{name}/hub.db", "Kills") as house:
            began = time.monotonic()
            counts = asyncio.run(kills(house, kind, options.count, options.seed))
            print(counts.line(kind, time.monotonic() - began), *counts.told, sep="\n  ", flush=True)
            bad |= wrong(counts)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
