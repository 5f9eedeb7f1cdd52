"""What an orchestrator awaits: tasks, and combinations of them.

Tasks are settled by the engine, in the order of the history, and by nothing else. Settling a task tells the groups
that hold it, so that a fan-out of n costs n steps and never n².
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic

from airflow_provider_taskhub.engine.signatures import T, T_co
from airflow_provider_taskhub.errors import TaskFailedError

_PRUNE = 16
"""Groups of one task from which on the settled ones are let go of, whenever their count has doubled."""

NAME = "__taskhub_name__"
"""Attribute of a declared function: the name it was declared under."""


class Task(Generic[T_co]):
    """Something that will have a result or fail. ``await`` it, or ``yield`` it from a generator.

    Awaiting a failed task raises its error: :class:`TaskFailedError` for an activity, its subclass
    :class:`SubOrchestrationFailedError` for a child orchestration.
    """

    __slots__ = ("_done", "_error", "_groups", "_result")

    def __init__(self) -> None:
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._groups: list[Group[Any]] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the task has a result or has failed."""
        return self._done

    @property
    def is_failed(self) -> bool:
        """Whether the task has failed."""
        return self._error is not None

    def get_result(self) -> T_co:
        """The result of a completed task.

        :raises TaskFailedError: if the task has failed. :raises ValueError: if the task is not complete yet.
        """
        if not self._done:
            raise ValueError("the task is not complete: await it first")
        if self._error is not None:
            raise self._error
        result: T_co = self._result
        return result

    def get_exception(self) -> BaseException | None:
        """The error that the task failed with; None if it has a result.

        :raises ValueError: if the task is not complete yet.
        """
        if not self._done:
            raise ValueError("the task is not complete: await it first")
        return self._error

    def __await__(self) -> Generator[Any, Any, T_co]:
        # Yields even when complete: the engine counts turns, so that a loop over completed tasks is bounded.
        result: T_co = yield self
        return result

    def complete(self, result: Any) -> None:
        """For the engine: complete the task. A settled task stays as it is. :param result: of the task."""
        if not self._done:
            self._done = True
            self._result = result
            self._notify_groups()

    def fail(self, error: BaseException) -> None:
        """For the engine: fail the task. A settled task stays as it is. :param error: why."""
        if not self._done:
            self._done = True
            self._error = error
            self._notify_groups()

    def join(self, group: Group[Any]) -> None:
        """For the engine: tell a group when this task is settled; at once if it is.

        :param group: the task that depends on this one.
        """
        if self._done:
            group.settled(self)
        elif self._groups is None:
            self._groups = [group]
        else:
            if len(self._groups) >= _PRUNE and (len(self._groups) & (len(self._groups) - 1)) == 0:
                # A wait that a loop races again and again would else keep every race it was ever in.
                self._groups = [other for other in self._groups if not other._done]
            self._groups.append(group)

    def _notify_groups(self) -> None:
        groups, self._groups = self._groups, None
        for group in groups or ():
            group.settled(self)


class Group(Task[T_co]):
    """A task that depends on others."""

    __slots__ = ()

    def settled(self, child: Task[Any]) -> None:
        """One of its tasks was settled."""
        raise NotImplementedError


class WhenAll(Group[list[Any]]):
    """The results of all tasks, in their order; fails with the first failure."""

    __slots__ = ("_children", "_open")

    def __init__(self, children: Sequence[Task[Any]]) -> None:
        super().__init__()
        self._children = children
        self._open = len(children)
        if not children:
            self.complete([])
        for child in children:
            child.join(self)

    def settled(self, child: Task[Any]) -> None:
        self._open -= 1
        if child._error is not None:
            self.fail(child._error)
        elif self._open == 0 and not self._done:
            self.complete([done._result for done in self._children])


class WhenAny(Group[Task[Any]]):
    """The task that was settled first; that it failed is seen when its result is asked for."""

    __slots__ = ()

    def __init__(self, children: Sequence[Task[Any]]) -> None:
        super().__init__()
        for child in children:
            child.join(self)

    def settled(self, child: Task[Any]) -> None:
        self.complete(child)


class CancellableTask(Task[T_co]):
    """A timer or a wait that the orchestrator may give up."""

    __slots__ = ()

    def cancel(self) -> None:
        """Give it up: it fails with :class:`TaskFailedError`, and what arrives for it later is not for it."""
        self.fail(TaskFailedError("the task was cancelled by the orchestrator"))


def when_all(tasks: Iterable[Task[T]]) -> Task[list[T]]:
    """A task for the results of all tasks, in their order. It fails as soon as one of them fails.

    :param tasks: made by the context. None at all: the task is complete at once.
    :raises TypeError: for anything that is not a task.
    """
    return WhenAll(_checked(tasks, "when_all"))


def when_any(tasks: Iterable[Task[T]]) -> Task[Task[T]]:
    """A task for the first task that completes or fails: awaiting it gives that task, and raises no error of it.

    :param tasks: made by the context; at least one.
    :raises TypeError: for anything that is not a task. :raises ValueError: for none, which could never complete.
    """
    children = _checked(tasks, "when_any")
    if not children:
        raise ValueError("when_any of no tasks would never complete: give it at least one")
    return WhenAny(children)


def _checked(tasks: Iterable[Task[Any]], what: str) -> list[Task[Any]]:
    children = list(tasks)
    for child in children:
        if not isinstance(child, Task):
            raise TypeError(
                f"{what} takes tasks made by the context, not {type(child).__name__} {child!r:.100}; "
                "await a coroutine of your own separately"
            )
    return children
