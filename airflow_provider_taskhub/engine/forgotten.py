"""Finds tasks that an orchestrator has started and never used, and failures that it has never looked at.

A forgotten ``await`` is no error in Python: the code goes on at once, and nobody learns how the task ended. So the end
of a generation names such tasks in a warning. A task that was given to ``when_any`` and lost there is not forgotten.
A branch whose code has not ended is always named, because the rest of its steps is not done.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.driver import Branch
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.fast_dataclass import dataclass

MOST = 5
"""Maximum number of tasks that a warning names."""
_SHOWN_ERROR = 200


class Kind(StrEnum):
    """What the code has started; the value is the word for it in a warning."""

    ACTIVITY = "activity"
    CHILD = "child"
    TIMER = "timer"
    EVENT = "wait for event"
    BRANCH = "branch"
    LIMIT = "ctx.timeout"
    SCOPE = "ctx.cancel_scope"


@dataclass(frozen=True, slots=True)
class _Watched:
    task: Task[Any]
    kind: Kind
    name: str
    where: CallSite

    @property
    def is_of_interest(self) -> bool:
        return (
            self.task.is_forgotten or self.task.is_tested or not self.task._done or self.task.unseen_error is not None
        )

    def __str__(self) -> str:
        return f"{self.kind}{f' {self.name!r}' if self.name else ''} at {self.where}"


class Forgotten:
    """The tasks of one generation that the code has perhaps forgotten."""

    __slots__ = ("_limit", "_watched")

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._limit = 100

    def watch(self, task: Task[Any], kind: Kind, name: str, where: CallSite) -> None:
        """Add a task that the code has started. A later attempt of a retried task has no effect.

        :param kind: what the task is.
        :param name: name of the activity, of the child's orchestrator, of the event or of the branch's function; "" for
            a timer or block.
        :param where: line of user code that has started the task.
        """
        self._watched.setdefault(id(task), _Watched(task, kind, name, where))
        if len(self._watched) > self._limit:
            self._watched = {key: one for key, one in self._watched.items() if one.is_of_interest}
            self._limit = max(100, 2 * len(self._watched))

    def unfinished(self) -> list[Task[Any]]:
        """Return the tasks that have neither a result nor an error, in the order in which they were started."""
        return [one.task for one in self._watched.values() if not one.task._done]

    def texts(self) -> list[str]:
        """Return what to tell at the end of the generation, each text as the rest of a sentence about the code."""
        every = tuple(self._watched.values())
        running = [one for one in every if one.task.is_forgotten and not one.task._done and one.kind is Kind.ACTIVITY]
        cut_off = [
            f"{one}, which waited at {one.task.line()}"
            for one in every
            if isinstance(one.task, Branch) and not one.task._done
        ]
        idle = [one for one in every if one.task.is_forgotten and one.kind in _IDLE]
        not_entered = [one for one in every if one.task.is_forgotten and one.kind in _BLOCKS]
        failed = [(one, error) for one in every if (error := one.task.unseen_error) is not None]
        tested = [one for one in every if one.task.is_tested and one.task._done and one.kind in _CALLS]
        texts = []
        if tested:
            texts.append(
                f"has tested {_listed(tested)} as if it were its result. A task itself is always true: write `await` "
                "before it, or compare it with None"
            )
        if running:
            texts.append(
                f"has ended and never awaited {_listed(running)}. Nothing gets its result. It does not begin "
                "when the instance has ended, and is cancelled if it runs: await each activity that must be done"
            )
        if cut_off:
            texts.append(
                f"has ended before {_listed(cut_off)}. The rest of its code does not run: await each branch, or "
                "cancel it, before the orchestrator ends"
            )
        if not_entered:
            texts.append(f"never entered {_listed(not_entered)}. It has no effect: write `async with` before it")
        if idle:
            texts.append(f"never awaited {_listed(idle)}. It had no effect: write `await` before it")
        if failed:
            first, error = failed[0]
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            texts.append(f"never looked at the failure of {first}: {message_of(error)[:_SHOWN_ERROR]}{more}")
        return texts


_CALLS = (Kind.ACTIVITY, Kind.CHILD)
_IDLE = (Kind.TIMER, Kind.EVENT)
_BLOCKS = (Kind.LIMIT, Kind.SCOPE)


def _listed(found: Sequence[object]) -> str:
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(map(str, found[:MOST])) + more
