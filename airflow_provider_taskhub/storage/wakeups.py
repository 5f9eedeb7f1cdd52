"""Wake-ups between processes of one machine: one Unix datagram socket for each store that waits.

A store that has put a message sends the queue's name to the sockets of the other stores. A wake-up is a hint: a lost
one costs a wait until the next poll, a false one costs a look. Nothing here is durable, and nobody waits for it.

Each kind of store keeps its own list of addresses, because no list fits both. The embedded store lists them in its
file, so that containers which share only its folder find each other (``sqlite/process_wakeups``). Azure Storage has no
such file: its stores list them in a folder among the temporary ones (``azure/process_wakeups``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Sequence

MAX_BYTES = 4096
"""Of one wake-up. What has more names wakes everybody."""
EVERYBODY = b"*"
AT_ONCE = 64
"""Wake-ups read in one turn of the event loop, so that a flood of them does not hold it."""


class Ear:
    """The socket on which one store hears of the others. It belongs to the running event loop.

    :param addresses: the first of them is taken on which the machine allows a socket.
    :param hear: called with the names of queues; with None for a wake-up that is meant for everybody.
    :raises OSError: when there is no place for a socket.
    """

    def __init__(self, addresses: Iterable[str], hear: Callable[[Sequence[str] | None], None]) -> None:
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._socket = _new_socket()
        try:
            self.address = _bind(self._socket, addresses)
        except BaseException:
            self._socket.close()
            raise
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Hear nothing any more."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self.address)

    def _read(self) -> None:
        for _ in range(AT_ONCE):
            try:
                news = self._socket.recv(MAX_BYTES)
            except OSError:  # nothing more to read
                return
            self._hear(None if news == EVERYBODY else news.decode("ascii", "replace").split("\n"))


def _bind(ear: socket.socket, addresses: Iterable[str]) -> str:
    refusal: OSError | None = None
    for address in addresses:
        try:
            ear.bind(address)
        except OSError as error:  # a file system without sockets, or a folder that is not there
            refusal = error
            continue
        os.chmod(address, 0o600)
        return address
    raise refusal or OSError("no folder has room for a socket's address")


class Voice:
    """The socket from which a store, or its writer thread, wakes the others. Opened at its first use."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def tell(self, queues: Iterable[str], addresses: Iterable[str]) -> list[str]:
        """Something can be received from these queues now.

        :returns: addresses of processes that were killed; their sockets are removed here, forget them.
        """
        if self._socket is None:
            self._socket = _new_socket()
        news = "\n".join(queues).encode("ascii", "replace")
        news = news if len(news) <= MAX_BYTES else EVERYBODY
        dead: list[str] = []
        for address in addresses:
            try:
                self._socket.sendto(news, address)
            except (ConnectionRefusedError, FileNotFoundError):
                dead.append(address)
                with contextlib.suppress(OSError):
                    os.unlink(address)
            except OSError:  # its buffer is full: it has enough to read
                continue
        return dead

    def close(self) -> None:
        """Say nothing any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made
