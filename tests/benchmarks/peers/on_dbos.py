"""The workloads on DBOS with its SQLite system database, as its quick start sets it up: ``on_dbos.py WORKLOAD SIZE``.

Runs in an environment of its own, so it imports nothing of this repository; prints one JSON object of figures.
Client, workflows and steps are this one process: functions in threads as in the quick start, but for the fan-out, whose
steps are gathered coroutines. (Coroutines everywhere: the same, but a third more a step of the chain. A fan-out of
child workflows: three times as long.) Durable: a commit for each workflow's start and end and each step's result.
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
def nothing(value: int) -> int:
    return value


@DBOS.step()
async def nothing_async(value: int) -> int:
    return value


@DBOS.workflow()
def single(value: int) -> int:
    return nothing(value)


@DBOS.workflow()
async def fan(width: int) -> int:
    return len(await asyncio.gather(*(nothing_async(index) for index in range(width))))


@DBOS.workflow()
def chain(length: int) -> list[float]:
    """Seconds of each step."""
    steps = []
    for index in range(length):
        begun = time.perf_counter()
        nothing(index)
        steps.append(time.perf_counter() - begun)
    return steps


def run(workflow, value: int):
    return DBOS.start_workflow(workflow, value).get_result()


async def fan_out(width: int) -> int:
    handle = await DBOS.start_workflow_async(fan, width)
    return await handle.get_result()


def measure(workload: str, size: int) -> dict[str, float]:
    for value in range(WARM):
        run(single, value)
    begun = time.perf_counter()
    if workload == "a0":
        times = []
        for value in range(size):
            begun = time.perf_counter()
            run(single, value)
            times.append(time.perf_counter() - begun)
        return {"p50": median(times) * 1000}
    if workload == "a":
        for handle in [DBOS.start_workflow(single, value) for value in range(size)]:
            handle.get_result()
        return {"finished": size / (time.perf_counter() - begun)}
    if workload == "b":
        assert asyncio.run(fan_out(size)) == size
        return {"whole": time.perf_counter() - begun}
    steps = run(chain, size)
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
            found = measure(workload, size)
        finally:
            DBOS.destroy()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
