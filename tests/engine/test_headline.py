"""The one line that says what failed."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import (
    ExecutionTerminated,
    FailureDetails,
    Status,
    SubOrchestrationInstanceFailed,
)
from airflow_provider_taskhub.engine.failures import failure_of, headline, place_of
from tests.engine.play import Play

LOST = FailureDetails(error_type="OSError", error_message="no flights")

app = App("lines")


@app.orchestrator
async def monthly(ctx: OrchestrationContext) -> None:
    await ctx.call_activity("load")


@app.orchestrator
async def yearly(ctx: OrchestrationContext) -> None:
    await ctx.call_sub_orchestrator("monthly")


@app.orchestrator
async def wraps(ctx: OrchestrationContext) -> None:
    try:
        await ctx.call_activity("load")
    except Exception as error:
        raise RuntimeError("the month is lost") from error


def ended(play: Play) -> FailureDetails:
    completed = play.last.completed
    assert completed is not None
    assert completed.status is Status.FAILED
    assert completed.failure is not None
    return completed.failure


def test_a_failure_is_named_by_its_activity_or_child() -> None:
    assert headline(LOST) == "OSError: no flights"
    assert headline(LOST, activity="load") == "activity 'load' failed: OSError: no flights"
    assert headline(LOST, child="monthly") == "child orchestration 'monthly' failed: OSError: no flights"


@pytest.mark.parametrize("kind", ["TaskFailedError", "SubOrchestrationFailedError"])
def test_the_class_that_only_says_that_a_task_failed_is_left_out(kind: str) -> None:
    text = "activity 'load' failed: OSError: no flights"
    assert headline(FailureDetails(error_type=kind, error_message=text)) == text
    assert headline(FailureDetails(error_type=kind, error_message="no flights")) == f"{kind}: no flights"
    assert headline(FailureDetails(error_type="ValueError", error_message=text)) == f"ValueError: {text}"


def test_an_instance_says_which_activity_failed_and_how() -> None:
    play = Play(app)
    play.start("monthly")
    play.take(play.failed(play.outbound[0], "no flights", error_type="OSError"))
    failure = ended(play)
    assert failure.error_type == "TaskFailedError"
    assert failure.error_message == "activity 'load' failed: OSError: no flights"
    assert failure.inner_failure is not None
    assert (failure.inner_failure.error_type, failure.inner_failure.error_message) == ("OSError", "no flights")
    assert play.last.output == "activity 'load' failed: OSError: no flights"


def test_an_instance_says_which_child_failed_and_why() -> None:
    child = Play(app)
    child.start("monthly")
    child.take(child.failed(child.outbound[0], "no flights", error_type="OSError"))
    play = Play(app)
    play.start("yearly")
    failure = SubOrchestrationInstanceFailed(
        timestamp=play.now,
        task_scheduled_id=play.outbound[0].event.parent.task_schedule_id,  # type: ignore[union-attr]
        reason="no flights",
        failure=ended(child),
    )
    play.take(failure)
    inner = "activity 'load' failed: OSError: no flights"
    assert play.last.output == f"child orchestration 'monthly' failed: {inner}"
    chain = ended(play).inner_failure
    assert chain is not None
    assert chain.inner_failure is not None
    assert (chain.error_message, chain.inner_failure.error_type) == (inner, "OSError")


def test_an_error_of_the_users_own_keeps_its_class_and_names_the_activity_in_its_cause() -> None:
    play = Play(app)
    play.start("wraps")
    play.take(play.failed(play.outbound[0], "no flights", error_type="OSError"))
    assert play.last.output == "RuntimeError: the month is lost"
    cause = ended(play).inner_failure
    assert cause is not None
    assert headline(cause) == "activity 'load' failed: OSError: no flights"


@app.orchestrator
async def leaks(ctx: OrchestrationContext) -> None:
    await ctx.call_activity("load")


def test_the_secrets_of_a_failed_activity_of_another_language_are_masked_in_its_instance() -> None:
    play = Play(app)
    play.start("leaks")
    play.take(play.failed(play.outbound[0], "AccountKey=hunter2 is refused", error_type="OSError"))
    assert play.last.output == "activity 'load' failed: OSError: AccountKey=*** is refused"


@pytest.mark.parametrize(("reason", "says"), [("by mistake", "by mistake"), (None, "nobody has given a reason")])
def test_a_terminated_child_says_so_and_why_in_the_error_of_its_parent(reason: str | None, says: str) -> None:
    play = Play(app)
    play.start("yearly")
    child = Play(app, instance=play.outbound[0].target)
    child.take(play.outbound[0].event)
    child.take(ExecutionTerminated(timestamp=child.now, input=reason))
    play.take(child.outbound[-1].event)
    failure = ended(play)
    assert failure.error_message == f"child orchestration 'monthly' failed: Terminated: {says}"
    assert failure.inner_failure is not None
    assert (failure.inner_failure.error_type, failure.inner_failure.error_message) == ("Terminated", says)


def test_the_place_of_a_group_is_that_of_its_first_error() -> None:
    def first() -> None:
        raise ValueError("row 7")

    def group() -> None:
        errors = []
        for one in (first, second):
            try:
                one()
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("two", errors)

    def second() -> None:
        raise ValueError("row 8")

    with pytest.raises(ExceptionGroup) as caught:
        group()
    assert str(place_of(failure_of(caught.value))).endswith(", in first")
    printed = FailureDetails(  # as a worker of an earlier version has stored it
        error_type="jobs.Many",
        error_message="two",
        stack_trace='  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 3, in group\n',
    )
    assert place_of(printed) == "a.py:3, in group"


def test_the_place_of_a_failure_is_the_last_frame_of_the_users_code() -> None:
    def load() -> None:
        raise KeyError("missing")

    try:
        load()
    except KeyError as error:
        failure = failure_of(error)
        line = error.__traceback__.tb_next.tb_lineno  # type: ignore[union-attr]
    assert place_of(failure) == f"{__file__}:{line}, in load"
    task = FailureDetails(
        error_type="TaskFailedError",
        error_message="activity 'load' failed: KeyError: 'missing'",
        stack_trace='  File "flights.py", line 3, in flights\n    await load\n',
        inner_failure=failure,
    )
    assert place_of(task) == place_of(failure)
    own = FailureDetails(
        error_type="RuntimeError", error_message="lost", stack_trace=task.stack_trace, inner_failure=failure
    )
    assert place_of(own) == "flights.py:3, in flights"
    for unknown in (None, LOST, FailureDetails(error_type="E", error_message="m", stack_trace="   at Load() in a.cs")):
        assert place_of(unknown) is None


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["/jobs/flights.py", "/usr/lib/python3.11/json/decoder.py"], "/jobs/flights.py"),
        (["/jobs/flights.py", "/v/lib/python3.12/site-packages/pandas/io.py", "<frozen io>"], "/jobs/flights.py"),
        (
            ["/v/lib/python3.12/site-packages/jobs/flights.py", "/usr/lib/python3.12/os.py"],
            "/v/lib/python3.12/site-packages/jobs/flights.py",
        ),
        ([r"C:\jobs\flights.py", r"C:\Python311\Lib\json\decoder.py"], r"C:\jobs\flights.py"),
        (["/usr/lib/python3.11/runpy.py", "/usr/lib/python3.11/os.py"], "/usr/lib/python3.11/os.py"),
    ],
)
def test_the_place_of_a_failure_is_not_in_a_library_that_the_users_code_has_called(
    files: list[str], place: str
) -> None:
    trace = "".join(f'  File "{file}", line {number}, in f{number}\n' for number, file in enumerate(files, 1))
    failure = FailureDetails(error_type="ValueError", error_message="bad", stack_trace=trace)
    number = files.index(place) + 1
    assert place_of(failure) == f"{place}:{number}, in f{number}"
