"""The block of ``ctx.cancel_scope``: at its end, what the block has started and has not finished is cancelled.

The tasks of a block are those that its code starts, and that the branches which its code starts start. A context
variable tells them from the tasks of other branches, because a branch begins with the context variables of the code
that starts it.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, NoReturn, Self

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.no_event_loop import CancelledError
from airflow_provider_taskhub.engine.tasks import CancellableTask, Task
from airflow_provider_taskhub.errors import OrchestrationError, TaskCancelledError

_CURRENT: ContextVar[CancelScope | None] = ContextVar("TaskHub: block of ctx.cancel_scope", default=None)


def started(task: object) -> None:
    """Note that code has started a task. It belongs to the innermost block in which the code is, if there is one."""
    scope = _CURRENT.get()
    if scope is not None and isinstance(task, CancellableTask):
        scope.tasks[id(task)] = task


def left_out(task: object) -> None:
    """Note that a task is no part of a block: it belongs to another block inside, such as a limit."""
    scope = _CURRENT.get()
    if scope is not None:
        scope.tasks.pop(id(task), None)


class CancelScope:
    """A block that cancels, at its end, what it has started and has not finished. Use it with ``async with``.

    :param where: line of user code that makes it.
    :ivar tasks: what the block has started.
    :ivar entry: complete when the code has entered the block.
    """

    def __init__(self, where: CallSite) -> None:
        self.tasks: dict[int, CancellableTask[Any]] = {}
        self.entry = Task[None]()
        self._where = where
        self._token: Token[CancelScope | None] | None = None

    def __enter__(self) -> NoReturn:
        raise OrchestrationError(
            f"write `async with` before ctx.cancel_scope at {self._where}. A generator function has no such block: "
            "cancel each task with task.cancel(), then yield it",
            retryable=False,
        )

    def __exit__(self, *error: object) -> None:
        """Never called. A ``with`` needs it to call :meth:`__enter__`."""

    async def __aenter__(self) -> Self:
        if self._token is not None:
            raise OrchestrationError(
                f"the block of ctx.cancel_scope at {self._where} was entered before: call ctx.cancel_scope again for "
                "each block",
                retryable=False,
            )
        self.entry.use()
        self.entry.complete(None)
        self._token = _CURRENT.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            with suppress(ValueError):  # an async generator that the code has left ends in a copy of its context
                _CURRENT.reset(self._token)
        if isinstance(error, GeneratorExit):  # the code is only closed: it goes on here or elsewhere after a replay
            return
        left = [task for task in self.tasks.values() if not task._done]
        for task in left:
            task.cancel()
        interrupted: CancelledError | None = None
        failed: Exception | None = None
        for task in left:
            while not task._done:
                try:
                    await task
                except CancelledError as again:  # a limit or a cancel of the branch: the tasks must have ended first
                    interrupted = again
                except Exception as raised:  # what was cancelled, or has failed meanwhile: nobody wants it
                    failed = raised if task.runs and not isinstance(raised, TaskCancelledError) else failed
        if interrupted is not None:
            raise interrupted
        if failed is not None and error is None:  # what the clean-up of a branch has raised
            raise failed
