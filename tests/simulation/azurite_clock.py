"""Azurite under the simulation's clock: the real emulator and our real requests, in virtual time.

Node is started with a `Date` that stands still until it is told the time. The store tells it before each request. While
a request is under way, the time of the loop stands still as well (:meth:`VirtualTimeLoop.still`). So visibility
timeouts and the storage service's timestamps follow the jumps, and a thousand crashes on Azurite need minutes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from airflow_provider_taskhub.demo.azurite import Azurite, install
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.virtual_time import START, VirtualTimeLoop
from tests.azurite import FOLDER

PRELOAD = Path(__file__).with_name("still.cjs")


@dataclass(slots=True)
class Still:
    """A running emulator, and the way to tell it the time."""

    connection: str
    line: socket.socket
    told: float = -1.0

    def tell(self, seconds: float) -> None:
        """Set its clock to so much after :data:`START`, and wait until it is set."""
        if seconds == self.told:
            return
        self.told = seconds
        epoch = START.datetime().timestamp()
        self.line.sendall(f"{(epoch + seconds) * 1000:.0f}\n".encode())
        assert self.line.recv(1), "Azurite has ended"

    @asynccontextmanager
    async def under_way(self) -> AsyncIterator[None]:
        """Around a request: the service's time is the loop's, and both stand still."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.tell(loop.time())
        with loop.still():
            yield

    def store(self) -> AzureStore:
        """A store over it, for the running jumping loop: its own requests and those of Microsoft's clients."""
        store = AzureStore(self.connection, timeout=timedelta(seconds=30))
        around(self, store._wire, "_exchange")
        around(self, store._clients, "_attempt")
        return store


def around(still: Still, owner: Any, name: str) -> None:
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)

    @wraps(real)
    async def call(*arguments: Any, **named: Any) -> Any:
        async with still.under_way():
            return await real(*arguments, **named)

    setattr(owner, name, call)


@contextmanager
def still_azurite() -> Iterator[Still]:
    """Start one; it ends with the block."""
    install(FOLDER)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        path = f"{folder}/clock"
        door.bind(path)
        door.listen(1)
        door.settimeout(60.0)
        with mock.patch.dict(os.environ, {"NODE_OPTIONS": f"--require={PRELOAD}", "STILL_CLOCK": path}):
            azurite = Azurite(FOLDER)
            azurite.start()
        try:
            line, _ = door.accept()
            with line:
                line.settimeout(60.0)
                yield Still(azurite.connection, line)
        finally:
            azurite.stop()
