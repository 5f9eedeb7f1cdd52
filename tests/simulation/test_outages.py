"""What an outage of the store, or a defect in a loop, may cost: time, and nothing else."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.errors import AccessDenied, StorageError, Unavailable
from airflow_provider_taskhub.storage.faults import Call, Fault
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.supervision import FAILING
from airflow_provider_taskhub.workers.health import Health, respond
from tests.breaking import Breaker
from tests.simulation.world import World, running, simulate


class Book:
    """What the activities did."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.cut = 0

    def app(self) -> App:
        made = App("outages")

        @made.activity()
        async def plain(seconds: float) -> str:
            self.begun[f"plain {running().instance.instance_id}"] += 1
            await asyncio.sleep(seconds)
            return "done"

        @made.activity(record=True)
        async def recorded(seconds: float) -> str:
            self.begun[f"recorded {running().instance.instance_id}"] += 1
            await asyncio.sleep(seconds)
            return "done"

        @made.activity()
        async def stubborn(seconds: float) -> None:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                await asyncio.sleep(seconds)
                self.cut += 1
                raise

        @made.orchestrator
        async def both(ctx: OrchestrationContext, seconds: float) -> Any:
            return await ctx.when_all([ctx.call_activity(plain, seconds), ctx.call_activity(recorded, seconds)])

        @made.orchestrator
        async def keeps(ctx: OrchestrationContext, seconds: float) -> Any:
            return await ctx.call_activity(recorded, seconds)

        @made.orchestrator
        async def stays(ctx: OrchestrationContext, seconds: float) -> Any:
            return await ctx.call_activity(stubborn, seconds)

        return made


def test_an_activity_that_takes_long_to_end_stops_the_watch_over_no_other() -> None:
    """It was asked to end at each look, which an expiring timeout refuses by a RuntimeError."""
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            await hub.join("only")
            for name in ("first", "second"):
                await hub.client.start("stays", 60.0, instance_id=name)
                await asyncio.sleep(3)
                await hub.client.terminate(name, "enough", wait=True)
                await asyncio.sleep(30)
            await asyncio.sleep(200)
            return book.cut, hub.defects()

    assert simulate(play) == (2, [])


@pytest.mark.rows("D69")
def test_what_activities_came_to_is_kept_through_an_outage_and_written_after_it() -> None:
    """For 20 minutes the account refuses everything. The instance ends soon after.

    The plain activity runs once. The recorded one is still running when the outage begins: it stands still, is given
    up after five minutes, and its next attempt runs after the outage.
    """
    book = Book()
    until = 0.0

    async def play() -> Any:
        nonlocal until
        async with World(book.app()) as hub:

            def plan(call: Call) -> Fault | None:
                now = hub.clock.monotonic()
                return Fault(before=AccessDenied("403 (fault)")) if 10.0 <= now < until else None

            only = await hub.join("only", plan=plan)
            only.leases = plan
            await hub.client.start("both", 15.0, instance_id="i")
            until = 10.0 + 1200.0
            await asyncio.sleep(1.0)
            await hub.wait("i")
            took = hub.clock.monotonic()
            ended = await hub.ended()
            return took, ended.states["i"][1], only.backend.supervisor.restarts, hub.logs

    took, output, restarts, logs = simulate(play)
    for e in logs:
        print({k: str(v)[:150] for k, v in e.items()})
    assert output == '["done","done"]'
    assert book.begun["plain i"] == 1
    assert took < until + 60.0
    assert not restarts
    lines = Counter(entry["event"] for entry in logs if entry["log_level"] in ("warning", "error"))
    assert lines["receive_failed"] <= 5 * 21, "a line a minute for each reader: three queues, lanes of two kinds"
    assert lines["outcome_unsettled"] <= 2 * 21


def test_an_activity_whose_outcome_cannot_be_stored_takes_no_slot_from_others() -> None:
    """For 10 minutes the store takes no outcome. A worker with one slot runs the next activity meanwhile."""
    book = Book()

    async def play() -> Any:
        async with World(book.app(), activities=1) as hub:
            table = hub.client.hub.names.activities

            def plan(call: Call) -> Fault | None:
                outcome = table in str(call.what) and "RowVerb.REPLACE" in str(call.what)
                down = outcome and hub.clock.monotonic() < 600.0
                return Fault(before=Unavailable("no answer", maybe_done=False)) if down else None

            await hub.join("only", plan=plan)
            for name in ("first", "second"):
                await hub.client.start("keeps", 1.0, instance_id=name)
            await asyncio.sleep(60.0)
            during = dict(book.begun)
            for name in ("first", "second"):
                await hub.wait(name)
            return during, hub.clock.monotonic()

    during, ended = simulate(play)
    assert during == {"recorded first": 1, "recorded second": 1}
    assert dict(book.begun) == during, "each outcome was kept until the store took it"
    assert 600.0 <= ended < 620.0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            AccessDenied("the storage account refused the credentials (403)"),
            "the storage account refused the credentials (403)",
        ),
        (Unavailable("no connection to AccountKey=hush", maybe_done=False), "no connection to AccountKey=***"),
    ],
)
def test_a_worker_whose_store_fails_is_not_ready_and_lives(error: StorageError, said: str) -> None:
    async def play() -> Any:
        async with World(Book().app()) as hub:
            only = await hub.join("only")
            await hub.clock.sleep(5.0)
            health = Health(backend=only.backend, owner=cast(Any, only.owner), started=0.0)
            faults: list[Fault] = []

            def plan(call: Call) -> Fault | None:
                row = isinstance(call.what, Transact) and call.what.table == hub.client.hub.names.members
                return faults.pop() if row and faults else None

            async def answers(seconds: float) -> list[tuple[str, str]]:
                """What /ready and /live answer meanwhile."""
                found = []
                for _ in range(round(seconds / 0.1)):
                    await hub.clock.sleep(0.1)
                    ready, live = [await respond(health, f"GET /{path} HTTP/1.1") for path in ("ready", "live")]
                    found.append((" ".join(ready), " ".join(live)))
                return found

            only.leases = plan
            faults = [Fault(before=error)]
            once = await answers(5.0)
            assert not faults
            faults = [Fault(before=error)] * 1000
            await hub.clock.sleep(2.0)
            failing = await answers(5.0)
            faults = []
            await hub.clock.sleep(2.0)
            return set(once), set(failing), set(await answers(5.0))

    once, failing, after = simulate(play)
    assert once == after == {("200 OK ready\n", "200 OK live\n")}
    why = f"the store refuses this worker or does not answer: {said}"
    assert failing == {(f"503 Service Unavailable {why}\n", "200 OK live\n")}, "a restart would not help"


@pytest.fixture
def breaker(monkeypatch: pytest.MonkeyPatch) -> Breaker:
    return Breaker(monkeypatch)


def test_each_loop_of_a_worker_is_started_again_when_it_breaks_and_work_goes_on(breaker: Breaker) -> None:
    """Each one several times, while instances run: nothing is lost, no activity is begun twice."""
    book = Book()

    async def play() -> Any:
        async with World(book.app(), session_idle=timedelta(seconds=30)) as hub:
            only = await hub.join("only")
            await hub.clock.sleep(30.0)
            names = tuple(breaker.fuses)
            for number, name in enumerate(names):
                before = breaker.starts[name]
                await hub.client.start("both", 5.0, instance_id=f"i{number}")
                for _ in range(FAILING - 1):
                    breaker.blow(name)
                    await hub.clock.sleep(2.0)
                await hub.wait(f"i{number}", timedelta(seconds=60))
                assert breaker.starts[name] >= before + FAILING - 1, name
                assert not only.backend.supervisor.failing
            await hub.settle()
            broken = [entry["loop"] for entry in hub.defects() if entry["event"] == "loop_failed"]
            return names, broken, [one for one in hub.defects() if one["event"] != "loop_failed"]

    names, broken, defects = simulate(play)
    assert {
        "absences",
        "activities",
        "orchestrations",
        "overdue activities",
        "overdue spark activities",
        "spark activities",
        "unrecorded activities",
        "unrecorded spark activities",
        "sessions",
        "partitions: scan",
        "partitions: renew",
        "partitions: announce",
        "partitions: app lease",
        "partitions: watchdog",
    } <= set(names)
    assert sum("control-00" in name for name in names) == 2, "a reader and its renewals"
    assert sum("workitems" in name for name in names) == 4
    assert set(broken) == set(names)
    assert not defects
    assert set(book.begun.values()) == {1}
