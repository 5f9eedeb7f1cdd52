"""Runs one orchestrator function with ``send`` and ``throw``, without an event loop.

The function can await only tasks of its context. The driver knows whether a task is settled (has a result or an error),
and nothing else about the task. The module ``generation`` decides what a result or an error of the function means.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from contextlib import suppress
from types import CoroutineType, FrameType, GeneratorType
from typing import Any

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.no_event_loop import advice, called_at
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.errors import OrchestrationError
from airflow_provider_taskhub.fast_dataclass import dataclass

MAX_STEPS = 1_000_000
"""Maximum number of awaits in one turn, which ends when the function waits. Code with more awaits is in an endless loop
over completed tasks."""

Body = Coroutine[Any, Any, Any] | Generator[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Returned:
    """The orchestrator function has returned.

    :param value: its return value.
    """

    value: Any


class Driver:
    """Runs one orchestrator function.

    :param name: name of the orchestrator, for errors.
    """

    __slots__ = ("_awaited", "_body", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._body: Body | None = None
        self._awaited: Task[Any] | None = None

    @property
    def awaited(self) -> Task[Any] | None:
        """The task that the function awaits; None if it has not begun or was closed."""
        return self._awaited

    def start(self, made: Any) -> Returned | None:
        """Run the orchestrator function for the first time.

        :param made: what the call of the function gave: a coroutine, a generator, or the result of a plain function.
        :returns: as :meth:`turn`.
        :raises BaseException: as :meth:`turn`.
        """
        if not isinstance(made, CoroutineType | GeneratorType):
            return Returned(made)
        self._body = made
        return self.turn()

    def turn(self) -> Returned | None:
        """Run the function until it waits for a task without a result and without an error, or until it returns.

        :returns: a :class:`Returned` with the return value; None if the function waits.
        :raises BaseException: any error that the function raised.
        :raises OrchestrationError: the function awaited an object that is not a task, or it awaited completed tasks
            more than :data:`MAX_STEPS` times.
        """
        steps = 0
        while (body := self._body) is not None and ((task := self._awaited) is None or task._done):
            steps += 1
            if steps > MAX_STEPS:
                raise self._closed_error(
                    f"awaited completed tasks {MAX_STEPS} times in one turn at {self.line()}: "
                    "this loop never waits. Await a task that is not complete"
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
                where, called = self._called(yielded)
                raise self._closed_error(
                    f"awaited {called or type(yielded).__name__} at {where}: only tasks of its context can be awaited. "
                    f"{advice(called)}"
                )
            self._awaited = yielded
            if yielded.claims:
                yielded.claim()
        return None

    def close(self) -> None:
        """Close the function: its ``finally`` blocks run now. An error that they raise is ignored."""
        body, self._body = self._body, None
        self._awaited = None
        if body is not None:
            with suppress(BaseException):  # the function is not needed any more: an error of its `finally` is ignored
                body.close()

    def line(self) -> CallSite | str:
        """Return the line of user code at which the function waits; a text if the line is unknown."""
        return called_at(_waiting(self._body))[0] or "an unknown line"

    def doing(self) -> str:
        """Return a text for errors that says whether the function had ended, or at which line it waited."""
        return "had ended" if self._body is None else f"waited at {self.line()}"

    def _called(self, yielded: object) -> tuple[CallSite | str, str]:
        """Return the line that awaits an object of another library, and the function of asyncio that made the object.

        :returns: "" for the function if it is unknown.
        """
        frames = [*_waiting(self._body)]
        if isinstance(yielded, CoroutineType) and yielded.cr_frame is not None:  # a generator function has yielded it
            frames.append(yielded.cr_frame)
            yielded.close()
        where, called = called_at(frames)
        return where or "an unknown line", called

    def _closed_error(self, text: str) -> OrchestrationError:
        self.close()
        return OrchestrationError(f"orchestrator {self._name!r} {text}", retryable=False)


def _resumed(body: Body, task: Task[Any] | None) -> Any:
    if task is None:
        return body.send(None)
    error = task.get_exception()  # this also decodes the result, which can fail
    if error is None:
        return body.send(task.get_result())
    # Several awaits can raise the same error object. Without `with_traceback` its traceback would grow at each await.
    return body.throw(error.with_traceback(None))


def _waiting(body: Any) -> Iterator[FrameType]:
    """Yield the frames that wait, the outermost first. It looks through nested coroutines and ``yield from``."""
    while body is not None:
        frame = getattr(body, "cr_frame", None) or getattr(body, "gi_frame", None)
        if frame is None or frame.f_code is Task.__await__.__code__:
            return
        yield frame
        body = getattr(body, "cr_await", None) or getattr(body, "gi_yieldfrom", None)
