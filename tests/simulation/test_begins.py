"""Nothing begins after the confirmed end of its instance, while the instance is suspended, or after a rewind."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.formats.message_envelope import decode
from airflow_provider_taskhub.hub.model import ACTIVITY, BEGINS_WITHIN, ORCHESTRATOR, RecordState
from airflow_provider_taskhub.storage.faults import Call, Fault, at, refused
from airflow_provider_taskhub.virtual_time import VirtualClock
from tests.simulation.world import MEMORY, WHOLE, Place, World, running, simulate

SLOTS = 4
WIDTH = 60


class Begun:
    """Which activities have begun, and when: (number, attempt, second)."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int, float]] = []
        self.fails = True

    def app(self) -> App:
        app = App("begins")

        def note(number: int) -> None:
            self.all.append((number, running().attempt, VirtualClock().monotonic()))

        @app.activity
        async def plain(number: int) -> int:
            note(number)
            await asyncio.sleep(1.0)
            return number

        @app.activity
        def quick(number: int) -> int:
            note(number)
            return number

        @app.activity(record=True)
        async def recorded(number: int) -> int:
            note(number)
            await asyncio.sleep(1.0)
            return number

        @app.activity(queue_timeout=timedelta(seconds=20))
        async def impatient(number: int) -> int:
            note(number)
            await asyncio.sleep(1.0)
            return number

        @app.activity
        async def broken(_: int) -> None:
            await asyncio.sleep(1.2)
            if self.fails:
                raise ValueError("broken")

        @app.orchestrator
        async def fan(ctx: OrchestrationContext, what: list[Any]) -> int:
            name, width = what
            return len(await ctx.when_all([ctx.call_activity(name, number) for number in range(width)]))

        @app.orchestrator
        async def fails(ctx: OrchestrationContext, what: list[Any]) -> int:
            name, width = what
            first = ctx.call_activity("broken", 0)
            calls = [ctx.call_activity(name, number) for number in range(width)]
            await first
            return len(await ctx.when_all(calls))

        return app

    def after(self, second: float) -> list[tuple[int, int, float]]:
        return [one for one in self.all if one[2] > second]


PLACES = pytest.mark.parametrize("place", [MEMORY, WHOLE], ids=str)
KINDS = pytest.mark.parametrize("kind", ["plain", "recorded"])


@pytest.mark.rows("D62")
@PLACES
@KINDS
@pytest.mark.parametrize("workers", [1, 2])
def test_no_activity_begins_after_the_confirmed_end(kind: str, workers: int, place: Place) -> None:
    """It may wait for a slot, or lie in the queue.

    Not as D62 says, on purpose: what has not begun leaves its queue unrun when its turn comes, and not at the kill.
    """
    begun = Begun()

    async def play() -> Any:
        async with World(begun.app(), place=place, activities=SLOTS) as hub:
            for number in range(workers):
                await hub.join(f"w{number}")
            await hub.client.start("fan", [kind, WIDTH], instance_id="one")
            await hub.clock.sleep(3.5)
            state = await hub.client.terminate("one", "stop", wait=True)
            confirmed = hub.clock.monotonic()
            assert state.status is Status.TERMINATED
            await hub.clock.sleep(20.0)
            await hub.ended()
            return confirmed

    confirmed = simulate(play)
    assert 0 < len(begun.all) < WIDTH
    assert begun.after(confirmed) == []


@PLACES
@KINDS
@pytest.mark.parametrize("late", [0.5, 1.5, 2.5, 4.0])
def test_an_activity_that_asked_just_before_the_end_begins_before_it_is_confirmed_or_not_at_all(
    kind: str, late: float, place: Place
) -> None:
    """The answer of the store is late: the instance was open when the store gave it, and has ended when it comes."""
    begun = Begun()

    def slow(call: Call) -> Fault | None:
        asks = call.kind == "table.get" and isinstance(call.what, tuple) and str(call.what[0]).endswith("Instances")
        return Fault(pause=late) if asks else None

    async def play() -> Any:
        async with World(begun.app(), place=place, activities=SLOTS) as hub:
            await hub.join("only", plan=slow)
            await hub.client.start("fan", [kind, WIDTH], instance_id="one")
            await hub.clock.sleep(3.5)
            await hub.client.terminate("one", "stop", wait=True)
            confirmed = hub.clock.monotonic()
            await hub.clock.sleep(20.0)
            await hub.ended()
            return confirmed

    confirmed = simulate(play)
    assert begun.all
    assert begun.after(confirmed) == []


@PLACES
@KINDS
def test_an_activity_that_was_too_late_is_asked_for_again_and_runs_once(kind: str, place: Place) -> None:
    begun = Begun()
    slow = at(3, Fault(pause=BEGINS_WITHIN.total_seconds() + 0.5), kind="table.get")

    async def play() -> Any:
        async with World(begun.app(), place=place, activities=SLOTS) as hub:
            await hub.join("only", plan=slow)
            await hub.client.start("fan", [kind, 3 * SLOTS], instance_id="one")
            await hub.wait("one")
            await hub.ended()
            return [record.state for record in await hub.client.instance("one").activities()]

    records = simulate(play)
    assert sorted((number, attempt) for number, attempt, _ in begun.all) == [(n, 1) for n in range(3 * SLOTS)]
    assert set(records) <= {RecordState.COMPLETED}


@pytest.mark.rows("D30", "D62", "D63", "D64")
@PLACES
@pytest.mark.parametrize(("kind", "workers"), [("plain", 1), ("plain", 2), ("recorded", 2), ("impatient", 1)])
def test_nothing_begins_while_its_instance_is_suspended_and_all_of_it_after_the_resume(
    kind: str, workers: int, place: Place
) -> None:
    """Its messages are neither lost nor put into quarantine, and the queue is not polled all the time.

    Not as D62 and D63 say, on purpose: a suspension leaves what has not begun in its queue, and asks no executor.
    """
    begun, width, seconds = Begun(), 40, 120

    async def play() -> Any:
        async with World(begun.app(), place=place, activities=SLOTS) as hub:
            for number in range(workers):
                await hub.join(f"w{number}")
            await hub.client.start("fan", [kind, width], instance_id="one")
            await hub.clock.sleep(2.5)
            await hub.client.suspend("one", "wait")
            while (await hub.client.get("one")).status is not Status.SUSPENDED:  # type: ignore[union-attr]
                await hub.clock.sleep(0.1)
            await hub.clock.sleep(BEGINS_WITHIN.total_seconds())
            suspended, few = hub.clock.monotonic(), len(begun.all)
            await hub.clock.sleep(120.0)
            before = hub.store.requests.copy()
            await hub.clock.sleep(seconds)
            spent = hub.store.requests - before
            assert begun.after(suspended) == []
            assert 0 < few < width
            assert await hub.queued() == width - few
            assert not await hub.client.admin.quarantined()
            await hub.client.resume("one")
            resumed = hub.clock.monotonic()
            state = await hub.wait("one")
            assert await hub.ended()
            return state.output, hub.clock.monotonic() - resumed, spent, width - few

    output, until_the_end, spent, waiting = simulate(play)
    assert output == str(width)
    assert until_the_end < 45.0
    assert Counter(number for number, _, _ in begun.all) == Counter(range(width))
    assert {attempt for _, attempt, _ in begun.all} == {1}
    holds = seconds / 30 * waiting
    assert spent["queue.update"] <= holds * 1.1
    assert spent["table.get"] <= holds * 1.1


@PLACES
@KINDS
def test_what_a_rewind_has_undone_does_not_begin(kind: str, place: Place) -> None:
    """The work items of the first calls are in the queue when the rewound orchestrator calls again."""
    begun, width = Begun(), 12

    async def play() -> Any:
        async with World(begun.app(), place=place, activities=SLOTS) as hub:
            await hub.join("only")
            await hub.client.start("fails", [kind, width], instance_id="one")
            failed = await hub.wait("one")
            assert failed.status is Status.FAILED
            begun.fails = False
            undone = hub.clock.monotonic() + BEGINS_WITHIN.total_seconds()
            await hub.client.rewind("one")
            assert hub.clock.monotonic() >= undone
            state = await hub.wait("one")
            await hub.clock.sleep(20.0)
            await hub.settle()
            assert not hub.defects()
            return undone, state.output, hub.said("activity_not_begun")

    undone, output, refused = simulate(play)
    first = {number for number, _, second in begun.all if second < undone}
    again = Counter(number for number, _, second in begun.all if second >= undone)
    assert output == str(width)
    assert 0 < len(first) < width
    assert set(again) >= set(range(width)) - first, "what had not begun begins now"
    assert set(again.values()) == {1}, refused
    assert refused


@KINDS
def test_an_outage_of_the_tables_brings_no_work_item_closer_to_the_quarantine(kind: str) -> None:
    """The queues answer, and the tables refuse for two minutes. Nothing begins, so no delivery counts."""
    begun = Begun()

    async def play() -> tuple[set[int], str | None, bool]:
        async with World(begun.app()) as hub:
            await hub.join("decider", roles=[ORCHESTRATOR])
            await hub.client.start("fan", [kind, 3], instance_id="one")
            while await hub.queued() < 3:
                await hub.clock.sleep(0.1)
            hands = await hub.join(
                "hands", roles=[ACTIVITY], plan=lambda call: refused() if call.kind == "table.get" else None
            )
            await hub.clock.sleep(120.0)
            queue = hub.client.hub.names.work_items
            seen = {message.dequeue_count + decode(message.text).deliveries for message in await hub.store.peek(queue)}
            assert begun.all == []
            await hands.bury()
            await hub.join("other hands", roles=[ACTIVITY])
            state = await hub.wait("one")
            return seen, state.output, bool(await hub.client.admin.quarantined())

    seen, output, quarantined = simulate(play)
    assert (output, quarantined) == ("3", False)
    assert seen <= {0, 1}


class Asks:
    """Counts the reads of instance rows of one worker."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, call: Call) -> Fault | None:
        self.count += call.kind == "table.get" and isinstance(call.what, tuple) and call.what[0].endswith("Instances")
        return None


def test_an_activity_that_begins_at_once_asks_nothing_and_one_from_the_queue_asks_once() -> None:
    def played(slots: int, asks: Asks, **roles: Any) -> None:
        begun = Begun()

        async def play() -> None:
            async with World(begun.app(), place=WHOLE, activities=slots) as hub:
                for number, role in enumerate(roles.get("roles", ((ORCHESTRATOR, ACTIVITY),))):
                    await hub.join(f"w{number}", roles=role, **({"plan": asks} if ACTIVITY in role else {}))
                for number in range(3):
                    await hub.client.start("fan", ["quick", slots], instance_id=f"i{number}")
                    await hub.wait(f"i{number}")

        simulate(play)
        assert len(begun.all) == 3 * slots

    alone, hands = Asks(), Asks()
    played(4, alone)
    played(4, hands, roles=((ORCHESTRATOR,), (ACTIVITY,)))
    assert hands.count - alone.count == 3, "one answer serves all activities of an instance"


def test_what_waits_for_a_slot_asks_once_a_second_for_all_of_an_instance() -> None:
    begun, asks = Begun(), Asks()

    async def play() -> Any:
        async with World(begun.app(), place=WHOLE, activities=SLOTS) as hub:
            await hub.join("only", plan=asks)
            await hub.client.start("fan", ["plain", WIDTH], instance_id="one")
            await hub.clock.sleep(2.0)
            before = asks.count
            await hub.clock.sleep(10.0)
            asked = asks.count - before
            await hub.client.terminate("one", wait=True)
            return asked

    watches = 10 * SLOTS  # of what runs: once in each renewal interval
    assert simulate(play) <= watches + 10 + 1
