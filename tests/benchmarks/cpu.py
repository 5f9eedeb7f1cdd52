"""CPU by process: who of a run used how much."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import psutil

HOST, EXECUTORS, CLIENT, SERVICE = "host", "executors", "client", "azurite"
ROLES = (HOST, EXECUTORS, CLIENT, SERVICE)

Usage: TypeAlias = Mapping[tuple[str, int], float]
"""Role and process id → seconds since the process began."""


def usage(processes: Mapping[str, Iterable[psutil.Process]]) -> Usage:
    """By role; one that has ended is left out."""
    found: dict[tuple[str, int], float] = {}
    for role, each in processes.items():
        for process in each:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            found[role, process.pid] = times.user + times.system
    return found


def spent(before: Usage, after: Usage) -> dict[str, float]:
    """Seconds by role between two readings. A process that began in between counts whole, one that ended not at all."""
    seconds: dict[str, float] = defaultdict(float)
    for (role, pid), now in after.items():
        seconds[role] += now - before.get((role, pid), 0.0)
    return dict(seconds)
