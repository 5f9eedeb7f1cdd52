"""One pool with real Spark for all tests here: it takes seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors.pool import ExecutorConfig, ExecutorPool
from tests.workers.conftest import Logs

APP = "tests.spark.apps:app"


@pytest.fixture
async def pool() -> AsyncIterator[ExecutorPool]:
    config = ExecutorConfig(apps=(APP,), spark=SparkSettings(master="local[2]"))
    pool = ExecutorPool(config, size=4, processes=1, logs=Logs(), name="spark", warm=True)
    await pool.start()
    yield pool
    await pool.stop(timedelta(0))
