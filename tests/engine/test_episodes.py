"""Episodes by values: past and new events in, history and messages out."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer, field_validator

from airflow_provider_taskhub.app import (
    App,
    OrchestrationContext,
    OrchestrationError,
    RetryPolicy,
    SubOrchestrationFailedError,
    Task,
    TaskFailedError,
    when_all,
    when_any,
)
from airflow_provider_taskhub.engine import driver, wait_changes
from airflow_provider_taskhub.engine import generation as generations
from airflow_provider_taskhub.engine.events import (
    EventRaised,
    ExecutionResumed,
    ExecutionStarted,
    ExecutionSuspended,
    ExecutionTerminated,
    FailureDetails,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorCompleted,
    OrchestratorStarted,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TaskScheduled,
    TimerCreated,
    TimerFired,
)
from airflow_provider_taskhub.engine.generation import Generation
from airflow_provider_taskhub.engine.lifecycle import LifecycleError
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.engine.replay import Execution, run
from airflow_provider_taskhub.engine.replay_safe_logger import LogLine
from airflow_provider_taskhub.errors import InputError, UnknownOrchestrator
from airflow_provider_taskhub.tags import GRACE_TAG, LIMIT_TAG, WATCH_TAG
from tests.engine.play import INSTANCE, START, Play, plain

app = App("plays", version="7")
PARENT = ParentInstance(
    name="above", instance=OrchestrationInstance(instance_id="above-1", execution_id="e" * 32), task_schedule_id=4
)


@app.activity
def square(x: int) -> int:
    return x * x


@app.activity
def tidy() -> None:
    return None


@app.orchestrator
async def one(ctx: OrchestrationContext, x: int) -> Any:
    return await ctx.call_activity(square, x)


@app.orchestrator
async def race(ctx: OrchestrationContext) -> Any:
    go, deadline = ctx.wait_for_external_event("go", int), ctx.create_timer(timedelta(minutes=1))
    if await ctx.when_any([go, deadline]) is deadline:
        return "late"
    return go.get_result()


@app.orchestrator
async def two_events(ctx: OrchestrationContext) -> Any:
    return [await ctx.wait_for_external_event("go"), await ctx.wait_for_external_event("stop")]


class Test_activities:
    def test_input_goes_as_an_array_of_one(self) -> None:
        play = Play(app)
        play.start("one", 3)
        assert play.names() == ["OrchestratorStarted", "ExecutionStarted", "TaskScheduled", "OrchestratorCompleted"]
        sent = play.outbound[0]
        assert isinstance(sent.event, TaskScheduled)
        assert (sent.event.name, sent.event.input, sent.event.event_id) == ("square", "[3]", 0)
        assert (sent.target, sent.context_tags) == (INSTANCE, {})
        play.answer(9)
        assert (play.last.output, play.last.status) == ("9", Status.COMPLETED)
        assert play.live.is_finished

    def test_no_input_is_no_argument(self) -> None:
        own = App("own")
        own.activity(tidy)

        @own.orchestrator
        async def clean(ctx: OrchestrationContext) -> None:
            await ctx.when_all(
                [ctx.call_activity(tidy), ctx.call_activity("theirs"), ctx.call_activity("theirs", None)]
            )

        play = Play(own)
        play.start("clean")
        assert [getattr(o.event, "input", "") for o in play.outbound] == ["[]", "[]", "[null]"]

    def test_a_large_input_is_in_the_message_only(self) -> None:
        own = App("own")

        @own.orchestrator
        async def large(ctx: OrchestrationContext) -> None:
            await ctx.call_activity("length", "x" * 2000)

        play = Play(own)
        episode = play.start("large")
        sent, kept = episode.outbound[0].event, episode.history[2]
        assert isinstance(sent, TaskScheduled)
        assert isinstance(kept, TaskScheduled)
        assert len(sent.input or "") == 2004
        assert kept.input is None
        assert kept.taskhub_action_id == sent.taskhub_action_id

    def test_a_failure_names_its_cause(self) -> None:
        play = Play(app)
        play.start("one", 3)
        play.take(play.failed(play.outbound[0], "disk full", stack_trace="there"))
        completed = play.last.completed
        assert completed is not None
        assert completed.failure is not None
        assert (completed.status, completed.result, completed.event_id) == (Status.FAILED, "disk full", 1)
        assert completed.failure.error_type == "TaskFailedError"
        assert completed.failure.inner_failure == FailureDetails(
            error_type="ValueError", error_message="disk full", stack_trace="there"
        )
        assert play.last.output == "activity 'square' failed: ValueError: disk full"
        assert "test_episodes.py" in (completed.failure.stack_trace or "")
        assert "engine/generation" not in (completed.failure.stack_trace or "")

    @pytest.mark.rows("K60")
    def test_an_orchestrator_that_raises_or_returns_is_complete_at_once(self) -> None:
        """Its timers decided in the same breath never leave; activities, children and events do."""
        own = App("own")

        @own.orchestrator
        async def hasty(ctx: OrchestrationContext) -> str:
            ctx.create_timer(timedelta(hours=1))
            ctx.call_activity("slow")
            ctx.call_sub_orchestrator("child", 1)
            ctx.send_event("other", "hello", 2)
            raise OrchestrationError("no", retryable=False)

        play = Play(own)
        play.start("hasty")
        assert play.names()[2:] == [
            "TaskScheduled",
            "SubOrchestrationInstanceCreated",
            "EventSent",
            "ExecutionCompleted",
            "OrchestratorCompleted",
        ]
        assert [type(o.event) for o in play.outbound] == [TaskScheduled, ExecutionStarted, EventRaised]
        assert play.last.completed is not None
        assert play.last.completed.event_id == 4
        assert play.last.completed.failure is not None
        assert play.last.completed.failure.is_non_retriable

    def test_a_result_that_json_cannot_express_fails_naming_it(self) -> None:
        own = App("own")

        @own.orchestrator
        def odd(ctx: OrchestrationContext) -> object:
            return object()

        play = Play(own)
        play.start("odd")
        assert play.last.status is Status.FAILED
        assert "result of orchestrator 'odd' of type object cannot be written as JSON" in (play.last.output or "")

    def test_an_answer_that_nobody_can_read_fails_its_task(self) -> None:
        own, deep = App("own"), "[" * 3000 + "]" * 3000

        @own.orchestrator
        async def reads(ctx: OrchestrationContext) -> list[str]:
            told = []
            for name in ("first", "second"):
                try:
                    await ctx.call_activity(name)
                except (InputError, TaskFailedError) as error:
                    told.append(str(error))
            return told

        play = Play(own)
        play.start("reads")
        play.take(TaskCompleted(timestamp=START, task_scheduled_id=0, result=deep))
        play.take(TaskFailed(timestamp=START, task_scheduled_id=1, reason="no", details=deep))
        assert play.last.status is Status.COMPLETED
        (first, second) = json.loads(play.last.output or "")
        assert first.startswith("result of activity 'first' is not JSON: maximum recursion depth")
        assert second == "no"

    def test_an_input_that_does_not_fit_fails_at_once(self) -> None:
        play = Play(app)
        play.start("one", "many")
        assert play.last.status is Status.FAILED
        assert (play.last.output or "").startswith("InputError: input of orchestrator 'one' does not fit int")
        assert play.outbound == []

    def test_an_unknown_orchestrator_changes_nothing(self) -> None:
        live = Execution(Registry.of([app]), (), instance=INSTANCE)
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="nobody")
        for _ in range(2):
            with pytest.raises(UnknownOrchestrator, match=r"'nobody'.*known here: one, race"):
                live.advance([start], now=START)
        assert live.history == ()

    def test_events_without_a_start_are_refused(self) -> None:
        live = Execution(Registry.of([app]), (), instance=INSTANCE)
        with pytest.raises(InputError, match=r"play-1.*no ExecutionStarted"):
            live.advance([EventRaised(timestamp=START, name="go")], now=START)

    @pytest.mark.rows("K43")
    def test_an_instance_is_failed_without_its_code(self) -> None:
        live = Execution(Registry.of([app]), (), instance=OrchestrationInstance(instance_id="play-1"))
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="nobody", parent=PARENT)
        failure = FailureDetails(error_type="UnknownOrchestrator", error_message="nobody has it")
        episode = live.fail([EventRaised(timestamp=START, name="go"), start], failure, now=START)
        assert [event.event_type.name for event in episode.history] == [
            "OrchestratorStarted",
            "ExecutionStarted",
            "EventRaised",
            "ExecutionCompleted",
            "OrchestratorCompleted",
        ]
        assert (episode.status, episode.current, episode.loaded) == (Status.FAILED, INSTANCE, INSTANCE)
        assert episode.output == "UnknownOrchestrator: nobody has it"
        assert isinstance(episode.outbound[0].event, SubOrchestrationInstanceFailed)
        assert live.is_finished
        assert live.fail([start], failure, now=START).history == ()


class Test_time:
    @pytest.mark.rows("K59")
    def test_a_timer_brings_its_time_with_it(self) -> None:
        """A worker whose clock is behind still sees the timer fire no earlier than its time."""
        play = Play(app)
        play.start("race")
        fired = play.outbound[0].event
        assert isinstance(fired, TimerFired)
        assert fired.fire_at == START + timedelta(minutes=1)
        play.wait(seconds=-10)
        play.take(fired)
        assert play.last.history[0].timestamp == fired.fire_at
        assert play.last.output == '"late"'

    def test_time_never_goes_back(self) -> None:
        play = Play(app)
        play.start("two_events")
        play.wait(hours=-3)
        play.take(play.raised("go"))
        assert play.last.history[0].timestamp == START

    @pytest.mark.rows("K40")
    @pytest.mark.parametrize("days", [5, 6, 7, 30])
    def test_a_distant_timer_is_several(self, days: int) -> None:
        own = App("own")

        @own.orchestrator
        async def patient(ctx: OrchestrationContext) -> str:
            await ctx.create_timer(ctx.current_utc_datetime + timedelta(days=days))
            return ctx.current_utc_datetime.isoformat()

        play = Play(own)
        play.start("patient")
        count = 0
        while not play.live.is_finished:
            fired = play.outbound[-1].event
            assert isinstance(fired, TimerFired)
            assert fired.fire_at - play.now <= timedelta(days=6)
            play.now = fired.fire_at
            play.take(fired)
            count += 1
        assert count == -(-days // 6)
        assert play.last.output == f'"{(START.datetime() + timedelta(days=days)).isoformat()}"'

    @pytest.mark.rows("K40", "K55")
    def test_a_timer_that_another_system_did_not_split_is_one(self) -> None:
        """.NET makes timers of up to 7 days in one piece, and fires them early."""
        own = App("own")

        @own.orchestrator
        async def week(ctx: OrchestrationContext) -> None:
            await ctx.create_timer(timedelta(days=6, hours=12))
            await ctx.call_activity("next")

        far = START + timedelta(days=6, hours=12)
        past = [
            OrchestratorStarted(timestamp=START),
            ExecutionStarted(timestamp=START, instance=INSTANCE, name="week", is_played=True),
            TimerCreated(timestamp=START, event_id=0, fire_at=far),
            OrchestratorCompleted(timestamp=START),
            OrchestratorStarted(timestamp=START + timedelta(days=6)),
            TimerFired(timestamp=START, timer_id=0, fire_at=far, is_played=True),
            TaskScheduled(timestamp=START, event_id=1, name="next"),
            OrchestratorCompleted(timestamp=START),
        ]
        done = TaskCompleted(timestamp=START, task_scheduled_id=1)
        episode = run(Registry.of([own]), past, [done], instance=INSTANCE, now=START)
        assert episode.status is Status.COMPLETED

    def test_times_without_a_zone_are_utc(self) -> None:
        own = App("own")

        @own.orchestrator
        async def at(ctx: OrchestrationContext) -> None:
            assert ctx.current_utc_datetime.tzinfo is UTC
            await ctx.create_timer(datetime(2026, 11, 21, 9))

        play = Play(own)
        play.start("at")
        created = play.last.history[2]
        assert isinstance(created, TimerCreated)
        assert str(created.fire_at) == "2026-11-21T09:00:00Z"

    @pytest.mark.parametrize("fire_at", [timedelta.min, timedelta(days=-365_000), datetime.min])
    def test_a_timer_that_no_row_can_hold_is_refused_where_it_is_made(self, fire_at: timedelta | datetime) -> None:
        own = App("own")

        @own.orchestrator
        async def early(ctx: OrchestrationContext) -> str:
            try:
                await ctx.create_timer(fire_at)
            except InputError as error:
                return str(error)
            return "fired"

        play = Play(own)
        play.start("early")
        assert (play.last.output or "").startswith(f'"create_timer: {fire_at} is out of range: give a time')

    @pytest.mark.parametrize("fire_at", [timedelta.max, datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))])
    def test_a_timer_may_be_never_to_fire(self, fire_at: timedelta | datetime) -> None:
        own = App("own")

        @own.orchestrator
        async def late(ctx: OrchestrationContext) -> None:
            await ctx.create_timer(fire_at)

        play = Play(own)
        play.start("late")
        assert isinstance(fired := play.outbound[-1].event, TimerFired)
        assert fired.fire_at == START + timedelta(days=6)

    def test_a_cancelled_timer_fires_for_nobody(self) -> None:
        own = App("own")

        @own.orchestrator
        async def changes(ctx: OrchestrationContext) -> str:
            timer = ctx.create_timer(timedelta(minutes=1))
            await ctx.wait_for_external_event("go")
            timer.cancel()
            try:
                await timer
            except TaskFailedError as error:
                await ctx.wait_for_external_event("stop")
                return str(error)
            return "fired"

        play = Play(own)
        play.start("changes")
        play.take(play.raised("go"))
        play.take(play.outbound[0].event)
        assert play.last.status is Status.RUNNING
        play.take(play.raised("stop"))
        assert play.last.output == '"the task was cancelled by the orchestrator"'


class Test_events:
    def test_names_are_matched_without_their_case_and_data_by_type(self) -> None:
        play = Play(app)
        play.start("race")
        play.take(play.raised("GO", 5))
        assert play.last.output == "5"

    def test_data_that_does_not_fit_fails_the_wait(self) -> None:
        play = Play(app)
        play.start("race")
        play.take(play.raised("go", "soon"))
        assert (play.last.output or "").startswith("InputError: data of event 'go' does not fit int")

    @pytest.mark.rows("K57")
    def test_events_before_the_start_and_before_the_wait_are_kept(self) -> None:
        play = Play(app)
        started = ExecutionStarted(timestamp=START, instance=INSTANCE, name="two_events")
        play.take(play.raised("stop", 2), started, play.raised("other"))
        assert play.names()[1:4] == ["ExecutionStarted", "EventRaised", "EventRaised"]
        play.take(play.raised("go", 1))
        assert play.last.output == "[1,2]"

    def test_waits_of_one_name_are_served_in_order(self) -> None:
        own = App("own")

        @own.orchestrator
        async def pair(ctx: OrchestrationContext) -> Any:
            first, second = ctx.wait_for_external_event("go"), ctx.wait_for_external_event("go")
            return await ctx.when_all([second, first])

        play = Play(own)
        play.start("pair")
        play.take(play.raised("go", 1), play.raised("go", 2))
        assert play.last.output == "[2,1]"


class Test_discarded:
    """What is not for this decision is recorded as stale, and nothing changes."""

    @pytest.mark.rows("D16", "D57", "D60", "D66")
    def test_duplicate_stray_and_late_messages_are_discarded_with_a_reason(self) -> None:
        play = Play(app)
        play.start("two_events", tags={"a": "b"})
        again = ExecutionStarted(timestamp=START, instance=INSTANCE, name="two_events")
        stray = TaskCompleted(timestamp=START, task_scheduled_id=7, result="1")
        episode = play.take(again, stray)
        assert episode.history == ()
        assert episode.outbound == ()
        assert [reason for _, reason in episode.stale] == [
            "duplicate start",
            "duplicate or stray TaskCompleted: action 7 was never scheduled in this generation",
        ]
        play.take(play.raised("go", 1), stray)
        assert play.names() == ["OrchestratorStarted", "EventRaised", "OrchestratorCompleted"]
        play.take(play.raised("stop", 2))
        late = play.take(play.raised("stop", 3), ExecutionTerminated(timestamp=START, input="too late"))
        assert late.history == ()
        assert {reason for _, reason in late.stale} == {"the orchestration is Completed already"}

    @pytest.mark.rows("D58")
    @pytest.mark.parametrize(
        "end",
        [
            lambda ended: ended.fail_with(OrchestrationError("too late", retryable=False)),
            lambda ended: ended._raise(ValueError("too late")),
            lambda ended: ended._return("too late"),
        ],
        ids=["the engine fails it", "its code fails", "its code returns"],
    )
    def test_what_has_ended_is_not_ended_again_and_is_left_as_it_was(self, end: Callable[[Generation], None]) -> None:
        started = ExecutionStarted(timestamp=START, instance=INSTANCE, name="two_events")
        definition = Registry.of([app]).orchestrator("two_events")
        generation = Generation(Registry.of([app]), definition, started, INSTANCE, time=START)
        generation.begin()
        generation.status, generation.result = Status.COMPLETED, '"done"'
        with pytest.raises(LifecycleError, match="Completed cannot have"):
            end(generation)
        assert (generation.status, generation.result, generation.failure) == (Status.COMPLETED, '"done"', None)
        assert not generation._closed

    @pytest.mark.rows("D31")
    def test_an_event_that_is_handled_need_not_change_the_state(self) -> None:
        play = Play(app)
        play.start("two_events")
        states = {"before": play.last.status}
        for name, event in (
            ("raised", play.raised("go", 1)),
            ("resumed", ExecutionResumed(timestamp=START)),
            ("rewound", GenericEvent(timestamp=START)),
        ):
            states[name] = play.take(event).status
            assert len(play.last.history) == 3, "it is stored between the borders of its episode"
        assert set(states.values()) == {Status.RUNNING}
        play.take(ExecutionSuspended(timestamp=START))
        assert play.last.status is Status.SUSPENDED, "another one does"

    @pytest.mark.rows("D12", "K27")
    def test_a_second_answer_changes_nothing(self) -> None:
        own = App("own")

        @own.orchestrator
        async def twice(ctx: OrchestrationContext) -> Any:
            return [await ctx.call_activity("a"), await ctx.call_activity("b")]

        play = Play(own)
        play.start("twice")
        first = play.outbound[0]
        play.take(play.done(first, 1), play.done(first, 2))
        assert len(play.last.stale) == 1
        play.take(play.done(first, 3))
        assert play.last.history == ()
        play.answer(4)
        assert play.last.output == "[1,4]"

    def test_an_answer_to_another_decision_is_not_taken(self) -> None:
        play = Play(app)
        play.start("one", 3)
        scheduled = play.outbound[0]
        wrong = TaskCompleted(
            timestamp=START, task_scheduled_id=0, result="1", taskhub_action_id="11111111-2222-5333-8444-555555555555"
        )
        play.take(wrong)
        assert play.last.history == ()
        assert "answers another decision" in play.last.stale[0][1]
        assert (
            "is TaskScheduled 'square'"
            in (play.live.advance([TimerFired(timestamp=START, timer_id=0, fire_at=START)], now=START).stale[0][1])
        )
        play.take(plain(play.done(scheduled, 9)))  # .NET echoes nothing: it goes by the number
        assert play.last.output == "9"

    def test_a_different_decision_has_a_different_identity(self) -> None:
        ids = set()
        for value in (3, 4):
            play = Play(app)
            play.start("one", value)
            ids.add(play.outbound[0].action_id)
            again = Play(app)
            again.wait(seconds=5)
            again.start("one", value)
            assert again.outbound[0].action_id == play.outbound[0].action_id
        assert len(ids) == 2


class Test_children:
    @pytest.mark.rows("K48", "K50")
    def test_ids_tags_and_versions(self) -> None:
        own = App("own", version="5")

        @own.orchestrator
        async def child(ctx: OrchestrationContext) -> None:
            return None

        @own.orchestrator
        async def family(ctx: OrchestrationContext) -> Any:
            return await ctx.when_all(
                [
                    ctx.call_sub_orchestrator(child, {"x": 1}, tags={"a": "own"}),
                    ctx.call_sub_orchestrator("theirs", instance_id="named", version="2"),
                    ctx.call_sub_orchestrator("free", fire_and_forget=True),
                ]
            )

        play = Play(own)
        play.start("family", tags={"a": "b", "c": "d", "taskhub.watch": "1", "FireAndForget": "true"})
        first, named, free = [o.event for o in play.outbound]
        assert isinstance(first, ExecutionStarted)
        assert isinstance(named, ExecutionStarted)
        assert isinstance(free, ExecutionStarted)
        assert first.instance.instance_id == f"{INSTANCE.execution_id}:0"
        assert first.instance.execution_id == (play.outbound[0].action_id or "").replace("-", "")
        assert (first.version, first.tags, first.input) == ("5", {"a": "own", "c": "d"}, '{"x":1}')
        assert (named.instance.instance_id, named.version, named.input) == ("named", "2", None)
        assert free.tags == {"a": "b", "c": "d", "FireAndForget": "true"}
        assert first.parent is not None
        assert (first.parent.task_schedule_id, first.parent.instance, first.parent.name) == (0, INSTANCE, "family")
        assert play.outbound[0].context_tags == {"a": "b", "c": "d", "taskhub.watch": "1", "FireAndForget": "true"}
        play.take(*(play.done(o, k) for k, o in enumerate(play.outbound[:2])))
        assert play.last.output == "[0,1,null]"

    def test_a_later_generation_of_the_child_answers(self) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            return await ctx.call_sub_orchestrator("child")

        play = Play(own)
        play.start("parent")
        first = play.outbound[0].target.execution_id or ""
        for echo, taken in (("f" * 32, False), (first[:16] + "0" * 15 + "1", True)):
            play.take(
                SubOrchestrationInstanceCompleted(
                    timestamp=START, task_scheduled_id=0, result="1", taskhub_action_id=echo
                )
            )
            assert bool(play.last.history) is taken
        assert play.live.is_finished

    def test_a_failed_child_raises_its_own_error(self) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            try:
                return await ctx.call_sub_orchestrator("child")
            except SubOrchestrationFailedError as error:
                return [str(error), error.details.error_type if error.details else None]

        play = Play(own)
        play.start("parent")
        details = FailureDetails(error_type="KeyError", error_message="gone")
        play.take(SubOrchestrationInstanceFailed(timestamp=START, task_scheduled_id=0, reason="gone", failure=details))
        assert play.last.output == '["gone","KeyError"]'

    @pytest.mark.rows("K48")
    def test_the_parent_is_told(self) -> None:
        for terminated in (False, True):
            play = Play(app)
            play.start("one", 3, parent=PARENT)
            if terminated:
                play.take(ExecutionTerminated(timestamp=START, input="enough"))
            else:
                play.answer(9)
            told = play.last.outbound[-1]
            kind = SubOrchestrationInstanceFailed if terminated else SubOrchestrationInstanceCompleted
            assert isinstance(told.event, kind)
            assert (told.event.task_scheduled_id, told.target, told.action_id) == (4, PARENT.instance, None)
            assert told.event.taskhub_action_id == INSTANCE.execution_id

    def test_a_forgotten_child_tells_nobody(self) -> None:
        play = Play(app)
        play.start("one", 3, parent=PARENT, tags={"FireAndForget": "true"})
        assert play.answer(9).outbound == ()

    def test_its_own_id_is_none_for_a_child(self) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            await ctx.call_sub_orchestrator("child", instance_id=ctx.instance_id)

        play = Play(own)
        play.start("parent")
        assert re.search("^InputError: .* is the caller's own id", play.last.output or ""), play.last.output
        assert play.outbound == []

    @pytest.mark.parametrize("bad", ["", "x" * 257, "\ud800", "x\ufffe", "\uffff/y"])
    def test_an_id_that_cannot_be_one_is_refused(self, bad: str) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            await ctx.call_sub_orchestrator("child", instance_id=bad)

        play = Play(own)
        play.start("parent")
        assert (play.last.output or "").startswith("InputError: instance id")

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("", "name is ''; give a text"),
            ("\ud800", "the name .* contains an unpaired surrogate"),
            ("go" * 16_385, "the name 'go.* is 32,770 characters"),
        ],
    )
    def test_an_event_that_no_history_can_name_is_refused(self, name: str, text: str) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            with pytest.raises(InputError, match=f"wait_for_external_event: {text}"):
                ctx.wait_for_external_event(name)
            ctx.send_event("other", name)

        play = Play(own)
        play.start("parent")
        assert re.search(f"^InputError: send_event: {text}", play.last.output or ""), play.last.output
        assert play.outbound == []

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"tags": {"team": "x" * 32_768}}, r"tags of orchestrator 'child' are 32,7\d\d characters of JSON"),
            ({"tags": {"team": 3}}, "tag 'team' of orchestrator 'child' is 3: give a text"),
            ({"tags": {"team": "\ud800"}}, "tag 'team' of orchestrator 'child' contains an unpaired surrogate"),
            ({"tags": {"$type": "x"}}, "a tag of orchestrator 'child' is named '\\$type'"),
            ({"version": "ä" * 32_769}, "version of orchestrator 'child' is 32,769 characters: at most 32,768"),
            ({"orchestrator": "child" * 7_000}, "call_sub_orchestrator: the name 'child.* is 35,000 characters"),
            ({"activity": "square", "version": "x" * 32_769}, "version of activity 'square' is 32,769 characters"),
            ({"activity": "square", "tags": {"\ud800": "x"}}, "of activity 'square' contains an unpaired surrogate"),
            ({"activity": "square" * 7_000}, "call_activity: the name 'square.* is 42,000 characters"),
        ],
    )
    def test_what_no_row_can_hold_fails_the_orchestrator_at_once(self, given: dict[str, Any], text: str) -> None:
        """It is told where it is given, before any of it is to be stored, and on replay again."""
        own, rest = App("own"), dict(given)
        activity, child = rest.pop("activity", None), rest.pop("orchestrator", "child")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            if activity is not None:
                return await ctx.call_activity(activity, 1, **rest)
            return await ctx.call_sub_orchestrator(child, 1, **rest)

        play = Play(own)
        play.start("parent", tags={"kept": "yes"})
        failure = play.last.completed and play.last.completed.failure
        assert failure is not None
        assert (failure.error_type, failure.is_non_retriable) == ("InputError", True)
        assert re.search(text, failure.error_message), failure.error_message
        assert play.outbound == []

    def test_the_tags_that_a_child_inherits_count_with_its_own(self) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            with pytest.raises(InputError, match="tags of orchestrator 'child' are 32,7"):
                ctx.call_sub_orchestrator("child", tags={"own": "y" * 20})
            await ctx.call_sub_orchestrator("child")

        play = Play(own)
        play.start("parent", tags={"given": "x" * (32_768 - 12)})
        assert [type(sent.event) for sent in play.outbound] == [ExecutionStarted]

    def test_a_child_does_not_inherit_what_is_for_its_parent_alone(self) -> None:
        own = App("own")

        @own.orchestrator
        async def parent(ctx: OrchestrationContext) -> Any:
            await ctx.call_sub_orchestrator("child")

        play = Play(own)
        play.start("parent", tags={"given": "x", GRACE_TAG: "60", LIMIT_TAG: "1 nightly", WATCH_TAG: "1"})
        (sent,) = play.outbound
        assert isinstance(sent.event, ExecutionStarted)
        assert sent.event.tags == {"given": "x"}


class Test_generations:
    @pytest.mark.rows("K47")
    def test_events_are_carried_over_in_order(self) -> None:
        own = App("own")

        @own.orchestrator
        async def ticks(ctx: OrchestrationContext, seen: list[int]) -> Any:
            ctx.set_custom_status(len(seen))
            tick = await ctx.wait_for_external_event("tick")
            if len(seen) < 3:
                ctx.continue_as_new([*seen, tick])
            return seen

        play = Play(own)
        play.start("ticks", [], tags={"a": "b"}, with_events=[play.raised("tick", k) for k in range(3)])
        assert play.last.switched
        assert play.last.first_ordinal == 0
        assert play.names() == [
            *("OrchestratorStarted", "ExecutionStarted", "OrchestratorCompleted", "OrchestratorCompleted")
        ]
        assert [event.is_played for event in play.last.history] == [False, True, True, False]
        started = play.last.history[1]
        assert isinstance(started, ExecutionStarted)
        assert (started.input, started.tags, started.generation) == ("[0,1,2]", {"a": "b"}, None)
        assert play.last.current.execution_id == "0123456789abcdef0000000000000003"
        assert play.last.number == 1
        assert play.last.custom_status == "3"
        play.take(play.raised("tick", 9))
        assert (play.last.output, play.last.number) == ("[0,1,2]", 2)

    def test_save_events_false_leaves_them_behind(self) -> None:
        own = App("own")

        @own.orchestrator
        async def forget(ctx: OrchestrationContext, again: bool) -> Any:
            if again:
                await ctx.wait_for_external_event("go")
                ctx.continue_as_new(False, save_events=False)
                return None
            return await ctx.wait_for_external_event("other")

        play = Play(own)
        play.start("forget", True, with_events=[play.raised("other", 1)])
        play.take(play.raised("go"))
        assert play.names() == [
            *("OrchestratorStarted", "ExecutionStarted", "OrchestratorCompleted", "OrchestratorCompleted")
        ]
        play.take(play.raised("other", 2))
        assert play.last.output == "2"

    def test_a_wait_gets_its_event_after_continue_as_new_too(self) -> None:
        """The code goes on until it returns."""
        own = App("own")

        @own.orchestrator
        async def monitor(ctx: OrchestrationContext, seen: list[int]) -> Any:
            if len(seen) == 2:
                return seen
            ctx.continue_as_new([*seen, 0])
            made = ctx.wait_for_external_event("tick")
            await ctx.wait_for_external_event("go")
            ctx.continue_as_new([*seen, await made])
            return None

        play = Play(own)
        play.start("monitor", [])
        play.take(play.raised("tick", 1), play.raised("tick", 2))
        play.take(play.raised("go"))
        play.take(play.raised("go"))
        assert play.last.output == "[1,2]", "the second tick was carried over"

    @pytest.mark.parametrize("save_events", [True, False])
    def test_events_after_continue_as_new_are_carried_over_in_any_case(self, save_events: bool) -> None:
        own = App("own")

        @own.orchestrator
        async def late(ctx: OrchestrationContext, again: bool) -> Any:
            if again:
                await ctx.wait_for_external_event("go")
                ctx.continue_as_new(False, save_events=save_events)
                await ctx.wait_for_external_event("go")
                return None
            return await ctx.wait_for_external_event("other")

        play = Play(own)
        play.start("late", True)
        play.take(play.raised("other", 1))
        play.take(play.raised("go"))
        play.take(play.raised("other", 2))
        play.take(play.raised("go"))
        assert play.last.output == ("1" if save_events else "2")

    def test_code_sees_a_carried_event_after_its_first_await(self) -> None:
        """And not before, also an event that comes with the start: the order of events is that of DurableTask."""
        own = App("own")

        @own.orchestrator
        async def polls(ctx: OrchestrationContext, seen: list[bool]) -> Any:
            stop = ctx.wait_for_external_event("stop")
            seen.append(stop.is_complete)
            await ctx.create_timer(timedelta(hours=1))
            if len(seen) == 1:
                ctx.continue_as_new(seen)
                return None
            return [*seen, stop.is_complete]

        play = Play(own)
        play.start("polls", [], with_events=[play.raised("stop")])
        for _ in range(2):
            play.wait(hours=1)
            play.answer()
        assert play.last.output == "[false,false,true]"

    def test_terminate_wins_over_continue_as_new(self) -> None:
        own = App("own")

        @own.orchestrator
        async def eternal(ctx: OrchestrationContext) -> None:
            await ctx.wait_for_external_event("go")
            ctx.continue_as_new()

        play = Play(own)
        play.start("eternal")
        play.take(play.raised("go"), ExecutionTerminated(timestamp=START, input="enough"))
        assert (play.last.status, play.last.switched, play.last.output) == (Status.TERMINATED, False, "enough")

    def test_suspended_while_continuing_stays_suspended(self) -> None:
        own = App("own")

        @own.orchestrator
        async def eternal(ctx: OrchestrationContext, n: int) -> Any:
            data = await ctx.wait_for_external_event("go")
            if n == 0:
                ctx.continue_as_new(1)
            return data

        play = Play(own)
        play.start("eternal", 0)
        play.take(play.raised("go"), ExecutionSuspended(timestamp=START, reason="hold"))
        assert (play.last.switched, play.last.status) == (True, Status.SUSPENDED)
        play.take(play.raised("go", 5))
        assert play.last.status is Status.SUSPENDED
        play.take(ExecutionResumed(timestamp=START))
        assert play.last.output == "5"

    def test_generations_without_end_are_bounded(self) -> None:
        own = App("own")

        @own.orchestrator
        async def eternal(ctx: OrchestrationContext, n: int) -> None:
            ctx.continue_as_new(n + 1)

        live = Execution(Registry.of([own]), (), instance=INSTANCE, max_generations=50)
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="eternal", input="0")
        episode = live.advance([start], now=START)
        assert episode.status is Status.FAILED
        assert "continued as new 50 times in one episode" in (episode.output or "")


class Test_control:
    @pytest.mark.rows("K46")
    def test_suspend_holds_everything_and_resume_delivers_it(self) -> None:
        play = Play(app)
        play.start("race")
        play.take(ExecutionSuspended(timestamp=START, reason="hold on"))
        assert (play.last.status, play.last.output) == (Status.SUSPENDED, "hold on")
        fired = play.outbound[0].event
        assert play.take(fired).outbound == ()
        play.take(fired)
        assert play.last.history == ()  # a duplicate, though the first is only held
        play.take(play.raised("go", 1))
        play.take(ExecutionResumed(timestamp=START, reason="go on"))
        assert play.last.output == '"late"'

    def test_what_was_decided_in_the_breath_of_a_suspend_waits(self) -> None:
        own = App("own")

        @own.orchestrator
        async def work(ctx: OrchestrationContext) -> Any:
            await ctx.wait_for_external_event("go")
            return await ctx.call_activity("a")

        play = Play(own)
        play.start("work")
        play.take(play.raised("go"), ExecutionSuspended(timestamp=START))
        assert play.outbound == []
        play.take(ExecutionResumed(timestamp=START))
        assert [type(o.event) for o in play.outbound] == [TaskScheduled]
        play.answer(1)
        assert play.last.output == "1"

    def test_terminate_passes_a_suspend_and_runs_finally(self) -> None:
        seen: list[str] = []
        own = App("own")

        @own.orchestrator
        async def work(ctx: OrchestrationContext) -> Any:
            try:
                await ctx.call_activity("a")
            finally:
                ctx.call_activity("never")
                seen.append("closed")

        play = Play(own)
        play.start("work")
        play.take(ExecutionSuspended(timestamp=START))
        play.take(ExecutionTerminated(timestamp=START, input="enough"))
        assert (play.last.status, play.last.output, play.last.outbound) == (Status.TERMINATED, "enough", ())
        assert "closed" in seen


class Test_code:
    """What user code may be, and what it may not do."""

    @pytest.mark.parametrize("kind", ["async", "generator", "plain"])
    def test_an_orchestrator_may_be_an_async_a_generator_or_a_plain_function(self, kind: str) -> None:
        own = App("own")

        @own.orchestrator(name="async")
        async def coroutine(ctx: OrchestrationContext, x: int) -> Any:
            return (await when_all([ctx.call_activity(square, x), ctx.call_activity(square, x + 1)]))[1]

        @own.orchestrator(name="generator")
        def generator(ctx: OrchestrationContext, x: int) -> Any:
            first = ctx.call_activity(square, input=x)
            second = ctx.call_activity(square, input=x + 1)
            winner = yield when_any([second, first])
            assert winner is first
            return (yield when_all([first, second]))[1]

        @own.orchestrator(name="plain")
        def plain_function(ctx: OrchestrationContext, x: int) -> int:
            return x + 2

        play = Play(own)
        play.start(kind, 3)
        if kind != "plain":
            play.take(*(play.done(o, k) for k, o in enumerate(play.outbound)))
        assert play.last.output == ("5" if kind == "plain" else "1")

    def test_a_generator_catches_failures(self) -> None:
        own = App("own")

        def helper(ctx: OrchestrationContext) -> Any:
            try:
                yield ctx.call_activity("bad")
            except TaskFailedError as error:
                return str(error)

        @own.orchestrator
        def outer(ctx: OrchestrationContext) -> Any:
            return [(yield from helper(ctx)), ctx.is_replaying]

        play = Play(own)
        play.start("outer")
        play.take(play.failed(play.outbound[0]))
        assert play.last.output == '["broken",false]'

    async def test_a_foreign_awaitable_is_named_with_its_line(self) -> None:
        """Inside a running loop, where asyncio would hand out futures of its own."""
        own = App("own")

        async def nap() -> None:
            await asyncio.sleep(1)

        @own.orchestrator
        async def sleepy(ctx: OrchestrationContext) -> None:
            await nap()

        play = Play(own)
        play.start("sleepy")
        output = play.last.output or ""
        at = f"test_episodes.py:{nap.__code__.co_firstlineno + 1} in nap: `await asyncio.sleep(1)`"
        assert output.startswith(f"OrchestrationError: asyncio.sleep cannot be used in an orchestrator (at {at})")
        assert "Use `await ctx.create_timer(...)`" in output
        assert play.last.completed is not None
        assert play.last.completed.failure is not None
        assert play.last.completed.failure.is_non_retriable

    def test_endless_loops_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(generations, "MAX_ACTIONS", 500)
        monkeypatch.setattr(driver, "MAX_STEPS", 500)
        own = App("own")

        @own.orchestrator
        async def floods(ctx: OrchestrationContext) -> None:
            while True:
                ctx.call_activity("a")

        @own.orchestrator
        async def spins(ctx: OrchestrationContext) -> None:
            done = ctx.when_all([])
            while True:
                await done

        play = Play(own)
        play.start("floods")
        assert "more than 500 actions without awaiting, last 'a' at test_episodes.py" in (play.last.output or "")
        assert play.outbound == []
        play = Play(own)
        play.start("spins")
        assert "awaited completed tasks 500 times in one turn at test_episodes.py" in (play.last.output or "")

    @pytest.mark.parametrize(
        ("goes_on", "says"),
        [
            (
                lambda ctx, task: not task.is_complete,
                "for is_complete, last at {}. It changes only at an await, so a loop "
                "that waits for it never ends: await activity 'slow' at test_episodes.py",
            ),
            (lambda ctx, task: not ctx.when_all([task]).is_complete, "for is_complete, last at {}"),
            (lambda ctx, task: not task.is_failed, "for is_complete, last at {}"),
            (
                lambda ctx, task: ctx.current_utc_datetime.year < 9999,
                "for current_utc_datetime, last at {}. It changes "
                "only at an await, so a loop that waits for it never ends: write `await ctx.create_timer(...)`",
            ),
            (lambda ctx, task: not ctx.is_replaying, "for is_replaying, last at {}"),
        ],
    )
    def test_a_loop_that_waits_without_an_await_is_told(
        self, monkeypatch: pytest.MonkeyPatch, goes_on: Callable[[OrchestrationContext, Any], bool], says: str
    ) -> None:
        monkeypatch.setattr(wait_changes, "MAX_POLLS", 500)
        own = App("own")

        @own.orchestrator
        async def polls(ctx: OrchestrationContext) -> None:
            task = ctx.call_activity("slow")
            while goes_on(ctx, task):
                pass

        play = Play(own)
        play.start("polls")
        line = f"test_episodes.py:{goes_on.__code__.co_firstlineno} in <lambda>: "
        output = play.last.output or ""
        assert f"the code has asked 500 times without an await {says.partition('{}')[0]}{line}" in output
        assert says.partition("{}")[2] in output

    def test_questions_are_counted_from_the_last_await(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wait_changes, "MAX_POLLS", 500)
        own = App("own")

        @own.orchestrator
        async def asks(ctx: OrchestrationContext) -> str:
            task = ctx.call_activity("slow")
            for _ in range(3):
                assert not any(task.is_complete for _ in range(200))
                assert len({ctx.current_utc_datetime for _ in range(200)}) == 1
                await ctx.when_all([])
            return "asked"

        play = Play(own)
        play.start("asks")
        assert play.last.output == '"asked"'

    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
    def test_an_orchestrator_cannot_end_its_worker(self, kind: type[BaseException]) -> None:
        own = App("own")

        @own.orchestrator
        async def leaves(ctx: OrchestrationContext, where: str) -> Any:
            if where == "event":
                await ctx.wait_for_external_event("go", Leaving)
            elif where == "handle":
                once = RetryPolicy(max_attempts=2, handle=lambda failure: bool(leave(failure)))
                await ctx.call_activity("a", retry=once)
            elif where == "result":
                return Leaving.model_construct(value="x")
            raise Unspeakable(kind()) if where == "text" else kind()

        def leave(value: object) -> object:
            raise kind

        class Leaving(BaseModel):
            value: str
            read = field_validator("value")(leave)
            write = field_serializer("value")(leave)

        for where in ("body", "text", "result", "event", "handle"):
            play = Play(own)
            play.start("leaves", where)
            if where == "event":
                play.take(play.raised("go", {"value": "x"}))
            elif where == "handle":
                play.take(play.failed(play.outbound[0]))
            assert play.last.status is Status.FAILED, where
            assert kind.__name__ in (play.last.output or ""), where

    @pytest.mark.parametrize("ending", ["raises", "awaits"])
    def test_whatever_a_finally_does_it_is_over(self, ending: str) -> None:
        own = App("own")
        seen: list[str] = []

        @own.orchestrator
        async def tidies(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("never")
            finally:
                seen.append(ending)
                if ending == "raises":
                    raise KeyboardInterrupt
                await ctx.call_activity("a")
                seen.append("on")

        live = Execution(Registry.of([own]), (), instance=INSTANCE)
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="tidies")
        live.advance([start], now=START)
        close = live.release()
        assert close is not None
        assert live.release() is None
        assert not seen, "whoever lets go of it says when it is closed"
        close()
        assert seen == [ending]

    def test_when_any_and_when_all_take_tasks(self) -> None:
        with pytest.raises(ValueError, match="when_any of no tasks"):
            when_any([])
        with pytest.raises(TypeError, match="not int 5"):
            when_all([5])  # type: ignore[list-item]

    def test_a_wait_that_is_raced_for_ever_does_not_remember_every_race(self) -> None:
        task: Task[Any] = Task()
        for _ in range(10_000):
            done: Task[Any] = Task()
            race = when_any([task, done])
            done.complete(1)
            assert race.get_result() is done
        assert len(task._groups or ()) < 40

    def test_when_all_fails_with_the_first_failure(self) -> None:
        own = App("own")

        @own.orchestrator
        async def both(ctx: OrchestrationContext) -> Any:
            tasks = [ctx.call_activity("a"), ctx.call_activity("b")]
            try:
                await ctx.when_all(tasks)
            except TaskFailedError:
                return [task.is_complete for task in tasks] + [tasks[1].is_failed]

        play = Play(own)
        play.start("both")
        play.take(play.failed(play.outbound[1]))
        assert play.last.output == "[false,true,true]"

    def test_guids_time_and_logs_are_safe_on_replay(self) -> None:
        lines: list[LogLine] = []
        seen: list[tuple[str, bool]] = []
        own = App("own")

        @own.orchestrator
        async def logs(ctx: OrchestrationContext) -> Any:
            ctx.logger.info("begin %s", ctx.instance_id)
            one, two = ctx.new_guid(), ctx.new_uuid()
            seen.append((f"{one} {two}", ctx.is_replaying))
            await ctx.call_activity("a")
            ctx.logger.warning("end")
            return [ctx.name, ctx.version, ctx.execution_id, dict(ctx.tags), ctx.parent is None, ctx.get_input()]

        registry = Registry.of([own])
        live = Execution(registry, (), instance=INSTANCE, log=lines.append)
        start = ExecutionStarted(
            timestamp=START, instance=INSTANCE, name="logs", version="2", tags={"a": "b"}, input="[1]"
        )
        first = live.advance([start], now=START)
        again = Execution(registry, first.history, instance=INSTANCE, log=lines.append)
        done = TaskCompleted(timestamp=START, task_scheduled_id=0)
        episode = again.advance([done], now=START + timedelta(seconds=1))
        assert episode.output == f'["logs","2","{INSTANCE.execution_id}",{{"a":"b"}},true,[1]]'
        assert [(line.level, line.message, line.orchestrator) for line in lines] == [
            (20, "begin play-1", "logs"),
            (30, "end", "logs"),
        ]
        assert seen[0][0] == seen[1][0]
        assert len(set(seen[0][0].split())) == 2
        assert [replaying for _, replaying in seen] == [False, True]

    @pytest.mark.parametrize("form", ["call", "branch", "manager"])
    @pytest.mark.parametrize("where", ["in another instance", "outside"])
    def test_code_that_python_collects_has_no_effect(self, form: str, where: str) -> None:
        """Python may collect what nothing refers to at any line of any code."""
        lines: list[LogLine] = []
        seen: list[bool] = []
        own = App("own")

        async def wait(ctx: OrchestrationContext) -> None:
            try:
                await ctx.wait_for_external_event("go")
            finally:
                ctx.logger.warning("closed")
                ctx.call_activity("clean")
                seen.append(ctx.is_replaying)

        @contextmanager
        def closing(ctx: OrchestrationContext) -> Iterator[None]:
            try:
                yield
            finally:
                ctx.logger.warning("closed")
                seen.append(ctx.is_replaying)

        async def managed(ctx: OrchestrationContext) -> None:
            with closing(ctx):
                await ctx.wait_for_external_event("go")

        @own.orchestrator
        async def order(ctx: OrchestrationContext) -> None:
            await {"call": wait, "branch": lambda ctx: ctx.branch(wait(ctx)), "manager": managed}[form](ctx)

        @own.orchestrator
        async def other(ctx: OrchestrationContext) -> str:
            gc.collect()
            return "fine"

        registry = Registry.of([own])
        gc.disable()
        gc.freeze()  # the collections below need not look at what other tests have left
        try:
            left = Execution(registry, (), instance=INSTANCE, log=lines.append)
            left.advance([ExecutionStarted(timestamp=START, instance=INSTANCE, name="order")], now=START)
            del left
            assert seen == []
            if where == "outside":
                gc.collect()
            running = Execution(registry, (), instance=INSTANCE, log=lines.append)
            episode = running.advance([ExecutionStarted(timestamp=START, instance=INSTANCE, name="other")], now=START)
        finally:
            gc.enable()
        assert (episode.output, seen, lines) == ('"fine"', [True], [])

    @pytest.mark.parametrize("form", ["async def", "generator"])
    @pytest.mark.parametrize("end", ["evicted", "terminated"])
    def test_code_that_is_only_closed_has_no_effect(self, end: str, form: str) -> None:
        lines: list[LogLine] = []
        own_lines: list[str] = []
        seen: list[bool] = []
        own = App("own")

        class Own:
            def log(self, level: int, msg: object, /, *args: object, **kwargs: object) -> None:
                own_lines.append(str(msg))

        def close(ctx: OrchestrationContext) -> None:
            ctx.logger.warning("closed")
            ctx.create_replay_safe_logger(Own()).warning("closed")
            ctx.set_custom_status("closed")
            ctx.call_activity("clean")
            ctx.wait_for_external_event("other")
            ctx.continue_as_new(1)
            seen.append(ctx.is_replaying)

        if form == "async def":

            @own.orchestrator
            async def order(ctx: OrchestrationContext) -> str:
                ctx.set_custom_status("open")
                try:
                    await ctx.wait_for_external_event("go")
                finally:
                    close(ctx)
                return "ok"
        else:

            @own.orchestrator
            def order(ctx: OrchestrationContext) -> Any:
                ctx.set_custom_status("open")
                try:
                    yield ctx.wait_for_external_event("go")
                finally:
                    close(ctx)
                return "ok"

        live = Execution(Registry.of([own]), (), instance=INSTANCE, log=lines.append)
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="order")
        live.advance([start], now=START)
        if end == "evicted":
            live.close()
            assert seen == [True]
            episode = live.advance([EventRaised(timestamp=START, name="other")], now=START)
        else:
            episode = live.advance([ExecutionTerminated(timestamp=START, input="enough")], now=START)
            assert seen == [True]
            assert [event.event_type.name for event in episode.history][-2:] == [
                "ExecutionCompleted",
                "OrchestratorCompleted",
            ]
            assert getattr(episode.history[-1], "taskhub_waits", None) is None
        assert (episode.custom_status, episode.outbound, lines, own_lines) == ('"open"', (), [], [])
        if end == "evicted":  # when the code really leaves the block, it says so once
            live.advance([EventRaised(timestamp=START, name="go")], now=START)
            told = [line.message for line in lines if "never awaited" not in line.message]
            assert (told, own_lines, seen) == (["closed"], ["closed"], [True, False])

    @pytest.mark.parametrize(
        ("given", "reads", "warned"), [("[1]", False, True), ("[1]", True, False), ("null", False, False)]
    )
    def test_an_input_that_nothing_reads_is_told_at_the_end(self, given: str, reads: bool, warned: bool) -> None:
        lines: list[LogLine] = []
        own = App("own")

        @own.orchestrator
        async def plain(ctx: OrchestrationContext) -> None:
            if reads:
                ctx.get_input()
            await ctx.call_activity("a")

        registry = Registry.of([own])
        start = ExecutionStarted(timestamp=START, instance=INSTANCE, name="plain", input=given)
        first = Execution(registry, (), instance=INSTANCE, log=lines.append).advance([start], now=START)
        assert not lines
        again = Execution(registry, first.history, instance=INSTANCE, log=lines.append)
        again.advance([TaskCompleted(timestamp=START, task_scheduled_id=0)], now=START)
        told = ["orchestrator 'plain' was started with an input" in line.message for line in lines]
        assert told == ([True] if warned else [])


def test_custom_status_of_an_earlier_generation_is_kept() -> None:
    own = App("own")

    @own.orchestrator
    async def phases(ctx: OrchestrationContext, n: int) -> Any:
        if n == 0:
            ctx.set_custom_status("set once")
            ctx.continue_as_new(1)
            return None
        await ctx.wait_for_external_event("go")
        return n

    play = Play(own)
    play.start("phases", 0)
    assert play.last.custom_status == '"set once"'
    play.take(play.raised("go"))
    assert play.last.custom_status == '"set once"'


def test_histories_of_both_kinds_of_episodes_count() -> None:
    """Episode numbers count OrchestratorStarted events, for a live orchestrator and a replayed one alike."""
    play = Play(app)
    play.start("two_events")
    play.take(play.raised("go"))
    play.take(play.raised("stop"))
    assert [episode.number for episode in play.episodes] == [1, 2, 3]
    started: list[HistoryEvent] = [event for event in play.past if isinstance(event, OrchestratorStarted)]
    assert len(started) == 3
    assert play.live.size > 1000


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise self.args[0]
