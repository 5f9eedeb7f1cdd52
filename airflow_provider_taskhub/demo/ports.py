"""Free ports of the loopback network, for servers that this process starts."""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"
_kept: list[socket.socket] = []
"""The sockets that keep the ports."""


def free_port() -> int:
    """Return a free port of the loopback network, which no other program is given while this process lives.

    A socket of this process stays bound to the port and does not listen. On Linux, a server that sets ``SO_REUSEADDR``
    can listen on the port beside it: Java, Node.js, asyncio and Redis do so. A program that asks the system for any
    free port does not get this one. On other systems the port is only free now, since there the socket would keep the
    server away too.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind((HOST, 0))
    port = int(kept.getsockname()[1])
    if sys.platform == "linux":
        _kept.append(kept)
    else:
        kept.close()
    return port
