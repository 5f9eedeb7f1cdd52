"""What the worker of an activity tells the store and the owner of the instance: in order, until it is heard, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import EventRaised, Status
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.history.purge import purge
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.settings import AZURE_LEASE, LeaseTimes
from airflow_provider_taskhub.storage.faults import Call, Fault, refused, unsent
from airflow_provider_taskhub.storage.primitives import DeleteMessage, Operation, Result, Transact
from tests.simulation.world import AFTER, BEFORE, Death, World, running, simulate, tells

DECIDES, WORKS = ("orchestrator",), ("activity",)


class Lab:
    """Activities that note the attempts that begin and end."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.app = made = App("lab")

        @made.activity(record=True)
        async def kept(seconds: float) -> int:
            return await self.work(seconds)

        @made.activity
        async def plain(seconds: float) -> int:
            return await self.work(seconds)

        @made.activity(record=True)
        async def fails(seconds: float) -> None:
            await self.work(seconds)
            raise ValueError("no")

        @made.activity(record=True)
        async def talks(seconds: float) -> int:
            for part in range(1, 8):
                tells(part / 10)
                await asyncio.sleep(seconds / 8)
            return await self.work(seconds / 8)

        @made.activity(record=True)
        async def stubborn(seconds: float) -> None:
            try:
                await asyncio.sleep(600.0)
            except asyncio.CancelledError:
                await self.work(seconds)
                raise

        @made.orchestrator
        async def all_of(ctx: OrchestrationContext, calls: list[Any]) -> Any:
            return await ctx.when_all([ctx.call_activity(name, seconds) for name, seconds in calls])

        @made.orchestrator
        async def events(ctx: OrchestrationContext, count: int) -> list[int]:
            return [await ctx.wait_for_external_event("go", int) for _ in range(count)]

    async def work(self, seconds: float) -> int:
        """The number of the attempt."""
        self.begun[running().name] += 1
        await asyncio.sleep(seconds)
        self.ended[running().name] += 1
        return running().attempt


def is_record(what: object, *, outcome: bool = False) -> bool:
    """Whether an operation writes the record of an attempt. :param outcome: whether it writes how the attempt ended."""
    if not (isinstance(what, Transact) and what.table.endswith("Activities")):
        return False
    ended = records.decode(what.rows[0].entity).state in (RecordState.COMPLETED, RecordState.FAILED)
    return ended or not outcome


# --- what an attempt is said to be --------------------------------------------------------------------------------


@pytest.mark.rows("D67")
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("kept", RecordState.COMPLETED),
        ("fails", RecordState.FAILED),
        pytest.param("stubborn", RecordState.CANCELLED, marks=pytest.mark.rows("D63")),
    ],
)
def test_an_attempt_has_an_end_only_after_its_executor_has_said_so(name: str, last: RecordState) -> None:
    """Not as D67 says, on purpose: ``test_an_attempt_that_runs_ends_by_its_executor_or_with_it`` shows the rest."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app) as hub:
            await hub.join("only")
            await hub.client.start("all_of", [[name, 5.0]], instance_id="one")
            if name == "stubborn":
                await hub.clock.sleep(3.0)
                await hub.client.terminate("one", "enough")
            before, after = set(), set()
            for _ in range(50):
                await hub.clock.sleep(0.2)
                seen = {record.state for record in await hub.client.instance("one").activities()}
                (after if lab.ended[name] else before).update(seen)
            return before, after

    before, after = simulate(play)
    assert before <= {RecordState.RUNNING, RecordState.CANCELLING}
    assert before
    assert last in after


@pytest.mark.rows("D68")
@pytest.mark.parametrize(
    ("name", "then", "told"),
    [
        ("talks", "", ["running", *(f"running {part / 10}" for part in range(1, 8)), "completed 1.0"]),
        ("fails", "", ["running", "failed"]),
        ("kept", "terminate", ["running", "cancelling", "cancelled"]),
        pytest.param("kept", "suspend", ["running", "completed"], marks=pytest.mark.rows("D63")),
        ("kept", "stop", ["running", "lost"]),
    ],
)
def test_what_the_record_of_an_attempt_tells(name: str, then: str, told: list[str]) -> None:
    """Not as D68 says, on purpose: it begins with the claim, and a pause is no state of an attempt."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app) as hub:
            only = await hub.join("only")
            await hub.client.start("all_of", [[name, 8.0]], instance_id="one")
            await hub.clock.sleep(3.0)
            if then == "terminate":
                await hub.client.terminate("one", "enough")
            if then == "suspend":
                await hub.client.suspend("one", "wait")
            if then == "stop":
                await only.stop(timedelta(seconds=1))
            await hub.clock.sleep(15.0)
            found = []
            for done in hub.tape:
                if is_record(done.operation):
                    assert isinstance(done.operation, Transact)
                    record = records.decode(done.operation.rows[0].entity)
                    found.append(f"{record.state} {record.progress or ''}".strip())
            return found

    found = simulate(play)
    assert [text for number, text in enumerate(found) if found[number - 1 : number] != [text]] == told


# --- in order, one at a time --------------------------------------------------------------------------------------


@pytest.mark.rows("D70", "D80")
@pytest.mark.parametrize("terminated", [False, True])
def test_the_reports_of_an_attempt_are_written_one_at_a_time_and_in_order(terminated: bool) -> None:
    """Each write is answered late: progress, heartbeats, the outcome or the cancel come meanwhile."""
    lab = Lab()
    under_way, most, told = 0, 0, list[tuple[float, RecordState]]()

    async def play() -> Any:
        async with World(lab.app) as hub:
            await hub.join("decides", roles=DECIDES)
            slow = lambda call: Fault(pause=0.7) if is_record(call.what) else None  # noqa: E731
            works = await hub.join("works", roles=WORKS, plan=slow)
            execute = works.store.execute

            async def watched(operation: Operation) -> Result:
                nonlocal under_way, most
                if not is_record(operation):
                    return await execute(operation)
                assert isinstance(operation, Transact)
                record = records.decode(operation.rows[0].entity)
                told.append((record.progress or 0.0, record.state))
                under_way += 1
                most = max(most, under_way)
                try:
                    return await execute(operation)
                finally:
                    under_way -= 1

            works.store.execute = watched  # type: ignore[method-assign]
            await hub.client.start("all_of", [["talks", 5.0]], instance_id="one")
            if terminated:
                await hub.clock.sleep(3.1)
                await hub.client.terminate("one", "enough", wait=True)
            await hub.wait("one")
            return [record.state for record in await hub.client.instance("one").activities()]

    ended = simulate(play)
    assert ended == [RecordState.CANCELLED if terminated else RecordState.COMPLETED]
    assert most == 1
    assert len(told) > 3
    if not terminated:
        assert told == sorted(told, key=lambda one: one[0])
        assert [state for _, state in told].index(RecordState.COMPLETED) == len(told) - 1


# --- until it is heard --------------------------------------------------------------------------------------------


@pytest.mark.rows("D69", "D74")
def test_an_outcome_is_written_again_for_an_hour_at_growing_intervals_of_seconds() -> None:
    """Not as D69 says, on purpose: after the hour the work item goes back, and the activity runs again."""
    lab, tries = Lab(), list[float]()
    minutes = {"renew": 5, "give_up": 10, "take": 15, "scan": 15, "visibility": 5}
    seldom = LeaseTimes(**{name: timedelta(minutes=number) for name, number in minutes.items()})

    async def play() -> Any:
        async with World(lab.app, lease=seldom, partitions=1) as hub:

            def plan(call: Call) -> Fault | None:
                if not is_record(call.what, outcome=True):
                    return None
                tries.append(hub.clock.monotonic())
                return unsent() if lab.ended["kept"] == 1 else None

            await hub.join("only", plan=plan)
            await hub.client.start("all_of", [["kept", 1.0]], instance_id="one")
            return (await hub.wait("one", timedelta(hours=2))).output

    assert simulate(play) == "[2]"
    *first, _ = tries
    assert first[-1] - first[0] == pytest.approx(3600.0)
    gaps = [later - earlier for earlier, later in pairwise(first)]
    assert gaps[:6] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0])
    assert max(gaps) == pytest.approx(5.0)


@pytest.mark.rows("D71", "D73")
@pytest.mark.parametrize("side", [BEFORE, AFTER])
@pytest.mark.parametrize("point", ["outcome", "response", "delete"])
def test_an_outcome_that_the_store_has_survives_the_worker_and_none_is_let_go_before(point: str, side: str) -> None:
    """Not as D73 says, on purpose: an activity whose outcome died with its worker runs again, as the next attempt."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app) as hub:
            await hub.join("decides", roles=DECIDES)
            first = await hub.join("first", roles=WORKS, death=Death(point=point, side=side))
            await hub.client.start("all_of", [["kept", 1.0]], instance_id="one")
            await first.died.wait()
            await hub.join("second", roles=WORKS)
            await hub.wait("one")
            return (await hub.ended()).states["one"][:2]

    lost = (point, side) == ("outcome", BEFORE)
    assert simulate(play) == ("Completed", "[2]" if lost else "[1]")
    assert lab.ended["kept"] == 1 + lost


@pytest.mark.rows("D72")
def test_what_is_deleted_is_the_message_and_not_all_of_its_type() -> None:
    """An event comes while the checkpoint of another one is under way. Their worker dies after it has deleted that."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app) as hub:
            first = await hub.join("first")
            await hub.client.start("events", 2, instance_id="one")
            await hub.clock.sleep(2.0)
            carried, second = first._crash, list[str]()

            async def crash(name: str) -> None:
                if name == "history" and not second:
                    second.append(name)
                    await hub.client.raise_event("one", "go", 2)
                    await hub.clock.sleep(1.0)  # it is received meanwhile
                if name == "after:delete":
                    first.die()
                await carried(name)

            first.store._crash = crash
            await hub.client.raise_event("one", "go", 1)
            await first.died.wait()
            deleted = [done for done in hub.tape if isinstance(done.operation, DeleteMessage)]
            await hub.join("second")
            state = await hub.wait("one", timedelta(minutes=1))
            await hub.ended()
            return state.output, len(deleted)

    assert simulate(play) == ("[1,2]", 2), "the start, and the first event"


@pytest.mark.rows("D75")
def test_what_was_processed_stays_so_though_its_deletion_fails() -> None:
    """For a minute no message of the instance can be deleted, and each comes again."""
    lab, failed = Lab(), list[Call]()

    async def play() -> Any:
        async with World(lab.app, partitions=1) as hub:
            control = hub.client.hub.names.control(0)

            def plan(call: Call) -> Fault | None:
                what = call.what
                if not isinstance(what, DeleteMessage) or what.queue != control or hub.clock.monotonic() > 60.0:
                    return None
                failed.append(call)
                return unsent()

            await hub.join("only", plan=plan)
            await hub.client.start("events", 4, instance_id="one")
            for number in range(3):
                await hub.client.raise_event("one", "go", number)
                await hub.clock.sleep(10.0)
            during = [event.input for event in await hub.client.instance("one").history() if _raised(event)]
            await hub.clock.sleep(60.0)
            await hub.client.raise_event("one", "go", 3)
            state = await hub.wait("one")
            await hub.ended()
            return during, state.output

    assert simulate(play) == (["0", "1", "2"], "[0,1,2,3]")
    assert len(failed) > 4


def _raised(event: object) -> bool:
    return isinstance(event, EventRaised)


# --- another owner, another attempt -------------------------------------------------------------------------------


@pytest.mark.rows("D76", "D99")
@pytest.mark.parametrize("name", ["kept", "plain"])
def test_activities_of_a_dead_owner_go_on_and_their_answers_go_to_the_next(name: str) -> None:
    """One answer waits in the queue when the next owner comes, the other comes after it."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app, partitions=1) as hub:
            first = await hub.join("first", roles=DECIDES)
            await hub.join("works", roles=WORKS)
            await hub.client.start("all_of", [[name, 3.0], [name, 30.0]], instance_id="one")
            await hub.clock.sleep(2.0)
            await first.bury()
            await hub.clock.sleep(8.0)
            waiting = await hub.store.count(hub.client.hub.names.control(0))
            await hub.join("second", roles=DECIDES)
            await hub.clock.sleep(12.0)
            taken = await hub.store.count(hub.client.hub.names.control(0))
            state = await hub.wait("one")
            await hub.ended()
            return waiting, taken, state.output

    assert simulate(play) == (1, 0, "[1,1]")
    assert (lab.begun[name], lab.ended[name]) == (2, 2)


@pytest.mark.rows("D77")
def test_the_outcome_of_an_attempt_that_was_replaced_is_ignored_and_not_sent_for_ever() -> None:
    """The activity ends when its worker is cut off, before it would stand still. Its outcome waits in the worker."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app, lease=AZURE_LEASE, partitions=1) as hub:
            await hub.join("decides", roles=DECIDES)
            first = await hub.join("first", roles=WORKS)
            await hub.client.start("all_of", [["kept", 15.0]], instance_id="one")
            await hub.clock.sleep(10.0)
            await hub.join("second", roles=WORKS)
            first.plan = lambda call: refused()
            state = await hub.wait("one")
            ended = lab.ended["kept"]
            tries = 0

            def count(call: Call) -> None:
                nonlocal tries
                tries += is_record(call.what, outcome=True)

            first.plan = count
            await hub.clock.sleep(60.0)
            at_once = tries
            await hub.clock.sleep(600.0)
            attempts = [record.state for record in await hub.client.instance("one").activities()]
            history = (await hub.ended()).histories["one"]
            answers = sum(text.startswith("TaskCompleted") for text in history)
            superseded = [entry["attempt"] for entry in hub.said("activity_superseded")]
            return state.output, ended, attempts, answers, superseded, (at_once, tries)

    output, ended, attempts, answers, superseded, (at_once, tries) = simulate(play)
    assert (output, ended) == ("[2]", 2)
    assert attempts == [RecordState.LOST, RecordState.COMPLETED]
    assert (answers, superseded) == (1, [1])
    assert (at_once, tries) == (1, 1), "it is offered once, refused, and not again"


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.rows("D78")
@pytest.mark.parametrize("gone", [False, True], ids=["confirmed", "its worker is gone"])
def test_a_cancel_that_fails_is_asked_for_until_nothing_of_the_activity_runs(gone: bool) -> None:
    """For a minute the worker that ends the instance cannot read who runs its activities."""
    lab, failed = Lab(), list[float]()

    async def play() -> Any:
        async with World(lab.app) as hub:
            table = hub.client.hub.names.activities

            def plan(call: Call) -> Fault | None:
                if call.kind != "table.query" or table not in str(call.what) or hub.clock.monotonic() > 70.0:
                    return None
                failed.append(hub.clock.monotonic())
                return unsent()

            await hub.join("decides", roles=DECIDES, plan=plan)
            works = await hub.join("works", roles=WORKS)
            await hub.client.start("all_of", [["kept", 600.0]], instance_id="one")
            await hub.clock.sleep(10.0)
            await hub.client.terminate("one", "enough")
            await hub.clock.sleep(50.0)
            during = [record.state for record in await hub.client.instance("one").activities()]
            if gone:
                await works.bury()
                await hub.join("next", roles=WORKS)
            await hub.clock.sleep(90.0)
            after = [record.state for record in await hub.client.instance("one").activities()]
            return during, after, await hub.queued()

    assert simulate(play) == ([RecordState.RUNNING], [RecordState.CANCELLED], 0)
    assert len(failed) > 5
    assert lab.ended["kept"] == 0


@pytest.mark.rows("D79")
@pytest.mark.parametrize("name", ["kept", "plain"])
def test_a_worker_looks_whether_its_activities_are_known_still(name: str) -> None:
    """Nobody tells it: the owner is dead, and all that is stored of the instance is deleted."""
    lab = Lab()

    async def play() -> Any:
        async with World(lab.app) as hub:
            owner = await hub.join("owner", roles=DECIDES)
            await hub.join("works", roles=WORKS)
            await hub.client.start("all_of", [[name, 60.0]], instance_id="one")
            await hub.clock.sleep(10.0)
            await owner.bury()
            row = await hub.client.get("one")
            assert row is not None
            assert row.status is Status.RUNNING
            await purge(hub.store, hub.client.hub.names, row)
            await hub.clock.sleep(300.0)
            return await hub.store.count(hub.client.hub.names.work_items)

    assert simulate(play) == 0
    assert (lab.begun[name], lab.ended[name]) == (1, 0)
