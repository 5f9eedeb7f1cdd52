"""Finds tasks that an orchestrator has started and never used, and failures that it has never looked at.

A forgotten ``await`` is no error in Python: the code goes on at once, and nobody learns how the task ended. So the end
of a generation names such tasks in a warning. A task that was given to ``when_any`` and lost there is not forgotten.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.engine.failures import message_of
from airflow_provider_taskhub.engine.tasks import Task
from airflow_provider_taskhub.fast_dataclass import dataclass

MOST = 5
"""Maximum number of tasks that a warning names."""
_SHOWN_ERROR = 200
_KINDS = {
    EventType.TaskScheduled: "activity",
    EventType.SubOrchestrationInstanceCreated: "child",
    EventType.TimerCreated: "timer",
    EventType.EventRaised: "wait for event",
}


@dataclass(frozen=True, slots=True)
class _Watched:
    task: Task[Any]
    kind: EventType
    name: str
    where: CallSite

    @property
    def is_of_interest(self) -> bool:
        return self.task.is_forgotten or not self.task._done or self.task.unseen_error is not None

    def __str__(self) -> str:
        return f"{_KINDS[self.kind]}{f' {self.name!r}' if self.name else ''} at {self.where}"


class Forgotten:
    """The tasks of one generation that the code has perhaps forgotten."""

    __slots__ = ("_limit", "_watched")

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._limit = 100

    def watch(self, task: Task[Any], kind: EventType, name: str, where: CallSite) -> None:
        """Add a task that the code has started. A later attempt of a retried task has no effect.

        :param kind: type of the event that schedules the task, such as TaskScheduled; EventRaised for a wait.
        :param name: name of the activity, of the child's orchestrator or of the event; "" for a timer.
        :param where: line of user code that has started the task.
        """
        self._watched.setdefault(id(task), _Watched(task, kind, name, where))
        if len(self._watched) > self._limit:
            self._watched = {key: one for key, one in self._watched.items() if one.is_of_interest}
            self._limit = max(100, 2 * len(self._watched))

    def texts(self) -> list[str]:
        """Return what to tell at the end of the generation, each text as the rest of a sentence about the code."""
        every = tuple(self._watched.values())
        running = [one for one in every if one.task.is_forgotten and not one.task._done and one.kind is _ACTIVITY]
        idle = [one for one in every if one.task.is_forgotten and one.kind in _IDLE]
        failed = [(one, error) for one in every if (error := one.task.unseen_error) is not None]
        texts = []
        if running:
            texts.append(
                f"has ended and never awaited {_listed(running)}. Nothing gets its result. It does not begin "
                "when the instance has ended, and is cancelled if it runs: await each activity that must be done"
            )
        if idle:
            texts.append(f"never awaited {_listed(idle)}. It had no effect: write `await` before it")
        if failed:
            first, error = failed[0]
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            texts.append(f"never looked at the failure of {first}: {message_of(error)[:_SHOWN_ERROR]}{more}")
        return texts


_ACTIVITY = EventType.TaskScheduled
_IDLE = (EventType.TimerCreated, EventType.EventRaised)


def _listed(found: list[_Watched]) -> str:
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return "; ".join(map(str, found[:MOST])) + more
