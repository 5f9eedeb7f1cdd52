"""Wake-ups between processes of one user on one machine: one Unix datagram socket for each store that waits.

Azure Storage tells nobody that a message has come, so a worker polls. Who puts a message on the machine of a worker (an
Airflow that runs beside it, another worker) can do better: it sends the queue's name. That is a hint: a lost or a false
one costs a receive, and who cannot hear polls as ever. The embedded store has its own, listed in its file
(``embedded.wake``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from airflow_provider_taskhub.storage.bell import Bell

LOOK_EVERY = 1.0
"""Seconds for which a list of the neighbours is good."""
MAX_NEIGHBOURS = 64
MAX_NAME = 63
"""Characters of a queue's name."""


class Neighbours:
    """One store's ear and voice.

    :param account: as people see it; who shares it are neighbours. :param bell: rung by what is heard.
    :param folder: where the sockets lie; None: this user's own folder among the temporary ones.
    """

    def __init__(self, account: str, bell: Bell, *, folder: Path | None = None) -> None:
        own = folder or Path(tempfile.gettempdir()) / f"taskhub-{os.getuid()}"
        self._folder = own / hashlib.sha256(account.encode()).hexdigest()[:16]
        self._bell = bell
        self._ear: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._address = ""
        self._voice: socket.socket | None = None
        self._others: tuple[str, ...] = ()
        self._looked = float("-inf")
        self._queues: set[str] = set()
        self._deaf = False

    def listen(self, queues: Iterable[str]) -> None:
        """Hear of these queues from now on, if the machine has a place for a socket that only this user can reach."""
        self._queues.update(queues)
        if self._ear is not None or self._deaf:
            return
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            ear.setblocking(False)
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
            address = str(self._folder / f"{os.getpid():x}-{os.urandom(4).hex()}")
            ear.bind(address)
        except OSError:
            ear.close()
            self._deaf = True
            return
        self._ear, self._address, self._loop = ear, address, asyncio.get_running_loop()
        self._loop.add_reader(ear, self._hear)

    def tell(self, queue: str) -> None:
        """Something can be received from the queue now."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked, self._others = now, self._look()
        if not self._others:
            return
        if self._voice is None:
            self._voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._voice.setblocking(False)
        for address in self._others:
            try:
                self._voice.sendto(queue.encode(), address)
            except (ConnectionRefusedError, FileNotFoundError):  # its process was killed
                self._others = tuple(other for other in self._others if other != address)
                with contextlib.suppress(OSError):
                    os.unlink(address)
            except OSError:  # full: it has news enough
                continue

    def close(self) -> None:
        """Hear and say nothing any more."""
        if self._ear is not None and self._loop is not None:
            self._loop.remove_reader(self._ear)
            self._ear.close()
            self._ear = None
            with contextlib.suppress(OSError):
                os.unlink(self._address)
        if self._voice is not None:
            self._voice.close()
            self._voice = None

    def _look(self) -> tuple[str, ...]:
        try:
            for folder in (self._folder.parent, self._folder):
                _check_private(folder)
            names = sorted(os.listdir(self._folder))[:MAX_NEIGHBOURS]
        except OSError:
            return ()
        addresses = (str(self._folder / name) for name in names)
        return tuple(address for address in addresses if address != self._address)

    def _hear(self) -> None:
        assert self._ear is not None
        for _ in range(64):  # a bound, so that a flood does not hold the loop
            try:
                queue = self._ear.recv(MAX_NAME).decode("ascii", "replace")
            except OSError:
                return
            if queue in self._queues:
                self._bell.ring(queue, now=asyncio.get_running_loop().time())
            else:
                self._bell.announce(queue)


def _check_private(folder: Path) -> None:
    """:raises OSError: when it is not this user's alone: others shall neither wake anybody nor listen."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
