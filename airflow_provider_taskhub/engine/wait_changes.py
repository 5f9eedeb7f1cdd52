"""The waits for events that an episode began and ended, and the timers that it cancelled.

The page draws the timeline of an instance from these values; replay never reads them. DurableTask's events say when a
timer was made and when an event came. They do not say when the orchestrator began to wait for an event, nor that the
orchestrator cancelled a timer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Protocol

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.no_event_loop import noted, user_line
from airflow_provider_taskhub.engine.pending_waits import LONGEST_NAME, MAX_NAMES, AwaitedEvent
from airflow_provider_taskhub.errors import OrchestrationError
from airflow_provider_taskhub.fast_dataclass import dataclass

MOST_TIMERS = 1_000
"""Maximum number of cancelled timers stored for an episode. For waits it is :data:`.pending_waits.MAX_NAMES`."""

MAX_POLLS = 5_000_000
"""Maximum number of questions about the state between two awaits. Code with more is in a loop that waits without an
await."""

NO_PLACE = 1 << 60
"""The hash of tasks without an owner. All hashes of tasks are so large that none is the hash of a small number, with
which a task would then be compared."""


class BegunWait(Protocol):
    """A wait for an external event that an episode began."""

    @property
    def name(self) -> str: ...

    @property
    def since(self) -> Timestamp: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The waits that changed in an episode.

    :param begun: names of the events for which a wait began in this episode and has not ended.
    :param ended: waits of earlier episodes that ended in this episode: the event came, or the wait was cancelled.
    :param timers: action numbers of the timers that the episode cancelled.
    """

    begun: tuple[str, ...] = ()
    ended: tuple[AwaitedEvent, ...] = ()
    timers: tuple[int, ...] = ()

    def text(self) -> str | None:
        """Return the waits and timers as JSON text, for a column of the episode's last event; None: there are none."""
        found = {
            "begun": [name[:LONGEST_NAME] for name in self.begun],
            "ended": [[wait.name[:LONGEST_NAME], wait.since.ticks] for wait in self.ended],
            "timers": [*self.timers],
        }
        kept = {name: value for name, value in found.items() if value}
        return json.dumps(kept, separators=(",", ":")) if kept else None

    @classmethod
    def parse(cls, text: str | None) -> Waits:
        """Read the text that :meth:`text` made.

        :param text: the text of the column. If it is None or damaged, the result has no waits and no timers.
        """
        try:
            found = json.loads(text or "{}")
            return cls(
                begun=tuple(map(str, found.get("begun", ()))),
                ended=tuple(
                    AwaitedEvent(name=str(name), since=Timestamp(int(since))) for name, since in found.get("ended", ())
                ),
                timers=tuple(map(int, found.get("timers", ()))),
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls()


class WaitRecorder:
    """Collects the waits that begin or end in the current episode, and the timers that it cancels.

    A wait that begins and ends in the same episode is not collected. What all tasks of a generation share is here too:
    the hashes of its tasks, and the number of questions since the last await.
    """

    def __init__(self) -> None:
        self._begun: dict[int, BegunWait] = {}
        self._ended: list[BegunWait] = []
        self._timers: list[int] = []
        self._places = NO_PLACE
        self._polls = 0

    def next_place(self) -> int:
        """Return the hash of the next task that code of this generation puts into a set or makes a key."""
        self._places += 1
        return self._places

    def polled(self, about: str, way: Callable[[], str]) -> None:
        """Note that the code has asked for something that changes only at an await.

        :param about: what the code has asked.
        :param way: gives the way out, for the error.
        :raises OrchestrationError: the code has asked more than :data:`MAX_POLLS` times since its last await.
        """
        self._polls += 1
        if self._polls > MAX_POLLS:
            where = user_line() or "an unknown line"
            text = (
                f"the code has asked {MAX_POLLS} times without an await for {about}, last at {where}. It changes only "
            )
            text += f"at an await, so a loop that waits for it never ends: {way()}"
            raise noted(OrchestrationError(text, retryable=False))

    def awaited(self) -> None:
        """Note that the code awaits something, or goes on after an await."""
        self._polls = 0

    def begin(self, wait: BegunWait) -> None:
        self._begun[id(wait)] = wait

    def end(self, wait: BegunWait) -> None:
        if self._begun.pop(id(wait), None) is None:
            self._ended.append(wait)

    def cancel(self, timer: int) -> None:
        self._timers.append(timer)

    def clear(self) -> None:
        """Forget all waits and timers, because the next episode begins."""
        self._begun.clear()
        self._ended.clear()
        self._timers.clear()

    def text(self) -> str | None:
        """Return the waits and timers as text, as :meth:`Waits.text` does; None if there are none."""
        if not (self._begun or self._ended or self._timers):
            return None
        return Waits(
            begun=tuple(wait.name for wait in _first(self._begun.values())),
            ended=tuple(AwaitedEvent(name=wait.name, since=wait.since) for wait in _first(self._ended)),
            timers=tuple(self._timers[:MOST_TIMERS]),
        ).text()


def _first(waits: Iterable[BegunWait]) -> list[BegunWait]:
    return [*waits][:MAX_NAMES]
