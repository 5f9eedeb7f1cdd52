"""Which run an event of an orchestration names: that of the awaited child with its id, if there is one."""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import EventRaised, ExecutionStarted
from tests.engine.play import Play


def runs(play: Play) -> tuple[list[str | None], list[str | None]]:
    """Execution ids of the children started, and the runs that the sent events name."""
    events = [sent.event for sent in play.outbound]
    started = [one.instance.execution_id for one in events if isinstance(one, ExecutionStarted)]
    return started, [one.taskhub_execution_id for one in events if isinstance(one, EventRaised)]


def test_an_event_names_the_newest_run_under_its_id_that_the_sender_awaits() -> None:
    app = App("named")

    @app.orchestrator
    async def two(ctx: OrchestrationContext) -> Any:
        first = ctx.call_sub_orchestrator("waits", instance_id="child")
        second = ctx.call_sub_orchestrator("waits", instance_id="child")
        ctx.send_event("child", "go", 1)
        ctx.send_event("stranger", "go", 1)
        await first
        ctx.send_event("child", "go", 2)
        return await second

    play = Play(app)
    play.start("two")
    first = next(sent for sent in play.outbound if isinstance(sent.event, ExecutionStarted))
    play.take(play.done(first, 1))
    started, named = runs(play)
    assert named == [started[1], None, started[1]]


def test_an_event_for_a_child_that_nobody_awaits_names_no_run() -> None:
    app = App("detached")

    @app.orchestrator
    async def feeds(ctx: OrchestrationContext) -> None:
        ctx.call_sub_orchestrator("consumer", instance_id="child", fire_and_forget=True)
        ctx.send_event("child", "work", 1)
        await ctx.wait_for_external_event("never")

    play = Play(app)
    play.start("feeds")
    assert runs(play)[1] == [None]
