"""Log hints: one row an attempt, found with one query, deleted with their instance, and damaged ones left out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub import virtual_time
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub import log_hints
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.log_hints import LogHint
from airflow_provider_taskhub.hub.unreadable_rows import unreadable
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.tags import WATCH_TAG
from airflow_provider_taskhub.virtual_time import VirtualClock


def play(work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        clock = VirtualClock()
        async with SqliteStore(None, clock=clock) as store:
            return await work(await Client.over(store, Settings(hub="Hints"), create=True, clock=clock))

    unreadable.cache_clear()
    return virtual_time.run(main())


def hint(instance_id: str = "i", *, task_id: int = 0, attempt: int = 1, execution: str = "e", size: int = 5) -> LogHint:
    log = log_name(OrchestrationInstance(instance_id=instance_id, execution_id=execution), task_id, attempt)
    return LogHint(instance_id=instance_id, log=log, activity="load", size=size)


async def write(client: Client, *hints: LogHint) -> None:
    for one in hints:
        await log_hints.write(client.hub.store, client.hub.names, one)


def facts(*hints: LogHint) -> list[tuple[str, str, str, int]]:
    return [(one.instance_id, one.log, one.activity, one.size) for one in hints]


@pytest.mark.parametrize("instance_id", ["i", "a/b", "ends.", "x^lb", "airflow__d__r__t?#", "é" * 250])
def test_a_hint_comes_back_as_it_was_written(instance_id: str) -> None:
    async def work(client: Client) -> None:
        written = hint(instance_id, task_id=12, attempt=3, size=2**40)
        await write(client, written)
        assert facts(*await client.growing_logs.hints()) == facts(written)

    play(work)


def test_a_newer_hint_replaces_the_older_one_of_the_same_attempt_and_no_other() -> None:
    async def work(client: Client) -> None:
        await write(client, hint(size=5), hint(attempt=2, size=1), hint(size=9), hint("j", size=7))
        assert facts(*await client.growing_logs.hints()) == facts(
            hint(size=9), hint(attempt=2, size=1), hint("j", size=7)
        )

    play(work)


def test_all_hints_are_one_query_and_no_hints_too() -> None:
    async def work(client: Client) -> None:
        requests = client.hub.store.requests
        for count in (0, 500):
            await write(client, *(hint(task_id=number) for number in range(count)))
            requests.clear()
            assert len(await client.growing_logs.hints()) == count
            assert dict(requests) == {"table.query": 1}

    play(work)


def test_a_hint_is_forgotten_unless_it_was_written_again() -> None:
    async def work(client: Client) -> None:
        await write(client, hint(task_id=1), hint(task_id=2))
        read = await client.growing_logs.hints()
        await write(client, hint(task_id=2, size=6))
        await client.growing_logs.forget(read)
        await client.growing_logs.forget(read)  # a hint that is gone is no error
        assert facts(*await client.growing_logs.hints()) == facts(hint(task_id=2, size=6))

    play(work)


@pytest.mark.parametrize(
    "damage", [{"Log": "no log"}, {"Log": 5}, {"Log": None}, {"Activity": None}, {"Size": None}, {"Size": "5"}]
)
def test_a_damaged_hint_is_left_out_and_said(damage: dict[str, Any]) -> None:
    async def work(client: Client) -> None:
        names = client.hub.names
        good = {"Log": hint().log, "Activity": "load", "Size": 5}
        row = Entity(partition_key="log", row_key="i^l000000-001", properties=good | damage)
        put = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=row)
        await client.hub.store.execute(Transact(table=names.completions, rows=(put,)))
        await write(client, hint("j"))
        with capture_logs() as lines:
            assert facts(*await client.growing_logs.hints()) == facts(hint("j"))
        assert [line["row"] for line in lines if line["event"] == "row_unreadable"] == ["log/i^l000000-001"]

    play(work)


def test_a_purge_deletes_the_hints_of_its_instance_and_no_others() -> None:
    async def work(client: Client) -> None:
        for name in ("i", "i^", "j"):
            await client.start("x", instance_id=name, tags={WATCH_TAG: "1"})
            await write(client, *(hint(name, task_id=number) for number in range(3)))
        await client.terminate("i")
        await _end(client, "i")
        assert await client.purge("i")
        assert {one.instance_id for one in await client.growing_logs.hints()} == {"i^", "j"}
        assert len(await client.growing_logs.hints()) == 6

    async def _end(client: Client, instance_id: str) -> None:
        """As the checkpoint of a worker, in the row alone."""
        row = Entity(partition_key=instance_id, row_key="", properties={"RuntimeStatus": "Terminated"})
        merge = RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row)
        await client.hub.store.execute(Transact(table=client.hub.names.instances, rows=(merge,)))

    play(work)


def test_a_log_is_read_in_parts() -> None:
    async def work(client: Client) -> None:
        name = hint().log
        assert await client.growing_logs.part(name, offset=0, length=9) is None
        await client.hub.store.append_blob(client.hub.names.logs, name, "zwölf".encode())
        assert await client.growing_logs.part(name, offset=2, length=2) == "ö".encode()
        assert await client.growing_logs.part(name, offset=6, length=9) == b""

    play(work)
