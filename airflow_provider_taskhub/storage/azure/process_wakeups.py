"""Sends wake-ups between the processes of one user on one machine that use the same Azure Storage account.

Azure Storage does not notify a worker of a new message, so each worker polls. If another process on the worker's
machine puts the message (Airflow, or another worker), that process also sends a wake-up to the worker's store, over
the sockets of ``storage/wakeups``. The sockets of all stores of one account are in one folder, which is in the user's
folder for temporary files.
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

LIST_EVERY = 1.0
"""Seconds after which a store lists the sockets of the other stores again."""
MAX_RECEIVERS = 64
"""Largest number of other stores that one store wakes."""


class ProcessWakeups:
    """Sends and receives wake-ups of one store to and from the other processes of this user on this machine.

    :param account: address of the storage account. Only stores of the same account wake each other.
    :param wakeups: passes each wake-up that another process sends to the waiting tasks of this process.
    :param folder: folder of the sockets; None: a folder of this user in the folder for temporary files.
    """

    def __init__(self, account: str, wakeups: LocalWakeups, *, folder: Path | None = None) -> None:
        own = folder or Path(tempfile.gettempdir()) / f"taskhub-{os.getuid()}"
        self._folder = own / hashlib.sha256(account.encode()).hexdigest()[:16]
        self._wakeups = wakeups
        self._receiver: WakeupReceiver | None = None
        self._sender = WakeupSender()
        self._others: tuple[str, ...] = ()
        self._listed_at = float("-inf")
        self._queues: set[str] = set()
        self._has_no_socket = False

    def listen(self, queues: Iterable[str]) -> None:
        """Receive wake-ups for these queues from now on.

        The socket for the wake-ups needs a folder that only this user can use. Without such a folder this method does
        nothing, and polling finds the messages.
        """
        self._queues.update(queues)
        if self._receiver is not None or self._has_no_socket:
            return
        try:
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
            address = self._folder / f"{os.getpid():x}-{os.urandom(4).hex()}"
            self._receiver = WakeupReceiver([str(address)], self._on_wakeup)
        except OSError:
            self._has_no_socket = True

    def notify(self, queue: str) -> None:
        """Wake the stores of other processes: a queue has a new visible message, or a transaction with a topic is done.

        :param queue: name of the queue or topic.
        """
        now = time.monotonic()
        if now - self._listed_at >= LIST_EVERY:
            self._listed_at, self._others = now, self._list_receivers()
        if self._others:
            dead = self._sender.send((queue,), self._others)
            self._others = tuple(other for other in self._others if other not in dead)

    def close(self) -> None:
        """Close the sockets."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None
        self._sender.close()

    def _list_receivers(self) -> tuple[str, ...]:
        try:
            for folder in (self._folder.parent, self._folder):
                _check_private(folder)
            names = sorted(os.listdir(self._folder))[:MAX_RECEIVERS]
        except OSError:
            return ()
        own = self._receiver.address if self._receiver is not None else ""
        addresses = (str(self._folder / name) for name in names)
        return tuple(address for address in addresses if address != own)

    def _on_wakeup(self, queues: Sequence[str] | None) -> None:
        for queue in self._queues if queues is None else queues:
            if queue in self._queues:
                self._wakeups.notify(queue, now=asyncio.get_running_loop().time())
            else:
                self._wakeups.notify_topic(queue)


def _check_private(folder: Path) -> None:
    """Check that only this user can use a folder, so that other users can neither send nor read wake-ups.

    :raises OSError: if other users can use the folder.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"other users can use the folder {folder}")
