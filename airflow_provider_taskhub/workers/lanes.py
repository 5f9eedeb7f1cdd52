"""What activities are to executors: request, progress, outcome; and which waiting one goes next, and where. Pure.

Plain and Spark activities run in executors of their own (*lanes*): a Spark executor costs a JVM, and a plain activity
that leaks or crashes must not take a warm Spark context with it.

When an executor dies with several attempts on board, nobody knows whose doing it was. They run together once more; who
loses a second executor in company is a *suspect* and runs alone from then on. Only crashes without company count.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from airflow_provider_taskhub.engine.events import FailureDetails, OrchestrationInstance, TraceContext
from airflow_provider_taskhub.hub.contract import ActivityRecord
from airflow_provider_taskhub.values import dataclass

T = TypeVar("T")

MAX_CRASHES = 3
"""Executors that an activity may bring down, with nobody else on board, in one delivery before it fails."""
MAX_SHARED = 2
"""Executors that an activity may lose in company in one delivery before it runs alone. Not at once: for most crashes
(memory) it is enough to run again, and one at a time may take long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRequest:
    """One attempt of an activity.

    :param input: JSON array of one argument, or None. :param action_id: identity of the call, the idempotency key.
    :param attempt: from 1. :param timeout: of this attempt, from when an executor takes it; waiting for one is not
        counted.
    :param spark: whether it needs a Spark executor. :param alone: on one that runs nothing else meanwhile.
    :param log: name of the log that its output goes to.
    :param trace: W3C context for the spans of its code; None: not traced.
    """

    name: str
    version: str | None = ""
    input: str | None = None
    instance: OrchestrationInstance
    task_id: int
    action_id: str
    attempt: int = 1
    tags: Mapping[str, str] | None = None
    timeout: timedelta | None = None
    spark: bool = False
    alone: bool = False
    trace: TraceContext | None = None
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityProgress:
    """How far an attempt is: the whole picture each time.

    :param executor: who runs it. :param fraction: between 0 and 1. :param application_id, job_group, spark_ui: Spark's.
    """

    executor: str
    fraction: float | None = None
    message: str | None = None
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None

    def onto(self, record: ActivityRecord) -> ActivityRecord:
        """The record with what is newly known; what is not known leaves it as it was."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        if "fraction" in known:
            known["progress"] = known.pop("fraction")
        return replace(record, **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityOutcome:
    """How an attempt ended. When there is one, nothing of the attempt runs any more.

    :param result: JSON text, unless it failed. :param failure: why it failed.
    :param crashed: the executor failed, not the activity: the attempt was lost and does not count against a retry
        policy. :param shared: others were on board, so nobody knows whose doing it was.
    :param log_tail: last 50 lines of its output. :param executor: who ran it, empty if nobody could.
    """

    result: str | None = None
    failure: FailureDetails | None = None
    crashed: bool = False
    shared: bool = False
    log_tail: tuple[str, ...] = ()
    executor: str = ""
    application_id: str | None = None
    job_group: str | None = None
    spark_ui: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashes:
    """How often an activity lost its executor in one delivery. :param own: with nobody else on board."""

    own: int = 0
    shared: int = 0

    def after(self, outcome: ActivityOutcome) -> Crashes:
        if not outcome.crashed:
            return self
        return replace(self, shared=self.shared + 1) if outcome.shared else replace(self, own=self.own + 1)

    @property
    def suspect(self) -> bool:
        """Whether its next try is alone: then it is certain whose doing the next crash is."""
        return self.shared >= MAX_SHARED

    @property
    def too_many(self) -> bool:
        return self.own >= MAX_CRASHES


class Lane(StrEnum):
    """Kinds of executors."""

    PLAIN = "plain"
    SPARK = "spark"


class FairQueue(Generic[T]):
    """Waiting items by (lane, key), served in turns: one instance's fan-out of a thousand cannot make another's one
    wait.

    A key keeps its place in the round as long as it has items; a lane that cannot serve now is passed over.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[Lane, str], deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, lane: Lane, key: str, item: T) -> None:
        self._waiting.setdefault((lane, key), deque()).append(item)

    def take(self, can_serve: Callable[[Lane], bool]) -> T | None:
        """The next item of a lane that can serve, or None."""
        for place in self._waiting:
            if can_serve(place[0]):
                items = self._waiting[place]
                item = items.popleft()
                self._settle(place)
                return item
        return None

    def discard(self, lane: Lane, key: str, item: T) -> None:
        """Forget an item that no longer waits; one that is not here was taken before."""
        items = self._waiting.get((lane, key))
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._waiting[lane, key]

    def drain(self, lane: Lane) -> tuple[T, ...]:
        """Take out everything of a lane."""
        places = [place for place in self._waiting if place[0] is lane]
        return tuple(item for place in places for item in self._waiting.pop(place))

    def has(self, lane: Lane) -> bool:
        return any(place[0] is lane for place in self._waiting)

    def _settle(self, place: tuple[Lane, str]) -> None:
        """After a turn: to the end of the round, or out of it."""
        if self._waiting[place]:
            self._waiting.move_to_end(place)
        else:
            del self._waiting[place]


class Place(Protocol):
    """Where one executor is, or is to be.

    :param load: attempts on board. :param open: whether it takes more now. :param alone: whether it carries a suspect.
    """

    @property
    def load(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def alone(self) -> bool: ...


P = TypeVar("P", bound=Place)


def choose(places: Sequence[P], *, alone: bool, suspects: bool) -> P | None:
    """Where the next attempt goes; None: it waits.

    A suspect gets an empty place, and nobody beside it. While one waits, the emptiest place takes nobody else, or it
    would never be empty. Suspects have half of the places at most, so that the other work goes on; where there is but
    one place, the other work waits.

    :param places: of one lane. :param alone: whether it is a suspect. :param suspects: whether any waits.
    """
    others = [place for place in places if not place.alone]
    kept: P | None = None
    if suspects and len(places) - len(others) < max(1, len(places) // 2):
        kept = min(others, key=lambda place: place.load, default=None)
    if alone:
        return kept if kept is not None and kept.open and not kept.load else None
    able = [place for place in others if place.open and place is not kept]
    return min(able, key=lambda place: place.load, default=None)
