"""Wake-ups between the processes of one machine: hints that a queue may have a new message.

Each store that waits for messages has a Unix datagram socket. A store that has put a message sends the queue's name to
the sockets of the other stores. If a wake-up is lost, the receiver finds the message at its next poll. If a wake-up is
wrong, the receiver polls once for nothing. Wake-ups are not durable, and a sender never waits for a receiver.

Each kind of store keeps its own list of socket addresses. The embedded store keeps the list in the SQLite file, so that
containers which share only the folder of the file find each other (``sqlite/process_wakeups``). Azure Storage has no
such file, so its stores find the sockets in a temporary folder (``azure/process_wakeups``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Sequence

MAX_BYTES = 4096
"""Largest wake-up, in bytes. If the names of the queues need more bytes, :data:`WAKE_ALL` is sent instead."""
WAKE_ALL = b"*"
"""Content of a wake-up that wakes all waiters of the receiving store."""
AT_ONCE = 64
"""Most wake-ups that a store reads in one turn of the event loop. More would delay other tasks of the loop."""


class WakeupReceiver:
    """The socket on which one store receives wake-ups. Only the event loop that created the socket uses it.

    :param addresses: paths to try. The socket uses the first path at which the machine can create a socket.
    :param on_wakeup: function that is called with the queues in a wake-up, or with None to wake all waiters.
    :raises OSError: if no path works.
    """

    def __init__(self, addresses: Iterable[str], on_wakeup: Callable[[Sequence[str] | None], None]) -> None:
        self._on_wakeup = on_wakeup
        self._loop = asyncio.get_running_loop()
        self._socket = _new_socket()
        try:
            self.address = _bind(self._socket, addresses)
        except BaseException:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Close the socket and remove its file."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)

    def _read(self) -> None:
        for _ in range(AT_ONCE):
            try:
                content = self._socket.recv(MAX_BYTES)
            except OSError:  # the socket has no more wake-ups
                return
            self._on_wakeup(None if content == WAKE_ALL else content.decode("ascii", "replace").split("\n"))


def _bind(receiver: socket.socket, addresses: Iterable[str]) -> str:
    refusal: OSError | None = None
    for address in addresses:
        try:
            receiver.bind(address)
        except OSError as error:  # the file system has no sockets, or the folder does not exist
            refusal = error
            continue
        os.chmod(address, 0o600)
        return address
    raise refusal or OSError("no folder has a path that is short enough for a socket")


class WakeupSender:
    """The socket from which a store, or its writer thread, sends wake-ups. The first wake-up opens the socket."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def send(self, queues: Iterable[str], addresses: Iterable[str]) -> list[str]:
        """Send a wake-up that says: one of these queues may have a visible message now.

        :param queues: names of queues or topics.
        :param addresses: paths of the sockets of the other stores.
        :returns: addresses whose processes are dead. Their socket files are removed; the caller must remove them from
            its list.
        """
        if self._socket is None:
            self._socket = _new_socket()
        content = "\n".join(queues).encode("ascii", "replace")
        content = content if len(content) <= MAX_BYTES else WAKE_ALL
        dead: list[str] = []
        for address in addresses:
            try:
                self._socket.sendto(content, address)
            except (ConnectionRefusedError, FileNotFoundError):
                dead.append(address)
                with contextlib.suppress(OSError):
                    os.unlink(address)
            except OSError:  # the receiver's buffer is full, so the receiver wakes up anyway
                continue
        return dead

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
