"""Pools with real Spark: local, on a standalone cluster, and with a Spark Connect server. Each takes seconds to start,
so the servers live as long as the tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from airflow_provider_taskhub.demo import spark_servers
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool
from tests.spark.servers import Servers
from tests.workers.conftest import Logs

APP = "tests.spark.apps:app"
CONNECT_APP = "tests.spark.connect_apps:app"


@asynccontextmanager
async def spark_pool(master: str, *, logs: Logs | None = None, **more: Any) -> AsyncIterator[ExecutorPool]:
    conf, app = more.pop("conf", {}), more.pop("app", APP)
    config = ExecutorConfig(apps=(app,), spark=SparkSettings(master=master, conf=conf))
    pool = ExecutorPool(config, **{"size": 4, "processes": 1, "logs": logs or Logs(), "name": "spark", **more})
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop(timedelta(0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pool() -> AsyncIterator[ExecutorPool]:
    """One Spark for the tests of a module. They run in the module's event loop, and leave the executor alive."""
    async with spark_pool("local[2]", warm=True) as pool:
        yield pool


@pytest.fixture
def pool(shared_pool: ExecutorPool) -> ExecutorPool:
    return shared_pool


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("connect")
    servers = Servers(spark_servers.connect(folder), folder)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("cluster")
    servers = Servers(spark_servers.standalone(folder), folder)
    yield servers
    servers.stop()
