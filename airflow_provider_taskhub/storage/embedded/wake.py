"""News between processes: one Unix datagram socket for each store that waits, listed in the file (DESIGN §3).

A message that becomes receivable is announced after its commit by its queue's name. An announcement is a hint: whoever
hears one looks into the file, and looks once a second anyway, so a lost one costs at most that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from airflow_provider_taskhub.storage.embedded.journal import Change
from airflow_provider_taskhub.storage.embedded.moments import TICKS, boot_ticks

FALLBACK = 1.0
"""Seconds between two looks into the file without news."""
MAX_ADDRESS = 100
"""Bytes of a socket's path: the kernel takes 108 on Linux, 104 on macOS."""
MAX_NEWS = 4096
EVERYTHING = b"*"


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


class Listener:
    """The socket on which a store hears of other processes' puts (and of its own, by the same way).

    :param path: the store's file; the socket lies beside it, or in the system's temporary directory where that is too
        long for a socket's address.
    """

    def __init__(self, path: Path, waiters: Waiters) -> None:
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self.address = _bind(self._socket, path)
        except BaseException:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        for _ in range(64):  # a bound, so that a flood does not hold the loop
            try:
                news = self._socket.recv(MAX_NEWS)
            except (BlockingIOError, InterruptedError):
                return
            self._waiters.signal(None if news == EVERYTHING else news.decode("ascii", "replace").split("\n"))

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)


def _bind(listener: socket.socket, path: Path) -> str:
    """Bind to a new name; the address."""
    name = f".{path.name[:16]}-{os.getpid():x}-{os.urandom(4).hex()}"
    directories = [path.parent, Path(tempfile.gettempdir()), Path("/tmp")]
    fitting = [str(directory / name) for directory in directories if len(os.fsencode(directory / name)) <= MAX_ADDRESS]
    for index, address in enumerate(fitting):
        try:
            listener.bind(address)
        except OSError:  # a file system without sockets
            if index == len(fitting) - 1:
                raise
            continue
        os.chmod(address, 0o600)
        return address
    raise OSError(f"no directory for a socket among {directories}")


def register(change: Change, address: str) -> None:
    change.connection.execute("INSERT OR IGNORE INTO peers VALUES (?)", (address,))


def unregister(change: Change, address: str) -> None:
    change.connection.execute("DELETE FROM peers WHERE address = ?", (address,))


class Caller:
    """Announces commits to the listeners of the file. Belongs to the writer thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._dead: list[str] = []

    def prepare(self, touched: Iterable[Mapping[str, int]]) -> tuple[bytes, list[str]] | None:
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
        news = "\n".join(soon).encode("ascii")
        return (news if len(news) <= MAX_NEWS else EVERYTHING), addresses

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

    def call(self, calls: tuple[bytes, list[str]] | None) -> None:
        """After the commit. A full socket belongs to somebody who has news enough."""
        if calls is None:
            return
        news, addresses = calls
        for address in addresses:
            try:
                self._socket.sendto(news, address)
            except (ConnectionRefusedError, FileNotFoundError):
                self._dead.append(address)
                with contextlib.suppress(OSError):
                    os.unlink(address)
            except OSError:
                continue

    def close(self) -> None:
        self._socket.close()
