"""Activity records of old generations are deleted, and nothing else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import generation_of, later_execution_id
from airflow_provider_taskhub.hub.formats.history_rows import SENTINEL
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history import trimming
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, refused
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from tests.simulation.world import RARE_RENEWALS, World, running, simulate

KEPT = 5
LARGE = "x" * 40_000


def app(ran: list[int], worlds: list[World]) -> App:
    made = App("rounds")

    @made.activity(record=True)
    async def work(number: int) -> str:
        """Writes its log, as its executor would, and has a large result."""
        hub, log = worlds[0], running().log
        assert log is not None
        ran.append(number)
        await hub.store.append_blob(hub.client.hub.names.logs, log, b"round")
        return LARGE

    @made.activity(record=True)
    async def endless(number: int) -> None:
        await asyncio.sleep(1e6)

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, given: tuple[int, float]) -> None:
        """One round a ``given[1]`` seconds. The activity of the third round does not end."""
        number, seconds = given
        if number == 3:
            ctx.call_activity("endless", number)
        await ctx.call_activity("work", number)
        await ctx.create_timer(timedelta(seconds=seconds))
        if number < 40:
            ctx.continue_as_new((number + 1, seconds))
            return
        await ctx.wait_for_external_event("go")

    return made


async def stored(hub: World) -> tuple[dict[int, list[ActivityRecord]], int, int]:
    """The records by generation; the number of logs; the number of blobs with large results."""
    records: dict[int, list[ActivityRecord]] = {}
    for record in await hub.client.instance("one").activities():
        records.setdefault(generation_of(record.instance.execution_id or ""), []).append(record)
    names = hub.client.hub.names
    blobs = await hub.store.list_blobs(names.large_messages, "one/activity-")
    return records, len(await hub.store.list_blobs(names.logs, "one/")), len(blobs)


def played(*, kept: int = KEPT, seconds: float = 12.0, quiet: float = 60.0) -> Any:
    """Forty rounds. :param quiet: seconds for which the store must have left a record alone before it is deleted."""

    async def whole() -> Any:
        ran: list[int] = []
        worlds: list[World] = []
        async with World(app(ran, worlds), lease=RARE_RENEWALS, kept_generations=kept) as hub:
            worlds.append(hub)
            await hub.join("only")
            await hub.client.start("rounds", [0, seconds], instance_id="one")
            until = hub.clock.monotonic() + 41 * (seconds + 20.0)
            while len(ran) < 41:
                assert hub.clock.monotonic() < until, ran
                await hub.clock.sleep(seconds)
            await hub.clock.sleep(seconds + 20.0)
            return ran, *await stored(hub)

    with patch.object(trimming, "QUIET", timedelta(seconds=quiet)):
        return simulate(whole)


def test_records_logs_and_large_results_of_old_generations_are_deleted() -> None:
    ran, records, logs, results = played()
    assert ran == [*range(41)], "no activity runs again"
    assert sorted(records) == [3, *range(35, 41)], "the last five of the last trimming, and those after it"
    assert [(record.name, record.state) for record in records[3]] == [("endless", RecordState.RUNNING)], "it runs"
    assert (logs, results) == (6, 6)


@pytest.mark.parametrize(("kept", "seconds"), [(0, 12.0), (100, 12.0), (KEPT, 0.5)], ids=["all", "many", "young"])
def test_records_that_may_be_needed_stay(kept: int, seconds: float) -> None:
    """The setting keeps all or more than there are; or the store has written them in the last minute."""
    _, records, _, results = played(kept=kept, seconds=seconds)
    assert sorted(records) == [*range(41)]
    assert results == 41


def test_the_call_of_an_attempt_that_was_lost_stays_until_its_next_attempt_has_ended() -> None:

    def row(generation: int, task: int, state: str, minute: int) -> Entity:
        properties = {"ExecutionId": f"{'a' * 16}00000000{generation:08x}", "TaskId": task, "State": state}
        return Entity(
            partition_key="i", row_key=str(task), properties=properties, timestamp=Timestamp(minute * 600_000_000)
        )

    rows = [
        row(1, 0, "lost", 0),
        row(1, 1, "lost", 0),
        row(1, 1, "completed", 5),
        row(1, 2, "running", 0),
        row(1, 3, "failed", 5),
        row(1, 4, "completed", 55),
        row(1, 5, "of a newer version", 0),
        row(9, 0, "completed", 0),
    ]
    found = trimming.old_records(rows, before=9, now=Timestamp(60 * 600_000_000))
    assert [(one.properties["TaskId"], one.properties["State"]) for one in found] == [
        (1, "lost"),
        (1, "completed"),
        (3, "failed"),
    ]


def test_a_trimming_that_the_store_refuses_is_made_up_for_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if blobs were deleted and rows were not."""
    refusals: list[int] = []
    real = trimming.trim

    async def trim(store: Any, names: Any, instance: Any, *, kept: int) -> int:
        if generation_of(instance.execution_id) < 40:
            refusals.append(generation_of(instance.execution_id))

            def plan(call: Call) -> Fault | None:
                return refused() if isinstance(call.what, Transact) else None

            store = FaultyStore(store, plan)
        return await real(store, names, instance, kept=kept)

    monkeypatch.setattr("airflow_provider_taskhub.workers.orchestrations.processor.trim", trim)
    ran, records, _, results = played()
    assert (ran, refusals) == ([*range(41)], [10, 20, 30])
    assert sorted(records) == [3, *range(35, 41)]
    assert results == 6


def test_one_trimming_is_bounded_and_the_next_takes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "MAX_ROWS", 4)
    monkeypatch.setattr(trimming, "MAX_PAGES", 1)
    _, records, *_ = played()
    assert len(records) > KEPT + 6


@pytest.mark.parametrize("pages", [1, 10])
def test_old_records_behind_many_that_stay_are_deleted(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Attempts of the oldest generation have not ended. Their rows are more than one request reads."""
    monkeypatch.setattr(trimming, "MAX_ROWS", 4)
    monkeypatch.setattr(trimming, "MAX_PAGES", pages)

    async def play() -> list[int]:
        async with World(App("none")) as hub:
            names = hub.client.hub.names

            def row(generation: int, task: int, state: RecordState) -> RowOperation:
                execution_id = execution(generation)
                properties = {"ExecutionId": execution_id, "TaskId": task, "State": str(state)}
                key = records.row_key(execution_id, task, 1)
                entity = Entity(partition_key="i", row_key=key, properties=properties)
                return RowOperation(verb=RowVerb.INSERT, entity=entity)

            rows = [row(1, task, RecordState.RUNNING) for task in range(9)]
            rows += [row(generation, 0, RecordState.COMPLETED) for generation in (0, 2, 3, 8)]
            await hub.store.execute(Transact(table=names.activities, rows=tuple(rows)))
            await hub.clock.sleep(trimming.QUIET.total_seconds())
            sentinel = Entity(partition_key="i", row_key=SENTINEL, properties={"ExecutionId": execution(9)})
            written = RowOperation(verb=RowVerb.INSERT, entity=sentinel)
            await hub.store.execute(Transact(table=names.history, rows=(written,)))
            current = OrchestrationInstance(instance_id="i", execution_id=execution(9))
            await trimming.trim(hub.store, names, current, kept=3)
            left = [one async for one in hub.store.rows(names.activities)]
            return sorted({generation_of(str(one.properties["ExecutionId"])) for one in left})

    assert simulate(play) == ([1, 8] if pages == 10 else [0, 1, 2, 3, 8])


def execution(generation: int) -> str:
    return later_execution_id("a" * 32, generation) if generation else "a" * 32
