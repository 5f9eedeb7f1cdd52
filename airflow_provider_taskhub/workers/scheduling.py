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
