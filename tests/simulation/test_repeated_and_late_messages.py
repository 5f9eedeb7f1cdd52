"""The hard cases, one by one: what a repeated, overtaken or old message must not do."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    HistoryEvent,
    OrchestrationInstance,
    Status,
    TaskCompleted,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.identity import generation_of
from airflow_provider_taskhub.hub.formats import history_rows
from airflow_provider_taskhub.hub.history import checkpoint
from airflow_provider_taskhub.hub.history.load import load
from airflow_provider_taskhub.hub.model import RecordState, StartPolicy
from airflow_provider_taskhub.hub.partitions.hashing import partition_of
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.faults import Call, Fault, lost, throttled, unsent
from airflow_provider_taskhub.storage.primitives import PutMessage, RowVerb, Transact
from airflow_provider_taskhub.workers.orchestrations import processor, sessions
from tests.simulation.lives import move
from tests.simulation.world import AFTER, Death, Machine, World, simulate

LONG = EMBEDDED_LEASE.model_copy(update={"visibility": timedelta(seconds=15)})
"""What a dead worker held comes back long after its partition was taken."""


def app() -> App:
    made = App("hard", version="1")

    @made.activity
    async def work(what: str) -> str:
        await asyncio.sleep({"slow": 3.0, "late": 20.0}.get(what.partition(" ")[0], 0.0))
        return what

    @made.orchestrator
    async def choice(ctx: OrchestrationContext, widths: dict[str, int]) -> list[str]:
        """What comes first decides how many activities there are, and what they are called."""
        left, right = ctx.wait_for_external_event("left"), ctx.wait_for_external_event("right")
        side = "left" if await ctx.when_any([left, right]) is left else "late right"
        return await ctx.when_all([ctx.call_activity("work", side) for _ in range(widths[side])])

    @made.orchestrator
    async def steps(ctx: OrchestrationContext, count: int) -> int:
        for number in range(count):
            await ctx.call_activity("work", f"slow {number}")
        return count

    @made.orchestrator
    async def waits(ctx: OrchestrationContext) -> Any:
        return await ctx.wait_for_external_event("go")

    @made.orchestrator
    async def total(ctx: OrchestrationContext, numbers: list[int]) -> None:
        ctx.continue_as_new([*numbers, await ctx.wait_for_external_event("add", int)])

    @made.orchestrator
    async def asks(ctx: OrchestrationContext) -> Any:
        await ctx.call_activity("work", "at once")
        ctx.set_custom_status("asks")
        return await ctx.wait_for_external_event("go")

    @made.orchestrator
    async def generations(ctx: OrchestrationContext, number: int) -> Any:
        if number < 2:
            await ctx.call_activity("work", f"generation {number}")
            ctx.continue_as_new(number + 1)
            return None
        return await ctx.wait_for_external_event("go")

    @made.orchestrator
    async def collects(ctx: OrchestrationContext, found: list[int]) -> list[int]:
        """Goes on with each event, until a negative one."""
        number = await ctx.wait_for_external_event("add", int)
        if number >= 0:
            ctx.continue_as_new([*found, number])
        return found

    @made.orchestrator
    async def widens(ctx: OrchestrationContext, number: int) -> int:
        if number == 0:
            await ctx.call_activity("work", "alone")
            ctx.continue_as_new(1)
            return 0
        return len(await ctx.when_all([ctx.call_activity("work", str(number)) for number in range(4)]))

    @made.orchestrator
    async def gathers(ctx: OrchestrationContext, width: int) -> list[int]:
        """Hears events until one is negative, after so many activities."""
        await ctx.when_all([ctx.call_activity("work", str(number)) for number in range(width)])
        heard = []
        while (number := await ctx.wait_for_external_event("go", int)) >= 0:
            heard.append(number)
        return heard

    runs = itertools.count(1)

    @made.activity(record=True)
    def counted() -> int:
        return next(runs)

    @made.orchestrator
    async def keeps(ctx: OrchestrationContext) -> int:
        return await ctx.call_activity("counted")

    tries = itertools.count(1)

    @made.activity
    async def mends() -> int:
        attempt = next(tries)
        if attempt == 1:
            raise ValueError("not yet")
        await asyncio.sleep(5.0)
        return attempt

    @made.orchestrator
    async def mended(ctx: OrchestrationContext) -> int:
        return await ctx.call_activity("mends")

    @made.orchestrator
    async def parent(ctx: OrchestrationContext, child: str) -> Any:
        return await ctx.call_sub_orchestrator(child, 0 if child == "generations" else None, instance_id="child")

    @made.orchestrator
    async def rounds(ctx: OrchestrationContext, number: int) -> Any:
        """Each generation's child has the same id, and one episode."""
        child = ctx.call_sub_orchestrator("waits", instance_id="child")
        ctx.send_event("child", "go", number)
        heard = await child
        if number < 3:
            ctx.continue_as_new(number + 1)
        return heard

    @made.orchestrator
    async def early(ctx: OrchestrationContext, pause: float) -> list[Any]:
        """Starts its child again before that has ended, and tells the second run something."""
        runs = []
        for number in range(2):
            runs.append(ctx.call_sub_orchestrator("waits", instance_id="child"))
            await ctx.create_timer(timedelta(seconds=pause if number else 0.5))
        ctx.send_event("child", "go", "second")
        return await ctx.when_all(runs)

    return made


def played(play: Callable[[World], Awaitable[Any]], **options: Any) -> Any:
    async def whole() -> Any:
        async with World(app(), **options) as hub:
            return await play(hub)

    return simulate(whole)


async def send(hub: World, event: HistoryEvent, instance_id: str, execution_id: str | None = None) -> None:
    to = OrchestrationInstance(instance_id=instance_id, execution_id=execution_id)
    await hub.client.hub.send(hub.client.hub.message_to(event, to))


def raised(hub: World, name: str, value: int | None = None) -> EventRaised:
    return EventRaised(timestamp=hub.clock.utc_now(), name=name, input=json.dumps(value))


def at_point(machine: Machine, name: str, count: int, do: Callable[[], Awaitable[Any]]) -> None:
    """Do something when a checkpoint comes to a named point for the ``count``-th time, before it goes on."""
    carried, seen = machine._crash, []

    async def crash(point: str) -> None:
        if point == name:
            seen.append(point)
            if len(seen) == count:
                await do()
        await carried(point)

    machine.store._crash = crash


async def _divided(hub: World, widths: dict[str, int], death: Death) -> str | None:
    """An episode over the left event dies on its way; the next one knows only the right one, and decides otherwise.

    The left event comes back later, and so do the activities that it led to. The two events have two senders, because
    an event waits for an earlier one of its own sender.
    """
    other = await Client.over(hub.store, hub.settings, clock=hub.clock)
    first = await hub.join("first", death=death)
    await hub.client.start("choice", widths, instance_id="one")
    await hub.clock.sleep(2.0)
    await hub.client.raise_event("one", "left")
    await first.died.wait()
    await other.raise_event("one", "right")
    await hub.join("second")
    return (await hub.wait("one")).output


@pytest.mark.rows("K26", "K27")
def test_a_batch_redelivered_in_another_order_that_decides_otherwise_is_not_answered_by_the_old_answer() -> None:
    async def play(hub: World) -> Any:
        death = Death(point="outbound", side=AFTER, count=1)
        output = await _divided(hub, {"left": 2, "late right": 2}, death)
        await hub.ended()
        return json.loads(output or ""), [entry["event_type"] for entry in hub.said("event_discarded")]

    output, discarded = played(play, lease=LONG)
    assert output == ["late right"] * 2
    assert discarded.count("TaskCompleted") == 2, "the answers to what the dead worker had decided"


@pytest.mark.rows("K28")
@pytest.mark.parametrize("right", [1, 150])
def test_a_half_commit_of_150_rows_is_cut_off_and_removed(right: int) -> None:
    """What is decided instead has fewer rows, or as many."""

    async def play(hub: World) -> Any:
        death = Death(point="history", side=AFTER, count=2)
        output = await _divided(hub, {"left": 150, "late right": right}, death)
        loaded = await load(hub.store, hub.client.hub.names, "one")
        tasks = [event.input for event in loaded.past if isinstance(event, TaskScheduled)]
        await hub.ended()
        removed = [done for done in hub.tape if _removes(done.operation)]
        return json.loads(output or ""), tasks, loaded.uncommitted_rows, bool(removed)

    output, tasks, surplus, removed = played(play, activities=100, lease=LONG)
    assert output == ["late right"] * right
    assert tasks == ['["late right"]'] * right
    assert removed is (right == 1), "overwritten, where there are as many"
    assert surplus == 0, "nothing of the half commit is left in the table"


@pytest.mark.rows("K27", "K28")
def test_what_the_run_before_has_taken_is_known_though_the_first_history_of_the_next_was_cut_off() -> None:
    """An event of the run before comes again, and finds the rest of a checkpoint of more than one transaction."""

    async def play(hub: World) -> Any:
        first = await hub.join("first")
        await hub.client.start("gathers", 0, instance_id="one")
        await hub.clock.sleep(1.0)
        first.death = Death(point="delete", count=first.points["before-delete"] + 1)
        await hub.client.raise_event("one", "go", 5)
        await first.died.wait()
        second = await hub.join("second")
        await hub.client.raise_event("one", "go", -1)
        before = (await hub.wait("one")).output
        second.death = Death(point="history", side=AFTER, count=second.points["after-history"] + 1)
        await hub.client.start("gathers", 150, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
        await second.died.wait()
        await hub.join("third")
        await hub.settle()
        await hub.client.raise_event("one", "go", -1)
        output = (await hub.wait("one")).output
        await hub.ended()
        return before, output

    assert played(play, activities=200, lease=LONG) == ("[5]", "[]")


def _removes(operation: object) -> bool:
    return isinstance(operation, Transact) and any(row.verb is RowVerb.DELETE for row in operation.rows)


@pytest.mark.rows("K10", "K29")
def test_a_delayed_instance_merge_of_an_old_owner_changes_nothing() -> None:
    """It arrives when the new owner has ended the instance."""

    async def play(hub: World) -> Any:
        first = await hub.join("first")
        await hub.clock.sleep(1.0)
        second = await hub.join("second")
        merges = 0

        def plan(call: Call) -> Fault | None:
            nonlocal merges
            write = call.what
            if not isinstance(write, Transact) or write.table != hub.client.hub.names.instances:
                return None
            merges += 1
            if merges != 1:
                return None
            move(first, second)
            return Fault(delay=60.0)

        first.plan = plan
        await hub.client.start("steps", 3, instance_id="one")
        ended = await hub.wait("one")
        assert hub.clock.monotonic() < 60.0
        await hub.clock.sleep(120.0)
        row = await hub.client.get("one")
        written = [done for done in hub.tape if done.machine == "first" and _merges(done.operation, hub)]
        await hub.ended()
        return ended.output, row, written

    output, row, written = played(play, partitions=1)
    assert (output, row.status, row.output) == ("3", Status.COMPLETED, "3")
    assert written == [], "refused: the row's ETag is not the one that the old owner held"


def _merges(operation: object, hub: World) -> bool:
    return (
        isinstance(operation, Transact)
        and operation.table == hub.client.hub.names.instances
        and operation.rows[0].verb in (RowVerb.MERGE, RowVerb.UPSERT_MERGE)
    )


@pytest.mark.rows("K29")
@pytest.mark.parametrize(
    ("orchestrator", "told", "lags", "expected"),
    [
        ("waits", "suspend", Status.RUNNING, Status.SUSPENDED),
        ("total", "event", "[]", "[1]"),
        ("asks", None, None, '"asks"'),
    ],
)
def test_a_row_that_lags_is_made_good_by_whatever_comes_first(
    orchestrator: str, told: str | None, lags: Any, expected: Any
) -> None:
    """A message that is new, or the answer of an activity that was run again: not the one whose checkpoint was cut."""

    async def seen(hub: World) -> Any:
        row = await _row(hub, "one")
        return {"waits": row.status, "total": row.input, "asks": row.custom_status}[orchestrator]

    async def play(hub: World) -> Any:
        first = await hub.join("first", death=Death(point="instance", count=2))
        await hub.client.start(orchestrator, [] if orchestrator == "total" else None, instance_id="one")
        await hub.clock.sleep(2.0)
        if told == "suspend":
            await hub.client.suspend("one", "wait")
        elif told == "event":
            await hub.client.raise_event("one", "add", 1)
        await first.died.wait()
        before = await seen(hub)
        if told is not None:
            await hub.client.raise_event("one", "other", 1)
        await hub.join("second")
        await hub.clock.sleep(12.0)
        return before, await seen(hub)

    assert played(play, lease=LONG if told else EMBEDDED_LEASE) == (lags, expected)


@pytest.mark.rows("K27", "K36", "K48")
def test_a_duplicate_child_start_after_the_child_continued_as_new_starts_nothing() -> None:
    async def play(hub: World) -> Any:
        await hub.join("only")
        await hub.client.start("parent", "generations", instance_id="one")
        while (row := await hub.client.get("child")) is None or generation_of(row.execution_id or "") < 2:
            await hub.clock.sleep(0.5)
        starts = [
            done.operation
            for done in hub.tape
            if isinstance(done.operation, PutMessage)
            and '"child"' in done.operation.text
            and "ExecutionStartedEvent" in done.operation.text
        ]
        await hub.store.execute(PutMessage(queue=starts[0].queue, text=starts[0].text))
        await hub.settle()
        discarded = [entry for entry in hub.said("message_discarded") if entry["event_type"] == "ExecutionStarted"]
        await hub.client.raise_event("child", "go", 7)
        output = (await hub.wait("one")).output
        await hub.ended()
        return output, discarded

    output, discarded = played(play)
    assert output == "7"
    assert [entry["reason"] for entry in discarded] == ["it is already in the history"]


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("run", [1, 2])
def test_a_child_that_had_answered_is_not_run_again_over_a_later_run(run: int) -> None:
    """Its start comes again, since its worker died in front of its history, and its parent has gone on meanwhile."""

    async def play(hub: World) -> Any:
        machines = [await hub.join("first"), await hub.join("second")]
        await hub.clock.sleep(60.0)
        asker = next(name for name in map(str, range(99)) if partition_of(name, 2) != partition_of("child", 2))
        (its,) = [one for one in machines if one.owner.tenures[0].partition == partition_of("child", 2)]
        its.death = Death(point="outbound", side=AFTER, count=run)
        await hub.client.start("rounds", 0, instance_id=asker)
        assert (await hub.wait(asker)).output == "3"
        assert its.dead
        ended = await hub.ended()
        discarded = [one for one in hub.said("message_discarded") if one["event_type"] == "ExecutionStarted"]
        return ended.states["child"][1], [one["reason"] for one in discarded]

    assert played(play, lease=LONG) == ("3", ["a later generation of its parent has started it again"])


@pytest.mark.rows("K57")
@pytest.mark.parametrize("point", ["outbound", "after:outbound", "history", "after:history", "after:instance"])
def test_an_event_to_a_child_that_its_parent_is_just_starting_is_delivered(point: str) -> None:
    async def play(hub: World) -> Any:
        first = await hub.join("first")

        async def event() -> None:
            await send(hub, raised(hub, "go", 5), "child")
            await hub.clock.sleep(1.0)

        at_point(first, point, 1, event)
        await hub.client.start("parent", "waits", instance_id="one")
        output = (await hub.wait("one", timedelta(minutes=1))).output
        await hub.ended()
        return output

    assert played(play) == "5"


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("pause", [0.0, 1.0], ids=["together", "one after the other"])
def test_an_event_of_a_parent_waits_with_its_next_start_and_a_clients_goes_to_the_current_run(pause: float) -> None:
    async def play(hub: World) -> Any:
        await hub.join("only")
        await hub.client.start("early", pause, instance_id="one")
        await hub.clock.sleep(3.0)
        await hub.client.raise_event("child", "go", "first")
        output = (await hub.wait("one", timedelta(minutes=1))).output
        await hub.ended()
        return json.loads(output or "")

    assert played(play) == ["first", "second"]


@pytest.mark.rows("K36", "K57")
def test_an_event_sent_by_the_id_of_the_generation_before_goes_to_the_current_one() -> None:
    async def play(hub: World) -> Any:
        await hub.join("only")
        started = await hub.client.start("generations", 0, instance_id="one")
        while generation_of((await _row(hub, "one")).execution_id or "") < 2:
            await hub.clock.sleep(0.5)
        await send(hub, raised(hub, "go", 3), "one", started.execution_id)
        output = (await hub.wait("one")).output
        await hub.ended()
        return output

    assert played(play) == "3"


async def _row(hub: World, instance_id: str) -> Any:
    return await hub.client.get(instance_id)


@pytest.mark.rows("K26", "K27")
def test_an_event_is_known_again_however_many_came_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a sentinel remembered 20 messages: what is deleted need not be remembered."""
    for module in (checkpoint, history_rows, processor):
        monkeypatch.setattr(module, "MAX_CONSUMED", 20)
    monkeypatch.setattr(sessions, "MAX_BATCH", 10)

    async def play(hub: World) -> Any:
        first = await hub.join("first", death=Death(point="delete", count=2))
        await hub.client.start("collects", [], instance_id="one")
        await hub.clock.sleep(2.0)
        for number in range(15):
            await hub.client.raise_event("one", "add", number)
        await first.died.wait()
        await hub.join("second")
        for number in range(15, 90):
            await hub.client.raise_event("one", "add", number)
        await hub.settle()
        await hub.client.raise_event("one", "add", -1)
        output = (await hub.wait("one")).output
        await hub.ended()
        assert not hub.said("oldest_events_forgotten")
        return json.loads(output or "")

    assert sorted(played(play, lease=LONG)) == list(range(90))


def test_what_actions_sent_is_known_again_up_to_a_bound_and_so_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that died sends them again, under other message ids, however long after they were deleted."""
    for module in (checkpoint, history_rows, processor):
        monkeypatch.setattr(module, "MAX_CONSUMED", 20)

    async def play(hub: World) -> Any:
        await hub.join("only")
        await hub.client.start("collects", [], instance_id="one")
        for number in (*range(25), 24, 10, 0, -1):
            action, to = str(uuid5(NAMESPACE_OID, str(number))), OrchestrationInstance(instance_id="one")
            await hub.client.hub.send(hub.client.hub.message_to(raised(hub, "add", number), to, action_id=action))
            await hub.settle()
        output = (await hub.wait("one")).output
        await hub.ended()
        return json.loads(output or ""), len(hub.said("oldest_events_forgotten"))

    assert played(play) == ([*range(25), 0], 1)


@pytest.mark.rows("K36")
def test_a_response_of_the_generation_before_is_discarded_with_a_record() -> None:
    async def play(hub: World) -> Any:
        await hub.join("only")
        started = await hub.client.start("generations", 0, instance_id="one")
        while generation_of((await _row(hub, "one")).execution_id or "") < 1:
            await hub.clock.sleep(0.05)
        late = TaskCompleted(timestamp=hub.clock.utc_now(), task_scheduled_id=0, result='"old"')
        await send(hub, late, "one", started.execution_id)
        await hub.settle()
        await hub.client.raise_event("one", "go", 3)
        await hub.wait("one")
        await hub.ended()
        return [entry["reason"] for entry in hub.said("message_discarded")]

    (reason,) = played(play)
    assert reason.startswith("it is for generation ")


@pytest.mark.rows("D57", "K27")
@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "loaded"])
def test_a_response_that_echoes_another_action_is_discarded_with_a_record(restarted: bool) -> None:
    async def play(hub: World) -> Any:
        first = await hub.join("first")
        started = await hub.client.start("steps", 1, instance_id="one")
        await hub.clock.sleep(1.0)
        if restarted:
            await first.bury()
            await hub.join("second")
        other = TaskCompleted(
            timestamp=hub.clock.utc_now(),
            task_scheduled_id=0,
            result='"another"',
            taskhub_action_id=str(uuid5(NAMESPACE_OID, "another")),
        )
        await send(hub, other, "one", started.execution_id)
        ended = await hub.wait("one")
        history = await hub.client.instance("one").history()
        await hub.ended()
        said = [entry["reason"] for entry in hub.said("event_discarded")]
        return ended.output, [event.result for event in history if isinstance(event, TaskCompleted)], said

    output, results, said = played(play)
    assert (output, results) == ("1", ['"slow 0"'])
    assert len(said) == 1
    assert "answers another decision" in said[0]


@pytest.mark.rows("K27", "K46")
def test_a_rewound_action_is_not_answered_by_the_answer_before_the_rewind() -> None:
    """It has the same number, and is another decision."""

    async def play(hub: World) -> Any:
        await hub.join("decides", roles=("orchestrator",))
        await hub.join("works", roles=("activity",))  # so that its answers are messages
        await hub.client.start("mended", instance_id="one")
        assert (await hub.wait("one")).status is Status.FAILED
        (old,) = [
            done.operation
            for done in hub.tape
            if isinstance(done.operation, PutMessage) and "TaskFailedEvent" in done.operation.text
        ]
        await hub.client.rewind("one", "again")
        await hub.clock.sleep(2.0)
        await hub.store.execute(PutMessage(queue=old.queue, text=old.text))
        state = await hub.wait("one")
        await hub.ended()
        return state.status, state.output, [entry["reason"] for entry in hub.said("event_discarded")]

    status, output, said = played(play)
    assert (status, output) == (Status.COMPLETED, "2")
    assert len(said) == 1
    assert "answers another decision" in said[0]


@pytest.mark.rows("K10", "K31")
def test_what_a_committed_checkpoint_has_put_is_not_taken_back_when_its_row_is_refused() -> None:
    """Another owner has changed the row and committed the next episode meanwhile."""

    async def play(hub: World) -> Any:
        first = await hub.join("first")
        await hub.clock.sleep(1.0)
        second = await hub.join("second")

        async def overtaken() -> None:
            move(first, second)
            await send(hub, raised(hub, "go", 4), "one")
            while not any(isinstance(event, EventRaised) for event in await hub.client.instance("one").history()):
                await hub.clock.sleep(0.1)

        at_point(first, "instance", 1, overtaken)
        await hub.client.start("generations", 1, instance_id="one")
        output = (await hub.wait("one", timedelta(minutes=1))).output
        await hub.ended()
        assert [entry["reason"] for entry in hub.said("session_aborted")], "the row was refused"
        return output

    assert played(play, partitions=1) == "4"


@pytest.mark.rows("K32", "K34")
def test_what_a_former_owner_commits_late_is_seen_by_the_next_one() -> None:
    """The next owner has the generation before in memory, and receives responses of the one being committed."""

    async def play(hub: World) -> Any:
        first = await hub.join("first")
        await hub.clock.sleep(1.0)
        second = await hub.join("second")

        async def moved() -> None:
            move(first, second)
            await hub.clock.sleep(2.0)
            assert hub.said("AbandoningMessage"), "a response of the generation that is not there yet"

        at_point(first, "history", 2, moved)
        await hub.client.start("widens", 0, instance_id="one")
        output = (await hub.wait("one", timedelta(seconds=30))).output
        await hub.ended()
        return output

    assert played(play, partitions=1, activities=1) == "4"


def _of_record(call: Call, state: str) -> bool:
    write = call.what
    return isinstance(write, Transact) and write.table.endswith("Activities") and _state(write) == state


def _state(write: Transact) -> object:
    return write.rows[0].entity.properties.get("State")


@pytest.mark.rows("K27", "K39", "D82")
@pytest.mark.parametrize("fault", [unsent, lost, throttled], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("state", ["running", "completed"])
def test_a_record_whose_write_is_not_answered_costs_neither_a_second_run_nor_a_wait(state: str, fault: Any) -> None:
    async def play(hub: World) -> Any:
        faults = iter([fault()])
        await hub.join("only", plan=lambda call: next(faults, None) if _of_record(call, state) else None)
        await hub.client.start("keeps", instance_id="one")
        output = (await hub.wait("one")).output
        ended = hub.clock.monotonic()
        await hub.ended()
        assert next(faults, None) is None
        return (
            output,
            ended,
            [(record.attempt, record.state) for record in await hub.client.instance("one").activities()],
        )

    output, ended, attempts = played(play)
    assert (output, attempts) == ("1", [(1, RecordState.COMPLETED)]), "run once"
    assert ended < 4.0, "nobody waits for a record of its own to fall silent"
