"""Pools of real executors, and how tests wait for what happens in them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import psutil
import pytest

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.settings import SparkSettings
from airflow_provider_taskhub.workers.executors.pool import ActivityRequest, ExecutorConfig, ExecutorPool, ExecutorTimes
from tests.waiting import PATIENCE

APP = "tests.workers.apps:app"


class Logs:
    """Where a pool's output goes."""

    def __init__(self) -> None:
        self.written: dict[str, bytearray] = defaultdict(bytearray)
        self.batches = 0

    async def __call__(self, name: str, data: bytes) -> None:
        self.batches += 1
        self.written[name] += data

    def lines(self, name: str) -> list[str]:
        return self.written[name].decode().splitlines()

    @property
    def everything(self) -> str:
        return b"".join(self.written.values()).decode()


def request(name: str, *arguments: object, **more: Any) -> ActivityRequest:
    """A request as the host makes it: one argument in a JSON array."""
    values: dict[str, Any] = {
        "instance": OrchestrationInstance(instance_id="inst", execution_id="exec"),
        "task_id": 0,
        "action_id": "action",
        "log": "attempt.log",
        "input": json.dumps(list(arguments)),
        **more,
    }
    return ActivityRequest(name=name, **values)


def started(folder: pathlib.Path, name: str) -> str | None:
    file = folder / f"{name}.started"
    return file.read_text() or None if file.exists() else None


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def logs() -> Logs:
    return Logs()


PoolMaker = Callable[..., Awaitable[ExecutorPool]]


@pytest.fixture
async def make_pool(logs: Logs) -> AsyncIterator[PoolMaker]:
    pools: list[ExecutorPool] = []

    async def make(**more: Any) -> ExecutorPool:
        values: dict[str, Any] = {
            "apps": (APP,),
            "size": 4,
            "spark": SparkSettings(master="local[2]"),
            "logs": logs,
            "processes": 1,
            "times": ExecutorTimes(grace=timedelta(seconds=PATIENCE)),
            **more,
        }
        common = {field.name for field in dataclasses.fields(ExecutorConfig)}
        config = ExecutorConfig(**{name: values.pop(name) for name in common & set(values)})
        pool = ExecutorPool(config, **values)
        pools.append(pool)
        await pool.start()
        return pool

    yield make
    for pool in pools:
        await pool.stop(timedelta(0))


@pytest.fixture
async def pool(make_pool: PoolMaker) -> ExecutorPool:
    return await make_pool()
