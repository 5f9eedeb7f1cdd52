"""What else goes wrong: lost answers, two owners, lost leases, handovers, overtaking, skewed clocks, poison."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

import pytest

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionStarted,
    ExecutionTerminated,
    OrchestrationInstance,
    Status,
    TaskCompleted,
    TaskScheduled,
    TimerFired,
)
from airflow_provider_taskhub.errors import InstanceExists, Unavailable
from airflow_provider_taskhub.hub.model import StartPolicy
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.hub.queues import outgoing, quarantine
from airflow_provider_taskhub.hub.queues.outgoing import OutboundMessage, outbound_message
from airflow_provider_taskhub.storage.faults import Call, Fault, Rates, at, late, lost, seeded, throttled, unsent
from airflow_provider_taskhub.storage.primitives import DeleteMessage, PutMessage, Results, Transact, Unit
from airflow_provider_taskhub.storage.steps import resolved
from airflow_provider_taskhub.workers.orchestrations import settling
from tests.simulation.lives import share, undisturbed, without_blob
from tests.simulation.scenarios import SCENARIOS, app_of
from tests.simulation.world import RARE_RENEWALS, Death, Effects, Place, World, simulate

HOUR = timedelta(hours=1)


def world(**settings: Any) -> World:
    return World(app_of(Effects()), **settings)


# --- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K10", "K26", "K27")
@pytest.mark.parametrize("fault", [lost, unsent, throttled], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["chain", "sender", "counter", "parent"])
def test_any_one_answer_may_be_lost(name: str, fault: Any) -> None:
    scenario = SCENARIOS[name]
    whole = undisturbed(scenario)

    def disturbed(number: int) -> Any:
        async def play() -> Any:
            async with world() as hub:
                await hub.join("only", plan=at(number, fault()))
                await scenario.drive(hub)
                return await hub.ended()

        return simulate(play)

    for number in range(1, whole.calls, 3):
        ended = disturbed(number)
        assert (ended.states, ended.histories) == (whole.ended.states, whole.ended.histories), (
            f"reproduce: fault {fault.__name__} at call {number} of {name}"
        )


@pytest.mark.rows("K26", "K27", "K39")
@pytest.mark.parametrize("seed", range(6))
def test_a_bad_network_changes_nothing(seed: int) -> None:
    rates = Rates(lost=0.04, unsent=0.04, throttled=0.04, late=0.1, longest=3.0)

    async def play() -> Any:
        async with world() as hub:
            await hub.join("one", plan=seeded(f"one-{seed}", rates))
            await hub.join("two", plan=seeded(f"two-{seed}", rates))
            await SCENARIOS["sender"].drive(hub)
            return (await hub.ended()).states

    whole = undisturbed(SCENARIOS["sender"]).ended
    assert _unordered(simulate(play)) == _unordered(whole.states), f"reproduce: seed {seed}"


def _unordered(states: dict[str, Any]) -> dict[str, Any]:
    """All of it but the order of the events: queues promise none, and one that is put again comes later."""
    status, output, *rest = states["one-to"]
    return states | {"one-to": (status, sorted(json.loads(output)), *rest)}


# --- owners -------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K10")
def test_two_workers_on_one_partition_do_no_harm() -> None:
    """Both believe to own everything: only one of two episodes over a sentinel commits."""

    async def play() -> Any:
        async with world(partitions=1) as hub:
            one = await hub.join("one")
            two = await hub.join("two")
            await hub.clock.sleep(2.0)
            for tenure in one.owner.tenures:
                two.backend.taken(tenure)  # type: ignore[arg-type]
            for tenure in two.owner.tenures:
                one.backend.taken(tenure)
            await SCENARIOS["counter"].drive(hub)
            await hub.client.start("fan", 20, instance_id="two")
            await hub.wait("two")
            return await hub.ended()

    ended = simulate(play)
    assert ended.states["one"][:2] == ("Completed", "[0,1,2,3]")
    assert ended.states["two"][:2] == ("Completed", "210")
    assert ended.histories["one"] == undisturbed(SCENARIOS["counter"]).ended.histories["one"]
    fan = undisturbed(SCENARIOS["fan"]).ended.histories["one"]
    assert [text.replace("two", "one") for text in ended.histories["two"]] == fan


@pytest.mark.rows("K04", "K34")
def test_a_lease_lost_in_the_middle_leaves_the_episode_to_the_next_owner() -> None:
    async def play() -> Any:
        async with world(partitions=1) as hub:
            one = await hub.join("one")
            await hub.clock.sleep(1.0)
            await hub.client.start("recorded", 3, instance_id="one")
            await hub.clock.sleep(1.0)
            one.leases = lambda call: unsent()  # it renews no more
            await hub.join("two")
            await hub.wait("one")
            assert hub.said("partition_lost")
            return (await hub.ended()).states

    assert simulate(play)["one"][:2] == ("Completed", "1030")


@pytest.mark.rows("K58")
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_drained_worker_leaves_nothing_standing(partitions: int) -> None:
    """Chains run while their worker stops gracefully: none waits longer than a scan and 2 s for its next step."""

    async def play() -> float:
        async with world(partitions=partitions, activities=4) as hub:
            one = await hub.join("one")
            await hub.clock.sleep(1.0)
            for number in range(12):
                await hub.client.start("plod", 12, instance_id=f"chain-{number}")
            await hub.join("two")
            await hub.clock.sleep(1.5)
            began = hub.clock.monotonic()
            await one.stop()
            stopped = hub.clock.monotonic() - began
            for number in range(12):
                state = await hub.wait(f"chain-{number}")
                assert (state.status, state.output) == (Status.COMPLETED, "12")
            gaps = []
            for number in range(12):
                times = [event.timestamp for event in await hub.client.instance(f"chain-{number}").history()]
                gaps.append(max((b - a).total_seconds() for a, b in pairwise(times)))
            await hub.ended()
            assert stopped < 5.0
            return max(gaps)

    # 12 chains of steps of 0.2 s on 4 slots a worker wait 0.6 s for each other
    assert simulate(play) < 0.5 + 2.0 + 0.6


# --- overtaking ---------------------------------------------------------------------------------------------------


@pytest.mark.rows("K57")
@pytest.mark.parametrize("addressed", [False, True])
def test_an_event_before_the_first_checkpoint_is_delivered(addressed: bool) -> None:
    """Also one that overtakes the start itself."""

    async def play() -> Any:
        async with world() as hub:
            execution_id = uuid4().hex
            to = OrchestrationInstance(instance_id="one", execution_id=execution_id if addressed else None)
            for number in range(5):
                event = EventRaised(timestamp=hub.clock.utc_now(), name="go", input=str(number))
                await hub.client.hub.send(hub.client.hub.message_to(event, to))
            await _net_start(hub, "events", "5", execution_id, row=True)
            await hub.join("only")
            state = await hub.wait("one", timedelta(seconds=20))
            await hub.ended()
            return state.output, hub.clock.monotonic()

    output, seconds = simulate(play)
    assert output == "[0,1,2,3,4]"
    assert seconds < 3.0


async def _net_start(hub: World, name: str, input: str, execution_id: str, *, row: bool) -> None:
    """As a .NET client starts: no word of our own in the message."""
    start = ExecutionStarted(
        timestamp=hub.clock.utc_now(),
        instance=OrchestrationInstance(instance_id="one", execution_id=execution_id),
        name=name,
        input=input,
        generation=0,
    )
    if row:
        _, entity, blobs = Starter(hub.client._connection)._start_parts(start)
        from airflow_provider_taskhub.storage.primitives import RowVerb

        await Starter(hub.client._connection)._write_row(RowVerb.INSERT, entity, blobs, None)
    await hub.client.hub.send(hub.client.hub.message_to(start, start.instance))


@pytest.mark.rows("K44")
def test_a_start_put_before_its_row_is_looked_for_again() -> None:
    async def play() -> Any:
        async with world() as hub:
            await hub.join("only")
            await hub.clock.sleep(1.0)
            execution_id = uuid4().hex
            await _net_start(hub, "chain", "2", execution_id, row=False)
            await hub.clock.sleep(0.45)
            start = ExecutionStarted(
                timestamp=hub.clock.utc_now(),
                instance=OrchestrationInstance(instance_id="one", execution_id=execution_id),
                name="chain",
                input="2",
                generation=0,
            )
            from airflow_provider_taskhub.storage.primitives import RowVerb

            _, entity, blobs = Starter(hub.client._connection)._start_parts(start)
            await Starter(hub.client._connection)._write_row(RowVerb.INSERT, entity, blobs, None)
            state = await hub.wait("one", timedelta(seconds=20))
            assert not hub.said("AbandoningMessage"), "looked for within the second"
            await hub.ended()
            return state.output

    assert simulate(play) == "2"


@pytest.mark.rows("K32", "K33")
@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_response_that_overtakes_its_checkpoint_is_abandoned_and_processed_later(skew: timedelta) -> None:
    """The partition moves while a checkpoint is late: its new reader receives the answer to what is not written yet."""

    async def play() -> Any:
        async with world(partitions=1) as hub:
            first = await hub.join("first", roles=("orchestrator",), skew=skew)
            await hub.join("hands", roles=("activity",))
            second = await hub.join("second", roles=("orchestrator",), skew=-skew)
            await hub.clock.sleep(2.0)
            owner, other = (first, second) if first.owner.tenures else (second, first)
            carried, seen, late = owner._crash, [], asyncio.Event()

            async def slow(name: str) -> None:
                if name == "history":
                    seen.append(name)
                    if len(seen) == 2:
                        late.set()
                        await hub.clock.sleep(3.0)
                await carried(name)

            owner.store._crash = slow
            await hub.client.start("chain", 3, instance_id="one")
            await late.wait()
            (tenure,) = owner.owner.tenures
            owner.backend.lost(tenure, "moved on purpose, without a drain")
            other.backend.taken(tenure)
            state = await hub.wait("one")
            abandoned = [entry for entry in hub.said("AbandoningMessage") if entry["log_level"] == "warning"]
            await hub.ended()
            return state.output, abandoned

    output, abandoned = simulate(play)
    assert output == "3"
    assert abandoned
    for entry in abandoned:
        assert (entry["instance_id"], entry["event_type"]) == ("one", "TaskCompleted")
        # times of the storage service, whatever the clocks of the workers say
        assert entry["enqueued"].startswith("2026-01-01T00:00:0")
        assert entry["checkpoint"].startswith("2026-01-01T00:00:0")


@pytest.mark.rows("K31")
def test_a_response_before_its_checkpoint_goes_to_the_active_session() -> None:
    async def play() -> Any:
        async with world(partitions=1) as hub:
            first = await hub.join("first", roles=("orchestrator",))
            await hub.join("hands", roles=("activity",))
            await hub.clock.sleep(1.0)
            carried = first._crash

            async def slow(name: str) -> None:
                if name == "history":
                    await hub.clock.sleep(1.0)
                await carried(name)

            first.store._crash = slow
            await hub.client.start("chain", 3, instance_id="one")
            state = await hub.wait("one")
            assert not hub.said("AbandoningMessage")
            queries = hub.store.requests["table.query"]
            await hub.ended()
            return state.output, queries

    assert simulate(play)[0] == "3"


@pytest.mark.rows("K35")
def test_a_response_that_nobody_asked_for_ends_in_quarantine_with_its_cause() -> None:
    async def play() -> Any:
        async with world() as hub:
            await hub.join("only")
            await hub.client.start("events", 1, instance_id="one")
            await hub.clock.sleep(2.0)
            row = await hub.client.get("one")
            stray = TaskCompleted(timestamp=hub.clock.utc_now(), task_scheduled_id=77, result="1")
            assert row is not None
            to = OrchestrationInstance(instance_id="one", execution_id=row.execution_id)
            await hub.client.hub.send(hub.client.hub.message_to(stray, to))
            while not (kept := await hub.client.admin.quarantined()):
                await hub.clock.sleep(60.0)
            await hub.client.raise_event("one", "go", 5)
            state = await hub.wait("one")
            return kept, state.output

    kept, output = simulate(play)
    assert output == "[5]", "nothing else is slowed down"
    assert len(kept) == 1
    assert kept[0].instance_id == "one"
    assert "not in the history" in kept[0].cause
    assert "TaskCompleted" in kept[0].text


# --- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K33", "K59")
@pytest.mark.parametrize("name", ["chain", "timers", "counter", "failing", "recorded"])
@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_an_hour_of_skew_changes_nothing(name: str, skew: timedelta) -> None:
    async def play() -> Any:
        async with world() as hub:
            await hub.join("one", skew=skew)
            await hub.join("two", skew=-skew)
            await SCENARIOS[name].drive(hub)
            return await hub.ended()

    ended, whole = simulate(play), undisturbed(SCENARIOS[name]).ended
    assert (ended.states, ended.histories) == (whole.states, whole.histories)


@pytest.mark.rows("K33", "K59")
@pytest.mark.parametrize("skew", [HOUR, -HOUR], ids=["behind", "ahead"])
def test_a_timer_set_after_a_move_to_another_clock_takes_its_time(skew: timedelta) -> None:
    """An instance's time never goes back: on a clock that is behind it stands still, and so does not count."""

    async def play() -> float:
        async with world() as hub:
            first = await hub.join("first", skew=skew)
            began = hub.clock.monotonic()
            await hub.client.start("timers", instance_id="one")
            await hub.clock.sleep(1.0)
            await first.bury()
            await hub.join("second", skew=-skew)
            await hub.wait("one", 3 * HOUR)
            return hub.clock.monotonic() - began

    assert 23 <= simulate(play) < 40


@pytest.mark.rows("K59")
def test_a_timer_never_fires_early() -> None:
    async def play() -> None:
        async with world() as hub:
            await hub.join("only")
            await SCENARIOS["timers"].drive(hub)
            history = await hub.client.instance("one").history()
            started: Timestamp | None = None
            for event in history:
                if event.event_type.name == "OrchestratorStarted":
                    started = event.timestamp
                if isinstance(event, TimerFired):
                    assert started is not None
                    assert started >= event.fire_at

    simulate(play)


# --- starts and ends ----------------------------------------------------------------------------------------------


@pytest.mark.rows("K41")
def test_a_scheduled_start_waits_and_a_terminate_before_it_holds() -> None:
    async def play() -> Any:
        async with world() as hub:
            await hub.join("only")
            due = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=5)
            await hub.client.start("chain", 1, instance_id="runs", start_at=due)
            await hub.client.start("chain", 1, instance_id="never", start_at=due)
            await hub.clock.sleep(30.0)
            assert (await _status(hub, "runs"), await _status(hub, "never")) == (Status.PENDING, Status.PENDING)
            await hub.client.terminate("never", "changed my mind")
            ended = await hub.wait("never")
            await hub.wait("runs")
            began = hub.clock.monotonic()
            await hub.settle()
            again = await hub.client.get("never")
            assert again is not None
            return ended.status, again.status, again.output, began, await hub.client.instance("never").history()

    status, after, output, began, history = simulate(play)
    assert (status, after, output) == (Status.TERMINATED, Status.TERMINATED, "changed my mind")
    assert 300.0 <= round(began, 6) < 302.0
    assert [event.event_type.name for event in history[1:-1]] == [
        "ExecutionStarted",
        "ExecutionTerminated",
        "ExecutionCompleted",
    ]


@pytest.mark.rows("K41")
@pytest.mark.long
def test_a_start_may_be_scheduled_any_number_of_hops_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a queue hid a message for 20 seconds at most: with its seven days it is a start in more than two years."""
    for module in (settling, outgoing):
        monkeypatch.setattr(module, "MAX_VISIBILITY", timedelta(seconds=20))

    async def play() -> Any:
        async with world(lease=RARE_RENEWALS) as hub:
            await hub.join("only")
            due = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=2300)
            await hub.client.start("events", 1, instance_id="one", start_at=due)
            await hub.client.raise_event("one", "go", 7)
            await hub.clock.sleep(2290.0)
            before = await _status(hub, "one")
            state = await hub.wait("one", timedelta(minutes=1))
            await hub.ended()
            return before, state.output

    assert simulate(play) == (Status.PENDING, "[7]")


@pytest.mark.rows("K41", "K46")
@pytest.mark.parametrize("purged", [False, True])
@pytest.mark.parametrize("slow", [0.5, 20.0, 120.0])
def test_a_terminate_that_overtakes_its_start_ends_the_instance(slow: float, purged: bool) -> None:
    """However slow its client is: what was reported as ended does not come back to life."""

    async def play() -> Any:
        async with world(partitions=1) as hub:
            await hub.join("only")
            await hub.clock.sleep(1.0)
            store, sent = hub.client.hub.store, []
            commit = store.commit

            async def row_only(unit: Unit) -> Results:
                results = await commit(Unit(steps=unit.steps[:2]))
                sent.extend(resolved(put, results) for put in unit.steps[2].operations)
                return results

            object.__setattr__(store, "commit", row_only)  # the client is slow between row and message
            await hub.client.start("patient", instance_id="one")
            object.__delattr__(store, "commit")
            event = ExecutionTerminated(timestamp=hub.clock.utc_now(), input="enough")
            await hub.client.hub.send(hub.client.hub.message_to(event, OrchestrationInstance(instance_id="one")))
            await hub.clock.sleep(slow)
            if purged and slow > 10:
                await hub.client.purge("one")
            await store.execute(sent[0])
            await hub.clock.sleep(60.0)
            state = await hub.client.get("one")
            await hub.settle()
            return state and (state.status, state.output)

    ended = simulate(play)
    if purged and slow > 10:
        assert ended is None
    else:
        assert ended == (Status.TERMINATED, "enough")


@pytest.mark.rows("K41")
@pytest.mark.parametrize("older", [False, True])
def test_a_switch_that_was_cut_off_does_not_wait_for_its_code_to_be_terminated(older: bool) -> None:
    """The worker that is left makes it whole from its blob. An older version wrote no blob: its switch stays."""
    app = App("late", version="1")

    @app.activity
    def nothing(number: int) -> None:
        pass

    @app.orchestrator
    async def wide(ctx: OrchestrationContext, generation: int) -> None:
        if generation == 0:
            ctx.continue_as_new(1)
        else:
            await ctx.when_all([ctx.call_activity("nothing", number) for number in range(120)])

    async def scheduled(hub: World) -> int:
        return sum(isinstance(event, TaskScheduled) for event in await hub.client.instance("one").history())

    async def play() -> Any:
        async with World(app, partitions=1, no_worker_timeout=timedelta(minutes=2)) as hub:
            late = await hub.join("late", death=Death(point="history:1"))
            await hub.client.start("wide", 0, instance_id="one")
            await late.died.wait()
            await late.bury()
            if older:
                await without_blob(hub)
            before = await scheduled(hub)
            await hub.client.terminate("one", "enough")
            await hub.join("next", app=App("other"))
            return (await hub.ended()).states["one"][:2], before, await scheduled(hub)

    ended, before, after = simulate(play)
    assert ended == ("Terminated", "enough")
    assert 0 < before < 120
    assert after == (before if older else 120)


async def _status(hub: World, instance_id: str) -> Status | None:
    row = await hub.client.get(instance_id)
    return row.status if row is not None else None


@pytest.mark.rows("D20", "K44")
@pytest.mark.parametrize("policy", list(StartPolicy))
def test_of_forty_starts_at_once_exactly_one_starts(policy: StartPolicy, place: Place) -> None:
    async def play() -> Any:
        async with world(place=place) as hub:
            await hub.join("one")
            await hub.join("two")

            async def start() -> str | None:
                try:
                    return (await hub.client.start("recorded", 1, instance_id="one", policy=policy)).execution_id
                except InstanceExists:
                    return None

            first = await asyncio.gather(*(start() for _ in range(40)))
            await hub.wait("one")
            again = await asyncio.gather(*(start() for _ in range(40)))
            await hub.clock.sleep(0.5)
            await hub.wait("one")
            await hub.ended()
            runs = {record.instance.execution_id for record in await hub.client.instance("one").activities()}
            return first, again, len(runs)

    first, again, runs = simulate(play)
    assert len({one for one in first if one}) == 1
    if policy is StartPolicy.REFUSE:
        assert (sum(one is not None for one in first), sum(one is not None for one in again), runs) == (1, 0, 1)
    elif policy is StartPolicy.ATTACH:
        assert (set(first), runs) == (set(again), 1)
    else:
        assert (sum(one is not None for one in first), sum(one is not None for one in again), runs) == (1, 1, 2)


@pytest.mark.rows("K44")
def test_a_start_whose_client_died_between_row_and_message_is_put_again_by_the_next() -> None:
    async def play() -> Any:
        async with world() as hub:
            await hub.join("only")

            store = hub.client.hub.store
            commit = store.commit

            async def dies(unit: Unit) -> Results:
                await commit(Unit(steps=unit.steps[:2]))
                raise ConnectionError

            object.__setattr__(store, "commit", dies)
            with pytest.raises(ConnectionError):
                await hub.client.start("chain", 2, instance_id="one")
            object.__delattr__(store, "commit")
            await hub.clock.sleep(60.0)
            assert await _status(hub, "one") is Status.PENDING
            await hub.client.start("chain", 7, instance_id="one", policy=StartPolicy.ATTACH)
            state = await hub.wait("one")
            await hub.ended()
            return state.output

    assert simulate(play) == "2", "the input of the start that inserted the row"


# --- names and messages -------------------------------------------------------------------------------------------


@pytest.mark.rows("K43")
@pytest.mark.parametrize("told", [HOUR / 20, HOUR / 5], ids=str)
@pytest.mark.long
def test_what_no_live_worker_has_fails_naming_who_was_alive(told: timedelta) -> None:
    app = App("half", version="7")

    @app.orchestrator
    async def calls(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("missing_activity", 1)

    @app.orchestrator
    async def quick(ctx: OrchestrationContext) -> int:
        return 1

    async def play() -> Any:
        async with World(app, no_worker_timeout=told) as hub:
            await hub.join("alive")
            await hub.client.start("missing_orchestrator", instance_id="one")
            await hub.client.start("calls", instance_id="two")
            await hub.clock.sleep(30.0)
            began = hub.clock.monotonic()
            await hub.client.start("quick", instance_id="three")
            await hub.wait("three")
            assert hub.clock.monotonic() - began < 1.0, "it slows no other"
            one, two = await hub.wait("one", HOUR), await hub.wait("two")
            await hub.ended()
            return one, two, hub.clock.monotonic() - told.total_seconds()

    one, two, seconds = simulate(play)
    assert (one.status, two.status) == (Status.FAILED, Status.FAILED)
    assert 0 <= seconds < 100
    for state, name in ((one, "missing_orchestrator"), (two, "missing_activity")):
        assert name in state.output
        assert "alive@host/alive-1 (half 7) has" in state.output


@pytest.mark.rows("K43")
@pytest.mark.long
def test_an_instance_fails_only_after_it_has_waited_for_the_timeout_itself() -> None:
    """The orchestrator, or the activity, has been missing for an earlier instance nearly as long as the timeout."""
    app, limit = App("half"), timedelta(seconds=200)

    @app.orchestrator
    async def calls(ctx: OrchestrationContext) -> None:
        await ctx.call_activity("missing_activity", 1)

    async def play() -> Any:
        async with World(app, no_worker_timeout=limit) as hub:
            await hub.join("alive")
            began = {}
            for number, pause in (("1", 180.0), ("2", 0.0)):
                for name in ("missing_orchestrator", "calls"):
                    await hub.client.start(name, instance_id=name + number)
                    began[name + number] = hub.clock.monotonic()
                await hub.clock.sleep(pause)
            waited, states = {}, []
            for instance_id, start in began.items():
                states.append(await hub.wait(instance_id))
                waited[instance_id] = hub.clock.monotonic() - start
            await hub.ended()
            return waited, states

    waited, states = simulate(play)
    assert all(200 <= seconds < 240 for seconds in waited.values()), waited
    for state in states:
        assert state.status is Status.FAILED
        said = re.search(r"has waited for it for (\d+) s", state.output)
        assert said is not None, state.output
        assert 200 <= int(said[1]) < 240
        assert state.failure is not None
        assert not state.failure.is_non_retriable, "the Airflow task may be retried: a worker may have it then"


@pytest.mark.rows("K43")
@pytest.mark.parametrize("delayed", [False, True])
def test_the_wait_of_an_instance_goes_on_under_another_owner_and_begins_when_it_is_due(delayed: bool) -> None:
    limit = timedelta(seconds=100)

    async def play() -> Any:
        async with World(App("half"), no_worker_timeout=limit) as hub:
            machines = [await hub.join(name) for name in ("one", "two")]
            await hub.clock.sleep(30.0)
            for number in range(8):  # some in each partition, so that both workers know of the absence
                await hub.client.start("missing", instance_id=f"old{number}")
            began = hub.clock.monotonic()
            due = (hub.clock.utc_now() + timedelta(seconds=60)).datetime() if delayed else None
            if not delayed:
                await hub.clock.sleep(60.0)
            await hub.client.start("missing", instance_id="late", start_at=due)
            await hub.clock.sleep(90.0 - (hub.clock.monotonic() - began))
            queue = hub.client.hub.queue_of("late")
            (owner,) = (one for one in machines if queue in {tenure.queue for tenure in one.owner.tenures})
            await owner.stop()
            state = await hub.wait("late")
            await hub.ended()
            return state.status, hub.clock.monotonic() - began - 60

    status, waited = simulate(play)
    assert status is Status.FAILED
    assert 100 <= waited < 120, waited


@pytest.mark.rows("K43")
def test_what_a_worker_learns_in_time_is_run() -> None:
    """The worker that cannot run it lives on, and owned the partition when the other one joined."""

    async def play() -> Any:
        async with world() as hub:
            await hub.join("stranger", app=App("stranger"))
            await hub.client.start("chain", 2, instance_id="one")
            await hub.clock.sleep(300.0)
            await hub.join("knows")
            state = await hub.wait("one", timedelta(seconds=30))
            await hub.ended()
            return state.output

    assert simulate(play) == "2"


@pytest.mark.rows("K43")
@pytest.mark.long
def test_as_long_as_a_live_worker_could_run_it_no_timeout_runs() -> None:
    async def play() -> Any:
        async with world(no_worker_timeout=timedelta(minutes=2)) as hub:
            operations = PartitionOperations(hub.store, hub.client.hub.names, by="ops", clock=hub.clock)
            await hub.join("stranger", app=App("stranger"))
            await operations.prohibit(range(hub.settings.partitions), ["knows"], "for this test")
            await hub.join("knows")
            await hub.clock.sleep(5.0)
            await hub.client.start("chain", 2, instance_id="one")
            await hub.clock.sleep(2 * hub.settings.no_worker_timeout.total_seconds())
            assert await _status(hub, "one") is Status.PENDING
            await operations.allow(range(hub.settings.partitions))
            state = await hub.wait("one", timedelta(seconds=60))
            await hub.ended()
            return state.output

    assert simulate(play) == "2"


@pytest.mark.rows("K43")
@pytest.mark.parametrize("learnt", [True, False])
@pytest.mark.long
def test_a_switch_cut_off_where_nobody_has_its_code_waits_and_then_fails(learnt: bool) -> None:
    """An older version cut it off, so no blob has its rest. The rest is what the code decides: a worker that joins in
    time makes it, or it fails naming who was alive."""
    other = App("other", version="7")

    @other.activity
    def hop(number: int) -> int:
        return number + 1

    async def play() -> Any:
        async with world(no_worker_timeout=timedelta(minutes=3)) as hub:
            one = await hub.join("one", death=Death(point="history:1"))
            await hub.client.start("spread", 0, instance_id="one")
            await one.died.wait()
            await one.bury()
            await without_blob(hub)
            alive = await hub.join("alive", app=other)
            await hub.clock.sleep(90.0)
            if learnt:
                await hub.join("knows")
                await alive.stop()
            state = await hub.wait("one")
            await hub.ended()
            return state.status, state.output, bool(hub.said("orchestrator_unknown")), hub.defects()

    status, output, said, defects = simulate(play)
    assert (status, said, defects) == (Status.COMPLETED if learnt else Status.FAILED, True, [])
    assert ("7260" if learnt else "alive@host/alive-1 (other 7) has") in output


@pytest.mark.rows("K42")
@pytest.mark.parametrize("text", ["{", "not json", '{"$type":"Nobody.Knows"}', "\u00ff\u00fe", '{"TaskMessage":{}}'])
def test_an_undecodable_message_is_kept_with_its_bytes_and_stops_nothing(text: str) -> None:
    async def play() -> Any:
        async with world(partitions=1) as hub:
            await hub.join("only")
            names = hub.client.hub.names
            for queue in (names.control(0), names.work_items):
                await hub.store.execute(PutMessage(queue=queue, text=text))
            await hub.client.start("chain", 3, instance_id="one")
            state = await hub.wait("one", timedelta(seconds=10))
            await hub.settle()
            return state.output, await hub.client.admin.quarantined()

    output, kept = simulate(play)
    assert output == "3"
    assert [item.text for item in kept] == [text, text]
    assert all(item.cause for item in kept)


@pytest.mark.rows("D26", "K42", "K35")
def test_a_message_that_breaks_every_episode_is_counted_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are counted in the message, so that every worker that tries adds to them."""
    from airflow_provider_taskhub.workers.orchestrations import triage

    real = triage.judge

    def judge(message: Any, facts: Any) -> Any:
        if isinstance(message.event, EventRaised) and message.event.name == "poison":
            raise RuntimeError("a defect of ours")
        return real(message, facts)

    monkeypatch.setattr(triage, "judge", judge)
    monkeypatch.setattr(quarantine, "MAX_FAILURES", 6)

    async def play() -> Any:
        async with world() as hub:
            await hub.join("one")
            await hub.join("two")
            await hub.client.start("events", 1, instance_id="one")
            await hub.clock.sleep(1.0)
            await hub.client.raise_event("one", "poison", 1)
            while not (kept := await hub.client.admin.quarantined()):
                await hub.clock.sleep(5.0)
            await hub.client.raise_event("one", "go", 5)
            return (await hub.wait("one")).output, kept, len(hub.said("episode_defect"))

    output, kept, tries = simulate(play)
    assert output == "[5]"
    assert len(kept) == 1
    assert "poison" in kept[0].text
    assert "a defect of ours" in kept[0].cause
    assert tries == 7


def sent_event(hub: World, name: str, value: str) -> OutboundMessage:
    """An event from another instance, known by its action however often it is put."""
    return outbound_message(
        EventRaised(timestamp=hub.clock.utc_now(), name=name, input=value),
        OrchestrationInstance(instance_id="one"),
        names=hub.client.hub.names,
        queue=hub.client.hub.names.control(0),
        process=hub.client.hub.process,
        sequence=1,
        sender=OrchestrationInstance(instance_id="two", execution_id="x"),
        now=hub.clock.utc_now(),
        activity_id=str(uuid5(NAMESPACE_OID, "an action")),
    )


@pytest.mark.rows("D12", "K27")
@pytest.mark.parametrize("evicted", [False, True])
def test_an_event_that_comes_again_after_its_generation_is_delivered_once(evicted: bool) -> None:
    """Taken by one episode, and the generation ended with a later one: the row that named its message is gone."""

    async def play() -> Any:
        async with world(partitions=1, session_idle=timedelta(seconds=20)) as hub:
            await hub.join("only")
            await hub.client.start("counter", [], instance_id="one")
            made = sent_event(hub, "add", "0")
            await hub.client.hub.send(made)
            await hub.settle()
            await hub.clock.sleep(60.0 if evicted else 1.0)
            await hub.client.hub.send(made)
            await hub.settle()
            for number in (1, 2, 3):
                await hub.client.raise_event("one", "add", number)
                await hub.settle()
            return (await hub.wait("one")).output

    assert simulate(play) == "[0,1,2,3]"


@pytest.mark.rows("D12", "K27")
def test_an_event_put_twice_and_received_in_one_batch_is_delivered_once() -> None:
    """The answer to a put was lost: two messages of one action lie side by side."""

    async def play() -> Any:
        async with world(partitions=1) as hub:
            await hub.client.start("events", 2, instance_id="one")
            made = sent_event(hub, "go", "1")
            await hub.client.hub.send(made)
            await hub.client.hub.send(made)
            await hub.join("only")
            await hub.settle()
            waiting = await hub.client.get("one")
            await hub.client.raise_event("one", "go", 2)
            return waiting.status if waiting else None, (await hub.wait("one")).output

    assert simulate(play) == (Status.RUNNING, "[1,2]")


def waiting() -> App:
    """With an orchestrator that ends after two events."""
    app = app_of(Effects())

    @app.orchestrator
    async def waits(ctx: OrchestrationContext) -> list[Any]:
        return [await ctx.wait_for_external_event("add") for _ in range(2)]

    return app


@pytest.mark.rows("K10", "K29")
def test_what_an_old_owner_has_loaded_turns_no_row_back() -> None:
    """A redelivery has it complete the row of the history that it knows, which has gone on meanwhile."""

    async def play() -> Any:
        async with World(waiting(), partitions=1) as hub:
            await hub.client.start("waits", instance_id="one")
            queue = hub.client.hub.names.control(0)
            (start,) = await hub.store.peek(queue)
            new = await hub.join("new")
            await hub.clock.sleep(5.0)
            old = await hub.join("old")
            await hub.clock.sleep(5.0)
            share(new, old)
            loaded, go_on = asyncio.Event(), asyncio.Event()
            loader = old.backend.processor._loader
            load = loader.load

            async def slowly(instance_id: str) -> Any:
                found = await load(instance_id)
                loaded.set()
                await go_on.wait()
                return found

            loader.load = slowly  # type: ignore[method-assign]
            new.plan = lambda call: unsent() if call.kind == "queue.receive" else None
            await hub.store.execute(PutMessage(queue=queue, text=start.text))
            await loaded.wait()
            new.plan = lambda call: None
            old.plan = lambda call: unsent() if call.kind == "queue.receive" else None
            for number in (1, 2):
                await hub.client.raise_event("one", "add", number)
            await hub.wait("one")
            go_on.set()
            await hub.settle()
            return (await hub.client.get("one")).status

    assert simulate(play) is Status.COMPLETED


@pytest.mark.rows("K10", "K29")
def test_what_an_old_owner_finishes_late_turns_no_row_back() -> None:
    """Its merge of the row has no answer; while it reads the row, another takes the instance to its end."""

    async def play() -> Any:
        async with World(waiting(), partitions=1) as hub:
            names = hub.client.hub.names
            new = await hub.join("new")
            await hub.clock.sleep(5.0)
            old = await hub.join("old")
            await hub.clock.sleep(5.0)
            share(new, old)
            merges, reading = 0, asyncio.Event()

            def deaf(call: Call) -> Fault | None:
                return unsent() if call.kind == "queue.receive" else None

            def plan(call: Call) -> Fault | None:
                nonlocal merges
                if isinstance(call.what, Transact) and call.what.table == names.instances:
                    merges += 1
                    return unsent() if merges == 1 else None
                if merges and call.kind == "table.get" and names.instances in str(call.what) and not reading.is_set():
                    reading.set()
                    return late(2.0)
                return deaf(call) if merges else None

            new.plan, old.plan = deaf, plan
            await hub.client.start("waits", instance_id="one")
            await reading.wait()
            new.plan = lambda call: None
            for number in (1, 2):
                await hub.client.raise_event("one", "add", number)
            await hub.wait("one")
            await hub.clock.sleep(60.0)
            await hub.settle()
            return merges, (await hub.client.get("one")).status

    assert simulate(play) == (1, Status.COMPLETED)


@pytest.mark.rows("K29", "K44")
@pytest.mark.parametrize("point", ["instance", "delete"])
def test_a_new_start_behind_an_end_whose_last_answers_are_lost_is_not_lost_too(point: str) -> None:
    """Its client sees the end, while the worker hears nothing of what it has written."""

    async def play() -> Any:
        async with world(partitions=1) as hub:
            silent = [Fault(pause=1.0, after=Unavailable("answer lost (fault)", maybe_done=True))]

            def plan(call: Call) -> Fault | None:
                what, names = call.what, hub.client.hub.names
                if point == "delete":
                    meant = isinstance(what, DeleteMessage)
                else:
                    meant = isinstance(what, Transact) and what.table == names.instances
                return silent.pop() if meant and silent else None

            await hub.join("only", plan=plan)
            await hub.client.start("chain", 0, instance_id="one", tags={"taskhub.watch": "1"})
            assert (await hub.wait("one")).output == "0"
            await hub.client.start("chain", 2, instance_id="one", policy=StartPolicy.REPLACE_FINISHED)
            states = (await hub.ended()).states
            announced = [done for done in hub.tape if _announces(done.operation, hub)]
            return states["one"][:2], len(announced), silent

    assert simulate(play) == (("Completed", "2"), {"instance": 1, "delete": 2}[point], [])


def _announces(operation: object, hub: World) -> bool:
    return isinstance(operation, Transact) and operation.table == hub.client.hub.names.completions


@pytest.mark.rows("K29", "K44")
def test_a_start_over_the_run_before_of_a_child_that_runs_again_takes_nothing_from_it() -> None:
    """The row did not tell yet of what the history has: the start is refused later, and kept for people."""
    app = waiting()

    @app.orchestrator
    async def twice(ctx: OrchestrationContext) -> int:
        runs = [await ctx.call_sub_orchestrator("waits", instance_id="child") for _ in range(2)]
        return len(runs)

    async def play() -> Any:
        async with World(app, partitions=1) as hub:
            slow: list[Fault] = []

            def plan(call: Call) -> Fault | None:
                row = call.what.rows[0].entity if isinstance(call.what, Transact) else None
                begins = row is not None and row.properties.get("RuntimeStatus") == "Running"
                return slow.pop() if slow and begins else None

            async def told() -> None:
                for number in range(2):
                    await hub.client.raise_event("child", "add", number)

            await hub.join("only", plan=plan)
            await hub.client.start("twice", instance_id="one")
            await hub.clock.sleep(1.0)
            slow.append(late(3.0))
            await told()
            await hub.clock.sleep(2.0)
            assert not slow
            await hub.client.start("chain", 0, instance_id="child", policy=StartPolicy.REPLACE_FINISHED)
            await hub.clock.sleep(2.0)
            await told()
            output = (await hub.wait("one")).output
            await hub.settle()
            return output, len(await hub.client.admin.quarantined())

    assert simulate(play) == ("2", 1)
