"""Decides which waiting attempt runs next, in which executor, and what a Spark executor is started for. Pure functions
and values.

There are two kinds of executors: plain and Spark. A Spark executor needs a JVM, which plain activities do not need. And
a plain activity that leaks memory or crashes must not end a warm Spark context. Spark executors differ by the settings
of their application, since nobody can change them in an application that runs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from airflow_provider_taskhub.fast_dataclass import dataclass

T = TypeVar("T")
TURN = 60.0
"""A Spark application takes attempts for at least so many seconds. Then it must end if another one needs its place."""
IDLE = 5.0
"""Seconds without an attempt after which an application is idle. An attempt that has waited for the start of its
executor first asks the hub again whether it may begin, and runs then."""


class ExecutorKind(StrEnum):
    """The kinds of executors."""

    PLAIN = "plain"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Need:
    """What an attempt needs of an executor.

    :param application: for Spark, settings of the application beside those of the worker, sorted by their names.
    """

    kind: ExecutorKind
    application: tuple[tuple[str, str], ...] = ()


PLAIN = Need(ExecutorKind.PLAIN)
SPARK = Need(ExecutorKind.SPARK)
"""The Spark application that has only the settings of the worker."""


class FairQueue(Generic[T]):
    """A queue of waiting items, each with a need and a key (the instance id). The keys take turns.

    So one instance with a thousand activities does not delay the activities of other instances. Each turn takes one
    item of a key; then the key goes to the end of the order. Items whose need no free executor meets are skipped.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[Need, str], deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, need: Need, key: str, item: T) -> None:
        """Add an item behind all waiting items of the same need and key."""
        self._waiting.setdefault((need, key), deque()).append(item)

    def take(self, can_serve: Callable[[Need], bool]) -> T | None:
        """Remove and return the next item for whose need there is an executor now; None if there is no such item.

        :param can_serve: returns whether an executor for this need can take an attempt now.
        """
        for place in self._waiting:
            if can_serve(place[0]):
                items = self._waiting[place]
                item = items.popleft()
                self._settle(place)
                return item
        return None

    def discard(self, need: Need, key: str, item: T) -> None:
        """Remove an item that no longer waits. Do nothing if :meth:`take` has already removed the item."""
        items = self._waiting.get((need, key))
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._waiting[need, key]

    def drain(self, need: Need) -> tuple[T, ...]:
        """Remove and return all items of a need."""
        places = [place for place in self._waiting if place[0] == need]
        return tuple(item for place in places for item in self._waiting.pop(place))

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the waiting items need, in the order of their turns."""
        return tuple(dict.fromkeys(need for need, _ in self._waiting))

    def _settle(self, place: tuple[Need, str]) -> None:
        """Note that a key has had its turn: move it to the end of the order, or remove it if it has no items left."""
        if self._waiting[place]:
            self._waiting.move_to_end(place)
        else:
            del self._waiting[place]


class Place(Protocol):
    """The place of one executor in a pool. The executor may still be starting.

    :param load: number of attempts that the executor runs.
    :param open: whether the executor can take a further attempt now.
    :param alone: whether the executor runs a suspect: an attempt that may cause crashes and therefore runs alone.
    """

    @property
    def load(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def alone(self) -> bool: ...


P = TypeVar("P", bound=Place)


def choose(places: Sequence[P], *, alone: bool, suspects: bool) -> P | None:
    """Return the place that runs the next attempt; None if the attempt must wait.

    A suspect is an attempt that may be the cause of a crash. A suspect gets an empty place, and no other attempt runs
    there meanwhile. While a suspect waits, the place with the lowest load takes no other attempts, because otherwise
    that place might never become empty. Suspects get at most half of the places, so that other work goes on. If there
    is only one place, other work waits.

    :param places: all places whose executors meet the attempt's need.
    :param alone: whether the attempt is a suspect.
    :param suspects: whether at least one suspect waits for such a place.
    """
    others = [place for place in places if not place.alone]
    kept: P | None = None
    if suspects and len(places) - len(others) < max(1, len(places) // 2):
        kept = min(others, key=lambda place: place.load, default=None)
    if alone:
        return kept if kept is not None and kept.open and not kept.load else None
    able = [place for place in others if place.open and place is not kept]
    return min(able, key=lambda place: place.load, default=None)


class SparkPlace(Protocol):
    """The place of one Spark executor in a pool.

    :param need: what its executor is started for; None: nothing yet.
    :param load: number of attempts that the executor runs.
    :param ready: whether an executor is there.
    :param starting: whether an executor is being started, also one that is to replace the one that is there.
    :param since: monotonic time, in seconds, at which the turn of its need began.
    :param used: monotonic time, in seconds, at which the last attempt here ended. If the executor has run no attempt
        yet: the time at which it became ready.
    """

    @property
    def need(self) -> Need | None: ...
    @property
    def load(self) -> int: ...
    @property
    def ready(self) -> bool: ...
    @property
    def starting(self) -> bool: ...
    @property
    def since(self) -> float: ...
    @property
    def used(self) -> float: ...


S = TypeVar("S", bound=SparkPlace)


def place_for_another(places: Sequence[S], waiting: Sequence[Need], now: float) -> S | None:
    """Return the place in which the pool should start another Spark application. None: all places are needed now.

    If places have nothing to do, it is one without an executor, or else the one that was not used for longest, as soon
    as it is idle; the place of the worker's own application comes last. If all have something to do, it is the one with
    the fewest attempts of those whose turn has lasted for :data:`TURN`.

    :param places: the places of Spark executors that are not about to change.
    :param waiting: what the waiting attempts need.
    :param now: monotonic time, in seconds.
    """

    settled = [place for place in places if place.ready or not place.starting]
    served = [place for place in settled if now - place.since >= TURN]
    if unused := [place for place in settled if not place.load and place.need not in waiting]:
        best = min(unused, key=lambda place: (place.ready, place.need == SPARK, place.used))
        return best if not best.ready or now - best.used >= IDLE or best in served else None
    return min(served, key=lambda place: place.load, default=None)
