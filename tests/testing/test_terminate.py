"""``testing.run`` terminates an orchestration, at once or with time for a clean-up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext, OrchestrationError, TerminationRequested
from airflow_provider_taskhub.testing import Terminate, run

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(("grace", "expected"), [(None, []), (timedelta(seconds=60), ["late", "closed"])])
def test_the_clean_up_runs_only_if_there_is_time(grace: timedelta | None, expected: list[str]) -> None:
    app, done = App("cleans"), list[str]()

    @app.activity
    def note(text: str) -> None:
        done.append(text)

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> None:
        try:
            await ctx.wait_for_external_event("never")
        except TerminationRequested as error:
            await ctx.call_activity(note, error.reason)
        finally:
            await ctx.call_activity(note, "closed")

    with pytest.raises(OrchestrationError, match=r"^late$"):
        run(work, app=app, events=[Terminate(reason="late", grace=grace, after=HOUR)])
    assert done == expected


def test_a_failure_of_the_clean_up_is_a_warning() -> None:
    app = App("cleans")

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> None:
        try:
            await ctx.wait_for_external_event("never")
        finally:
            raise OSError("no disk")

    with (
        pytest.raises(OrchestrationError, match=r"^late$"),
        pytest.warns(RuntimeWarning, match="orchestrator 'work' failed in its clean-up: no disk"),
    ):
        run(work, app=app, events=[Terminate(reason="late", grace=HOUR)])


def test_a_clean_up_that_takes_too_long_is_a_warning() -> None:
    app = App("cleans")

    @app.orchestrator
    async def work(ctx: OrchestrationContext) -> None:
        try:
            await ctx.wait_for_external_event("never")
        finally:
            await ctx.create_timer(2 * HOUR)

    with (
        pytest.raises(OrchestrationError, match=r"^late$"),
        pytest.warns(RuntimeWarning, match="orchestrator 'work' has not ended its clean-up within 3600 s, at "),
    ):
        run(work, app=app, events=[Terminate(reason="late", grace=HOUR)])
