"""How a worker's event loop learns what happens to its partitions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from airflow_provider_taskhub.workers.host import LeaseEventBridge
from tests.waiting import PATIENCE


class Notes:
    """Takes the calls that a backend gets, with the thread of each."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append((name, threading.get_ident()))


@pytest.mark.rows("D89")
async def test_what_is_taken_or_lost_is_dealt_with_on_the_workers_loop_and_not_by_who_noticed() -> None:
    """The thread of the leases does not wait for it, however long the loop is busy."""
    notes, tenure = Notes(), cast(Any, object())
    bridge = LeaseEventBridge(asyncio.get_running_loop(), cast(Any, notes))

    def notice() -> None:
        bridge.taken(tenure)
        bridge.asked(tenure)
        bridge.lost(tenure, "no renewal was confirmed")

    leases = threading.Thread(target=notice, daemon=True)
    leases.start()
    leases.join(PATIENCE)  # this loop is busy meanwhile
    assert not leases.is_alive()
    assert notes.calls == []
    await asyncio.sleep(0)
    assert notes.calls == [(name, threading.get_ident()) for name in ("taken", "asked", "lost")]
