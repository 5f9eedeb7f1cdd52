"""Which waiting attempt goes next, and to which executor. Pure.

Plain and Spark activities run in executors of their own (*lanes*): a Spark executor costs a JVM, and a plain activity
that leaks or crashes must not take a warm Spark context with it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Lane(StrEnum):
    """Kinds of executors."""

    PLAIN = "plain"
    SPARK = "spark"


class FairQueue(Generic[T]):
    """Waiting items by lane and key. Keys take turns: the thousand activities of one instance do not delay another's.

    A key keeps its place in the round as long as it has items. A lane that cannot serve now is skipped.
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
    """The place of one executor, which may still be starting.

    :param load: attempts that it runs. :param open: whether it takes more now. :param alone: whether it runs a suspect.
    """

    @property
    def load(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def alone(self) -> bool: ...


P = TypeVar("P", bound=Place)


def choose(places: Sequence[P], *, alone: bool, suspects: bool) -> P | None:
    """The place for the next attempt; None: it waits.

    A suspect is an attempt that may be the cause of a crash. It gets an empty place, and nothing else runs beside it.
    While a suspect waits, the emptiest place takes no other attempts, or it would never be empty. Suspects get at most
    half of the places, so that the other work goes on. If there is only one place, the other work waits.

    :param places: of one lane. :param alone: whether the attempt is a suspect. :param suspects: whether one waits.
    """
    others = [place for place in places if not place.alone]
    kept: P | None = None
    if suspects and len(places) - len(others) < max(1, len(places) // 2):
        kept = min(others, key=lambda place: place.load, default=None)
    if alone:
        return kept if kept is not None and kept.open and not kept.load else None
    able = [place for place in others if place.open and place is not kept]
    return min(able, key=lambda place: place.load, default=None)
