"""Spans by DurableTask's names, and the W3C context in its fields, from client to activity (K51)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from airflow_provider_taskhub import tracing
from airflow_provider_taskhub.activity import activity_info
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.client.starting import Starter
from airflow_provider_taskhub.engine.context import OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionStarted,
    OrchestrationInstance,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
)
from airflow_provider_taskhub.engine.replay import Execution
from airflow_provider_taskhub.engine.trace_context import parts
from tests.simulation.world import Death, World, simulate


def traced_app(seen: list[str | None]) -> App:
    app = App("traced")

    @app.activity
    def say(name: str) -> str:
        seen.append(activity_info().trace_parent)
        return f"Hello, {name}!"

    @app.activity(record=True)
    def broken(name: str) -> str:
        raise ValueError(f"broken {name}")

    @app.orchestrator
    async def hello(ctx: OrchestrationContext, name: str) -> str:
        return await ctx.call_activity("say", name, version=ctx.version)

    @app.orchestrator
    async def timed(ctx: OrchestrationContext) -> None:
        await ctx.create_timer(timedelta(seconds=30))

    @app.orchestrator
    async def waits(ctx: OrchestrationContext) -> str:
        return await ctx.wait_for_external_event("go", str)

    @app.orchestrator
    async def sends(ctx: OrchestrationContext, receiver: str) -> None:
        ctx.send_event(receiver, "go", "sent")

    @app.orchestrator
    async def parent(ctx: OrchestrationContext) -> str:
        return await ctx.call_sub_orchestrator("hello", "child", instance_id="child")

    @app.orchestrator
    async def chain(ctx: OrchestrationContext, length: int) -> None:
        for _ in range(length):
            await ctx.call_activity("say", "a")

    @app.orchestrator
    async def fails(ctx: OrchestrationContext) -> str:
        return await ctx.call_activity("broken", "b")

    return app


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A tracer provider of the process, for this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


Drive = Callable[[World], Awaitable[Any]]


def play(drive: Drive, *, death: Death | None = None) -> tuple[Any, list[str | None]]:
    seen: list[str | None] = []

    async def main() -> Any:
        async with World(traced_app(seen)) as world:
            first = await world.join("one", death=death)

            async def follow() -> None:
                await first.died.wait()
                await world.join("two")

            following = asyncio.ensure_future(follow())
            found = await drive(world)
            await world.settle()
            following.cancel()
            assert first.dead == (death is not None)
            assert not world.defects(), world.defects()
            return found

    return simulate(main), seen


def start(name: str, input: Any = None, **more: Any) -> Drive:
    async def drive(world: World) -> Any:
        await world.client.start(name, input, instance_id="one", **more)
        await world.wait("one")
        return await world.client.instance("one").history()

    return drive


def tree(exporter: InMemorySpanExporter) -> dict[str, tuple[str, str | None]]:
    """Name and kind of every span, to its parent's; all of one trace."""
    found: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    named = {span.context.span_id: f"{span.name} {span.kind.name}" for span in found}
    assert len(named) == len(found), "no id twice"
    assert len({span.context.trace_id for span in found}) == 1, "one trace"
    return {
        named[span.context.span_id]: (
            "ok" if span.status.status_code is not StatusCode.ERROR else str(span.status.description),
            None if span.parent is None else named[span.parent.span_id],
        )
        for span in found
    }


CREATE, RUN = "create_orchestration:{} PRODUCER", "orchestration:{} SERVER"


@pytest.mark.rows("K51")
@pytest.mark.parametrize("version", ["", "2.0"])
def test_an_activity_has_four_spans_of_one_trace(spans: InMemorySpanExporter, version: str) -> None:
    history, seen = play(start("hello", "World", version=version))
    suffix = f"@({version})" if version else ""
    create, run = f"create_orchestration:hello{suffix} PRODUCER", f"orchestration:hello{suffix} SERVER"
    asked, done = f"activity:say{suffix} CLIENT", f"activity:say{suffix} SERVER"
    assert tree(spans) == {
        create: ("ok", None),
        run: ("ok", create),
        asked: ("ok", run),
        done: ("ok", asked),
    }
    by_name = {f"{span.name} {span.kind.name}": span for span in spans.get_finished_spans()}
    started = next(event for event in history if isinstance(event, ExecutionStarted))
    scheduled = next(event for event in history if isinstance(event, TaskScheduled))
    carried = started.parent_trace_context
    assert carried is not None
    assert parts(carried.trace_parent)[1] == f"{by_name[create].context.span_id:016x}"  # type: ignore[index]
    assert parts(carried.id)[1] == carried.span_id == f"{by_name[run].context.span_id:016x}"  # type: ignore[index]
    assert carried.activity_start_time is not None
    assert by_name[run].start_time == carried.activity_start_time.ticks * 100
    assert scheduled.parent_trace_context is not None
    assert parts(scheduled.parent_trace_context.trace_parent)[1] == f"{by_name[asked].context.span_id:016x}"  # type: ignore[index]
    assert parts(seen[0])[1] == f"{by_name[done].context.span_id:016x}", "user code joins its attempt"  # type: ignore[index]
    assert dict(by_name[run].attributes or {}) == {
        "durabletask.type": "orchestration",
        "durabletask.task.name": "hello",
        **({"durabletask.task.version": version} if version else {}),
        "durabletask.task.instance_id": "one",
        "durabletask.task.execution_id": started.instance.execution_id,
        "durabletask.task.status": "Completed",
    }
    assert (by_name[done].attributes or {})["durabletask.task.task_id"] == 0
    assert all(span.instrumentation_scope.name == "DurableTask.Core" for span in spans.get_finished_spans())  # type: ignore[union-attr]


@pytest.mark.rows("K51")
def test_a_caller_is_the_parent_of_the_start(spans: InMemorySpanExporter) -> None:
    async def drive(world: World) -> None:
        with trace.get_tracer("test").start_as_current_span("caller"):
            await world.client.start("hello", "World", instance_id="one")
        await world.wait("one")

    play(drive)
    assert tree(spans)[CREATE.format("hello")] == ("ok", "caller INTERNAL")


@pytest.mark.rows("K51")
def test_timers_events_children_and_failures_have_theirs(spans: InMemorySpanExporter) -> None:
    play(start("timed"))
    run = RUN.format("timed")
    assert tree(spans)["orchestration:timed:timer INTERNAL"] == ("ok", run)
    timer = next(span for span in spans.get_finished_spans() if span.name.endswith(":timer"))
    assert timer.end_time - timer.start_time >= 30_000_000_000  # type: ignore[operator]
    assert "durabletask.fire_at" in (timer.attributes or {})
    spans.clear()

    play(start("parent"))
    assert tree(spans) == {
        CREATE.format("parent"): ("ok", None),
        RUN.format("parent"): ("ok", CREATE.format("parent")),
        "orchestration:hello CLIENT": ("ok", RUN.format("parent")),
        RUN.format("hello"): ("ok", "orchestration:hello CLIENT"),
        "activity:say CLIENT": ("ok", RUN.format("hello")),
        "activity:say SERVER": ("ok", "activity:say CLIENT"),
    }
    spans.clear()

    play(start("fails"))
    found = tree(spans)
    assert [found[name][0] for name in ("activity:broken SERVER", "activity:broken CLIENT")] == ["broken b"] * 2
    assert "broken b" in found[RUN.format("fails")][0]
    spans.clear()

    async def sent(world: World) -> None:
        await world.client.start("waits", instance_id="receiver")
        spans.clear()
        await world.client.start("sends", "receiver", instance_id="one")
        await world.wait("receiver")

    play(sent)
    found = {f"{span.name} {span.kind.name}": span for span in spans.get_finished_spans()}  # type: ignore[misc]
    event = found["orchestration_event:go PRODUCER"]
    assert event.parent.span_id == found[RUN.format("sends")].context.span_id  # type: ignore[union-attr, attr-defined]
    spans.clear()

    async def raised(world: World) -> None:
        await world.client.start("waits", instance_id="one")
        await world.client.raise_event("one", "go", "x")
        await world.wait("one")

    play(raised)
    (event,) = [span for span in spans.get_finished_spans() if span.name == "orchestration_event:go"]  # type: ignore[assignment]
    assert (event.kind, event.attributes["durabletask.event.target_instance_id"]) == (SpanKind.PRODUCER, "one")  # type: ignore[attr-defined, index]


@pytest.mark.rows("K51")
def test_spans_of_user_code_join_the_attempt(spans: InMemorySpanExporter) -> None:
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with tracing.joined(given, "vendor=x"), trace.get_tracer("users").start_as_current_span("inner"):
        pass
    with tracing.joined(None, None), trace.get_tracer("users").start_as_current_span("alone"):
        pass
    inner, alone = spans.get_finished_spans()
    assert f"{inner.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert inner.parent is not None
    assert f"{inner.parent.span_id:016x}" == "b7ad6b7169203331"
    assert alone.parent is None


@pytest.mark.rows("K51")
def test_a_span_is_the_same_whoever_ends_it(spans: InMemorySpanExporter) -> None:
    """A worker dies in the middle; what the other one records hangs together with what was begun."""
    for count in (1, 2, 3, 4):
        play(start("parent"), death=Death(point="history", count=count))
        found = tree(spans)
        assert found[RUN.format("hello")] == ("ok", "orchestration:hello CLIENT")
        assert found[RUN.format("parent")] == ("ok", CREATE.format("parent"))
        assert found["activity:say CLIENT"] == ("ok", RUN.format("hello"))
        spans.clear()


@pytest.mark.rows("K51")
def test_a_context_goes_on_where_nothing_is_recorded() -> None:
    """A traced client, workers that record nothing: the activity has the client's span for its parent."""
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def drive(world: World) -> Any:
        from airflow_provider_taskhub.engine.trace_context import context

        hub = world.client.hub
        instance = OrchestrationInstance(instance_id="one", execution_id="a" * 32)
        event = ExecutionStarted(
            timestamp=hub.clock.utc_now(),
            instance=instance,
            name="parent",
            generation=0,
            parent_trace_context=context(given, "vendor=x"),
        )
        await Starter(world.client._connection)._insert(event)
        await world.wait("one")
        return await world.client.instance("one").history(), await world.client.instance("child").history()

    (history, child), seen = play(drive)
    assert seen == [given]
    (created,) = [event for event in history if isinstance(event, SubOrchestrationInstanceCreated)]
    assert created.client_span_id is None
    contexts = [event.parent_trace_context for event in (*history, *child) if getattr(event, "parent_trace_context", 0)]
    assert {(one.trace_parent, one.trace_state, one.span_id) for one in contexts} == {(given, "vendor=x", None)}
    assert len(contexts) == 3


@pytest.mark.rows("K51")
@pytest.mark.process
def test_off_nothing_is_carried_and_nothing_is_imported() -> None:
    history, seen = play(start("hello", "World"))
    assert seen == [None]
    assert all(getattr(event, "parent_trace_context", None) is None for event in history)
    code = (
        "import sys, airflow_provider_taskhub.client, airflow_provider_taskhub.workers.host, "
        "airflow_provider_taskhub.workers.executors.child.main as c; "
        "from airflow_provider_taskhub import tracing; "
        "print(tracing.on(), [name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False []"


@pytest.mark.rows("K51")
def test_what_an_episode_traces_does_not_grow_with_the_history(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the history in each episode made a life of n steps cost n² with tracing on."""
    given: list[int] = []
    record = tracing.record

    def counted(*values: Any) -> None:
        given.append(sum(len(value) for value in values if hasattr(value, "__len__")))
        record(*values)

    monkeypatch.setattr(tracing, "record", counted)
    monkeypatch.setattr(Execution, "history", property(lambda execution: pytest.fail("the history is copied")))
    history, _ = play(start("chain", 30))
    assert len(history) > 120
    assert len(given) == 31
    assert max(given) < 10
    named = [span.name for span in spans.get_finished_spans()]
    assert named.count("activity:say") == 60, "where it runs, and for who waits for it"
