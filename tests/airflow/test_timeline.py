"""Timers and waits for events in the picture of a run, as a worker has recorded them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.wait_changes import Waits
from airflow_provider_taskhub.errors import TaskCancelledError
from airflow_provider_taskhub.plugins.json_views import history
from airflow_provider_taskhub.plugins.timeline import timeline
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.engine.play import played
from tests.engine.test_cancel import ended
from tests.hub.in_process_worker import house

app = App("approvals", version="1")


@app.orchestrator
async def approval(ctx: OrchestrationContext) -> None:
    approve = ctx.wait_for_external_event("approve")
    reminder = ctx.create_timer(timedelta(minutes=10))
    await ctx.when_any([approve, reminder])
    reminder.cancel()
    await ctx.create_timer(timedelta(seconds=20))
    never = ctx.wait_for_external_event("never")
    await ctx.when_any([never, ctx.create_timer(timedelta(seconds=20))])


def shown(text: str | None) -> str:
    return text or ""


def seconds(ms: float | None, start: float) -> float | None:
    return None if ms is None else round((ms - start) / 1000)


def test_timers_and_waits_for_events_are_drawn_as_they_were() -> None:
    clock = VirtualClock()
    drawn: list[dict[str, Any]] = []

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await client.start("approval", instance_id="i")

            async def look() -> None:
                past, unreadable = await client.instance("i").readable_history()
                assert not unreadable
                lanes = timeline(past, [], shown)["lanes"]
                start = min(lane["bars"][0]["start"] for lane in lanes)
                drawn.append(
                    {
                        f"{lane['label']} {lane['task']}": (
                            seconds(lane["bars"][0]["start"], start),
                            seconds(lane["bars"][0]["end"], start),
                            lane["bars"][0]["state"],
                        )
                        for lane in lanes
                    }
                )

            await clock.sleep(20)
            await look()
            await clock.sleep(20)
            await client.raise_event("i", "approve")
            await client.wait("i", timeout=timedelta(minutes=30))
            await look()
            page = await client.instance("i").history_page()
            times = [line["time"] for line in history(page, shown)["events"]]
            assert times == sorted(times, reverse=True), "the history's times are in its order"

    run(play(), limit=timedelta(hours=1))
    before, after = drawn
    assert before == {"wait for approve -1": (0, None, "waiting"), "timer 0": (0, None, "waiting")}
    began = after["timer 1"][0]
    assert 40 <= began <= 42
    assert after == {
        "wait for approve -1": (0, began, "ended"),
        "timer 0": (0, began, "cancelled"),
        "timer 1": (began, began + 20, "fired"),
        "wait for never -1": (began + 20, began + 40, "cancelled"),
        "timer 2": (began + 20, began + 40, "fired"),
    }


def test_a_column_of_waits_that_is_damaged_says_nothing() -> None:
    for text in (
        None,
        "",
        "{",
        "[]",
        '{"ended":[["a"]]}',
        '{"timers":["x"]}',
        '{"begun":3}',
        "1" * 10_000,
        "[" * 10_000,
    ):
        assert Waits.parse(text) == Waits()
    kept = Waits(begun=("a", "a"), timers=(3,))
    assert Waits.parse(kept.text()) == kept


def test_cancelled_calls_are_drawn_as_cancelled_and_the_next_call_is_no_retry() -> None:
    async def work(ctx: OrchestrationContext) -> None:
        tasks = [ctx.call_activity("load", 1), ctx.call_sub_orchestrator("month", 1)]
        await ctx.wait_for_external_event("stop")
        for task in tasks:
            task.cancel()
            try:
                await task
            except TaskCancelledError:
                continue
        await ctx.when_all([ctx.call_activity("load", 1), ctx.call_sub_orchestrator("month", 1)])

    play, _ = played(work)
    load = play.outbound[0]
    play.wait(seconds=5)
    play.take(play.raised("stop"))
    play.wait(seconds=2)
    play.take(play.failed(load, "cancelled", error_type=TaskCancelledError.__name__))
    play.wait(seconds=1)
    play.take(ended(play, "month"))
    lanes = timeline(play.past, [], shown)["lanes"]
    start = lanes[0]["bars"][0]["start"]
    drawn = [(lane["kind"], bar["state"], seconds(bar["end"], start)) for lane in lanes for bar in lane["bars"]]
    assert drawn == [
        ("event", "ended", 5),
        ("activity", "cancelled", 7),
        ("child", "cancelled", 8),
        ("activity", "scheduled", None),
        ("child", "scheduled", None),
    ]
