"""The workloads on DBOS with its SQLite system database, as its quick start sets it up: ``on_dbos.py WORKLOAD SIZE``.

Runs in an environment of its own, so it imports nothing of this repository; prints one JSON object of figures.
Workflows and steps are coroutines in this one process, as the documentation advises for many at once; the quick start's
threads measured no better. Durable: each workflow's start and end and each step's result are committed.
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from dbos import DBOS

WARM = 8


@DBOS.step()
async def nothing(value: int) -> int:
    return value


@DBOS.workflow()
async def single(value: int) -> int:
    return await nothing(value)


@DBOS.workflow()
async def fan(width: int) -> int:
    return len(await asyncio.gather(*(nothing(index) for index in range(width))))


@DBOS.workflow()
async def chain(length: int) -> list[float]:
    """Seconds of each step."""
    steps = []
    for index in range(length):
        begun = time.perf_counter()
        await nothing(index)
        steps.append(time.perf_counter() - begun)
    return steps


async def run(workflow, value: int):
    handle = await DBOS.start_workflow_async(workflow, value)
    return await handle.get_result()


async def measure(workload: str, size: int) -> dict[str, float]:
    for value in range(WARM):
        await run(single, value)
    begun = time.perf_counter()
    if workload == "a0":
        times = []
        for value in range(size):
            begun = time.perf_counter()
            await run(single, value)
            times.append(time.perf_counter() - begun)
        return {"p50": median(times) * 1000}
    if workload == "a":
        await asyncio.gather(*(run(single, value) for value in range(size)))
        return {"finished": size / (time.perf_counter() - begun)}
    if workload == "b":
        assert await run(fan, size) == size
        return {"whole": time.perf_counter() - begun}
    steps = await run(chain, size)
    whole = time.perf_counter() - begun
    part = max(1, size // 10)
    return {
        "step": whole / size * 1000,
        "first": median(steps[:part]) * 1000,
        "last": median(steps[-part:]) * 1000,
    }


def main(workload: str, size: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-dbos-") as folder:
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{Path(folder) / 'dbos.sqlite'}"})
        DBOS.launch()
        try:
            found = asyncio.run(measure(workload, size))
        finally:
            DBOS.destroy()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
