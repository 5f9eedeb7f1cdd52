"""Decides which waiting attempt runs next, and in which executor. Pure functions and values.

There are two kinds of executors: plain and Spark. A Spark executor needs a JVM, which plain activities do not need. And
a plain activity that leaks memory or crashes must not end a warm Spark context.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class ExecutorKind(StrEnum):
    """The kinds of executors."""

    PLAIN = "plain"
    SPARK = "spark"


class FairQueue(Generic[T]):
    """A queue of waiting items, each with a kind and a key (the instance id). The keys take turns.

    So one instance with a thousand activities does not delay the activities of other instances. Each turn takes one
    item of a key; then the key goes to the end of the order. Items of a kind without a free executor are skipped.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[tuple[ExecutorKind, str], deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(items) for items in self._waiting.values())

    def put(self, kind: ExecutorKind, key: str, item: T) -> None:
        """Add an item behind all waiting items of the same kind and key."""
        self._waiting.setdefault((kind, key), deque()).append(item)

    def take(self, can_serve: Callable[[ExecutorKind], bool]) -> T | None:
        """Remove and return the next item whose kind can run an attempt now; None if there is no such item.

        :param can_serve: returns whether an executor of this kind can take an attempt now.
        """
        for place in self._waiting:
            if can_serve(place[0]):
                items = self._waiting[place]
                item = items.popleft()
                self._settle(place)
                return item
        return None

    def discard(self, kind: ExecutorKind, key: str, item: T) -> None:
        """Remove an item that no longer waits. Do nothing if :meth:`take` has already removed the item."""
        items = self._waiting.get((kind, key))
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._waiting[kind, key]

    def drain(self, kind: ExecutorKind) -> tuple[T, ...]:
        """Remove and return all items of a kind."""
        places = [place for place in self._waiting if place[0] is kind]
        return tuple(item for place in places for item in self._waiting.pop(place))

    def has(self, kind: ExecutorKind) -> bool:
        """Return whether an item of this kind waits."""
        return any(place[0] is kind for place in self._waiting)

    def _settle(self, place: tuple[ExecutorKind, str]) -> None:
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

    :param places: all places of one kind.
    :param alone: whether the attempt is a suspect.
    :param suspects: whether at least one suspect waits for this kind.
    """
    others = [place for place in places if not place.alone]
    kept: P | None = None
    if suspects and len(places) - len(others) < max(1, len(places) // 2):
        kept = min(others, key=lambda place: place.load, default=None)
    if alone:
        return kept if kept is not None and kept.open and not kept.load else None
    able = [place for place in others if place.open and place is not kept]
    return min(able, key=lambda place: place.load, default=None)
