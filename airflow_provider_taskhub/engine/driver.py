"""Drives one orchestrator function by ``send`` and ``throw``: no event loop, no callbacks, no other awaitables.

Knows tasks only by whether they are settled. What a return or an error means is the generation's business.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import suppress
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.errors import OrchestrationError
from airflow_provider_taskhub.fast_dataclass import dataclass

MAX_STEPS = 1_000_000
"""Awaits in one turn: more is a loop over tasks that are complete."""

Body = Coroutine[Any, Any, Any] | Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """The function has returned."""

    value: Any


class Driver:
    """:param name: of the orchestrator, for errors."""

    __slots__ = ("_awaited", "_body", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._body: Body | None = None
        self._awaited: Task[Any] | None = None

    def start(self, made: Any) -> Returned | None:
        """Take what the function gave when it was called, and run it.

        :param made: a coroutine, a generator, or the result of a plain function.
        :returns: as :meth:`turn`.
        """
        if not isinstance(made, CoroutineType | GeneratorType):
            return Returned(made)
        self._body = made
        return self.turn()

    def turn(self) -> Returned | None:
        """Run until the function waits for a task that is not settled (None), or returns.

        :raises BaseException: what the function raised. :raises OrchestrationError: it awaited something that is no
            task, or completed tasks without end.
        """
        steps = 0
        while (body := self._body) is not None and ((task := self._awaited) is None or task.is_complete):
            steps += 1
            if steps > MAX_STEPS:
                raise self._given_up(
                    f"awaited completed tasks {MAX_STEPS} times in one turn at {self.line()}: "
                    "a loop that makes no progress"
                )
            try:
                yielded = _resumed(body, task)
            except StopIteration as stop:
                self._body = None
                return Returned(stop.value)
            except BaseException:
                self._body = None
                raise
            if not isinstance(yielded, Task):
                raise self._given_up(
                    f"awaited {type(yielded).__name__} at {self.line()}: only tasks of its context can be awaited, "
                    "e.g. ctx.create_timer(...) instead of asyncio.sleep(...)"
                )
            self._awaited = yielded
        return None

    def close(self) -> None:
        """Let go of the function; its ``finally`` blocks run."""
        body, self._body = self._body, None
        self._awaited = None
        if body is not None:
            with suppress(BaseException):  # it is over, whatever a `finally` block thinks of it
                body.close()

    def line(self) -> CallSite | str:
        """Where it waits."""
        frame = _innermost(self._body)
        return CallSite.of(frame) if frame is not None else "an unknown line"

    def doing(self) -> str:
        """What it does at the moment, for errors."""
        return "had ended" if self._body is None else f"waited at {self.line()}"

    def _given_up(self, text: str) -> OrchestrationError:
        self.close()
        return OrchestrationError(f"orchestrator {self._name!r} {text}", retryable=False)


def _resumed(body: Body, task: Task[Any] | None) -> Any:
    if task is None:
        return body.send(None)
    error = task.get_exception()
    if error is None:
        return body.send(task.get_result())
    return body.throw(error.with_traceback(None))  # or every await would add its frames to the same traceback


def _innermost(body: Any) -> FrameType | None:
    """The user's frame that waits, through nested coroutines and ``yield from``."""
    found: FrameType | None = None
    while body is not None:
        frame = getattr(body, "cr_frame", None) or getattr(body, "gi_frame", None)
        if frame is None or frame.f_code is Task.__await__.__code__:
            return found
        found = frame
        body = getattr(body, "cr_await", None) or getattr(body, "gi_yieldfrom", None)
    return found
