"""The page in Airflow over a hub with 100,000 instances. Its application is asked without a running Airflow.

The instances are written straight into the store. Each request comes 2 s after the one before, as an open page asks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from tests.benchmarks.findings import Extent, Finding, Findings
from tests.benchmarks.stage import EMBEDDED, EMULATOR, BenchError, Stage

SIZE = 100_000
GOALS: Mapping[str, float] = {EMBEDDED: 200.0, EMULATOR: 1_000.0}
"""Milliseconds that the list may take."""
INSTANCE = 300.0
"""Milliseconds that the page of one instance may take."""
REFRESH = 2.0
SEEDING = 64
FILTERS = {
    "the list": {},
    "a status": {"status": "failed"},
    "a text in the id": {"text": "7f"},
    "a tag": {"text": "airflow.run_id=manual__3"},
    "a DAG": {"dag": "dag7"},
    "an orchestrator": {"name": "load3"},
    "a text in the error": {"error": "rows rejected"},
}
FILLED = 600.0


class _Manager:
    """An auth manager under which everybody may do everything."""

    def is_authorized_view(self, **_: Any) -> bool:
        return True

    def is_authorized_connection(self, **_: Any) -> bool:
        return True

    def is_authorized_dag(self, **_: Any) -> bool:
        return True

    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        return set()


async def findings(extent: Extent) -> Findings:
    """Measure both stores."""
    for store in (EMBEDDED, EMULATOR):
        with Stage(store) as stage:
            async with Client.open(stage.settings) as client:
                source = await _seed(client, extent.of(SIZE))
                async with _page(stage) as ask:
                    async for each in _measured(store, client, ask, extent, source):
                        yield each


async def _measured(store: str, client: Client, ask: Any, extent: Extent, source: str) -> Findings:
    from airflow_provider_taskhub.plugins.client_cache import client_cache_of

    def found(what: str, value: float, unit: str, goal: float | None = None) -> Finding:
        return Finding(part="page", what=f"{store}: {what}", value=value, unit=unit, goal=goal)

    begun = time.perf_counter()
    took, answer = await ask("instances", window="all")
    yield found("the first answer", took, "ms", GOALS[store])
    while answer["reading"] is not None:
        if time.perf_counter() - begun > FILLED:
            raise BenchError(f"the index was not filled within {FILLED:g} s: {answer['reading']} instances")
        await asyncio.sleep(0.2)
        _, answer = await ask("instances", window="all")
    yield found(f"all {answer['total']} instances read", time.perf_counter() - begun, "s")
    page = client_cache_of(await _settings())
    yield found("memory of the index", _memory(page.index.rows()) / 2**20, "MiB")
    for what, filter in FILTERS.items():
        times, spent = [], []
        for _ in range(extent.rounds):
            await asyncio.sleep(REFRESH)
            before = time.process_time()
            times.append((await ask("instances", window="all", **filter))[0])
            spent.append((time.process_time() - before) * 1000)
        yield found(what, median(times), "ms", GOALS[store])
        yield found(f"{what}, CPU", median(spent), "ms")
    requests = (await page.client()).hub.store.requests
    await asyncio.sleep(REFRESH)
    before = requests.total()
    await ask("instances", window="all")
    await asyncio.sleep(REFRESH / 2)
    yield found("requests of a refresh", requests.total() - before, "")
    yield found("a change is shown after", median([await _change(client, ask) for _ in range(extent.rounds)]), "s")
    times = []
    for _ in range(extent.rounds):
        await asyncio.sleep(REFRESH)
        times.append((await ask("instance", id=source))[0])
    yield found("the page of an instance", median(times), "ms", INSTANCE)


def _memory(rows: Sequence[Any]) -> int:
    """The bytes of all objects that the rows of the index refer to. What several rows share counts once."""
    seen: dict[int, int] = {id(rows): sys.getsizeof(rows)}
    for row in rows:
        values = [getattr(row, each.name) for each in fields(row)]
        parts = [row, *values, *row.tags, *row.tags.values(), *([row.completed.ticks] if row.completed else [])]
        seen.update((id(part), sys.getsizeof(part)) for part in parts)
    return sum(seen.values())


async def _change(client: Client, ask: Any) -> float:
    """Seconds until the list shows an instance that was started, as a page asks for it."""
    await asyncio.sleep(REFRESH)
    name = f"new-{uuid4().hex}"
    await client.start("nobody", instance_id=name)
    begun = time.perf_counter()
    while True:
        _, answer = await ask("instances", window="all", name="nobody", limit=200)
        if any(row["id"] == name for row in answer["rows"]):
            return time.perf_counter() - begun
        if time.perf_counter() - begun > FILLED:
            raise BenchError(f"{name} was not shown within {FILLED:g} s")
        await asyncio.sleep(REFRESH)


async def _settings() -> Any:
    from airflow_provider_taskhub.hooks.taskhub import TaskHubHook

    return await TaskHubHook("taskhub_default").asettings()


@asynccontextmanager
async def _page(stage: Stage) -> AsyncIterator[Any]:
    """Give a function that asks the page's application; it returns the milliseconds and the answer."""
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, _environment(Path(home))):
        import airflow.api_fastapi.app
        import httpx
        from airflow.api_fastapi.core_api import security

        from airflow_provider_taskhub.plugins.web import make_app

        with (
            patch.object(airflow.api_fastapi.app, "get_auth_manager", _Manager),
            patch.object(security, "get_auth_manager", _Manager),
            patch.object(security.DagModel, "get_team_name", staticmethod(lambda dag_id: None)),
        ):
            app = make_app()
            app.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "bench")
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://page", timeout=FILLED) as client:

                async def ask(path: str, **query: Any) -> tuple[float, Any]:
                    begun = time.perf_counter()
                    answer = await client.get(f"/api/{path}", params=query)
                    took = (time.perf_counter() - begun) * 1000
                    if answer.status_code != 200:
                        raise BenchError(f"{path} {query}: {answer.status_code} {answer.text}")
                    return took, answer.json()

                yield ask


def _environment(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }


async def _seed(client: Client, count: int) -> str:
    """Write instances that differ, and return the id of one that a worker has run."""
    source = (await client.start("chain", 10)).instance_id
    await client.wait(source)
    store, names = client.hub.store, client.hub.names
    row = await store.get(names.instances, source, "")
    if row is None:
        raise BenchError(f"no row of {source}")
    gate = asyncio.Semaphore(SEEDING)

    async def write(number: int) -> None:
        async with gate:
            operation = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=_other(row, number), absent=True)
            await store.execute(Transact(table=names.instances, rows=(operation,)))

    await asyncio.gather(*(write(number) for number in range(count - 1)))
    return source


def _other(row: Entity, number: int) -> Entity:
    """One of a hundred runs, one of twenty has failed; twenty DAGs; one every 20 s."""
    failed = number % 20 == 7
    status = Status.RUNNING if number % 100 == 3 else Status.FAILED if failed else Status.COMPLETED
    created = row.properties["CreatedTime"]
    assert isinstance(created, Timestamp)
    tags = {
        "airflow.dag_id": f"dag{number % 20}",
        "airflow.run_id": f"manual__{number // 100}",
        "airflow.task_id": "hub",
        "airflow.map_index": "-1",
        "airflow.try_number": "1",
    }
    changes = {
        "Name": f"load{number % 10}",
        "RuntimeStatus": status.value,
        "CreatedTime": created + timedelta(seconds=-20 * number),
        "Tags": json.dumps(tags),
        "Output": f"ValueError: {number} of 8,760 rows rejected" if failed else '"done"',
    }
    return replace(row, partition_key=uuid4().hex, properties=dict(row.properties) | changes)
