"""Exceptions to FailureDetails and back (spec §2.4, §7.2). Used wherever user code may raise."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from types import FrameType

from airflow_provider_taskhub.engine.events import FailureDetails, SubOrchestrationInstanceFailed, TaskFailed
from airflow_provider_taskhub.errors import (
    InputError,
    NonDeterminismError,
    OrchestrationError,
    SubOrchestrationFailedError,
    TaskFailedError,
    TaskHubError,
)
from airflow_provider_taskhub.masking import masked

MAX_STACK = 16_384
"""Characters of a stack trace that are kept, the last ones: they name the culprit."""
_MAX_CAUSES = 5
_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_PYTHON = re.compile(
    r"^<frozen|[/\\]lib[/\\]python[\d.]+[/\\](?!(?:site|dist)-packages[/\\])|[/\\]Python[\d]+[/\\]Lib[/\\](?!site-)"
)
_LIBRARIES = ("airflow_provider_taskhub", "pydantic", "pydantic_core")
TASK_FAILED = (TaskFailedError.__name__, SubOrchestrationFailedError.__name__)
"""Error types of an instance that failed because an activity or a child failed."""


def headline(failure: FailureDetails, *, activity: str | None = None, child: str | None = None) -> str:
    """One line that says what failed: the name of the activity or child, the class of its error and the text.

    For example ``activity 'load' failed: OSError: no flights``. Every place that shows a failure to people uses it.

    :param activity: name of the activity, for the failure of a single activity.
    :param child: name of the child orchestration, for the failure of a single child. Without both the failure is one of
        an instance, whose text already has these names.
    """
    names_task = failure.error_type in TASK_FAILED and failure.error_message.startswith(("activity ", "child orch"))
    text = failure.error_message if names_task else f"{failure.error_type}: {failure.error_message}"
    if activity is not None:
        return f"activity {activity!r} failed: {text}"
    return text if child is None else f"child orchestration {child!r} failed: {text}"


def chain(failure: FailureDetails | None) -> Iterator[FailureDetails]:
    """A failure and its causes, the outermost first."""
    while failure is not None:
        yield failure
        failure = failure.inner_failure


def place_of(failure: FailureDetails | None) -> str | None:
    """Where the user's code failed, for example ``jobs/flights.py:24, in load``; None where no stack trace tells.

    For an instance that failed because an activity or a child failed, the place is the activity's or the child's.
    """
    found = None
    for one in chain(failure):
        frames = _FRAME.findall(one.stack_trace or "")
        if frames:
            file, line, function = _own(frames)[-1]
            found = f"{file}:{line}, in {function}"
        if one.error_type not in TASK_FAILED:
            break
    return found


def _own(frames: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Frames of the user's code, as far as paths tell: an error is often raised inside a library."""
    without_python = [frame for frame in frames if not _PYTHON.search(frame[0])]
    return [frame for frame in without_python if not _INSTALLED.search(frame[0])] or without_python or frames


def failure_of(error: BaseException, *, depth: int = 0) -> FailureDetails:
    """What is recorded of an exception: its type, text, trace and causes.

    The text of a failed activity or child is its :func:`headline`: readers of the instance see which one failed.
    ``OrchestrationError(retryable=False)``, and the failure of a task that was not retryable, are not retryable.
    """
    return FailureDetails(
        error_type=type(error).__name__,
        error_message=_recorded_message(error),
        stack_trace=_trace(error),
        inner_failure=_inner(error, depth),
        is_non_retriable=_is_final(error),
    )


def message_of(error: BaseException) -> str:
    """The text of an exception, whatever a user's ``__str__`` does, as it may be stored (:func:`storable`)."""
    try:
        return storable(str(error))
    except BaseException as broken:  # SystemExit too: reporting an error must not raise another one
        return f"(its __str__ raised {type(broken).__name__})"


def _recorded_message(error: BaseException) -> str:
    if not isinstance(error, TaskFailedError) or error.details is None or not error.name:
        return message_of(error)
    if isinstance(error, SubOrchestrationFailedError):
        return storable(headline(error.details, child=error.name))
    return storable(headline(error.details, activity=error.name))


def storable(text: str) -> str:
    r"""A text of user code as it may be stored: every reader of the hub sees it, and every store takes it.

    The values of secrets become ``***``. Half a character, as of a file's name that is no UTF-8, becomes ``\udce9``.
    """
    return masked(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _inner(error: BaseException, depth: int) -> FailureDetails | None:
    if isinstance(error, TaskFailedError):
        return error.details
    cause = error.__cause__
    return failure_of(cause, depth=depth + 1) if cause is not None and depth < _MAX_CAUSES else None


def _is_final(error: BaseException) -> bool:
    if isinstance(error, OrchestrationError):
        return not error.retryable
    if isinstance(error, TaskFailedError):
        return error.details is not None and error.details.is_non_retriable
    # Neither a value that does not fit nor code that does not fit its history gets better by itself.
    return isinstance(error, InputError | NonDeterminismError)


def _trace(error: BaseException) -> str | None:
    frames = user_frames(error)
    if not frames:
        return None
    text = storable("".join(frames.format()))
    return text if len(text) <= MAX_STACK else "…" + text[-MAX_STACK:]


def user_frames(error: BaseException) -> traceback.StackSummary:
    """The stack of an exception with the user's own frames only: those of this package and of pydantic are left out.

    An error without any frame of the user keeps all, unless it is one that this package raises on purpose: then its
    text says everything.
    """
    every = traceback.TracebackException(type(error), error, error.__traceback__).stack
    walked = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [shown for frame, shown in zip(walked, every, strict=False) if not _is_library(frame)]
    return traceback.StackSummary.from_list(own if own or isinstance(error, TaskHubError) else every)


def _is_library(frame: FrameType) -> bool:
    known = frame.f_globals  # the package first: an executor's own module is run as __main__
    return str(known.get("__package__") or known.get("__name__") or "").partition(".")[0] in _LIBRARIES


def error_of(event: TaskFailed | SubOrchestrationInstanceFailed, name: str) -> TaskFailedError:
    """What an orchestrator sees of a failed activity or child.

    :param name: of the activity or child.
    """
    details = event.failure or _of_serialised(event.details, event.reason)
    kind = TaskFailedError if isinstance(event, TaskFailed) else SubOrchestrationFailedError
    return kind(event.reason or details.error_message or f"{name} failed", details=details, name=name)


def _of_serialised(details: str | None, reason: str | None) -> FailureDetails:
    """The failure of a .NET worker that serialises exceptions: ``Details`` is one, or missing."""
    try:
        found = json.loads(details) if details else {}
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    kind, trace = found.get("ClassName"), found.get("StackTraceString")
    return FailureDetails(
        error_type=kind if isinstance(kind, str) else "Exception",
        error_message=reason or str(found.get("Message") or ""),
        stack_trace=trace if isinstance(trace, str) else None,
    )
