"""A process that writes to a hub's file as fast as it can: started by ``test_processes``.

``python -m tests.storage.sqlite.contender FILE QUEUE COUNT TASKS`` puts COUNT messages, or messages without end if
COUNT is ``endless``. It prints ``ready``, waits for a line, and prints how many puts were acknowledged so far: after
each put if TASKS is 1, otherwise after each hundredth.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore


async def contend(path: Path, queue: str, count: int | None, tasks: int) -> None:
    numbers = iter(range(count)) if count is not None else itertools.count()
    done = 0

    async def put_all() -> None:
        nonlocal done
        for number in numbers:
            await store.execute(PutMessage(queue=queue, text=f"{number}"))
            done += 1
            if tasks == 1 or done % 100 == 0:
                print(done, flush=True)

    async with SqliteStore(path) as store:
        await store.create_queue(queue)
        print("ready", flush=True)
        sys.stdin.readline()  # all begin together
        await asyncio.gather(*(put_all() for _ in range(tasks)))


if __name__ == "__main__":
    wanted = None if sys.argv[3] == "endless" else int(sys.argv[3])
    asyncio.run(contend(Path(sys.argv[1]), sys.argv[2], wanted, int(sys.argv[4])))
