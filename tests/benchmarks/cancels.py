"""How long a cancel takes: from the request to the moment at which no task of the attempt runs any more.

``python -m tests.benchmarks.cancels --repeat 20``: for each kind of Spark session, an activity runs a job of two tasks,
which call a Python function that does not end. The status API of Spark says when no task runs.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from airflow_provider_taskhub.demo import spark_servers
from airflow_provider_taskhub.demo.ports import free_port
from tests.spark.conftest import CONNECT_APP, spark_pool
from tests.spark.servers import Servers, active_tasks
from tests.spark.test_connect import spark, ticks
from tests.waiting import until_async

KINDS = spark_servers.KINDS


@contextmanager
def place(kind: str, folder: pathlib.Path) -> Iterator[tuple[str, Mapping[str, str], str]]:
    """Start the servers of a kind: the master, the settings, and the address of the page with the status of tasks."""
    ui = free_port()
    own = {"spark.ui.enabled": "true", "spark.ui.port": str(ui)}
    page = f"http://127.0.0.1:{ui}"
    if kind == "local":
        yield "local[2]", own, page
        return
    setup = spark_servers.connect(folder) if kind == "connect" else spark_servers.standalone(folder)
    servers = Servers(setup, folder)
    try:
        if kind == "connect":
            yield servers.master, {}, servers.page
        else:
            yield servers.master, {**servers.conf, "spark.cores.max": "2", **own}, page
    finally:
        servers.stop()


async def measure(kind: str, repeat: int) -> list[float]:
    """Return the seconds of each cancel."""
    found: list[float] = []
    with tempfile.TemporaryDirectory() as root, place(kind, pathlib.Path(root)) as (master, conf, page):
        async with spark_pool(master, app=CONNECT_APP, conf=conf, warm=True) as pool:
            for number in range(repeat + 1):  # the first one warms up
                folder = pathlib.Path(tempfile.mkdtemp(dir=root))
                request = spark("endless", str(folder), action_id=str(number))
                run = asyncio.create_task(pool.run(request))
                await until_async("the tasks run", lambda folder=folder: ticks(folder) and active_tasks(page))
                began = time.monotonic()
                run.cancel()
                await until_async("no task runs", lambda: not active_tasks(page))
                if number:
                    found.append(time.monotonic() - began)
                with suppress(asyncio.CancelledError):
                    await run
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS), help="local, standalone and connect, separated by commas")
    options = parser.parse_args()
    measured = {kind: asyncio.run(measure(kind, options.repeat)) for kind in options.kinds.split(",")}
    print("\ncancel: seconds from the request to no task running")
    print(f"{'kind':<12}{'median':>8}{'largest':>9}{'count':>7}")
    for kind, found in measured.items():
        print(f"{kind:<12}{statistics.median(found):>8.2f}{max(found):>9.2f}{len(found):>7}")


if __name__ == "__main__":
    main()
