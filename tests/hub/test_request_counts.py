"""Exact counts: what an orchestration, an activity of a fan-out, a step and an idle minute ask of the store; what is
replayed; what is committed together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, when_all
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import IntakeFull
from airflow_provider_taskhub.hub.change_hints import fingerprint
from airflow_provider_taskhub.hub.intake import KEPT
from airflow_provider_taskhub.hub.model import WATCHER, Member
from airflow_provider_taskhub.hub.partitions.metrics import LeaseMetrics
from airflow_provider_taskhub.settings import AZURE_LEASE, Settings
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Compare, PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.tags import WATCH_TAG
from airflow_provider_taskhub.virtual_time import START, VirtualClock, run
from airflow_provider_taskhub.workers.health import Health, respond
from airflow_provider_taskhub.workers.orchestrations.call_lanes import OF_CALLER
from tests.hub.in_process_worker import House, house

RECEIVES = "queue.receive"
"""Their number depends on the moment."""


class Book:
    """Orchestrators, and how often their code ran for the first time and again."""

    def __init__(self) -> None:
        self.live = self.replayed = 0

    def app(self) -> App:
        made = App("counted", version="1")

        @made.activity
        def nothing(value: int) -> int:
            return value

        @made.activity
        async def slow(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        @made.activity(record=True)
        def kept(number: int) -> int:
            return number

        @made.orchestrator
        async def recorded(ctx: OrchestrationContext, number: int) -> int:
            return await ctx.call_activity(kept, number)

        @made.orchestrator
        async def patient(ctx: OrchestrationContext, seconds: int) -> int:
            return await ctx.call_activity(slow, seconds)

        @made.orchestrator
        async def chain(ctx: OrchestrationContext, length: int) -> int:
            for number in range(length):
                await ctx.call_activity(nothing, number)
                if ctx.is_replaying:
                    self.replayed += 1
                else:
                    self.live += 1
            return length

        @made.orchestrator
        async def fan(ctx: OrchestrationContext, width: int) -> int:
            return len(await when_all([ctx.call_activity(nothing, number) for number in range(width)]))

        @made.orchestrator
        async def doorbell(ctx: OrchestrationContext, rings: int) -> int:
            for _ in range(rings):
                await ctx.wait_for_external_event("ring")
                if ctx.is_replaying:
                    self.replayed += 1
                else:
                    self.live += 1
            return rings

        return made


class Distant(SqliteStore):
    """As Azure is: nothing tells that a message has come, and a commit goes operation by operation."""

    local = False

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(None, clock=clock, stepwise=True)
        self._time = clock

    async def arrival(self, queues: Sequence[str], timeout: float) -> Sequence[str]:
        await self._time.sleep(timeout)
        return []


STORES: dict[str, Callable[[VirtualClock], SqliteStore]] = {
    "embedded": lambda clock: SqliteStore(None, clock=clock),
    "as Azure": Distant,
}


def in_virtual_time(
    kind: str, play: Callable[[House, VirtualClock], Awaitable[Any]], book: Book, **settings: Any
) -> Any:
    async def scene() -> Any:
        clock = VirtualClock()
        async with STORES[kind](clock) as store, house(store, book.app(), clock=clock, **settings) as hub:
            await clock.sleep(1.0)  # each reader has asked once what is in quarantine
            return await play(hub, clock)

    return run(scene())


async def ended(
    hub: House, clock: VirtualClock, orchestrator: str, value: int, **options: Any
) -> tuple[str, Counter[str]]:
    """Its id, and what it asked of the store, client and worker together, beside receives and the test's own looks."""
    store = hub.client.hub.store
    before = store.requests.copy()
    instance_id = (await hub.client.start(orchestrator, value, **options)).instance_id
    looks = 0
    while True:
        looks += 1
        state = await hub.client.get(instance_id, payloads=False)
        if state is not None and state.status.is_final:
            break
        await clock.sleep(0.05)
    await clock.sleep(1.0)  # a client sees the end before its messages are deleted
    spent = store.requests - before - Counter({"table.get": looks})
    del spent[RECEIVES]
    return instance_id, spent


ONE = {"table.insert": 1, "queue.put": 2, "table.batch": 2, "table.update": 2, "queue.delete": 2}
"""Row of the start; start and work item; two episodes with a row merge each; two messages deleted."""


@pytest.mark.parametrize("kind", STORES)
def test_an_orchestration_of_one_activity_is_nine_operations(kind: str) -> None:
    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        await ended(hub, clock, "chain", 1)
        return (await ended(hub, clock, "chain", 1))[1]

    assert in_virtual_time(kind, play, Book()) == ONE
    assert sum(ONE.values()) == 9


@pytest.mark.parametrize("kind", STORES)
def test_a_record_costs_two_operations_more(kind: str) -> None:
    """One inserts the record, and one writes the outcome. No read is needed: the insert fails if there is a record."""

    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        return (await ended(hub, clock, "recorded", 1))[1]

    spent = in_virtual_time(kind, play, Book())
    assert spent == Counter(ONE) + Counter({"table.insert": 1, "table.update": 1})


@pytest.mark.parametrize("kind", STORES)
def test_terminating_an_instance_reads_nothing_more_unless_its_open_activity_has_a_record(kind: str) -> None:
    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        instance_id = (await hub.client.start("patient", 600)).instance_id
        await clock.sleep(5.0)
        before = hub.client.hub.store.requests.copy()
        await hub.client.terminate(instance_id, "enough")
        await hub.client.wait(instance_id)
        await clock.sleep(5.0)
        return hub.client.hub.store.requests - before

    spent = in_virtual_time(kind, play, Book())
    assert (spent["table.query"], spent["table.batch"], spent["queue.put"]) == (0, 1, 1)


@pytest.mark.parametrize("kind", STORES)
def test_being_watched_costs_one_operation_more(kind: str) -> None:
    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        return (await ended(hub, clock, "chain", 1, tags={WATCH_TAG: "1"}))[1]

    spent = in_virtual_time(kind, play, Book())
    assert sum((spent - Counter(ONE)).values()) == 1


@pytest.mark.rows("D13")
@pytest.mark.parametrize("kind", STORES)
def test_a_worker_counts_the_messages_that_are_put_done_and_kept_for_people(kind: str) -> None:
    """Not as D13 says, on purpose: a worker counts for all of its instances, and not for each of them."""

    async def play(hub: House, clock: VirtualClock) -> list[str]:
        await ended(hub, clock, "chain", 3)
        text = "this is no message"
        await hub.client.hub.store.execute(PutMessage(queue=hub.client.hub.names.control(0), text=text))
        await clock.sleep(60.0)
        owner = SimpleNamespace(supervisor=None, metrics=LeaseMetrics(), tenures=[], requests=Counter())
        health = Health(backend=hub.backend, owner=cast(Any, owner), started=0.0)
        return (await respond(health, "GET /metrics?waiting=no HTTP/1.1"))[1].splitlines()

    told = in_virtual_time(kind, play, Book())
    requests = "taskhub_storage_requests_total"
    assert f'{requests}{{kind="queue.put",part="work"}} 5.0' in told, "a start, three calls, and nonsense"
    assert f'{requests}{{kind="queue.delete",part="work"}} 5.0' in told
    assert "taskhub_messages_quarantined_total 1.0" in told


@pytest.mark.rows("D33")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("awaited", "hints"), [("i", 2), ("another", 0)])
def test_being_awaited_by_a_sensor_costs_one_operation_for_each_change(kind: str, awaited: str, hints: int) -> None:
    """The instance begins to run, and it ends. What nobody waits for costs nothing."""
    sensor = Member(
        worker="t@h/1",
        started=START,
        roles=(WATCHER,),
        apps={},
        orchestrators=(),
        activities=(),
        awaited=frozenset({fingerprint(awaited)}),
    )

    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        hub.client.hub.awaited.update([sensor])
        return (await ended(hub, clock, "chain", 1, instance_id="i"))[1]

    spent = in_virtual_time(kind, play, Book())
    assert spent - Counter(ONE) == Counter({"table.upsert": hints} if hints else {})


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("seconds", "messages"), [(0, 2), (2, 3)])
def test_only_a_result_that_took_long_to_find_is_put_into_a_message(kind: str, seconds: int, messages: int) -> None:
    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        return (await ended(hub, clock, "patient", seconds))[1]

    spent = in_virtual_time(kind, play, Book())
    renewals = Counter({name: spent[name] for name in ("queue.update", "table.get")})  # of what takes long
    assert spent - renewals == ONE | {"queue.put": messages, "queue.delete": messages}


def test_episodes_side_by_side_claim_no_slot_twice() -> None:
    """What is claimed without a slot for it costs an update that gives it back, and a receive."""

    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        store = hub.client.hub.store
        await asyncio.gather(*(hub.client.start("patient", 1) for _ in range(40)))
        before = store.requests.copy()
        await clock.sleep(0.5)  # the first activities still run, the others wait
        return store.requests - before

    assert "queue.update" not in in_virtual_time("embedded", play, Book())


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("width", [10, 150])
def test_an_activity_of_a_fan_out_is_two_queue_operations_and_two_history_rows(kind: str, width: int) -> None:
    """However many responses come while their session is busy: no buffer is too small for them."""

    async def play(hub: House, clock: VirtualClock) -> tuple[Counter[str], Counter[str], int]:
        instance_id, spent = await ended(hub, clock, "fan", width)
        names, store = hub.client.hub.names, hub.client.hub.store
        rows = store.rows(names.history, Compare("PartitionKey", "eq", instance_id))
        return spent, Counter([str(row.properties.get("EventType", "sentinel")) async for row in rows]), width

    spent, rows, _ = in_virtual_time(kind, play, Book())
    transactions = spent.pop("table.batch")
    # beside the activities' work items: the start's message; the row as it starts and as it ends
    put, deleted = spent.pop("queue.put"), spent.pop("queue.delete")
    # what found no slot at once comes through the queue, or through a lane: one look at the instance for each of them
    # lets all of it begin
    assert spent == {"table.insert": 1, "table.update": 2, "table.get": 1 if width <= OF_CALLER else 2}
    assert put == deleted == width + 1
    episodes = rows["OrchestratorStarted"]
    assert rows == {
        "TaskScheduled": width,
        "TaskCompleted": width,
        "ExecutionStarted": 1,
        "ExecutionCompleted": 1,
        "OrchestratorStarted": episodes,
        "OrchestratorCompleted": episodes,
        "sentinel": 1,
    }
    assert episodes <= width + 1
    assert transactions <= episodes + 2 * width // 99, (
        "what an episode produced is one transaction, of 100 rows at most"
    )


@pytest.mark.parametrize("kind", STORES)
def test_a_step_of_a_live_chain_reads_nothing_and_replays_nothing(kind: str) -> None:
    book, steps = Book(), 40

    async def play(hub: House, clock: VirtualClock) -> Counter[str]:
        return (await ended(hub, clock, "chain", steps))[1]

    assert in_virtual_time(kind, play, book) == {
        "table.insert": 1,
        "queue.put": steps + 1,
        "queue.delete": steps + 1,
        "table.batch": steps + 1,
        "table.update": 2,
    }
    assert (book.live, book.replayed) == (steps, 0)


@pytest.mark.parametrize("kind", STORES)
def test_an_orchestrator_that_idled_is_replayed_once_and_then_lives_again(kind: str) -> None:
    """Ended after seven of its ten events: they are replayed once, from memory, and the last ones not at all."""
    book = Book()

    async def play(hub: House, clock: VirtualClock) -> list[tuple[int, int, int, int]]:
        await hub.client.start("doorbell", 10, instance_id="bell")
        store, found = hub.client.hub.store, []
        for number in range(10):
            await clock.sleep(40.0)
            if number == 7:
                await clock.sleep(200.0)
            before = store.requests["table.query"]
            sessions = len(hub.backend.sessions)
            await hub.client.raise_event("bell", "ring")
            await clock.sleep(31.0)
            found.append((sessions, store.requests["table.query"] - before, book.live, book.replayed))
        return found

    found = in_virtual_time(kind, play, book, session_idle=timedelta(seconds=180))
    alive = [(1, 0, number + 1, 0) for number in range(7)]
    assert found == [*alive, (1, 0, 8, 7), (1, 0, 9, 7), (1, 0, 10, 7)]


def test_an_idle_minute_costs_two_receives_a_queue_one_a_lane_and_a_tenth_of_a_query() -> None:
    """The floor of the back-off: each of six queues is asked every 30 s, four lanes every 60 s, the lane of low
    priority every 30 s, and the five for Spark, of which the app has none, every 600 s. The query looks for activities
    with a limit whose queue nobody reads."""

    async def play(hub: House, clock: VirtualClock) -> tuple[Counter[str], float]:
        await ended(hub, clock, "chain", 1)
        await clock.sleep(120.0)
        before = hub.client.hub.store.requests.copy()
        await clock.sleep(1200.0)
        return hub.client.hub.store.requests - before, 20.0

    spent, minutes = in_virtual_time("as Azure", play, Book(), lease=AZURE_LEASE)
    assert spent == {RECEIVES: (6 * 2 + 4 + 2 + 0.5) * minutes, "table.query": minutes / 10}


@pytest.mark.parametrize("kind", STORES)
def test_waiting_instances_ask_nothing_of_the_store(kind: str) -> None:
    """Neither in memory nor evicted: an idle hour costs the same with two hundred of them as with none."""

    async def play(hub: House, clock: VirtualClock) -> tuple[Counter[str], Counter[str]]:
        store = hub.client.hub.store

        async def hour() -> Counter[str]:
            await clock.sleep(300.0)
            before = store.requests.copy()
            await clock.sleep(3600.0)
            return store.requests - before

        alone = await hour()
        for number in range(200):
            await hub.client.start("doorbell", 1, instance_id=f"bell-{number}")
        return alone, await hour()

    alone, waiting = in_virtual_time(kind, play, Book(), lease=AZURE_LEASE)
    assert set(waiting) == set(alone) == {RECEIVES, "table.query"}
    assert waiting["table.query"] == alone["table.query"] == 6
    assert abs(waiting[RECEIVES] - alone[RECEIVES]) <= 5  # whether a queue's last look falls into the hour


def test_an_orchestration_is_four_transactions_alone() -> None:
    """The start, its receive, two episodes."""

    async def play(hub: House, clock: VirtualClock) -> int:
        store = hub.client.hub.store
        assert isinstance(store, SqliteStore)
        await ended(hub, clock, "chain", 1)
        before = store.commits
        await ended(hub, clock, "chain", 1)
        return store.commits - before

    assert in_virtual_time("embedded", play, Book()) == 4


async def test_a_burst_shares_its_commits(tmp_path: Path) -> None:
    """Alone, a hundred orchestrations are 400 transactions."""
    async with SqliteStore(tmp_path / "hub.db") as store, house(store, Book().app()) as hub:
        before = store.commits
        started = await asyncio.gather(*(hub.client.start("chain", 1) for _ in range(100)))
        for state in started:
            await hub.client.wait(state.instance_id, timeout=timedelta(seconds=60))
        assert store.commits - before <= 200


async def test_azure_is_asked_as_the_budget_says(azurite: str) -> None:
    """The same counts by the real client of the real service's emulator."""
    async with (
        AzureStore(azurite, timeout=timedelta(seconds=30)) as store,
        house(store, Book().app(), hub="Budget", partitions=1) as hub,
    ):
        for _ in range(2):  # the first one makes connections
            before = store.requests.copy()
            state = await hub.client.start("chain", 1)
            while not (await hub.client.wait(state.instance_id, timeout=timedelta(seconds=60))).status.is_final:
                pass
            queues = [hub.client.hub.names.control(0), hub.client.hub.names.work_items]
            while sum([await store.count(queue) for queue in queues]):
                pass
            spent = {kind: count for kind, count in (store.requests - before).items() if kind in ONE}
            assert spent == ONE


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("limit", "counts"), [(None, 0), (1000, 12)])
def test_a_client_that_starts_all_the_time_reads_the_limit_every_ten_seconds_and_counts_only_if_there_is_one(
    kind: str, limit: int | None, counts: int
) -> None:
    """A count is one request for each of two partitions, every five seconds. A client that has just opened reads
    nothing for it."""

    async def scene() -> tuple[Counter[str], Counter[str]]:
        clock = VirtualClock()
        async with STORES[kind](clock) as store:
            settings = Settings(hub="Hub", partitions=2)
            client = await Client.over(store, settings, create=True, clock=clock)
            await client.admin.set_intake(limit)
            client = await Client.over(store, settings, clock=clock)
            before = store.requests.copy()
            await client.start("chain", 1)
            first = store.requests - before
            await clock.sleep(KEPT)
            before = store.requests.copy()
            for _ in range(300):
                await client.start("chain", 1)
                await clock.sleep(0.1)
            return first, store.requests - before

    first, spent = run(scene())
    assert first == Counter({"table.insert": 1, "queue.put": 1} | ({"admin": 2} if limit else {}))
    assert spent == Counter(
        {"table.insert": 300, "queue.put": 300, "table.get": 3} | ({"admin": counts} if limit else {})
    )


@pytest.mark.parametrize("kind", STORES)
def test_refused_starts_do_not_count_what_waits_each_time(kind: str) -> None:
    """Above the limit, a count is at most four requests a second, and each start looks whether its instance exists."""

    async def scene() -> Counter[str]:
        clock = VirtualClock()
        async with STORES[kind](clock) as store:
            client = await Client.over(store, Settings(hub="Hub", partitions=2), create=True, clock=clock)
            await client.admin.set_intake(4)
            await clock.sleep(KEPT)
            for number in range(4):
                await client.start("chain", 1, instance_id=f"i{number}")
            before = store.requests.copy()
            for _ in range(100):
                with pytest.raises(IntakeFull):
                    await client.start("chain", 1)
                await clock.sleep(0.05)
            return store.requests - before

    spent = run(scene())
    assert spent.pop("table.get") == 100
    assert spent == {"admin": 2 * 5, "queue.peek": 2 * 5}
