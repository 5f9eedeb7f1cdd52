"""The intake limit of a hub: which starts it refuses, which wait, and which are taken all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import structlog

from airflow_provider_taskhub.app import App, OrchestrationContext, when_all
from airflow_provider_taskhub.client import Client, IntakePolicy, StartPolicy, Status
from airflow_provider_taskhub.errors import InputError, InstanceExists, IntakeFull
from airflow_provider_taskhub.hub import intake
from airflow_provider_taskhub.hub.intake import KEPT, Counted
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.intake_limit import IntakeLimit
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore
from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE, PutMessage, Store
from airflow_provider_taskhub.tags import OWNER_TAG
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.in_process_worker import house
from tests.hub.test_request_counts import STORES

SETTINGS = Settings(hub="Hub", partitions=2)
WAIT = IntakePolicy.WAIT


def app() -> App:
    made = App("family", version="1")

    @made.orchestrator
    async def measured(ctx: OrchestrationContext, text: str) -> int:
        return len(text)

    @made.orchestrator
    async def child(ctx: OrchestrationContext, number: int) -> int:
        return number

    @made.orchestrator
    async def parent(ctx: OrchestrationContext, children: int) -> int:
        return len(await when_all([ctx.call_sub_orchestrator(child, number) for number in range(children)]))

    @made.orchestrator
    async def again(ctx: OrchestrationContext, left: int) -> None:
        if left:
            ctx.continue_as_new(left - 1)

    return made


def play(kind: str, scene: Callable[[Client, VirtualClock], Awaitable[Any]], **options: Any) -> Any:
    """Run a scene in a hub without a worker."""

    async def main() -> Any:
        clock = VirtualClock()
        async with STORES[kind](clock) as inner:
            store: Store = inner
            if "plan" in options:
                store = FaultyStore(inner, options["plan"], clock=clock)
            return await scene(await Client.over(store, SETTINGS, create=True, clock=clock), clock)

    return run(main(), limit=timedelta(days=1))


async def limited(client: Client, clock: VirtualClock, messages: int, **options: Any) -> None:
    """Set the limit, and wait until a client that is open knows it."""
    await client.admin.set_intake(messages, **options)
    await clock.sleep(KEPT)


async def take_all(client: Client, found: int = MAX_RECEIVE) -> None:
    """Take what waits, as a worker does."""
    store, names = client.hub.store, client.hub.names
    for partition in range(2):
        for message in await store.receive(names.control(partition), limit=found, visibility=timedelta(hours=1)):
            assert message.text


async def stored(client: Client) -> tuple[int, int]:
    """How many instances and messages there are."""
    store, names = client.hub.store, client.hub.names
    rows = [row async for row in store.rows(names.instances)]
    return len(rows), sum([await store.count(names.control(partition)) for partition in range(2)])


@pytest.mark.rows("D14")
@pytest.mark.parametrize("kind", STORES)
def test_a_start_above_the_limit_is_refused_and_stores_nothing(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> str:
        await limited(client, clock, 3)
        for number in range(3):
            await client.start("child", number, instance_id=f"i{number}")
        with pytest.raises(IntakeFull) as refused:
            await client.start("child", "x" * 100_000, instance_id="i3")
        assert await client.get("i3") is None
        assert await stored(client) == (3, 3)
        await take_all(client)
        await clock.sleep(1.0)
        assert (await client.start("child", 3, instance_id="i3")).status is Status.PENDING
        return str(refused.value)

    assert play(kind, scene) == (
        "hub 'Hub' takes no new start now: about 3 messages wait for a worker, and its intake limit is 3. Nothing was "
        "stored. Start workers, try again later, or raise the limit: taskhub limits intake NUMBER"
    )


@pytest.mark.rows("D14")
@pytest.mark.parametrize("kind", STORES)
def test_starts_at_the_same_time_do_not_overshoot(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> list[Any]:
        await limited(client, clock, 10)
        starts = [client.start("child", number) for number in range(50)]
        return await asyncio.gather(*starts, return_exceptions=True)

    made = play(kind, scene)
    assert sum(isinstance(one, IntakeFull) for one in made) == 40


@pytest.mark.rows("D106")
@pytest.mark.parametrize("kind", STORES)
def test_an_instance_that_exists_is_found_also_above_the_limit(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> None:
        first = await client.start("child", 1, instance_id="i")
        await limited(client, clock, 1, policy=WAIT)
        before = clock.monotonic()
        found = await client.start("child", 2, instance_id="i", policy=StartPolicy.ATTACH)
        with pytest.raises(InstanceExists):
            await client.start("child", 2, instance_id="i")
        assert (found.execution_id, found.input) == (first.execution_id, "1")
        assert clock.monotonic() == pytest.approx(before), "no start, so nothing to wait for"
        assert (await stored(client))[0] == 1

    play(kind, scene)


@pytest.mark.parametrize("policy", IntakePolicy)
def test_a_new_run_of_an_ended_instance_is_a_start_and_a_refused_one_changes_nothing(policy: IntakePolicy) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with STORES["embedded"](clock) as store:
            async with house(store, app(), clock=clock) as hub:
                client = hub.client
                watch = Watch(
                    instance_id="i", deployment="", dag_id="d", run_id="r", task_id="t", map_index=-1, owner="o",
                    generation=1, waiter="o",
                )  # fmt: skip
                await client.watches.add(watch)
                await client.start("child", 1, instance_id="i", tags={OWNER_TAG: "o"})
                ended = await client.wait("i")
                await clock.sleep(60.0)
            await client.start("child", 1)  # no worker takes it
            await limited(client, clock, 1, policy=policy)
            before = clock.monotonic()
            for refused in (
                client.restart("i"),
                client.restart("i", new_id=True),
                client.start(
                    "child", 2, instance_id="i", policy=StartPolicy.REPLACE_FINISHED, intake_timeout=timedelta(0)
                ),
            ):
                with pytest.raises(IntakeFull):
                    await refused
            assert clock.monotonic() - before < 1.0, "a person who restarts an instance gets an answer at once"
            assert await client.get("i") == ended
            assert await client.watches.get("i") is not None
            await client.admin.set_intake(None)
            await clock.sleep(KEPT)
            assert (await client.restart("i")).status is Status.PENDING
            assert await client.watches.get("i") is None

    run(main(), limit=timedelta(hours=1))


@pytest.mark.parametrize("kind", STORES)
def test_a_start_for_later_is_not_refused_and_does_not_count(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> None:
        await limited(client, clock, 1)
        later = clock.utc_now().datetime() + timedelta(hours=1)
        for number in range(5):
            await client.start("child", number, start_at=later)
        await client.start("child", 0, start_at=clock.utc_now().datetime())
        with pytest.raises(IntakeFull):
            await client.start("child", 0, start_at=clock.utc_now().datetime())
        await client.start("child", 0, start_at=later)

    play(kind, scene)


@pytest.mark.parametrize("kind", STORES)
def test_hidden_messages_refuse_no_start_and_are_not_told_as_waiting(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> None:
        await limited(client, clock, 20)
        later = clock.utc_now().datetime() + timedelta(hours=1)
        for number in range(18):
            await client.start("child", number, start_at=later)
        limit = await client.admin.intake()
        assert limit is not None
        assert limit.waiting == 0, "18 messages are hidden until their time"
        await asyncio.gather(*(client.start("child", number) for number in range(16)))

    play(kind, scene)


@pytest.mark.rows("D14")
@pytest.mark.parametrize("kind", STORES)
def test_a_start_waits_for_room_and_says_for_what(kind: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> tuple[float, list[Any]]:
        await limited(client, clock, 1, policy=WAIT)
        await client.start("child", 1)
        before = clock.monotonic()
        with structlog.testing.capture_logs() as logs:
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(client.start("child", 2, instance_id="second"))
                await clock.sleep(60.0)
                assert not waiting.done()
                assert await client.get("second") is None
                await take_all(client)
        made = await waiting
        assert made.created is not None
        age = clock.utc_now() - made.created
        assert age < timedelta(seconds=1), "it is made when there is room"
        return clock.monotonic() - before, logs

    took, logs = play(kind, scene)
    assert 60.0 <= took <= 90.0
    told = [entry for entry in logs if entry["event"] == "start_waits"]
    assert 3 <= len(told) <= 12, "its pauses become longer"
    assert told[0]["instance_id"] == "second"
    assert "about 1 message waits for a worker" in told[0]["reason"]


@pytest.mark.parametrize(("given", "waited"), [({}, 300.0), ({"intake_timeout": timedelta(seconds=20)}, 20.0)])
def test_a_start_that_finds_no_room_by_its_deadline_is_refused(given: Mapping[str, Any], waited: float) -> None:
    async def scene(client: Client, clock: VirtualClock) -> float:
        await limited(client, clock, 1, policy=WAIT)
        await client.start("child", 1)
        before = clock.monotonic()
        with pytest.raises(IntakeFull):
            await client.start("child", 2, **given)
        assert await stored(client) == (1, 1)
        return clock.monotonic() - before

    assert play("embedded", scene) == pytest.approx(waited, abs=0.1)


@pytest.mark.rows("D14")
@pytest.mark.parametrize("kind", STORES)
def test_starts_of_orchestrators_are_never_bounded(kind: str) -> None:
    """A parent whose children were refused could not end, so the hub would stand still."""

    async def main() -> None:
        clock = VirtualClock()
        async with STORES[kind](clock) as store, house(store, app(), clock=clock) as hub:
            await limited(hub.client, clock, 1)
            await hub.client.start("parent", 200, instance_id="p")
            state = await hub.client.wait("p", timeout=timedelta(minutes=10))
            assert state.output == "200"
            await clock.sleep(5.0)
            await hub.client.start("again", 5, instance_id="a")
            assert (await hub.client.wait("a", timeout=timedelta(minutes=10))).status is Status.COMPLETED

    run(main(), limit=timedelta(hours=1))


@pytest.mark.rows("D107", "D14", "D92")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("bound", [{"buffer": 4}, {"buffer": 64, "buffer_bytes": 65_536}], ids=["messages", "bytes"])
def test_an_overloaded_worker_takes_no_more_starts_than_its_buffers_hold_and_the_hub_no_more_than_its_limit(
    bound: dict[str, int], kind: str
) -> None:
    """The worker cannot store what its orchestrators decide. When it can again, starts are taken again."""
    stored = True

    def plan(call: Call) -> Fault | None:
        return None if stored or call.kind != "table.batch" else Fault(delay=90.0)

    async def main() -> None:
        nonlocal stored
        clock = VirtualClock()
        async with STORES[kind](clock) as inner:
            store = FaultyStore(inner, plan, clock=clock, stepwise=True)
            async with house(store, app(), clock=clock, partitions=1, orchestrations=2, **bound) as hub:
                await limited(hub.client, clock, 20)
                stored = False
                taken, large = 0, "x" * 20_000
                with suppress(IntakeFull):
                    for taken in range(100):
                        await hub.client.start("measured", large, instance_id=f"i{taken}")
                        await clock.sleep(2.0)
                waiting = len(await store.peek(hub.client.hub.names.control(0)))
                assert waiting == 20
                assert 0 < taken - waiting <= 4 + 2, "what the worker has taken"
                stored = True
                for number in range(taken):
                    assert (await hub.client.wait(f"i{number}")).output == "20000"
                await hub.client.start("child", 0)

    run(main(), limit=timedelta(hours=1))


@pytest.mark.parametrize("kind", STORES)
def test_a_small_limit_does_not_slow_down_a_hub_whose_workers_keep_up(kind: str) -> None:
    """What has been started since the last count is counted again before it refuses anything."""

    async def main() -> None:
        clock = VirtualClock()
        async with STORES[kind](clock) as store, house(store, app(), clock=clock) as hub:
            await limited(hub.client, clock, 3)
            for number in range(30):
                await hub.client.start("child", number, instance_id=f"i{number}")
                await hub.client.wait(f"i{number}")
                await clock.sleep(0.2)

    run(main(), limit=timedelta(hours=1))


@pytest.mark.parametrize(("visible", "waiting"), [(MAX_RECEIVE - 1, 31), (MAX_RECEIVE, 82)])
def test_hidden_messages_count_only_in_a_queue_with_many_others(visible: int, waiting: int) -> None:
    async def scene(client: Client, clock: VirtualClock) -> int | None:
        queue = client.hub.names.control(0)
        for number in range(50 + visible):
            delay = timedelta(hours=1) if number < 50 else timedelta(0)
            await client.hub.store.execute(PutMessage(queue=queue, text="m", visibility=delay))
        limit = await client.admin.set_intake(10)
        assert limit is not None
        return limit.waiting

    assert play("embedded", scene) == waiting


@pytest.mark.parametrize("fault", ["admin", "table.get"])
def test_a_store_that_does_not_answer_refuses_no_start(fault: str) -> None:
    answers = True

    def plan(call: Call) -> Fault | None:
        return None if answers or call.kind != fault else Fault(delay=3600.0)

    async def scene(client: Client, clock: VirtualClock) -> tuple[float, list[Any]]:
        nonlocal answers
        await client.start("child", 0)
        await limited(client, clock, 1)
        answers = False
        before = clock.monotonic()
        with structlog.testing.capture_logs() as logs:
            await client.start("child", 1)
        answers = True
        await clock.sleep(KEPT)
        with pytest.raises(IntakeFull):
            await client.start("child", 2)
        return clock.monotonic() - before - KEPT, logs

    took, logs = play("embedded", scene, plan=plan)
    assert took == pytest.approx(intake.DEADLINE, abs=0.1)
    assert [entry["event"] for entry in logs] == ["intake_unreadable"]


def test_a_limit_holds_at_once_for_new_clients_and_in_ten_seconds_for_others() -> None:
    async def scene(client: Client, clock: VirtualClock) -> None:
        await client.start("child", 0)
        limit = await client.admin.set_intake(1, by="ann")
        assert limit == IntakeLimit(messages=1, by="ann", waiting=1)
        await client.start("child", 1)
        other = await Client.over(client.hub.store, SETTINGS, clock=clock)
        with pytest.raises(IntakeFull):
            await other.start("child", 2)
        await clock.sleep(KEPT)
        with pytest.raises(IntakeFull):
            await client.start("child", 2)
        assert await client.admin.set_intake(None) is None
        await clock.sleep(KEPT)
        await client.start("child", 2)

    play("embedded", scene)


@pytest.mark.parametrize(("given", "text"), [
    ({"messages": 0}, "the intake limit is 0; give a whole number from 1 to 1,000,000,000"),
    ({"messages": True}, "the intake limit is True; give"),
    ({"messages": 5, "policy": "drop"}, "the policy of the intake limit is 'drop'; give refuse or wait"),
])  # fmt: skip
def test_a_wrong_limit_changes_nothing(given: dict[str, Any], text: str) -> None:
    async def scene(client: Client, clock: VirtualClock) -> str:
        await client.admin.set_intake(7)
        with pytest.raises(InputError) as error:
            await client.admin.set_intake(**given)
        limit = await client.admin.intake()
        assert limit is not None
        assert limit.messages == 7
        return str(error.value)

    assert play("embedded", scene).startswith(text)


@pytest.mark.parametrize("columns", [{}, {"IntakeMessages": 0, "IntakePolicy": ""}, {"IntakeMessages": 5},
                                     {"IntakeMessages": 5, "IntakePolicy": "newer"}])  # fmt: skip
def test_a_row_without_a_limit_that_this_package_knows_is_none(columns: dict[str, object]) -> None:
    assert intake.decoded(columns) is None


def counted(waiting: int, **more: Any) -> Counted:
    return Counted(**{"waiting": waiting, "age": 0.0, "made": 0, "under_way": 0, "exact": True, **more})


@pytest.mark.parametrize(("known", "full", "usable"), [
    (counted(9), False, True),
    (counted(9, age=4.9), False, True),
    (counted(9, age=5.0), False, False),
    (counted(10), True, True),
    (counted(10, age=1.0), True, False),
    (counted(8, made=1), False, True),
    (counted(8, made=2), True, False),
    (counted(8, under_way=2), True, True),
    (counted(8, under_way=2, exact=False), True, False),
    (counted(7, under_way=2, exact=False), False, True),
])  # fmt: skip
def test_how_long_a_count_is_used(known: Counted, full: bool, usable: bool) -> None:
    limit = IntakeLimit(messages=10)
    assert (known.is_full(limit), known.is_usable(limit)) == (full, usable)
