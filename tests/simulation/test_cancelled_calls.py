"""A call that the orchestrator cancels ends, or never begins, on any worker; its task then says so."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import Status, TaskScheduled
from airflow_provider_taskhub.engine.forgotten import Forgotten
from airflow_provider_taskhub.engine.tasks import CancellableTask
from airflow_provider_taskhub.errors import TaskCancelledError, TaskFailedError
from airflow_provider_taskhub.hub.history.cancelled_calls import CancelledCalls
from airflow_provider_taskhub.hub.model import InstanceState, RecordState
from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.waiting.reasons import Reason
from airflow_provider_taskhub.storage.faults import Call, Fault, late
from airflow_provider_taskhub.storage.primitives import Transact
from airflow_provider_taskhub.workers.activities.cancellation import ActivityCancellation
from airflow_provider_taskhub.workers.activities.processor import Activities
from tests.simulation.world import AFTER, BEFORE, Death, Machine, World, simulate

KINDS: dict[str, dict[str, Any]] = {"plain": {"record": False}, "recorded": {"record": True}}
LIMITS: dict[str, dict[str, Any]] = {
    "limit": {"limit": 2},
    "limit for each tenant": {"limit": 2, "limit_key": "tenant"},
    "memory": {"memory": "1g"},
}
"""Each lets two attempts run at once on a worker with 2 GiB."""
CANCELLED = "activity 'load' was cancelled by the orchestrator"


class Loads:
    """An app whose orchestrator cancels its calls. Notes when each call begins and ends, by the simulated clock."""

    def __init__(self, **given: Any) -> None:
        self.begun: list[tuple[int, float]] = []
        self.ended: list[tuple[int, float, str]] = []
        self.confirmed: list[float] = []
        self.app = app = App("cancels")

        def now() -> float:
            return asyncio.get_running_loop().time()

        @app.activity(**given)
        async def load(number: int) -> int:
            self.begun.append((number, now()))
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.ended.append((number, now(), "cancelled"))
                raise
            self.ended.append((number, now(), "done"))
            return number

        @app.activity(record=False)
        async def note() -> None:
            self.confirmed.append(now())

        @app.orchestrator
        async def all(ctx: OrchestrationContext, count: int) -> list[str]:
            """Cancels all of its calls after an event, and waits for the end of each."""
            tasks = [ctx.call_activity(load, number) for number in range(count)]
            await ctx.wait_for_external_event("stop")
            for task in tasks:
                task.cancel()
            told = []
            for task in tasks:
                try:
                    told.append(str(await task))
                except TaskCancelledError as error:
                    told.append(str(error))
            await ctx.call_activity(note)
            return told

        @app.orchestrator
        async def rounds(ctx: OrchestrationContext, left: int) -> int:
            """Cancels so many calls, and goes on as new without them."""
            if not left:
                await ctx.call_activity(note)
                return len(self.ended)
            tasks = [ctx.call_activity(load, number) for number in range(left)]
            await ctx.create_timer(timedelta(seconds=5))
            for task in tasks:
                task.cancel()
            ctx.continue_as_new(0)
            return -1

    def check(self) -> None:
        """When the orchestrator went on, all that had begun had ended, and nothing has begun since."""
        assert len([at for _, at, _ in self.ended if at <= self.confirmed[0]]) == len(self.begun)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.rows("D62", "D63")
def test_running_and_waiting_calls_end_and_none_begins_after_the_confirmed_end(kind: str, workers: int) -> None:
    """There are slots for a part of the calls; the others wait in their queue."""
    loads = Loads(**KINDS[kind])

    async def main() -> None:
        async with World(loads.app, activities=2) as world:
            for number in range(workers):
                await world.join(f"w{number}")
            await world.client.start("all", 7, instance_id="one")
            await world.clock.sleep(5)
            assert len(loads.begun) == 2 * workers
            begun = world.clock.monotonic()
            await world.client.raise_event("one", "stop")
            state = await world.wait("one")
            assert (state.status, json.loads(state.output or "")) == (Status.COMPLETED, [CANCELLED] * 7)
            assert world.clock.monotonic() - begun < 3 * world.settings.lease_times.renew.total_seconds()
            assert len(loads.begun) == 2 * workers, "what waited has not begun"
            assert {how for _, _, how in loads.ended} == {"cancelled"}
            assert max(at for _, at, _ in loads.ended) <= loads.confirmed[0]
            records = [one for one in await world.client.instance("one").activities() if one.name == "load"]
            # Also those that have not begun: no worker with an older permit can claim the same attempt.
            assert [one.state for one in records] == [RecordState.CANCELLED] * (7 if kind == "recorded" else 0)
            await world.settle()

    simulate(main)


async def cancelled(world: World, instance_id: str) -> None:
    """Wait until a cancel is stored."""
    while (row := await world.client.hub.instance(instance_id)) is None or row.cancel is None:
        await world.clock.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_whose_worker_dies_is_not_run_again(kind: str) -> None:
    loads = Loads(**KINDS[kind])

    async def main() -> None:
        async with World(loads.app) as world:
            one = await world.join("one")
            await world.client.start("all", 3, instance_id="one")
            await world.clock.sleep(5)
            await world.client.raise_event("one", "stop")
            await cancelled(world, "one")
            await one.bury()
            assert len(loads.begun) == 3
            await world.join("two")
            state = await world.wait("one")
            assert (state.status, json.loads(state.output or "")) == (Status.COMPLETED, [CANCELLED] * 3)
            assert len(loads.begun) == 3
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


class Busy(Loads):
    """The same, but another instance has all places, and keeps them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.cleaned: list[float] = []

        @self.app.activity(record=False)
        async def clean() -> None:
            self.cleaned.append(asyncio.get_running_loop().time())

        @self.app.orchestrator
        async def cleans(ctx: OrchestrationContext, count: int) -> None:
            try:
                await ctx.when_all([ctx.call_activity("load", number) for number in range(count)])
            finally:
                await ctx.call_activity(clean)


@pytest.mark.rows("D62")
@pytest.mark.parametrize("limit", ["limit", "limit for each tenant", "memory", "slots", "pool"])
def test_a_recorded_call_that_waits_in_a_queue_is_confirmed_at_once(limit: str) -> None:
    """Also if its turn never comes: the worker of the orchestrator writes the record, as cancelled."""
    queue = {"slots": {}, "pool": {"pool": "other"}}
    loads = Busy(record=True, **LIMITS.get(limit, queue.get(limit, {})))

    async def main() -> None:
        async with World(loads.app, memory="2g", activities=2 if limit == "slots" else None) as world:
            await world.join("one")
            await world.client.start("all", 2, instance_id="other", tags={"tenant": "a"})
            await world.clock.sleep(5)
            await world.client.start("all", 40, instance_id="one", tags={"tenant": "a"})
            await world.client.start("cleans", 3, instance_id="two", tags={"tenant": "a"})
            await world.clock.sleep(5)
            await world.client.raise_event("one", "stop")
            await world.client.terminate("two", "enough", grace=timedelta(seconds=60))
            await world.clock.sleep(10)
            for name, count in (("one", 40), ("two", 3)):
                records = await world.client.instance(name).activities()
                assert [record.state for record in records if record.name == "load"] == [RecordState.CANCELLED] * count
            if limit == "slots":  # they are needed for what comes after the cancels
                await world.client.terminate("other", "enough")
            asked = world.clock.monotonic()
            assert json.loads((await world.wait("one")).output or "") == [CANCELLED] * 40
            assert (await world.wait("two")).status is Status.TERMINATED
            assert world.clock.monotonic() - asked < 20
            assert len(loads.cleaned) == 1
            assert len(loads.begun) == (0 if limit == "pool" else 2)
            await world.client.terminate("other", "enough", wait=True)
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.rows("D88")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", ["limit", "limit for each tenant", "memory"])
def test_a_call_that_waits_for_a_limit_does_not_begin(kind: str, limit: str) -> None:
    """It is answered when its turn comes. It frees the place, so that a call of another instance begins."""
    loads = Loads(**KINDS[kind], **LIMITS[limit])

    async def main() -> None:
        async with World(loads.app, memory="2g") as world:
            await world.join("one")
            await world.client.start("all", 4, instance_id="one", tags={"tenant": "a"})
            await world.clock.sleep(5)
            assert len(loads.begun) == 2
            await world.client.start("all", 1, instance_id="two", tags={"tenant": "a"})
            await world.client.raise_event("one", "stop")
            state = await world.wait("one")
            assert (state.status, json.loads(state.output or "")) == (Status.COMPLETED, [CANCELLED] * 4)
            await world.clock.sleep(5)
            assert len(loads.begun) == 3
            await world.client.raise_event("two", "stop")
            await world.wait("two")
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_call_of_a_suspended_instance_ends_too() -> None:
    loads = Loads(record=True)

    async def main() -> None:
        async with World(loads.app, activities=1) as world:
            await world.join("one")
            await world.client.start("all", 2, instance_id="one")
            await world.clock.sleep(5)
            await world.client.raise_event("one", "stop")
            await cancelled(world, "one")
            await world.client.suspend("one")
            await world.clock.sleep(30)
            assert [how for _, _, how in loads.ended] == ["cancelled"]
            await world.client.resume("one")
            state = await world.wait("one")
            assert json.loads(state.output or "") == [CANCELLED] * 2
            assert len(loads.begun) == 1
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewind_does_not_run_a_cancelled_call_again(kind: str) -> None:
    """The loser of a ``when_any`` was cancelled; what fails later is made again, and the loser is not."""
    loads = Loads(**KINDS[kind])
    broken = True

    @loads.app.activity
    async def publish() -> str:
        if broken:
            raise OSError("no disk")
        return "published"

    @loads.app.orchestrator
    async def hedged(ctx: OrchestrationContext, awaits: bool) -> Any:
        task = ctx.call_activity("load", 1)
        await ctx.wait_for_external_event("stop")
        task.cancel()
        told = ""
        try:
            if awaits:
                await task
        except TaskCancelledError as error:
            told = str(error)
        return [told, await ctx.call_activity(publish)]

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            for name, awaits in (("awaits", True), ("goes on", False)):
                await world.client.start("hedged", awaits, instance_id=name)
            await world.clock.sleep(5)
            for name in ("awaits", "goes on"):
                await world.client.raise_event(name, "stop")
                assert (await world.wait(name)).status is Status.FAILED
            await world.clock.sleep(30)
            broken = False
            for name, told in (("awaits", CANCELLED), ("goes on", "")):
                await world.client.rewind(name)
                await world.clock.sleep(60)
                assert json.loads((await world.wait(name)).output or "") == [told, "published"]
            assert len(loads.begun) == 2
            assert [how for _, _, how in loads.ended] == ["cancelled"] * 2
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_that_takes_the_number_of_one_that_a_rewind_has_undone(kind: str) -> None:
    loads = Loads(**KINDS[kind])
    broken = True

    @loads.app.activity
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    async def end(task: CancellableTask[Any]) -> str:
        task.cancel()
        try:
            return str(await task)
        except TaskCancelledError as error:
            return str(error)

    @loads.app.orchestrator
    async def tidy(ctx: OrchestrationContext) -> list[str]:
        one, other = [ctx.call_activity("load", number) for number in (1, 2)]
        await ctx.wait_for_external_event("stop")
        try:
            await ctx.call_activity(publish)
        except TaskFailedError:
            await end(one)
            raise
        return [await end(other), await end(one)]

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("tidy", instance_id="one")
            await world.clock.sleep(5)
            await world.client.raise_event("one", "stop")
            assert (await world.wait("one")).status is Status.FAILED
            await world.clock.sleep(30)
            broken = False
            await world.client.rewind("one")
            await world.clock.sleep(60)
            state = await world.client.get("one")
            assert state is not None
            assert (state.status, json.loads(state.output or "")) == (Status.COMPLETED, [CANCELLED] * 2)
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_cancel_before_continue_as_new_is_no_cancel_of_the_next_generation() -> None:
    """The calls of both have the same numbers."""
    app = App("rounds")

    @app.activity(record=False)
    async def load(number: int) -> int:
        await asyncio.sleep(5)
        return number

    @app.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> int:
        task = ctx.call_activity(load, number)
        if number == 2:
            return await task
        task.cancel()
        try:
            await task
        except TaskCancelledError:
            ctx.continue_as_new(number + 1)
        return -1

    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("rounds", 0, instance_id="one")
            assert (await world.wait("one")).output == "2"
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waits", [True, False], ids=["waits for a place", "runs"])
def test_continue_as_new_waits_until_what_was_cancelled_before_it_has_ended(kind: str, waits: bool) -> None:
    loads = Loads(**KINDS[kind], **({"limit": 1} if waits else {}))

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("rounds", 2, instance_id="one")
            assert (await world.wait("one")).output == str(len(loads.begun))
            assert len(loads.begun) == (1 if waits else 2)
            assert [how for _, _, how in loads.ended] == ["cancelled"] * len(loads.begun)
            await world.clock.sleep(700)
            assert len(loads.begun) == len(loads.ended)
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_cancelled_work_items_of_an_earlier_generation_use_up_no_place_of_a_rate() -> None:
    """Their turns come in the next generation, whose row does not tell of the cancels."""
    loads = Loads(record=True, rate="1/m")

    @loads.app.orchestrator
    async def then_calls(ctx: OrchestrationContext, number: int) -> None:
        if number:
            await ctx.call_activity("load", 99)
            return
        tasks = [ctx.call_activity("load", each) for each in range(10)]
        await ctx.create_timer(timedelta(seconds=5))
        for task in tasks:
            task.cancel()
        ctx.continue_as_new(1)

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("then_calls", 0, instance_id="one")
            await world.clock.sleep(300)
            (_, first), (number, later) = loads.begun
            assert number == 99
            assert later - first < 90, "the first free place is that of the next generation"

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.rows("D78")
def test_an_instance_that_fails_after_a_cancel_sends_no_messages_for_ever() -> None:
    """The answer comes to an instance that has ended. After a rewind the cancelled call is answered."""
    loads, broken = Loads(record=True, limit=1), True

    @loads.app.orchestrator
    async def fails(ctx: OrchestrationContext) -> str:
        tasks = [ctx.call_activity("load", number) for number in range(2)]
        await ctx.create_timer(timedelta(seconds=5))
        for task in tasks:
            task.cancel()
        await ctx.call_activity(publish)
        for task in tasks:
            with suppress(TaskCancelledError):
                await task
        return "published"

    @loads.app.activity(record=False)
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("fails", instance_id="one")
            assert (await world.wait("one")).status is Status.FAILED
            await world.settle()
            broken = False
            await world.client.rewind("one")
            assert (await world.wait("one")).output == '"published"'
            assert len(loads.begun) == 1
            await world.settle()

    simulate(main, limit=timedelta(hours=2))


def test_a_cancelled_call_that_failed_at_once_after_its_cancel_sends_no_messages_for_ever() -> None:
    """The checkpoint with the cancel ends the instance."""
    loads = Loads(record=True, limit=1)

    @loads.app.orchestrator
    async def fails(ctx: OrchestrationContext) -> None:
        tasks = [ctx.call_activity("load", number) for number in range(2)]
        await ctx.create_timer(timedelta(seconds=5))
        for task in tasks:
            task.cancel()
        raise ValueError("no shop")

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("fails", instance_id="one")
            assert (await world.wait("one")).status is Status.FAILED
            await world.settle()
            assert len(loads.begun) == 1

    simulate(main, limit=timedelta(hours=2))


@pytest.mark.parametrize("runs", [True, False])
def test_a_withdrawn_call_says_nothing_of_another_call_with_its_number_after_a_rewind(runs: bool) -> None:
    """Before the rewind, call 1 was withdrawn. After it, another call has this number.

    :param runs: whether the other call runs when it is cancelled, or waits.
    """
    loads, broken = Loads(record=True), True

    @loads.app.activity(record=True, pool="none")
    async def never() -> None:
        raise AssertionError

    @loads.app.activity(record=False)
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    @loads.app.orchestrator
    async def fails(ctx: OrchestrationContext) -> int:
        try:
            await ctx.call_activity(publish)
        except TaskFailedError:
            task = ctx.call_activity(never)
            task.cancel()
            with suppress(TaskCancelledError):
                await task
            raise
        other = ctx.call_activity("load", 7) if runs else ctx.call_activity(never)
        await ctx.create_timer(timedelta(seconds=5))
        other.cancel()
        try:
            await other
        except TaskCancelledError:
            return len(loads.ended)
        return -1

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("fails", instance_id="one")
            assert (await world.wait("one")).status is Status.FAILED
            broken = False
            await world.client.rewind("one")
            ended = "1" if runs else "0"
            assert (await world.wait("one")).output == ended, "the attempt had ended before the task of its call did"
            await world.join("two", pools="none")
            await world.clock.sleep(60)
            records = await world.client.instance("one").activities()
            assert {record.task_id for record in records} == {1}
            assert [record.state for record in records] == [RecordState.CANCELLED] * 2
            assert [number for number, _ in loads.begun] == ([7] if runs else [])

    simulate(main, limit=timedelta(hours=2))


def test_many_cancelled_calls_are_withdrawn_with_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a worker has begun one of them, those of its transaction are written one by one."""
    loads, looks, real = Loads(record=True, pool="other"), list[int](), Forgotten.unfinished

    def unfinished(self: Forgotten) -> list[Any]:
        looks.append(1)
        return real(self)

    monkeypatch.setattr(Forgotten, "unfinished", unfinished)

    async def main() -> None:
        async with World(loads.app) as world:
            one = await world.join("one")
            await world.client.start("rounds", 250, instance_id="one")
            assert (await world.wait("one")).output == "0"
            rows = [
                len(done.operation.rows)
                for done in world.tape
                if isinstance(done.operation, Transact) and done.operation.table.endswith("Activities")
            ]
            assert (one.dead, rows, loads.begun) == (False, [100, 100, 50], [])
            assert len(looks) < 20, "not one look at all calls for each answer"

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("suspended", [False, True])
@pytest.mark.parametrize("order", ["terminate", "grace", "event", "cancel"])
def test_orders_for_an_instance_that_waits_for_a_cancelled_activity_before_continue_as_new(
    order: str, suspended: bool
) -> None:
    """No worker can take the activity: it has a pool of its own."""
    app, rounds = App("waits"), list[int]()

    @app.activity(pool="none")
    async def load() -> None:
        raise AssertionError

    @app.orchestrator
    async def loop(ctx: OrchestrationContext, number: int) -> str:
        rounds.append(number)
        if number == 0:
            ctx.call_activity(load).cancel()
            ctx.continue_as_new(1)
            return ""
        return str(await ctx.wait_for_external_event("told"))

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> str:
        child = ctx.call_sub_orchestrator(loop, 0, instance_id="one")
        await ctx.wait_for_external_event("stop")
        child.cancel()
        try:
            return str(await child)
        except TaskCancelledError:
            return "cancelled"

    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start(
                *(("parent",) if order == "cancel" else ("loop", 0)), instance_id="p" if order == "cancel" else "one"
            )
            await world.clock.sleep(5)
            if suspended:
                await world.client.suspend("one")
                await world.clock.sleep(5)
            match order:
                case "terminate":
                    await world.client.terminate("one", "enough")
                case "grace":
                    await world.client.terminate("one", "enough", grace=timedelta(seconds=60))
                case "event":
                    assert 1 not in rounds
                    await world.client.raise_event("one", "told", "yes")
                    await world.client.resume("one")
                    await world.join("two", pools="none")
                case "cancel":
                    await world.client.raise_event("p", "stop")
                    await world.join("two", pools="none")
            state = await world.wait("one")
            if order == "event":
                assert (state.status, state.output) == (Status.COMPLETED, '"yes"')
            else:
                assert state.status is Status.TERMINATED
                assert 1 not in rounds
            if order == "cancel":
                assert (await world.wait("p")).output == '"cancelled"'

    simulate(main, limit=timedelta(hours=1))


def test_an_instance_that_cancels_nothing_costs_no_request_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = CancelledCalls._read

    async def noted(self: CancelledCalls, row: InstanceState, last: int) -> frozenset[int]:
        read.append(row.instance_id)
        return await real(self, row, last)

    monkeypatch.setattr(CancelledCalls, "_read", noted)
    loads = Loads(record=True)

    async def main() -> None:
        async with World(loads.app, activities=1) as world:
            await world.join("one")
            for name in ("ends", "cancels"):
                await world.client.start("all", 3, instance_id=name)
            await world.clock.sleep(5)
            await world.client.terminate("ends", "enough")
            await world.wait("ends")
            await world.client.raise_event("cancels", "stop")
            await world.wait("cancels")
            await world.settle()

    simulate(main, limit=timedelta(hours=1))
    assert set(read) == {"cancels"}
    assert len(read) == 1, "read once, although three calls ask"


def test_the_record_of_a_cancelled_call_says_so_also_in_a_rewound_run() -> None:
    loads = Loads(record=True)
    broken = True

    @loads.app.activity
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    @loads.app.orchestrator
    async def rewound(ctx: OrchestrationContext) -> str:
        await ctx.call_activity(publish)
        task = ctx.call_activity("load", 1)
        await ctx.wait_for_external_event("stop")
        task.cancel()
        try:
            return str(await task)
        except TaskCancelledError as error:
            return str(error)

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("rewound", instance_id="one")
            assert (await world.wait("one")).status is Status.FAILED
            broken = False
            await world.client.rewind("one")
            await world.clock.sleep(10)
            await world.client.raise_event("one", "stop")
            await world.clock.sleep(30)
            records = await world.client.instance("one").activities()
            assert [record.state for record in records if record.name == "load"] == [RecordState.CANCELLED]
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_call_that_has_waited_too_long_when_it_was_cancelled_is_a_cancelled_one() -> None:
    loads = Loads(record=False, queue_timeout=timedelta(seconds=20))

    async def main() -> None:
        async with World(loads.app, activities=1) as world:
            await world.join("one")
            await world.client.start("all", 3, instance_id="one")
            await world.clock.sleep(60)
            await world.client.raise_event("one", "stop")
            state = await world.wait("one")
            assert json.loads(state.output or "") == [CANCELLED] * 3
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_rewind_starts_a_child_again_whose_cancel_it_undoes() -> None:
    app = App("family")
    broken = True

    @app.activity
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    @app.orchestrator
    async def month(ctx: OrchestrationContext) -> str:
        return str(await ctx.wait_for_external_event("go"))

    @app.orchestrator
    async def year(ctx: OrchestrationContext) -> str:
        async with ctx.cancel_scope():
            child = ctx.call_sub_orchestrator(month, instance_id="month")
            await ctx.call_activity(publish)
            return await child

    async def main() -> None:
        nonlocal broken
        async with World(app) as world:
            await world.join("one")
            await world.client.start("year", instance_id="year")
            assert (await world.wait("year")).status is Status.FAILED
            assert (await world.wait("month")).status is Status.TERMINATED
            broken = False
            await world.client.rewind("year")
            await world.clock.sleep(30)
            await world.client.raise_event("month", "go", "done")
            await world.clock.sleep(30)
            state = await world.client.get("year")
            assert state is not None
            assert (state.status, state.output) == (Status.COMPLETED, '"done"')
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_cancelled_child_is_terminated_with_its_own_children_begun_or_not() -> None:
    app = App("family")

    @app.orchestrator
    async def leaf(ctx: OrchestrationContext) -> None:
        await ctx.wait_for_external_event("never")

    @app.orchestrator
    async def middle(ctx: OrchestrationContext) -> None:
        await ctx.call_sub_orchestrator(leaf, instance_id=f"leaf of {ctx.instance_id}")

    @app.orchestrator
    async def top(ctx: OrchestrationContext) -> str:
        old = ctx.call_sub_orchestrator(middle, instance_id="old")
        await ctx.wait_for_external_event("stop")
        new = ctx.call_sub_orchestrator(middle, instance_id="new")
        for child in (old, new):
            child.cancel()
        for child in (old, new):
            try:
                await child
            except TaskCancelledError:
                continue
            return "not cancelled"
        await ctx.wait_for_external_event("end")
        return "done"

    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("top", instance_id="top")
            await world.clock.sleep(5)
            await world.client.raise_event("top", "stop")
            for name in ("old", "leaf of old", "new"):
                assert (await world.wait(name)).status is Status.TERMINATED
            await world.client.raise_event("top", "end")
            assert (await world.wait("top")).output == '"done"'
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_the_next_owner_marks_the_attempts_if_the_worker_that_stored_the_cancel_dies_before_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads, machines, real = Loads(record=True), list[Machine](), ActivityCancellation.cancel_calls

    async def cancel(self: ActivityCancellation, *args: Any, **more: Any) -> list[TaskScheduled]:
        if not machines[0].dead:
            machines[0].die()
            await asyncio.sleep(3600)
        return await real(self, *args, **more)

    monkeypatch.setattr(ActivityCancellation, "cancel_calls", cancel)

    async def main() -> None:
        async with World(loads.app) as world:
            machines.append(await world.join("one", roles=("orchestrator",)))
            await world.join("two", roles=("activity",))
            await world.client.start("all", 2, instance_id="one")
            await world.clock.sleep(5)
            await world.client.raise_event("one", "stop")
            await machines[0].died.wait()
            await world.join("three", roles=("orchestrator", "activity"))
            state = await world.wait("one")
            assert json.loads(state.output or "") == [CANCELLED] * 2
            assert len(loads.begun) == 2
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("known", [True, False])
def test_an_attempt_whose_claim_comes_after_the_cancel_does_not_begin_or_ends_after_its_first_heartbeat(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Its worker has asked before the cancel.

    :param known: whether the worker of the orchestrator has the activity. If not, it cannot mark the record, because
        there is none yet.
    """
    loads, real = Loads(record=True), ActivityCancellation.cancel_calls

    async def cancel(self: ActivityCancellation, *args: Any, **more: Any) -> list[TaskScheduled]:
        self._activities = self._activities if known else {}
        return await real(self, *args, **more)

    monkeypatch.setattr(ActivityCancellation, "cancel_calls", cancel)

    def slow(call: Call) -> Fault | None:
        is_claim = isinstance(call.what, Transact) and call.what.table.endswith("Activities")
        return late(1.2) if is_claim and not loads.begun else None

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one", roles=("orchestrator",))
            await world.join("two", roles=("activity",), plan=slow)
            await world.client.start("all", 1, instance_id="one")
            await world.clock.sleep(0.3)
            await world.client.raise_event("one", "stop")
            state = await world.wait("one")
            assert json.loads(state.output or "") == [CANCELLED]
            assert len(loads.begun) == (0 if known else 1), "if it has begun, it was ended"
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


class Families(Loads):
    """An app with a family of three generations: the parent cancels its child, and notes what has begun and ended by
    the time of the confirmed end."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.left: list[tuple[int, int]] = []

        @self.app.orchestrator
        async def leaf(ctx: OrchestrationContext, number: int) -> None:
            await ctx.call_activity("load", number)

        @self.app.orchestrator
        async def middle(ctx: OrchestrationContext, count: int) -> None:
            tasks = [ctx.call_activity("load", number) for number in range(1, count)]
            await ctx.when_all([ctx.call_sub_orchestrator("leaf", 0, instance_id="leaf"), *tasks])

        @self.app.orchestrator
        async def top(ctx: OrchestrationContext, count: int) -> str:
            async with ctx.cancel_scope():
                child = ctx.call_sub_orchestrator("middle", count, instance_id="middle")
                await ctx.wait_for_external_event("stop")
            self.left.append((len(self.begun), len(self.ended)))
            try:
                return str(await child)
            except TaskCancelledError as error:
                return str(error)

    def check(self) -> None:
        """When the parent went on, all that had begun had ended, and nothing has begun since."""
        assert self.left[0] == (len(self.begun), len(self.begun))


ENDED = '"the task was cancelled by the orchestrator"'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.rows("D63")
def test_the_end_of_a_cancelled_child_is_told_when_nothing_of_it_runs(kind: str, workers: int) -> None:
    loads = Families(**KINDS[kind])

    async def main() -> None:
        async with World(loads.app, activities=2) as world:
            for number in range(workers):
                await world.join(f"w{number}")
            await world.client.start("top", 7, instance_id="top")
            await world.clock.sleep(5)
            assert len(loads.begun) == 2 * workers
            begun = world.clock.monotonic()
            await world.client.raise_event("top", "stop")
            assert (await world.wait("top")).output == ENDED
            assert world.clock.monotonic() - begun < 3 * world.settings.lease_times.renew.total_seconds()
            loads.check()
            for name in ("middle", "leaf"):
                row = await world.client.get(name)
                assert row is not None
                assert row.status is Status.TERMINATED
            await world.settle()

    simulate(main)


@pytest.mark.parametrize(("name", "points"), [("all", 26), ("top", 40)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [BEFORE, AFTER])
def test_nothing_runs_when_the_end_is_confirmed_whenever_a_worker_dies(
    name: str, points: int, kind: str, side: str
) -> None:
    """A worker dies at each of its storage calls after the cancel of five calls, or of a child."""

    def play(point: int) -> bool:
        loads = Families(**KINDS[kind]) if name == "top" else Loads(**KINDS[kind])

        async def main() -> bool:
            async with World(loads.app, activities=2) as world:
                one = await world.join("one")
                await world.join("two")
                await world.client.start(name, 5, instance_id="one")
                await world.clock.sleep(5)
                one.death = Death(point=one.calls + point, side=side)
                await world.client.raise_event("one", "stop")
                told = json.loads((await world.wait("one")).output or "")
                assert told == (json.loads(ENDED) if name == "top" else [CANCELLED] * 5)
                assert len(loads.begun) == 4, "no call was run again"
                loads.check()
                died = one.dead
                if not died:
                    one.death = None
                await world.settle()
                return died

        return bool(simulate(main, limit=timedelta(hours=1)))

    deaths = [play(point) for point in range(1, points, 4)]
    assert sum(deaths) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancelled_child_whose_executor_dies_is_not_run_again(kind: str) -> None:
    """The worker that runs its activities dies, and no other one is there for a while."""
    loads = Families(**KINDS[kind])

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("orchestrates", roles=("orchestrator",))
            runs = await world.join("runs", roles=("activity",))
            await world.client.start("top", 3, instance_id="top")
            await world.clock.sleep(5)
            await runs.bury()
            await world.client.raise_event("top", "stop")
            await cancelled(world, "middle")
            await world.clock.sleep(60)
            assert loads.left == [], "nobody has confirmed that the activities have ended"
            await world.join("other", roles=("activity",))
            assert (await world.wait("top")).output == ENDED
            assert len(loads.begun) == 3
            loads.check()
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_child_that_is_cancelled_before_it_begins_or_behind_another_run_answers_too() -> None:
    """Its start waits: for the live run of its id, or for code that no worker has."""
    app = App("family")

    @app.orchestrator
    async def leaf(ctx: OrchestrationContext) -> None:
        await ctx.wait_for_external_event("never")

    @app.orchestrator
    async def top(ctx: OrchestrationContext) -> list[str]:
        told = []
        for name, instance_id in (("leaf", "busy"), ("missing", "other"), ("leaf", "third")):
            child = ctx.call_sub_orchestrator(name, instance_id=instance_id)
            if instance_id != "third":
                await ctx.create_timer(timedelta(seconds=20))
            child.cancel()
            try:
                await child
            except TaskCancelledError as error:
                told.append(str(error))
        return told

    async def main() -> None:
        async with World(app) as world:
            await world.join("one")
            await world.client.start("leaf", instance_id="busy")
            await world.clock.sleep(5)
            await world.client.start("top", instance_id="top")
            state = await world.wait("top", timedelta(minutes=10))
            assert json.loads(state.output or "") == [json.loads(ENDED)] * 3
            await world.client.terminate("busy")
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize("terminated", [False, True])
def test_a_rewound_parent_gets_the_answer_of_a_child_that_it_has_cancelled(terminated: bool, purged: bool) -> None:
    """The child ended after its parent, so its answer was lost. It is not started again, also if nothing is left of
    it."""
    loads = Families(record=True)
    broken = True

    @loads.app.activity
    async def publish() -> None:
        if broken:
            raise OSError("no disk")

    @loads.app.orchestrator
    async def goes_on(ctx: OrchestrationContext) -> str:
        child = ctx.call_sub_orchestrator("middle", 2, instance_id="middle")
        await ctx.wait_for_external_event("stop")
        child.cancel()
        if terminated:
            await ctx.wait_for_external_event("go")
        else:
            await ctx.call_activity(publish)
        try:
            return str(await child)
        except TaskCancelledError as error:
            return str(error)

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("goes_on", instance_id="top")
            await world.clock.sleep(5)
            await world.client.raise_event("top", "stop")
            if terminated:
                await world.client.terminate("top", "enough")
            state = await world.wait("top")
            assert state.status is (Status.TERMINATED if terminated else Status.FAILED)
            await world.clock.sleep(60)
            broken = False
            if purged:
                assert await world.client.purge("middle")
            await world.client.rewind("top", terminated=terminated)
            await world.clock.sleep(30)
            if terminated:
                await world.client.raise_event("top", "go")
            await world.clock.sleep(60)
            row = await world.client.get("top")
            assert row is not None
            assert (row.status, row.output) == (Status.COMPLETED, ENDED)
            assert len(loads.begun) == 2
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


def test_a_rewind_does_not_start_a_child_again_that_the_code_has_cancelled() -> None:
    """The parent failed with the end of the child that it has cancelled. Its code decides the same after the rewind."""
    loads = Families(record=True)

    @loads.app.orchestrator
    async def gives_up(ctx: OrchestrationContext) -> None:
        child = ctx.call_sub_orchestrator("middle", 2, instance_id="middle")
        await ctx.wait_for_external_event("stop")
        child.cancel()
        await child

    async def main() -> None:
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("gives_up", instance_id="top")
            await world.clock.sleep(5)
            await world.client.raise_event("top", "stop")
            assert (await world.wait("top")).status is Status.FAILED
            await world.client.rewind("top")
            await world.clock.sleep(120)
            for name, status in (("top", Status.FAILED), ("middle", Status.TERMINATED), ("leaf", Status.TERMINATED)):
                row = await world.client.get(name)
                assert row is not None
                assert row.status is status, name
            assert len(loads.begun) == len(loads.ended) == 2
            await world.settle()

    simulate(main, limit=timedelta(hours=1))


@pytest.mark.parametrize("terminated", [False, True])
def test_a_cancelled_child_waits_for_its_message_in_quarantine_and_says_so(
    monkeypatch: pytest.MonkeyPatch, terminated: bool
) -> None:
    """Put back, the call is confirmed and does not begin. A terminate of the child ends it without that."""
    loads, real, broken = Families(record=False), Activities._process, True

    async def process(self: Activities, held: Any) -> None:
        if broken:
            raise RuntimeError("a defect of ours")
        await real(self, held)

    monkeypatch.setattr(Activities, "_process", process)
    monkeypatch.setattr(quarantine, "MAX_FAILURES", 3)

    async def reasons(world: World, instance_id: str) -> list[tuple[Reason, str]]:
        return [(one.reason, one.remedy) for one in await world.client.instance(instance_id).waiting()]

    async def main() -> None:
        nonlocal broken
        async with World(loads.app) as world:
            await world.join("one")
            await world.client.start("top", 1, instance_id="top")
            while not (kept := await world.client.admin.quarantined()):
                await world.clock.sleep(1)
            await world.client.raise_event("top", "stop")
            await world.clock.sleep(60)
            assert loads.left == []
            remedy = f"Fix the cause, then: taskhub quarantine put-back {kept[0].message_id}"
            for name, reason in (("leaf", Reason.QUARANTINE), ("middle", Reason.CHILD_HELD)):
                assert (reason, remedy) in await reasons(world, name), name
            assert [reason for reason, _ in await reasons(world, "top")] == [Reason.CHILDREN]
            broken = False
            if terminated:
                await world.client.terminate("leaf")
            else:
                assert await world.client.admin.put_back(kept[0].message_id)
            assert (await world.wait("top")).output == ENDED
            assert loads.begun == []
            if not terminated:
                await world.settle()

    simulate(main, limit=timedelta(hours=1))
