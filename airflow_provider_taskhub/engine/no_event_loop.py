"""Runs orchestrator code without an event loop, and refuses what the code calls of asyncio.

An orchestrator runs inside a task of the worker's event loop. Without this module, ``asyncio.timeout`` in an
orchestrator would cancel the worker's task, and ``asyncio.create_task`` would run orchestrator code on the worker's
loop. So while orchestrator code runs, there is no current task, and the running loop is an object whose methods raise
an error with the line of user code and with what to use instead.

Carrying out asyncio's functions over the tasks of the context was rejected: a loop of our own would have to decide each
callback again in each replay, in the same order, for every version of Python.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import wraps
from inspect import iscoroutine
from itertools import takewhile
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.failures import is_installed, own_frames
from airflow_provider_taskhub.errors import OrchestrationError

CancelledError = asyncio.CancelledError
"""The error that interrupts code at an await. It is the one that authors know from asyncio, and no ``Exception``, so
that ``except Exception`` does not take it for a failure of what was awaited."""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_LIBRARIES = ("asyncio", "anyio", "sniffio")
"""Packages that work on an event loop. Their frames are never user code."""
_PACKAGE = __name__.partition(".")[0]
_TIMER = "use `await ctx.create_timer(...)`"
_LIMIT = "use `async with ctx.timeout(...)`"
_TASKS = (
    "use `ctx.when_all([...])` or `ctx.when_any([...])` with the tasks of the context, and `ctx.branch(...)` to make a "
    "task of a coroutine"
)
_ACTIVITY = "use an activity, with `ctx.call_activity(...)`"
_EVENT = "use `ctx.wait_for_external_event(...)`"
_ORDER = (
    "do the steps one after the other in one branch, or give `ctx.when_all` a few at a time. Code between two awaits "
    "is never interrupted"
)
_HINTS = {
    **dict.fromkeys(("sleep", "sleep_until", "sleep_forever", "call_later", "call_at"), _TIMER),
    **dict.fromkeys(("wait_for", "timeout", "timeout_at", "Timeout", "fail_after", "move_on_after"), _LIMIT),
    **dict.fromkeys(("gather", "wait", "as_completed", "TaskGroup", "create_task_group", "shield"), _TASKS),
    **dict.fromkeys(("create_task", "ensure_future"), _TASKS),
    **dict.fromkeys(("to_thread", "run_in_executor", "run", "run_sync", "run_until_complete"), _ACTIVITY),
    **dict.fromkeys(("open_connection", "create_connection", "create_subprocess_exec", "getaddrinfo"), _ACTIVITY),
    **dict.fromkeys(("Event", "Queue", "PriorityQueue", "LifoQueue", "Condition", "create_future"), _EVENT),
    **dict.fromkeys(("Lock", "Semaphore", "BoundedSemaphore", "Barrier"), _ORDER),
    "time": "use `ctx.current_utc_datetime`",
}
"""What to use instead, by a part of the name of what was called."""
_INNER = frozenset(("create_future", "time", "call_later", "call_at", "create_connection", "getaddrinfo"))
"""Functions that libraries call for a purpose of their own, so that their hints would mislead."""
_TASK = re.compile(r"'?\b(Attempts|Branch|EventWait|Started|Timer|WhenAll|WhenAny)\b'?(?= object\b| found$)")
"""The classes of tasks in errors of Python's own functions, such as ``", ".join([task])``."""
MOST_NOTED = 5
"""Maximum number of refused calls that are remembered."""
_NOTED: ContextVar[list[OrchestrationError] | None] = ContextVar("TaskHub: refused calls", default=None)
_RULE = (
    "An orchestrator runs on no event loop: it waits with ctx.when_all, ctx.when_any, ctx.create_timer, ctx.timeout "
    "and ctx.branch, and activities do everything else"
)


def advice(called: str) -> str:
    """Return what to use in an orchestrator instead of a function of asyncio.

    :param called: name of the function, such as ``asyncio.sleep``; any text if it is unknown.
    """
    by_library, parts = called.endswith(")"), called.rstrip(")").rpartition("(")[2].split(".")
    hints = (_HINTS[part] for part in parts if part in _HINTS and not (by_library and part in _INNER))
    hint = next(hints, _ACTIVITY if by_library else None)
    return f"{hint[0].upper()}{hint[1:]}. {_RULE}" if hint else _RULE


def called_at(frames: Iterable[FrameType], function: str = "") -> tuple[CallSite | None, str]:
    """Return the line of user code among the frames of a call, and the function of asyncio that it has called.

    :param frames: the frames, the outermost first.
    :param function: the function that was called, if no frame is asyncio's.
    :returns: None and "" for what is unknown. If another library has called the function, its name comes first, as in
        ``aiohttp (asyncio.timeout)``.
    """
    stack = list(frames)
    others = [(frame.f_code.co_filename, frame) for frame in stack if not _is_library(frame)]
    if not others:
        return None, function
    user = own_frames(others)[-1][1]
    calls = stack[stack.index(user) + 1 :]
    inner = next((frame for frame in calls if _is_library(frame)), None)
    called = function if inner is None else _name_of(inner)
    between = takewhile(lambda frame: frame is not inner, calls)
    by = next((_package_of(frame) for frame in between if is_installed(frame.f_code.co_filename)), _PACKAGE)
    return CallSite.of(user), called if by == _PACKAGE or not called else f"{by} ({called})"


def refusal(called: str, where: CallSite | str | None) -> OrchestrationError:
    """Return the error for orchestrator code that has called a function of asyncio.

    :param called: name of the function.
    :param where: the line of user code; None: the line is unknown.
    """
    place = "an unknown line" if where is None else where
    return OrchestrationError(
        f"{called} cannot be used in an orchestrator (at {place}). {advice(called)}", retryable=False
    )


def note_in(errors: list[OrchestrationError]) -> None:
    """Let :func:`noted` add errors to a list, for all code that runs in the current context of contextvars."""
    _NOTED.set(errors)


def is_code_of_others(errors: list[OrchestrationError]) -> bool:
    """Return whether the caller is orchestrator code for which :func:`note_in` was called with another list."""
    mine = _NOTED.get()
    return mine is not None and mine is not errors


def noted(error: OrchestrationError) -> OrchestrationError:
    """Remember an error that refuses a call, because orchestrator code may catch it and go on. :returns: the error."""
    errors = _NOTED.get()
    if errors is not None and len(errors) < MOST_NOTED:
        errors.append(error)
    return error


def reworded(error: BaseException) -> BaseException:
    """Return an error of asyncio or anyio about a missing task or loop in our words, and Python's errors about an await
    of a value, about a task in place of a value and about arguments of the context's methods with a hint; any other
    error as it is.

    :param error: the error that orchestrator code has raised.
    """
    if type(error) is TypeError and str(error).endswith("can't be used in 'await' expression"):
        return TypeError(
            f"{error}: await only tasks. Await a list with ctx.when_all; ctx.send_event, ctx.set_custom_status and "
            "ctx.continue_as_new are not awaited"
        ).with_traceback(error.__traceback__)
    if type(error) is TypeError and (hint := _hint_for_arguments(str(error))):
        where = _line_of(error.__traceback__) or "an unknown line"
        return TypeError(f"{error} (at {where}). {hint}").with_traceback(error.__traceback__)
    if type(error) in (TypeError, AttributeError) and _TASK.search(str(error)):
        where = _line_of(error.__traceback__) or "an unknown line"
        way = "The task was not awaited: write `await` before it, and use what that gives"
        text = f"{_TASK.sub('a task', str(error))} (at {where}). {way}"
        return type(error)(text).with_traceback(error.__traceback__)
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not isinstance(error, RuntimeError | TypeError) or not frames or not _is_library(frames[-1]):
        return error
    called = called_at(frames)[1]
    if not called:
        return error
    told = refusal(called, _line_of(error.__traceback__)).with_traceback(error.__traceback__)
    told.__cause__ = error
    return told


def _hint_for_arguments(text: str) -> str:
    """Return what to write instead of a call of a context's method with wrong arguments; "" for another error."""
    if not text.startswith("OrchestrationContext."):
        return ""
    if "'timeout'" in text:
        return "For a limit, write `async with ctx.timeout(...):` around the await"
    if text.startswith(("OrchestrationContext.call_", "OrchestrationContext.continue_")) and "positional" in text:
        return "There is one input: put several values into a list, a dict or a dataclass"
    return "Its docstring lists the arguments"


def without_event_loop(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function that runs orchestrator code: the code gets no current task and a loop that refuses."""

    @wraps(function)
    def inner(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        loop = asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task(loop)
        hooks = sys.get_asyncgen_hooks()  # those of the worker's loop would close the code's async generators there
        if loop is not None and task is not None:
            _leave_task(loop, task)
        asyncio._set_running_loop(_REFUSING)
        sys.set_asyncgen_hooks(None, None)  # the driver sets its own
        try:
            return function(*args, **kwargs)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(loop)
            if loop is not None and task is not None:
                _enter_task(loop, task)

    return inner


def is_orchestrator_code() -> bool:
    """Return whether the caller is orchestrator code that the engine runs in this thread."""
    return asyncio._get_running_loop() is _REFUSING


def user_line() -> CallSite | None:
    """Return the line of user code that has called into this package; None: the line is unknown."""
    frames = [frame for frame in _callers() if _package_of(frame) != _PACKAGE]
    return called_at(reversed(frames))[0]


def _line_of(trace: TracebackType | None) -> CallSite | None:
    """Return the innermost line of user code in a traceback. A frame itself may have gone on to a later line."""
    lines = [(frame.f_code.co_filename, frame, line) for frame, line in walk_tb(trace) if not _is_library(frame)]
    if not lines:
        return None
    _, frame, line = own_frames(lines)[-1]
    return CallSite(frame.f_code, line)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_library(frame: FrameType) -> bool:
    return _package_of(frame) in _LIBRARIES


def _name_of(frame: FrameType) -> str:
    library = _package_of(frame)
    name = frame.f_code.co_qualname.removesuffix(".__aenter__").removesuffix(".__init__")
    if name.startswith("_"):  # a private parent of what the code uses, such as that of Lock and Semaphore
        name = type(frame.f_locals.get("self", frame)).__name__
    return f"{library}.{'timeout' if name == 'Timeout' else name}"


def _callers() -> Iterator[FrameType]:
    """Yield the frames of the current call, the innermost first, up to the frame of the engine that runs the code."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not _BOUNDARY:
        yield frame
        frame = frame.f_back


_BOUNDARY = next(code for code in without_event_loop.__code__.co_consts if getattr(code, "co_name", "") == "inner")


def _refusing(name: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if iscoroutine(arg):
                arg.close()  # else Python warns that it was never awaited
        where, called = called_at(reversed([*_callers()]), f"loop.{name}")
        raise noted(refusal(called, where))

    return refused


_NAMES = [name for name in dir(asyncio.AbstractEventLoop) if not name.startswith("_")]
_ANSWERS: dict[str, Callable[..., Any]] = {
    "is_running": lambda self: True,
    "is_closed": lambda self: False,
    "get_debug": lambda self: False,
    # Objects of asyncio call it when they are deleted, and an error could not be raised there.
    "call_exception_handler": lambda self, context: None,
}
_REFUSING: asyncio.AbstractEventLoop = type(
    "RefusingLoop", (asyncio.AbstractEventLoop,), {name: _refusing(name) for name in _NAMES} | _ANSWERS
)()
"""The running loop of orchestrator code: it answers that it runs, and refuses everything else by name."""
