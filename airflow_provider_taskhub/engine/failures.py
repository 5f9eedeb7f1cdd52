"""From exceptions to FailureDetails and back. Used wherever user code may raise."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType

from airflow_provider_taskhub.engine.events import FailureDetails, SubOrchestrationInstanceFailed, TaskFailed
from airflow_provider_taskhub.errors import (
    InputError,
    NonDeterminismError,
    SubOrchestrationFailedError,
    TaskFailedError,
    TaskHubError,
)
from airflow_provider_taskhub.masking import masked

MAX_TEXT = 32 * 1024
"""Characters that are kept of an exception's text, and of its stack trace; the middle of a longer one is left out."""
MAX_CAUSES = 10
"""Causes that are kept of an exception (``raise ... from``, or the failures of children of children)."""
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


def failure_of(error: BaseException) -> FailureDetails:
    """What is recorded of an exception that user code raised: its class, text, stack trace and causes.

    This is the only place that records exceptions: those of orchestrators and those of activities look the same.

    - ``error_type`` is the class with its module, as in .NET; Python's own errors and those of this package have no
      module.
    - ``error_message`` is the text of the exception. A failed activity or child gives its :func:`headline`, so that
      readers of the instance see which one failed.
    - ``stack_trace`` is what Python prints, without the frames of this package and without the causes.
    - ``inner_failure`` is the cause (``raise ... from``), or what made the activity or child fail.
    - ``is_non_retriable`` is true for ``OrchestrationError(retryable=False)``, for any exception with an attribute
      ``retryable`` that is False, for the failure of a task that was not retriable, for a value that does not fit and
      for code that does not fit its history. The next attempt of these would fail in the same way.

    Texts have at most :data:`MAX_TEXT` characters, and a failure has at most :data:`MAX_CAUSES` causes.
    """
    return _failure_of(error, MAX_CAUSES)


def _failure_of(error: BaseException, causes: int) -> FailureDetails:
    return FailureDetails(
        error_type=_type_name(type(error)),
        error_message=_recorded_message(error),
        stack_trace=_trace(error),
        inner_failure=_inner(error, causes),
        is_non_retriable=_is_final(error),
    )


def _type_name(kind: type) -> str:
    own = kind.__module__ == "builtins" or kind.__module__.partition(".")[0] == "airflow_provider_taskhub"
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """The text of an exception as it may be stored (:func:`storable`), :data:`MAX_TEXT` at most.

    It works for any ``__str__`` of a user.
    """
    try:
        return _cut(storable(str(error)))
    except BaseException as broken:  # SystemExit too: reporting an error must not raise another one
        return f"(its __str__ raised {type(broken).__name__})"


def _recorded_message(error: BaseException) -> str:
    if not isinstance(error, TaskFailedError) or error.details is None or not error.name:
        return message_of(error)
    child = isinstance(error, SubOrchestrationFailedError)
    names = {"child": error.name} if child else {"activity": error.name}
    return _cut(storable(headline(error.details, **names)))


def storable(text: str) -> str:
    r"""A text of user code as it may be stored: every reader of the hub sees it, and every store takes it.

    The values of secrets become ``***``. Half a character, as of a file's name that is no UTF-8, becomes ``\udce9``.
    """
    return masked(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _inner(error: BaseException, causes: int) -> FailureDetails | None:
    if not causes:
        return None
    if isinstance(error, TaskFailedError):
        return _shortened(error.details, causes)
    return None if error.__cause__ is None else _failure_of(error.__cause__, causes - 1)


def _shortened(failure: FailureDetails | None, depth: int) -> FailureDetails | None:
    """The first failures of a recorded chain: each parent of a failed child adds one more."""
    if failure is None or not depth:
        return None
    if sum(1 for _ in chain(failure)) <= depth:
        return failure
    return replace(failure, inner_failure=_shortened(failure.inner_failure, depth - 1))


def _is_final(error: BaseException) -> bool:
    if isinstance(error, TaskFailedError):
        return error.details is not None and error.details.is_non_retriable
    if isinstance(error, InputError | NonDeterminismError):
        return True
    try:
        return getattr(error, "retryable", None) is False
    except BaseException:  # a user's property
        return False


def _trace(error: BaseException) -> str | None:
    """What Python prints of an exception; None without a frame to show."""
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    told.stack = user_frames(error)
    return _cut(storable("".join(told.format(chain=False)))) if told.stack else None


def _cut(text: str) -> str:
    """A long text without its middle: readers need how it began and where it ended."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters omitted …\n{text[-half:]}"


def user_frames(error: BaseException) -> traceback.StackSummary:
    """The stack of an exception with the user's own frames only: frames of this package and of pydantic are left out.

    An error without any frame of the user keeps all frames, unless this package raised it on purpose: then its text
    says everything.
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
