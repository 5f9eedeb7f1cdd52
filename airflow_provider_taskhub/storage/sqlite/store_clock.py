"""Computes the time of the embedded store, which never goes back and is the same in all processes of the machine.

The time is the kernel's boot clock plus a shift that the SQLite file stores. The wall clock was rejected: if somebody
sets it back, messages would stay invisible for too long. The wall clock sets the shift when the file is new. After a
restart of the machine the time continues from the largest stored time, or from the wall clock if that is later.

A private store in memory takes its time from the clock that its caller gives.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from airflow_provider_taskhub.clock import Clock
from airflow_provider_taskhub.errors import ConfigurationError

TICKS = 10_000_000
"""Ticks of 100 ns in one second."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_BOOTTIME also counts while a laptop sleeps


def boot_ticks() -> int:
    """Return the ticks of 100 ns since the machine was started. All processes of the machine get the same value."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 100


@cache
def boot_identity() -> str:
    """Return the machine's boot id: a text that changes with each restart of the machine.

    :raises ConfigurationError: if the boot id cannot be read, for example because the system is not Linux or macOS.
    """
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"the embedded store needs Linux or macOS: cannot read the boot id of this system ({error}); "
            "use an Azure Storage connection instead"
        ) from error


def shift_for(*, same_boot: bool, shift: int, high: int, wall: int, boot: int) -> int:
    """Return the ticks to add to the boot clock to get the store's time.

    :param same_boot: True if the machine was not restarted since ``shift`` was stored.
    :param shift: stored shift, in ticks.
    :param high: largest time that the store has used, in ticks.
    :param wall: current time of the wall clock, in ticks.
    :param boot: current time of the boot clock, in ticks.
    """
    if same_boot and boot + shift >= high:
        return shift
    return max(wall, high + 1) - boot


def clock_ticks(clock: Clock) -> Callable[[], int]:
    """Return a function that returns a time in ticks: the wall time of this call, plus the monotonic time since it."""
    start = clock.utc_now().ticks
    origin = clock.monotonic()
    return lambda: start + round((clock.monotonic() - origin) * TICKS)
