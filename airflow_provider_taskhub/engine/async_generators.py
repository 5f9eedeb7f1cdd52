"""The async generators of an orchestrator: those that the code leaves before their end are closed in the replay.

When ``async for`` is left by ``break`` or by an error, Python asks a hook to close the generator, because the generator
can await in its ``finally`` blocks. The hook of the worker's event loop must not do that: it would run the code there,
where no history is kept. Without a hook, Python drops the clean-up at its first ``await``.
"""

from __future__ import annotations

import gc
import sys
from _thread import get_ident
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from itertools import count
from types import AsyncGeneratorType
from typing import Any
from weakref import WeakValueDictionary

Generator = AsyncGenerator[Any, Any]

_COLLECTING: set[int] = set()
"""The threads in which Python is searching for cycles at this moment. A context variable would not do: a search may
begin while Python copies a context, and Python crashes if the context changes then."""


def _note(phase: str, _: Mapping[str, int]) -> None:
    """Note the beginning and the end of a search for cycles, as ``gc.callbacks`` are called."""
    (_COLLECTING.add if phase == "start" else _COLLECTING.discard)(get_ident())


gc.callbacks.append(_note)


def is_collecting() -> bool:
    """Return whether Python is searching for cycles in this thread.

    It can close code then to which nothing refers any more, in the middle of any other code.
    """
    return get_ident() in _COLLECTING


class AsyncGenerators:
    """The async generators that the code of one orchestrator has begun.

    :param close: function that closes a generator which the running code has left.
    :param is_running: function that returns whether the code runs at this moment.
    :param is_closed: function that returns whether no code runs any more.
    """

    __slots__ = ("_begun", "_close", "_is_closed", "_is_running", "_kept", "_number_of", "_numbers")

    def __init__(
        self, close: Callable[[Generator], None], is_running: Callable[[], bool], is_closed: Callable[[], bool]
    ) -> None:
        self._close = close
        self._is_running = is_running
        self._is_closed = is_closed
        self._numbers = count()
        self._number_of: dict[int, int] = {}
        self._begun: WeakValueDictionary[int, Generator] = WeakValueDictionary()
        self._kept: dict[int, Generator] = {}

    def watch(self) -> None:
        """Watch the generators that this thread begins from now on."""
        sys.set_asyncgen_hooks(self._begin, self._left)

    def take_open(self) -> list[Generator]:
        """Return the generators that have begun and not ended, the newest first, without those that code runs now."""
        kept, self._kept = self._kept, {}
        found = sorted((kept | dict(self._begun)).items(), reverse=True)
        return [one for _, one in found if isinstance(one, AsyncGeneratorType) and _is_open(one)]

    def _begin(self, generator: Generator) -> None:
        self._number_of[id(generator)] = number = next(self._numbers)
        self._begun[number] = generator

    def _left(self, generator: Generator) -> None:
        """React to a generator that has not ended and to which nothing refers any more."""
        number = self._number_of.pop(id(generator))
        if self._is_running() and not is_collecting():
            self._close(generator)
        elif self._is_closed():
            with suppress(BaseException):  # the code is not needed any more: its first await ends the clean-up
                generator.aclose().send(None)
        else:  # Python's search for cycles has found it, at another moment than in a replay: close it at the end
            self._kept[number] = generator


def _is_open(generator: AsyncGeneratorType[Any, Any]) -> bool:
    return generator.ag_frame is not None and not generator.ag_running
