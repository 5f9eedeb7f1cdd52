"""Wake-ups between the processes that share a file: their sockets (``wakeups``) are listed in the file itself.

A message that becomes receivable is announced after its commit by its queue's name. A store that is woken looks into
the file. It looks once a second anyway, so a lost wake-up costs at most a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_taskhub.storage.sqlite.store_clock import TICKS, boot_ticks
from airflow_provider_taskhub.storage.sqlite.transactions import Change
from airflow_provider_taskhub.storage.wakeups import Voice

FALLBACK = 1.0
"""Seconds between two looks into the file without news."""
MAX_ADDRESS = 100
"""Bytes of a socket's path: the kernel takes 108 on Linux, 104 on macOS."""


class Waiters:
    """Who waits for which queues, on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    @contextlib.contextmanager
    def listening(self, queues: Sequence[str]) -> Iterator[asyncio.Future[None]]:
        """A future that the first news of one of the queues settles."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for name in queues:
            self._waiting.setdefault(name, set()).add(future)
        try:
            yield future
        finally:
            for name in queues:
                waiting = self._waiting.get(name, set())
                waiting.discard(future)
                if not waiting:
                    self._waiting.pop(name, None)

    def signal(self, queues: Iterable[str] | None) -> None:
        """Tell who waits for these queues; None: for any."""
        for name in list(self._waiting) if queues is None else queues:
            for future in self._waiting.get(name, ()):
                _settle(future)


async def heard(news: asyncio.Future[None], seconds: float) -> None:
    """Wait for news, at most so long. A millisecond at least: a virtual clock that fires a hair early must move on."""
    alarm = asyncio.get_running_loop().call_later(max(seconds, 0.001), _settle, news)
    try:
        await news
    finally:
        alarm.cancel()


def _settle(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def addresses_of(path: Path) -> list[str]:
    """Addresses for a new socket, in the order to try: beside the file, then in folders for temporary files.

    Beside the file comes first, because containers that share a hub share this folder and no other.
    """
    name = f".{path.name[:16]}-{os.getpid():x}-{os.urandom(4).hex()}"
    folders = [path.parent, Path(tempfile.gettempdir()), Path("/tmp")]
    return [str(folder / name) for folder in folders if len(os.fsencode(folder / name)) <= MAX_ADDRESS]


def register(change: Change, address: str) -> None:
    change.connection.execute("INSERT OR IGNORE INTO peers VALUES (?)", (address,))


def unregister(change: Change, address: str) -> None:
    change.connection.execute("DELETE FROM peers WHERE address = ?", (address,))


class Caller:
    """Announces commits to the listeners of the file. Belongs to the writer thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._voice = Voice()
        self._dead: list[str] = []

    def prepare(self, touched: Iterable[Mapping[str, int]]) -> tuple[list[str], list[str]] | None:
        """Inside the transaction: what to announce to whom after its commit; listeners found dead are removed.

        Messages that stay invisible for longer than :data:`FALLBACK` are no news: who waits looks again before then.
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

    def call(self, calls: tuple[list[str], list[str]] | None) -> None:
        """After the commit."""
        if calls is not None:
            self._dead += self._voice.tell(*calls)

    def close(self) -> None:
        self._voice.close()
