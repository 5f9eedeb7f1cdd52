"""Wake-ups between the processes of one user on one machine that work on the same Azure Storage account.

Azure Storage tells nobody that a message has come, so a worker polls. A process that puts a message on the machine of
the worker (Airflow, or another worker) wakes the worker's store (``wakeups``). Sockets are listed by a folder of the
user among the temporary ones, one folder for each account.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from airflow_provider_taskhub.storage.azure.local_wakeups import LocalWakeups
from airflow_provider_taskhub.storage.wakeups import WakeupReceiver, WakeupSender

LOOK_EVERY = 1.0
"""Seconds for which a list of the neighbours is good."""
MAX_NEIGHBOURS = 64


class ProcessWakeups:
    """One store's ear and voice.

    :param account: as people see it; who shares it are neighbours. :param bell: rung by what is heard.
    :param folder: where the sockets lie; None: this user's own folder among the temporary ones.
    """

    def __init__(self, account: str, bell: LocalWakeups, *, folder: Path | None = None) -> None:
        own = folder or Path(tempfile.gettempdir()) / f"taskhub-{os.getuid()}"
        self._folder = own / hashlib.sha256(account.encode()).hexdigest()[:16]
        self._bell = bell
        self._receiver: WakeupReceiver | None = None
        self._sender = WakeupSender()
        self._others: tuple[str, ...] = ()
        self._looked = float("-inf")
        self._queues: set[str] = set()
        self._has_no_socket = False

    def listen(self, queues: Iterable[str]) -> None:
        """Hear of these queues from now on, if the machine has a place for a socket that only this user can reach."""
        self._queues.update(queues)
        if self._receiver is not None or self._has_no_socket:
            return
        try:
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
            self._receiver = WakeupReceiver([str(self._folder / f"{os.getpid():x}-{os.urandom(4).hex()}")], self._hear)
        except OSError:
            self._has_no_socket = True

    def tell(self, queue: str) -> None:
        """Something can be received from the queue now."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked, self._others = now, self._look()
        if self._others:
            dead = self._sender.send((queue,), self._others)
            self._others = tuple(other for other in self._others if other not in dead)

    def close(self) -> None:
        """Hear and say nothing any more."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        self._sender.close()

    def _look(self) -> tuple[str, ...]:
        try:
            for folder in (self._folder.parent, self._folder):
                _check_private(folder)
            names = sorted(os.listdir(self._folder))[:MAX_NEIGHBOURS]
        except OSError:
            return ()
        own = self._receiver.address if self._receiver is not None else ""
        addresses = (str(self._folder / name) for name in names)
        return tuple(address for address in addresses if address != own)

    def _hear(self, queues: Sequence[str] | None) -> None:
        for queue in self._queues if queues is None else queues:
            if queue in self._queues:
                self._bell.ring(queue, now=asyncio.get_running_loop().time())
            else:
                self._bell.announce(queue)


def _check_private(folder: Path) -> None:
    """:raises OSError: when it is not this user's alone: others shall neither wake anybody nor listen."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
