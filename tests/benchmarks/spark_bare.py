"""The same jobs as a bare PySpark program, with a warm session and threads: what ``make bench-spark`` compares with.

``python -m tests.benchmarks.spark_bare MASTER`` writes ``ready``, and for each line it reads the seconds of a round.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.benchmarks.spark_app import COUNT, THREADS, job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1"}
    return SparkSession.builder.master(master).config(map=quiet).getOrCreate()


def main() -> None:
    spark = session(sys.argv[1])
    print("ready", flush=True)
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in sys.stdin:
            began = time.monotonic()
            list(threads.map(lambda _: job(spark), range(COUNT)))
            print(time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
