"""Loops that break when a test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_provider_taskhub.supervision import Supervisor, owned


class Breaker:
    """Breaks the loops that supervisors keep, one at a time; knows all of them, also those that come to be later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fuses: dict[str, asyncio.Future[None]] = {}
        self.starts: Counter[str] = Counter()
        keep = Supervisor.keep

        def breakable(
            supervisor: Supervisor, name: str, loop: Callable[[], Awaitable[None]], **options: Any
        ) -> asyncio.Task[None]:
            async def work() -> None:
                await loop()

            async def guarded() -> None:
                self.starts[name] += 1
                fuse = self.fuses[name] = asyncio.get_running_loop().create_future()
                async with owned() as start:
                    task = start(work())
                    await asyncio.wait((task, fuse), return_when=asyncio.FIRST_COMPLETED)
                    if fuse.done():
                        raise RuntimeError(f"{name} is broken on purpose")
                    await task

            return keep(supervisor, name, guarded, **options)

        monkeypatch.setattr(Supervisor, "keep", breakable)

    def blow(self, name: str) -> None:
        self.fuses[name].set_result(None)
