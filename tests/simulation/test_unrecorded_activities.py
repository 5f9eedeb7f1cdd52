"""Activities without a record: whether they go on when their instance ends, and how often they were begun."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App, OrchestrationContext, TaskFailedError
from airflow_provider_taskhub.client import termination
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.formats.message_envelope import decode
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.storage.faults import Call, Fault, FaultyStore, late, refused
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.simulation.world import Death, Place, World, running, simulate


class Book:
    """What the activities did."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.cut: list[str] = []

    def app(self) -> App:
        made = App("plain")

        @made.activity(queue_timeout=timedelta(seconds=8))
        async def sleep(seconds: float) -> int:
            self.begun.append(running().attempt)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                self.cut.append(running().instance.instance_id)
                raise
            return running().attempt

        @made.orchestrator
        async def one(ctx: OrchestrationContext, seconds: float) -> Any:
            try:
                return await ctx.call_activity(sleep, seconds)
            except TaskFailedError as error:
                return str(error)

        @made.orchestrator
        async def parent(ctx: OrchestrationContext, children: list[float]) -> list[Any]:
            return [await ctx.call_sub_orchestrator("one", seconds, instance_id="child") for seconds in children]

        @made.orchestrator
        async def fan(ctx: OrchestrationContext, job: dict[str, float]) -> Any:
            return await ctx.when_all([ctx.call_activity(sleep, job["seconds"]) for _ in range(int(job["width"]))])

        return made


def test_the_message_of_an_activity_carries_the_tags_of_its_instance() -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            await hub.join("only", roles=("orchestrator",))
            await hub.client.start("one", 1.0, instance_id="i", tags={"team": "flights"})
            await asyncio.sleep(5.0)
            queue = hub.client.hub.names.work_items
            (message,) = await hub.store.receive(queue, limit=32, visibility=timedelta(seconds=30))
            found = decode(message.text).message
            return found and found.context_tags

    assert simulate(play) == {"team": "flights"}


def test_an_activity_sees_the_tags_of_its_call_and_not_those_of_its_instance() -> None:
    made = App("tags")

    @made.activity
    async def tags() -> dict[str, str]:
        return dict(activity_info().tags)

    @made.orchestrator
    async def twice(ctx: OrchestrationContext) -> Any:
        return [await ctx.call_activity(tags, tags={"call": "yes"}), await ctx.call_activity(tags)]

    async def play() -> Any:
        async with World(made) as hub:
            await hub.join("only")
            await hub.client.start("twice", instance_id="i", tags={"team": "flights"})
            return (await hub.wait("i")).output

    assert json.loads(simulate(play)) == [{"call": "yes"}, {}]


def test_an_activity_of_a_terminated_instance_is_cancelled_and_its_slot_is_free() -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app(), activities=1) as hub:
            await hub.join("only")
            await hub.client.start("one", 600.0, instance_id="ended")
            await asyncio.sleep(3)
            await hub.client.terminate("ended", "enough", wait=True)
            await hub.client.start("one", 1.0, instance_id="next")
            began = hub.clock.monotonic()
            await hub.wait("next")
            waited = hub.clock.monotonic() - began
            await hub.settle()
            return waited, hub.defects()

    waited, defects = simulate(play)
    assert book.cut == ["ended"]
    assert waited < 5, "a renewal's time, not the rest of the activity's 600 s"
    assert not defects


@pytest.mark.rows("K26", "K29")
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "is begun again"])
@pytest.mark.parametrize(
    ("before", "point", "count"),
    [([], "history", 2), ([], "instance", 2), ([0.0], "history", 5), ([0.0], "instance", 4)],
    ids=["nothing", "no row", "history and row of the start before", "row of the start before"],
)
def test_a_row_that_is_not_written_yet_ends_no_activity(
    before: list[float], point: str, count: int, again: bool
) -> None:
    """A child's first checkpoint is cut off in front of its row: the work item stands, and somebody waits for it.

    Cut off in front of its history, it is made again, and the work item put again: the first answer counts. While
    nothing at all is stored of the child a work item waits.
    """
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            decider = await hub.join("decider", roles=["orchestrator"], death=Death(point=point, count=count))
            hands = await hub.join("hands", roles=["activity"])
            await hub.client.start("parent", [*before, 20.0], instance_id="parent")
            await decider.died.wait()
            await hub.clock.sleep(3.0)
            if again:
                await hands.bury()
                await hub.join("other hands", roles=["activity"])
            await hub.clock.sleep(10.0)
            cut = len(book.cut)
            await hub.join("next", roles=["orchestrator"])
            state = await hub.wait("parent")
            await hub.ended()
            return cut, state.output

    # while nothing at all is stored of the child, its activity does not begin
    twice = again and (before, point) != ([], "history")
    last = 1 + twice
    assert simulate(play) == (int(twice), json.dumps([*(1 for _ in before), last]).replace(" ", ""))
    assert book.begun[: len(before) + 1 + twice] == [*(1 for _ in before), 1, *([last] if twice else [])]


@pytest.mark.rows("K26")
def test_a_work_item_that_comes_in_front_of_its_childs_history_is_looked_at_again_soon() -> None:
    """The history is on its way for 12 s. So long the activity does not begin, and soon after it does."""
    book = Book()
    slow: list[float] = []

    async def play() -> tuple[float, str | None]:
        async with World(book.app()) as hub:

            def plan(call: Call) -> Fault | None:
                rows = call.what.rows if isinstance(call.what, Transact) and call.what.table.endswith("History") else ()
                if slow or not any(row.entity.partition_key == "child" for row in rows):
                    return None
                slow.append(hub.clock.monotonic())
                return late(12.0)

            await hub.join("decider", roles=["orchestrator"], plan=plan)
            await hub.join("hands", roles=["activity"])
            await hub.client.start("parent", [5.0], instance_id="parent")
            while not book.begun:
                await hub.clock.sleep(0.1)
            begun = hub.clock.monotonic() - slow[0]
            state = await hub.wait("parent")
            await hub.ended()
            return begun, state.output

    seconds, output = simulate(play)
    assert (len(slow), output, book.begun) == (1, "[1]", [1])
    assert 12.0 < seconds < 17.0


def test_an_activity_of_the_start_before_is_cancelled() -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            await hub.join("only")
            await hub.client.start("one", 600.0, instance_id="again")
            await hub.clock.sleep(3.0)
            await hub.client.terminate("again")
            await hub.wait("again")
            await hub.client.start("one", 30.0, instance_id="again", policy=StartPolicy.REPLACE_FINISHED)
            await hub.clock.sleep(5.0)
            cut = list(book.cut)
            state = await hub.wait("again")
            await hub.ended()
            return cut, state.output

    assert simulate(play) == (["again"], "1")
    assert book.cut == ["again"]


def test_an_activity_of_a_terminated_instance_is_not_run_again_after_its_worker_died() -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            first = await hub.join("first", roles=["activity"])
            await hub.join("decider", roles=["orchestrator"])
            await hub.client.start("one", 600.0, instance_id="ended")
            await asyncio.sleep(3)
            await first.bury()
            await hub.client.terminate("ended", "enough", wait=True)
            await hub.join("second", roles=["activity"])
            await hub.settle()
            return await hub.client.get("ended")

    assert simulate(play).status is Status.TERMINATED
    assert book.begun == [1]


@pytest.mark.parametrize("handed_over", [True, False], ids=["claimed with its put", "received"])
def test_a_worker_that_dies_counts_as_an_attempt_and_is_no_wait_for_a_slot(handed_over: bool) -> None:
    """A claimed put has been delivered once more than the queue knows."""
    book = Book()

    async def play() -> Any:
        async with World(book.app()) as hub:
            if handed_over:
                first = await hub.join("first")
            else:
                await hub.join("decider", roles=["orchestrator"])
                first = await hub.join("first", roles=["activity"])
            await hub.client.start("one", 20.0, instance_id="one")
            await asyncio.sleep(10)
            await first.bury()
            await hub.join("second")
            return json.loads((await hub.wait("one")).output or "null")

    assert simulate(play) == 2
    assert book.begun == [1, 2]


def test_what_a_stopping_worker_has_not_begun_is_nobodys_attempt() -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app(), activities=1) as hub:
            first = await hub.join("first")
            await hub.client.start("fan", {"width": 3, "seconds": 2.0}, instance_id="one")
            await asyncio.sleep(1)
            await first.stop()
            await hub.join("second")
            return json.loads((await hub.wait("one")).output or "null")

    assert simulate(play) == [1, 1, 1]


@pytest.mark.rows("K58")
@pytest.mark.parametrize("how", ["stops", "loses its lease"])
def test_a_message_that_a_worker_gives_up_with_its_partition_is_no_delivery(how: str) -> None:
    """Else partitions that move often bring what nobody has begun into quarantine."""

    async def play() -> tuple[list[int], list[Status]]:
        async with World(Book().app(), partitions=1, orchestrations=1) as hub:
            first = await hub.join("first", plan=lambda call: late(60.0) if call.kind == "table.batch" else None)
            names = ["one", "two", "three"]
            for name in names:
                await hub.client.start("one", 1.0, instance_id=name)
            while first.backend.queues.buffered < 2:
                await hub.clock.sleep(0.1)
            if how == "stops":
                stopping = hub.spawn(first.stop())
            else:
                first.leases = lambda call: refused()
            found = list[int]()
            while not found:
                await hub.clock.sleep(0.1)
                visible = await hub.store.peek(hub.client.hub.names.control(0))
                found = [message.dequeue_count + decode(message.text).deliveries for message in visible]
            await (stopping if how == "stops" else first.bury())
            await hub.join("second")
            return found, [(await hub.wait(name)).status for name in names]

    assert simulate(play) == ([0, 0], [Status.COMPLETED] * 3)


def test_quick_activities_are_taken_ahead_and_slow_ones_left_to_others() -> None:
    """What was taken ahead of the slots, when activities became slow, is given back, as nobody's attempt."""
    book = Book()

    async def play() -> Any:
        async with World(book.app(), activities=2, orchestrations=1) as hub:
            first = await hub.join("first")
            await hub.client.start("fan", {"width": 40, "seconds": 0.0}, instance_id="quick")
            await hub.wait("quick")
            slots = first.backend.readers.plain.slots
            ahead = slots.free
            await hub.client.start("fan", {"width": 12, "seconds": 5.0}, instance_id="slow")
            await asyncio.sleep(3)
            waiting = len(slots.clear())
            return ahead, waiting

    ahead, waiting = simulate(play)
    assert ahead > 2, "as many more as ended within the last moment"
    assert waiting == 0
    assert set(book.begun) == {1}


async def standstill(hub: World, chains: int) -> float:
    """The longest time that any of so many chains stands still with one worker, in seconds."""
    await hub.join("only")
    names = [f"chain-{number}" for number in range(chains)]
    for name in names:
        await hub.client.start("chain", 20, instance_id=name)
    longest = 0.0
    for name in names:
        await hub.wait(name)
        times = [event.timestamp for event in await hub.client.instance(name).history()]
        longest = max([longest, *((after - before).total_seconds() for before, after in pairwise(times))])
    return longest


@pytest.mark.rows("K58")
def test_work_items_in_the_queue_are_not_overlooked_while_claimed_ones_take_every_slot() -> None:
    """More chains than a worker has slots and takes ahead: each that finds one goes round and keeps it."""
    app = App("chains")

    @app.activity
    async def step(number: int) -> int:
        await asyncio.sleep(0.02)
        return number

    @app.orchestrator
    async def chain(ctx: OrchestrationContext, length: int) -> None:
        for number in range(length):
            await ctx.call_activity(step, number)

    async def play() -> float:
        async with World(app, activities=2) as hub:
            return await standstill(hub, 60)

    assert simulate(play) < 3.0


@pytest.mark.rows("K58")
@pytest.mark.parametrize("step", ["activity", "child"])
@pytest.mark.long
def test_messages_in_a_control_queue_are_not_overlooked_while_claimed_ones_fill_the_buffer(step: str) -> None:
    """A checkpoint takes 0.05 s, four at a time: a round of all takes 1.5 s where a step is two messages."""
    app = App("chains")

    @app.activity
    async def activity(number: int) -> int:
        return number

    @app.orchestrator
    async def child(ctx: OrchestrationContext, number: int) -> int:
        return number

    @app.orchestrator
    async def chain(ctx: OrchestrationContext, length: int) -> None:
        for number in range(length):
            await (ctx.call_activity if step == "activity" else ctx.call_sub_orchestrator)(step, number)

    def plan(call: Call) -> Fault | None:
        return late(0.05) if call.kind == "table.batch" else None

    def slow(clock: VirtualClock) -> FaultyStore:
        return FaultyStore(SqliteStore(None, clock=clock), plan, clock=clock)

    async def play() -> float:
        place = Place(name="slow", open=slow)
        async with World(app, partitions=1, buffer=16, orchestrations=4, place=place) as hub:
            return await standstill(hub, 60)

    assert simulate(play) < 5.0


@pytest.mark.parametrize("slots", [31, *(pytest.param(slots, marks=pytest.mark.long) for slots in (40, 50, 100))])
def test_more_slots_than_one_receive_can_fill(slots: int) -> None:
    book = Book()

    async def play() -> Any:
        async with World(book.app(), activities=slots) as hub:
            await hub.join("decider", roles=["orchestrator"])
            await hub.client.start("fan", {"width": 150, "seconds": 600.0}, instance_id="one")
            worker = await hub.join("worker", roles=["activity"])
            await hub.clock.sleep(60.0)
            return worker.backend.readers.plain.slots.busy, hub.defects()

    assert simulate(play) == (slots, [])
    assert len(book.begun) == slots


@pytest.mark.parametrize("ending", ["by itself", "terminated", "before it began"])
def test_who_waits_for_an_instance_is_told_of_its_end(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Not found by looking now and then: there is no other look within an hour."""
    monkeypatch.setattr(termination, "FIRST_PAUSE", 3600.0)

    async def play() -> Any:
        async with World(Book().app()) as hub:
            await hub.join("only")
            soon = hub.clock.utc_now().datetime() + timedelta(days=1)
            await hub.client.start("one", 600.0, instance_id="one", start_at=soon if "began" in ending else None)
            waiting = hub.spawn(hub.client.wait("one", longest=3600.0))
            began = hub.clock.monotonic()
            await asyncio.sleep(60)
            if ending != "by itself":
                await hub.client.terminate("one", "enough")
            state = await waiting
            return state.status, hub.clock.monotonic() - began

    status, waited = simulate(play)
    if ending == "by itself":
        assert status is Status.COMPLETED
        assert 600 <= waited < 605
    else:
        assert status is Status.TERMINATED
        assert 60 <= waited < 65


def test_what_an_orchestrator_logs_is_in_the_workers_log_once() -> None:
    app = App("talking")

    @app.activity
    def step(number: int) -> int:
        return number

    @app.orchestrator
    async def talk(ctx: OrchestrationContext, number: int) -> int:
        ctx.logger.warning("begins with %s", number)
        number = await ctx.call_activity(step, number)
        ctx.logger.log(25, "ends")
        return number

    async def drive() -> list[Any]:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("talk", 7, instance_id="i")
            assert (await world.wait("i")).output == "7"
            assert not world.defects(), world.defects()
            found = [*world.said("begins with 7"), *world.said("ends")]
            return [(line["event"], line["log_level"], line["instance_id"], line["orchestrator"]) for line in found]

    assert simulate(drive) == [("begins with 7", "warning", "i", "talk"), ("ends", "info", "i", "talk")]
