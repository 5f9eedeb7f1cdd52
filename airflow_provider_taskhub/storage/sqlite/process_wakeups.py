"""Sends wake-ups between the processes that share an SQLite file. A table of the file has their sockets' addresses.

After a commit the writer sends the names of the queues that have new visible messages. A store that receives a wake-up
reads the file. A store with waiting tasks also looks into the file once a second, so a lost wake-up costs at most one
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS, boot_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import Change
from airflow_provider_taskhub.storage.wakeups import WakeupSender

FALLBACK = 1.0
"""Seconds between two looks of a store into the file for all its waiting tasks, even without a wake-up."""
MAX_ADDRESS = 100
"""Longest path of a socket, in bytes. The kernel allows 108 bytes on Linux and 104 on macOS."""


class Waiters:
    """The tasks of one event loop that wait for wake-ups, by the queue or topic that they wait for.

    :param look: called once in :data:`FALLBACK` seconds while a task waits, with the names of all queues. It returns
        those whose tasks must read the file, or None if all must. All tasks share a look: a worker has a task for each
        queue, and looks would be most of what it does while it is idle. Without ``look``, only wake-ups end a wait.
    """

    def __init__(self, look: Callable[[Sequence[str]], Iterable[str] | None] | None = None) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._look = look
        self._alarm: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def listening(self, queues: Sequence[str]) -> Iterator[asyncio.Future[None]]:
        """Return a context manager with a future. The first wake-up for one of the queues completes the future."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        for name in queues:
            self._waiting.setdefault(name, set()).add(future)
        if self._look is not None and self._alarm is None:
            self._alarm = loop.call_later(FALLBACK, self._look_once, loop, self._look)
        try:
            yield future
        finally:
            for name in queues:
                waiting = self._waiting.get(name, set())
                waiting.discard(future)
                if not waiting:
                    self._waiting.pop(name, None)
            if not self._waiting and self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    def _look_once(
        self, loop: asyncio.AbstractEventLoop, look: Callable[[Sequence[str]], Iterable[str] | None]
    ) -> None:
        self._alarm = loop.call_later(FALLBACK, self._look_once, loop, look)
        self.signal(look(list(self._waiting)))

    def signal(self, queues: Iterable[str] | None) -> None:
        """Wake the tasks that wait for these queues or topics.

        :param queues: names of queues or topics; None: wake all tasks.
        """
        for name in list(self._waiting) if queues is None else queues:
            for future in self._waiting.get(name, ()):
                _settle(future)


async def wait_for_wakeup(woken: asyncio.Future[None], seconds: float) -> None:
    """Wait for a wake-up.

    :param woken: future of :meth:`Waiters.listening`.
    :param seconds: longest time to wait. The wait takes at least a millisecond: a virtual clock may fire a timer
        slightly early, and a wait of zero seconds would then repeat without end.
    """
    alarm = asyncio.get_running_loop().call_later(max(seconds, 0.001), _settle, woken)
    try:
        await woken
    finally:
        alarm.cancel()


def _settle(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def addresses_of(path: Path) -> list[str]:
    """Return paths for a new socket, in the order in which to try them: first in the folder of the SQLite file, then in
    folders for temporary files.

    The folder of the file comes first, because containers that share a hub share no other folder.
    """
    name = f".{path.name[:16]}-{os.getpid():x}-{os.urandom(4).hex()}"
    folders = [path.parent, Path(tempfile.gettempdir()), Path("/tmp")]
    return [str(folder / name) for folder in folders if len(os.fsencode(folder / name)) <= MAX_ADDRESS]


def register(change: Change, address: str) -> None:
    change.connection.execute("INSERT OR IGNORE INTO peers VALUES (?)", (address,))


def unregister(change: Change, address: str) -> None:
    change.connection.execute("DELETE FROM peers WHERE address = ?", (address,))


class Announcer:
    """Sends the wake-ups of each commit to the other stores of the file. Only the writer thread uses this object."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sender = WakeupSender()
        self._dead: list[str] = []

    def prepare(self, touched: Iterable[Mapping[str, int]]) -> tuple[list[str], list[str]] | None:
        """Return the wake-ups to send after the commit. Call this method inside the transaction.

        If there are wake-ups, the method also deletes the socket addresses of dead processes from the SQLite file. A
        message that stays invisible for longer than :data:`FALLBACK` gets no wake-up: each store with waiting tasks
        looks into the file before that message becomes visible.

        :param touched: the :attr:`Change.touched` of each function that the transaction has run: names of queues and
            topics, each with the time at which a message becomes visible.
        :returns: the names of queues and topics to send, and the addresses of all sockets; None: no wake-up is needed.
        """
        soon = self._soon(touched)
        if not soon:
            return None
        for address in self._dead:
            self._connection.execute("DELETE FROM peers WHERE address = ?", (address,))
        self._dead.clear()
        addresses = [row[0] for row in self._connection.execute("SELECT address FROM peers")]
        return soon, addresses

    def _soon(self, touched: Iterable[Mapping[str, int]]) -> list[str]:
        merged: dict[str, int] = {}
        for queues in touched:
            for name, visible in queues.items():
                merged[name] = min(visible, merged.get(name, visible))
        if not merged:
            return []
        shift = self._connection.execute("SELECT shift FROM anchor").fetchone()[0]
        limit = boot_ticks() + shift + int(FALLBACK * TICKS)
        return [name for name, visible in merged.items() if visible <= limit]

    def announce(self, wakeups: tuple[list[str], list[str]] | None) -> None:
        """Send the wake-ups. Call this method after the commit.

        :param wakeups: result of :meth:`prepare`.
        """
        if wakeups is not None:
            self._dead += self._sender.send(*wakeups)

    def close(self) -> None:
        self._sender.close()
