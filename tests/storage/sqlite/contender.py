"""A process that writes to a hub's file as fast as it can: started by ``test_processes``.

``python -m tests.storage.sqlite.contender FILE QUEUE SECONDS TASKS`` prints how many messages it put and the longest
wait for one. Each line before is the number of a message whose put was acknowledged (with TASKS = 1).
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore


async def contend(path: Path, queue: str, seconds: float, tasks: int) -> None:
    counts, longest = [0] * tasks, 0.0

    async def put_all(task: int) -> None:
        nonlocal longest
        while time.monotonic() < end:
            start = time.monotonic()
            await store.execute(PutMessage(queue=queue, text=f"{counts[task]}"))
            longest = max(longest, time.monotonic() - start)
            if tasks == 1:
                print(counts[task], flush=True)
            counts[task] += 1

    async with SqliteStore(path) as store:
        await store.create_queue(queue)
        print("ready", flush=True)
        sys.stdin.readline()  # all begin together
        end = time.monotonic() + seconds
        await asyncio.gather(*(put_all(task) for task in range(tasks)))
    print(f"{sum(counts)} {longest:.4f}", flush=True)


if __name__ == "__main__":
    asyncio.run(contend(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
