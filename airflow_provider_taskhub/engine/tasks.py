"""What an orchestrator awaits: tasks, and combinations of them.

Tasks are settled by the engine, in the order of the history, and by nothing else. Settling a task tells the groups
that hold it, so that a fan-out of n costs n steps and never n².
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

from airflow_provider_taskhub.errors import TaskFailedError

T = TypeVar("T")

_PRUNE = 16
"""Groups of one task from which on the settled ones are let go of, whenever their count has doubled."""

NAME = "__taskhub_name__"
"""Attribute of a declared function: the name it was declared under."""


class Task(Generic[T]):
    """Something that will have a result or fail. ``await`` it, or ``yield`` it from a generator."""

    __slots__ = ("_done", "_error", "_groups", "_result")

    def __init__(self) -> None:
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._groups: list[Group[Any]] | None = None

    @property
    def is_complete(self) -> bool:
        """It has a result, or has failed."""
        return self._done

    @property
    def is_failed(self) -> bool:
        return self._error is not None

    def get_result(self) -> T:
        """The result.

        :raises TaskFailedError: what the task failed with. :raises ValueError: when it is not complete yet.
        """
        if not self._done:
            raise ValueError("the task is not complete: await it first")
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def get_exception(self) -> BaseException | None:
        """What it failed with; None if it has a result.

        :raises ValueError: when it is not complete yet.
        """
        if not self._done:
            raise ValueError("the task is not complete: await it first")
        return self._error

    def __await__(self) -> Generator[Task[T], T, T]:
        # Yields even when complete: the engine counts turns, so that a loop over completed tasks is bounded.
        return (yield self)

    def complete(self, result: Any) -> None:
        """For the engine: the result is there. A settled task stays as it is."""
        if not self._done:
            self._done = True
            self._result = result
            self._tell()

    def fail(self, error: BaseException) -> None:
        """For the engine: it failed. A settled task stays as it is."""
        if not self._done:
            self._done = True
            self._error = error
            self._tell()

    def join(self, group: Group[Any]) -> None:
        """For the engine: tell the group when this task is settled; at once if it is."""
        if self._done:
            group.settled(self)
        elif self._groups is None:
            self._groups = [group]
        else:
            if len(self._groups) >= _PRUNE and (len(self._groups) & (len(self._groups) - 1)) == 0:
                # A wait that a loop races again and again would else keep every race it was ever in.
                self._groups = [other for other in self._groups if not other._done]
            self._groups.append(group)

    def _tell(self) -> None:
        groups, self._groups = self._groups, None
        for group in groups or ():
            group.settled(self)


class Group(Task[T]):
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


class CancellableTask(Task[T]):
    """A timer or a wait that the orchestrator may give up."""

    __slots__ = ()

    def cancel(self) -> None:
        """Give it up: it fails with :class:`TaskFailedError`, and what arrives for it later is not for it."""
        self.fail(TaskFailedError("the task was cancelled by the orchestrator"))


def when_all(tasks: Iterable[Task[Any]]) -> Task[list[Any]]:
    """All results in order. Fails as soon as one of the tasks fails.

    :raises TypeError: for anything that is not a task.
    """
    return WhenAll(_checked(tasks, "when_all"))


def when_any(tasks: Iterable[Task[Any]]) -> Task[Task[Any]]:
    """The first task that completes or fails.

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
                "a coroutine of your own is awaited on its own"
            )
    return children
