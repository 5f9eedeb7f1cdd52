"""Converts exceptions to FailureDetails and back. All code that calls user code uses this module."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from airflow_provider_taskhub.engine.events import FailureDetails, SubOrchestrationInstanceFailed, TaskFailed
from airflow_provider_taskhub.errors import (
    InputError,
    NonDeterminismError,
    SubOrchestrationFailedError,
    TaskCancelledError,
    TaskFailedError,
    TaskHubError,
)
from airflow_provider_taskhub.masking import masked

MAX_TEXT = 32 * 1024
"""Maximum stored characters of an exception's text, and of its stack trace. The middle of a longer text is removed."""
MAX_CAUSES = 10
"""Maximum stored causes of an exception (``raise ... from``, or the failures of children of children)."""
_FRAME = re.compile(r'^[\s|+]*File "([^"\n]+)", line (\d+), in (\S+)', re.MULTILINE)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_PYTHON = re.compile(
    r"^<frozen|[/\\]lib[/\\]python[\d.]+[/\\](?!(?:site|dist)-packages[/\\])|[/\\]Python[\d]+[/\\]Lib[/\\](?!site-)"
)
_F = TypeVar("_F", bound=tuple[Any, ...])
_LIBRARIES = ("airflow_provider_taskhub", "pydantic", "pydantic_core")
TERMINATED = "Terminated"
"""``FailureDetails.error_type`` of the answer of a child that was terminated, or that its parent has cancelled."""
TASK_FAILED = (TaskFailedError.__name__, SubOrchestrationFailedError.__name__)
"""``FailureDetails.error_type`` of an instance that failed because an activity or a child failed."""
_SHOWN_LEAVES = 5
"""Maximum number of errors of a group that a message has."""


def headline(failure: FailureDetails, *, activity: str | None = None, child: str | None = None) -> str:
    """Return one line about a failure: the name of the activity or child, the class of the error and its text.

    For example ``activity 'load' failed: OSError: no flights``. Every place that shows a failure to people uses it.

    :param failure: the failure of an activity, a child or an instance.
    :param activity: name of the activity, if the failure is an activity's.
    :param child: name of the child's orchestrator, if the failure is a child's. If both names are None, the failure is
        an instance's: its text already names the activity or child that failed.
    """
    if is_cancel(failure) and failure.error_message.startswith("activity "):
        return failure.error_message
    names_task = failure.error_type in TASK_FAILED and failure.error_message.startswith(("activity ", "child orch"))
    text = failure.error_message if names_task else f"{failure.error_type}: {failure.error_message}"
    if activity is not None:
        return f"activity {activity!r} failed: {text}"
    return text if child is None else f"child orchestration {child!r} failed: {text}"


def is_cancel(failure: FailureDetails | None) -> bool:
    """Return whether a failure says that the orchestrator has cancelled a call, or has not caught that error."""
    return failure is not None and failure.error_type == TaskCancelledError.__name__


def is_terminated(event: SubOrchestrationInstanceFailed) -> bool:
    """Return whether a child that has not completed was terminated. A .NET worker then answers without any failure."""
    if event.failure is None:
        return event.details is None
    return event.failure.error_type == TERMINATED


def chain(failure: FailureDetails | None) -> Iterator[FailureDetails]:
    """Yield a failure, then its cause, then the cause of the cause and so on."""
    while failure is not None:
        yield failure
        failure = failure.inner_failure


def place_of(failure: FailureDetails | None) -> str | None:
    """Return the line at which user code failed, for example ``jobs/flights.py:24, in load``.

    For an instance that failed because an activity or a child failed, it is the line in the activity or child.

    :param failure: the recorded failure; None for no failure.
    :returns: None if no stack trace has the line.
    """
    found = None
    for one in chain(failure):
        frames = _FRAME.findall(one.stack_trace or "")
        if frames:
            file, line, function = own_frames(frames)[-1]
            found = f"{file}:{line}, in {function}"
        if one.error_type not in TASK_FAILED and not one.error_type.endswith("ExceptionGroup"):
            break
    return found


def own_frames(frames: Sequence[_F]) -> Sequence[_F]:
    """Return the frames of user code, judged by file path. The error itself is often raised inside a library.

    :param frames: tuples, such as (file, line, function), that begin with the file of a frame.
    :returns: the frames outside Python and its installed packages; if there are none, the frames outside Python; if
        there are none of these either, all frames.
    """
    without_python = [frame for frame in frames if not _PYTHON.search(frame[0])]
    return [frame for frame in without_python if not is_installed(frame[0])] or without_python or frames


def is_installed(file: str) -> bool:
    """Return whether a file of Python code belongs to an installed package."""
    return _INSTALLED.search(file) is not None


def failure_of(error: BaseException) -> FailureDetails:
    """Convert an exception of user code to the FailureDetails that are stored.

    Orchestrators and activities both use this function, so their failures look the same.

    - ``error_type`` is the class with its module, as in .NET; Python's own errors and those of this package have no
      module.
    - ``error_message`` is the text of the exception. A failed activity or child gives its :func:`headline`, so that
      readers of the instance see which one failed.
    - ``stack_trace`` is what Python prints, without the frames of this package and without the causes.
    - ``inner_failure`` is the cause: that of ``raise ... from``, else the error that was being handled, unless it is
      suppressed (``from None``). For a failed activity or child it is the failure of that activity or child.
    - ``is_non_retriable`` is true for ``OrchestrationError(retryable=False)``, for any exception with an attribute
      ``retryable`` that is False, for a failed activity or child whose own failure is non-retriable, for
      :class:`InputError` and for :class:`NonDeterminismError`. A retry after such an error would fail in the same way.
    - An ``ExceptionGroup`` of one error counts as this error. For several errors, the message has all of them, the
      cause is the first one, and the group is non-retriable if one of them is. Groups inside of groups do not count.

    Texts have at most :data:`MAX_TEXT` characters, and a failure has at most :data:`MAX_CAUSES` causes.

    :param error: the exception.
    """
    return _failure_of(error, MAX_CAUSES)


def _failure_of(error: BaseException, causes: int) -> FailureDetails:
    error = _alone(error)
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


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group, also of the groups inside of it. Another error yields itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _alone(error: BaseException) -> BaseException:
    """Return the only error of a group; every other error unchanged."""
    leaves = [*islice(_leaves(error), 2)]
    return leaves[0] if len(leaves) == 1 else error


def message_of(error: BaseException) -> str:
    """Return the text of an exception in storable form (:func:`storable`), with at most :data:`MAX_TEXT` characters.

    The text of a group has its errors. This function never raises, even if the exception's ``__str__`` raises.

    :param error: the exception.
    """
    error = _alone(error)
    if isinstance(error, BaseExceptionGroup):
        leaves = [*_leaves(error)]
        shown = "; ".join(_line(leaf) for leaf in leaves[:_SHOWN_LEAVES])
        more = f"; and {len(leaves) - _SHOWN_LEAVES} more" if len(leaves) > _SHOWN_LEAVES else ""
        return _cut(f"{len(leaves)} errors: {shown}{more}")
    try:
        return _cut(storable(str(error)))
    except BaseException as broken:  # also SystemExit: `__str__` is user code, and this function must not raise
        return f"(its __str__ raised {type(broken).__name__})"


def _line(error: BaseException) -> str:
    text = _recorded_message(error)
    return text if isinstance(error, TaskFailedError) else f"{_type_name(type(error))}: {text}"


def _recorded_message(error: BaseException) -> str:
    if not isinstance(error, TaskFailedError) or error.details is None or not error.name:
        return message_of(error)
    child = isinstance(error, SubOrchestrationFailedError)
    names = {"child": error.name} if child else {"activity": error.name}
    return _cut(storable(headline(error.details, **names)))


def storable(text: str) -> str:
    r"""Make a text of user code safe to store.

    Known secret values become ``***``, because every reader of the hub sees the text. An unpaired surrogate (for
    example from a file name that is not UTF-8) becomes an escape such as ``\udce9``, because no store accepts it.

    :param text: text of user code.
    """
    return masked(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _inner(error: BaseException, causes: int) -> FailureDetails | None:
    if not causes:
        return None
    if isinstance(error, TaskFailedError):
        return _shortened(error.details, causes)
    if isinstance(error, BaseExceptionGroup):
        return _failure_of(next(_leaves(error)), causes - 1)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if cause is None else _failure_of(cause, causes - 1)


def _shortened(failure: FailureDetails | None, depth: int) -> FailureDetails | None:
    """Return a failure with at most ``depth`` failures in its chain of causes.

    The limit is needed because each parent of a failed child adds one failure to the chain.
    """
    if failure is None or not depth:
        return None
    if sum(1 for _ in chain(failure)) <= depth:
        return failure
    return replace(failure, inner_failure=_shortened(failure.inner_failure, depth - 1))


def _is_final(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup) and any(map(_is_final, _leaves(error))):
        return True
    if isinstance(error, TaskFailedError):
        return error.details is not None and error.details.is_non_retriable
    if isinstance(error, InputError | NonDeterminismError):
        return True
    try:
        return getattr(error, "retryable", None) is False
    except BaseException:  # `retryable` can be a property of user code, which can raise any error
        return False


def _trace(error: BaseException) -> str | None:
    """Return the stack trace as Python prints it; None if the exception has no frame to show."""
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    told.stack = user_frames(error)
    return _cut(storable("".join(told.format(chain=False)))) if told.stack else None


def _cut(text: str) -> str:
    """Remove the middle of a text that is longer than :data:`MAX_TEXT`. Readers need its beginning and its end most."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters omitted …\n{text[-half:]}"


def user_frames(error: BaseException) -> traceback.StackSummary:
    """Return the stack of an exception without the frames of this package and of pydantic.

    If no frame is left, all frames are returned, except for a :class:`TaskHubError`: this package raised it on purpose
    and its text is enough.

    :param error: the exception.
    """
    every = traceback.TracebackException(type(error), error, error.__traceback__).stack
    walked = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [shown for frame, shown in zip(walked, every, strict=False) if not _is_library(frame)]
    return traceback.StackSummary.from_list(own if own or isinstance(error, TaskHubError) else every)


def _is_library(frame: FrameType) -> bool:
    known = frame.f_globals  # `__package__` is better: the `__name__` of an executor's main module is only "__main__"
    return str(known.get("__package__") or known.get("__name__") or "").partition(".")[0] in _LIBRARIES


def error_of(event: TaskFailed | SubOrchestrationInstanceFailed, name: str) -> TaskFailedError:
    """Return the error that the orchestrator gets when it awaits a failed activity or child.

    :param event: the event that says that the activity or child failed.
    :param name: name of the activity or of the child's orchestrator.
    """
    details = event.failure or _of_serialised(event.details, event.reason)
    if isinstance(event, SubOrchestrationInstanceFailed) and is_terminated(event):
        details = replace(details, error_type=TERMINATED)
    kind: type[TaskFailedError] = SubOrchestrationFailedError
    if isinstance(event, TaskFailed):
        kind = TaskCancelledError if is_cancel(details) else TaskFailedError
    return kind(event.reason or details.error_message or f"{name} failed", details=details, name=name)


def _of_serialised(details: str | None, reason: str | None) -> FailureDetails:
    """Return the failure in an event of a .NET worker that serialises exceptions instead of writing FailureDetails.

    :param details: the serialised exception as JSON text; None if it is missing.
    :param reason: text of the error; None if it is missing.
    """
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
