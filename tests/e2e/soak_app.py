"""What the workers of a soak run: the storm's work, and a record of every receive of a control queue.

``$RECEIVES/<worker>-<pid>`` has a line when a receive begins (``> number queue epoch moment``) and one when it is
answered (``< number moment messages``), in seconds of this machine's monotonic clock. A receive begins when its worker
looks at its lease's age: a process that is stopped right after that look has begun it while the lease was its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from airflow_provider_taskhub.hub.queues.reader import ControlReader
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.primitives import Message
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore

app = import_module("storm_app").app

_looks: dict[str, tuple[int, float]] = {}
"""Queue → epoch of its reader, and when it last looked at its lease's age."""
_numbers = count()
_file = os.open(
    Path(os.environ["RECEIVES"]) / f"{os.environ['WORKER']}-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT
)


def _note(line: str) -> None:
    os.write(_file, f"{line}\n".encode())


def _look_first(begin: Callable[..., None]) -> Callable[..., None]:
    def begun(self: ControlReader, *shared: Any, **named: Any) -> None:
        begin(self, *shared, **named)
        check = self._check

        def look() -> None:
            _looks[self.queue] = self.tenure.epoch, time.monotonic()
            check()

        self._check = look

    return begun


def _recorded(receive: Callable[..., Any]) -> Callable[..., Any]:
    async def received(self: Any, queue: str, *, limit: int, visibility: timedelta) -> list[Message]:
        if queue not in _looks:
            return list(await receive(self, queue, limit=limit, visibility=visibility))
        number, (epoch, began) = next(_numbers), _looks[queue]
        _note(f"> {number} {queue} {epoch} {began:.6f}")
        found: list[Message] = []
        try:
            found = await receive(self, queue, limit=limit, visibility=visibility)
        finally:
            _note(f"< {number} {time.monotonic():.6f} {len(found)}")
        return found

    return received


ControlReader.__init__ = _look_first(ControlReader.__init__)  # type: ignore[method-assign]
for store in (AzureStore, SqliteStore):
    store.receive = _recorded(store.receive)  # type: ignore[method-assign]
