"""Ten thousand instances, and every way to ask for some of them, on both stores (K45)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from tests.e2e.house import House

COUNT = 10_000
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
STATUSES = (Status.COMPLETED, Status.FAILED, Status.RUNNING, Status.PENDING, Status.SUSPENDED)
DAGS = ("flights", "weather", "it's")


def name(number: int) -> str:
    return f"{DAGS[number % 3]}/2026-{number:05d}"


def facts(number: int) -> dict[str, Any]:
    return {
        "Name": "work",
        "ExecutionId": f"{number:032x}",
        "RuntimeStatus": STATUSES[number % 5].value,
        "CreatedTime": Timestamp.from_datetime(BEGAN + timedelta(minutes=number)),
        "LastUpdatedTime": Timestamp.from_datetime(BEGAN),
        "Tags": f'{{"dag":"{DAGS[number % 3]}","wave":"{number % 7}"}}',
    }


async def fill(client: Client) -> None:
    gate = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        row = Entity(partition_key=escape(name(number)), row_key="", properties=facts(number))
        write = RowOperation(verb=RowVerb.INSERT, entity=row)
        async with gate:
            await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(write,)))

    await asyncio.gather(*(one(number) for number in range(COUNT)))


async def pages(client: Client, *, limit: int, **where: Any) -> AsyncIterator[tuple[str, ...]]:
    continuation: str | None = None
    while True:
        page = await client.list(limit=limit, continuation=continuation, **where)
        yield tuple(state.instance_id for state in page.instances)
        continuation = page.continuation
        if continuation is None:
            return


WHERE: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda n: True),
    ({"statuses": [Status.FAILED]}, lambda n: n % 5 == 1),
    ({"statuses": [Status.FAILED, Status.PENDING]}, lambda n: n % 5 in (1, 3)),
    ({"statuses": [Status.TERMINATED]}, lambda n: False),
    ({"prefix": "flights/"}, lambda n: n % 3 == 0),
    ({"prefix": "it's/2026-00"}, lambda n: n % 3 == 2 and n < 1000),
    ({"tags": {"dag": "weather", "wave": "3"}}, lambda n: n % 3 == 1 and n % 7 == 3),
    ({"created_from": BEGAN + timedelta(minutes=9_990)}, lambda n: n >= 9_990),
    ({"created_to": BEGAN + timedelta(minutes=10)}, lambda n: n <= 10),
    (
        {
            "statuses": [Status.COMPLETED],
            "prefix": "flights/",
            "created_from": BEGAN + timedelta(minutes=1_000),
            "created_to": BEGAN + timedelta(minutes=5_000),
            "tags": {"wave": "0"},
        },
        lambda n: n % 5 == 0 and n % 3 == 0 and 1_000 <= n <= 5_000 and n % 7 == 0,
    ),
]


@pytest.mark.rows("K45")
async def test_every_filter_and_page_over_ten_thousand_instances(house: House) -> None:
    async with house.client() as client:
        await fill(client)
        for where, wanted in WHERE:
            expected = sorted((name(n) for n in range(COUNT) if wanted(n)), key=escape)
            found: list[str] = []
            async for page in pages(client, limit=1000, **where):
                assert len(page) <= 1000
                found += page
            assert found == expected, where
        sizes = [len(page) async for page in pages(client, limit=100, prefix="weather/")]
        assert sum(sizes) == 3_333
        assert set(sizes[:-1]) == {100}, "a page is full unless it is the last"
        tagged = [len(page) async for page in pages(client, limit=10, prefix="weather/2026-00", tags={"wave": "3"})]
        assert sum(tagged) == sum(n % 3 == 1 and n % 7 == 3 for n in range(1_000))
        assert max(tagged) == 10, "no page is longer than was asked for"
        first = await client.list(limit=7, statuses=[Status.RUNNING])
        assert (len(first.instances), first.continuation is None) == (7, False)
        late = name(COUNT)
        row = Entity(partition_key=escape(late), row_key="", properties=facts(COUNT))
        insert = RowOperation(verb=RowVerb.INSERT, entity=row)
        await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(insert,)))
        rest = [i async for page in pages(client, limit=1000, prefix=late) for i in page]
        assert rest == [late]
