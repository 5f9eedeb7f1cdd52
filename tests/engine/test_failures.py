"""What is recorded of an exception: the same for orchestrators and for activities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import MAX_CAUSES, MAX_TEXT, chain
from airflow_provider_taskhub.errors import InputError, NonDeterminismError, OrchestrationError, TaskFailedError
from airflow_provider_taskhub.workers.executors.child.main import RunningActivity
from airflow_provider_taskhub.workers.executors.protocol import Configure, Decoder, Failed, Run, encode
from tests.engine.play import Play

Recorded = Callable[[BaseException], FailureDetails]

app = App("failures")
raised: list[BaseException] = []


@app.orchestrator
async def fails(ctx: OrchestrationContext) -> None:
    users_code(raised[-1])


@app.activity
def load() -> None:
    """Its attempts fail in the test."""


def users_code(error: BaseException) -> NoReturn:
    raise error.with_traceback(None)  # an orchestrator raises the same one in every replay


def of_an_orchestrator(error: BaseException) -> FailureDetails:
    """What an orchestrator that raises it ends with."""
    raised.append(error)
    play = Play(app)
    play.start("fails")
    completed = play.last.completed
    assert completed is not None
    assert completed.failure is not None
    return completed.failure


def of_an_activity(error: BaseException) -> FailureDetails:
    """What an executor tells its worker of an activity that raises it."""
    run = Run(
        number=1,
        name="load",
        instance_id="i",
        execution_id=None,
        task_id=0,
        action_id="a",
        attempt=1,
        tags={},
        job_group="",
        has_input=False,
    )
    configure = Configure(
        name="plain-1.1", apps=(), spark=False, master="", conf={}, lock_fd=None, max_result=1, max_log=1
    )
    attempt = RunningActivity(run, app.activities["load"], None, configure, None)  # type: ignore[arg-type]  # it sends nothing
    try:
        users_code(error)
    except BaseException as caught:
        (message,) = Decoder().feed(b"".join(encode(attempt.failure(caught))))
    assert isinstance(message, Failed)
    return message.failure


@pytest.fixture(params=[of_an_orchestrator, of_an_activity])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return request.param  # type: ignore[no-any-return]


class Lost(Exception):
    pass


class Final(Exception):
    retryable = False


class Mute(Exception):
    def __str__(self) -> str:
        raise self.args[0]


class Broken(Exception):
    @property
    def retryable(self) -> bool:
        raise SystemExit(1)


def test_the_error_type_of_a_users_class_has_its_module(recorded: Recorded) -> None:
    assert recorded(Lost("x")).error_type == f"{__name__}.Lost"
    assert recorded(ValueError("x")).error_type == "ValueError"
    assert recorded(InputError("x")).error_type == "InputError"


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ValueError("x"), False),
        (OrchestrationError("x"), False),
        (OrchestrationError("x", retryable=False), True),
        (Final("x"), True),
        (Broken("x"), False),
        (InputError("x"), True),
        (NonDeterminismError("x"), True),
        (TaskFailedError("x", name="load", details=FailureDetails(error_type="E", error_message="x")), False),
        (
            TaskFailedError(
                "x", name="load", details=FailureDetails(error_type="E", error_message="x", is_non_retriable=True)
            ),
            True,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_would_fail_again_is_not_retriable(recorded: Recorded, error: Exception, final: bool) -> None:
    assert recorded(error).is_non_retriable is final


def test_the_trace_is_pythons_with_the_users_frames_alone(recorded: Recorded) -> None:
    trace = recorded(Lost("no flights")).stack_trace or ""
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "in users_code\n    raise error.with_traceback(None)" in trace
    assert trace.endswith(f"{__name__}.Lost: no flights\n")
    assert "airflow_provider_taskhub/" not in trace


def test_the_errors_of_a_group_are_in_its_trace(recorded: Recorded) -> None:
    trace = recorded(ExceptionGroup("two", [ValueError("first"), KeyError("second")])).stack_trace or ""
    assert "ValueError: first" in trace
    assert "KeyError: 'second'" in trace


def test_a_group_of_one_error_counts_as_this_error(recorded: Recorded) -> None:
    details = FailureDetails(error_type="OSError", error_message="no flights", is_non_retriable=True)
    lost = TaskFailedError("no flights", name="load", details=details)
    for error in (ExceptionGroup("unhandled errors in a TaskGroup", [lost]), BaseExceptionGroup("", [lost])):
        failure = recorded(ExceptionGroup("outer", [error]) if isinstance(error, Exception) else error)
        assert failure.error_type == "TaskFailedError"
        assert failure.error_message == "activity 'load' failed: OSError: no flights"
        assert (failure.inner_failure, failure.is_non_retriable) == (details, True)


def test_a_group_of_several_errors_has_the_text_of_each(recorded: Recorded) -> None:
    details = FailureDetails(error_type="OSError", error_message="no flights")
    lost = TaskFailedError("no flights", name="load", details=details)
    group = ExceptionGroup("in a TaskGroup", [ValueError("row 7"), ExceptionGroup("", [lost, Lost("x")])])
    failure = recorded(group)
    assert failure.error_type == "ExceptionGroup"
    assert failure.error_message == (
        f"3 errors: ValueError: row 7; activity 'load' failed: OSError: no flights; {__name__}.Lost: x"
    )
    assert failure.inner_failure is not None
    assert (failure.inner_failure.error_type, failure.inner_failure.error_message) == ("ValueError", "row 7")
    assert failure.is_non_retriable is False
    assert recorded(ExceptionGroup("", [ValueError("x"), Final("y")])).is_non_retriable is True
    many = recorded(ExceptionGroup("", [ValueError(str(number)) for number in range(9)])).error_message
    assert many.startswith("9 errors: ValueError: 0; ")
    assert many.endswith("ValueError: 4; and 4 more")


def test_the_error_that_was_being_handled_is_kept_as_the_cause(recorded: Recorded) -> None:
    def fail(*, suppressed: bool) -> None:
        try:
            raise OSError("no answer")
        except OSError:
            if suppressed:
                raise ValueError("lost") from None
            raise ValueError("lost")  # noqa: B904  # as users write it

    for suppressed, kinds in ((False, ["ValueError", "OSError"]), (True, ["ValueError"])):
        with pytest.raises(ValueError, match="lost") as caught:
            fail(suppressed=suppressed)
        assert [one.error_type for one in chain(recorded(caught.value))] == kinds


def test_a_long_text_loses_its_middle(recorded: Recorded) -> None:
    failure = recorded(ValueError(f"begin{'x' * 1_000_000}end"))
    for text in (failure.error_message, failure.stack_trace or ""):
        assert MAX_TEXT < len(text) < MAX_TEXT + 100
        assert "characters omitted" in text
        assert text.rstrip().endswith("end")
    assert failure.error_message.startswith("begin")
    assert "users_code" in (failure.stack_trace or "")


def test_causes_are_kept_up_to_a_limit(recorded: Recorded) -> None:
    first = error = ValueError("0")
    for number in range(1, 100):
        error.__cause__ = ValueError(str(number))
        error = error.__cause__
    assert [one.error_message for one in chain(recorded(first))] == [str(n) for n in range(MAX_CAUSES + 1)]


def test_the_failures_of_children_of_children_are_kept_up_to_the_same_limit(recorded: Recorded) -> None:
    details: FailureDetails | None = None
    for number in reversed(range(100)):
        details = FailureDetails(error_type="E", error_message=str(number), inner_failure=details)
    inner = recorded(TaskFailedError("x", name="load", details=details)).inner_failure
    assert [one.error_message for one in chain(inner)] == [str(n) for n in range(MAX_CAUSES)]


@pytest.mark.rows("K60")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("caf\udce9.csv"), "caf\\udce9.csv"),
        (ValueError("half a smile \ud83d"), "half a smile \\ud83d"),
        (Mute(RuntimeError("no words")), "(its __str__ raised RuntimeError)"),
        (Mute(SystemExit(3)), "(its __str__ raised SystemExit)"),
    ],
)
def test_every_text_can_be_written(recorded: Recorded, error: Exception, text: str) -> None:
    failure = recorded(error)
    assert failure.error_message == text
    (failure.stack_trace or "").encode("utf-8")


def test_secrets_are_masked_before_anything_is_stored(recorded: Recorded) -> None:
    def fail() -> Any:
        try:
            raise OSError("no answer of AccountName=a;AccountKey=abcdefg==;x")
        except OSError as cause:
            raise ValueError("the load of 'flights' failed, password=hunter2") from cause

    with pytest.raises(ValueError, match="hunter2") as caught:
        fail()
    failure = recorded(caught.value)
    assert failure.error_message == "the load of 'flights' failed, password=***"
    assert failure.inner_failure is not None
    assert failure.inner_failure.error_message == "no answer of AccountName=a;AccountKey=***;x"
    assert "ValueError: the load of 'flights' failed, password=***" in (failure.stack_trace or "")
    assert "hunter2" not in repr(failure)
    assert "abcdefg" not in repr(failure)
