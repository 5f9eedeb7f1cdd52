"""What a live orchestrator says that it holds, beside what it holds: the bound of idle sessions stands on it."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, when_all
from airflow_provider_taskhub.engine.events import FailureDetails, TaskFailed
from tests.engine.play import INSTANCE, START, Play

COUNT = 15

app = App("sized", version="1")


@app.orchestrator
async def waiting(ctx: OrchestrationContext, text: str) -> str:
    await ctx.wait_for_external_event("go")
    return text


@app.orchestrator
async def chain(ctx: OrchestrationContext, length: int) -> int:
    for number in range(length):
        await ctx.call_activity("nothing", number)
    return length


@app.orchestrator
async def fan(ctx: OrchestrationContext, width: int) -> int:
    return len(await when_all([ctx.call_activity("nothing", number) for number in range(width)]))


def live(name: str, input: object, answers: int) -> Play:
    """An instance after so many answers, each of 1,000 characters: made live alone, not by replay too."""
    play = Play(app)
    play.start(name, input)
    for number in range(answers):
        made = play.outbound[number]
        play.take(play.done(made, f"{number:01000}"))
    play.past, play.episodes = (), []
    return play


@pytest.mark.rows("K22")
@pytest.mark.parametrize(
    ("name", "input", "answers"),
    [("waiting", 0, 0), ("waiting", "x" * 50_000, 0), ("chain", 2, 1), ("chain", 40, 39), ("fan", 40, 20)],
)
@pytest.mark.long
def test_the_estimate_is_at_most_a_few_times_off_and_never_far_below(name: str, input: object, answers: int) -> None:
    live(name, input, answers)  # what is made once for all is there
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        plays = [live(name, str(input) if name == "waiting" else input, answers).live for _ in range(COUNT)]
        gc.collect()
        held = (tracemalloc.get_traced_memory()[0] - before) / COUNT
    finally:
        tracemalloc.stop()
    for each in plays:
        each.close()
    assert 0.8 * held <= plays[0].size <= 3 * held


def test_the_texts_of_a_failure_count() -> None:
    play = Play(app)
    play.start("chain", 1)
    before = play.live.size
    failure = FailureDetails(
        error_type="ValueError",
        error_message="m" * 1_000,
        stack_trace="s" * 20_000,
        inner_failure=FailureDetails(error_type="OSError", error_message="i" * 300),
    )
    play.take(
        TaskFailed(
            timestamp=START,
            task_scheduled_id=0,
            failure=failure,
            taskhub_action_id=play.outbound[0].action_id,
        )
    )
    assert play.live.size - before > 21_300


def test_a_new_generation_holds_nothing_of_the_one_before() -> None:
    made = App("again", version="1")

    @made.orchestrator
    async def again(ctx: OrchestrationContext, number: int) -> None:
        for _ in range(20):
            await ctx.wait_for_external_event("go")
        ctx.continue_as_new(number + 1)

    play = Play(made, instance=INSTANCE)
    play.start("again", 0)
    first = play.live.size
    for _ in range(20):
        play.take(play.raised("go", "x" * 10_000))
    assert play.live.size < first + 1_000
