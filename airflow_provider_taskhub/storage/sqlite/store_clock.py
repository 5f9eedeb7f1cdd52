"""The store's own time: boot-monotonic, anchored in the file.

All processes of a machine add one shift, kept in the file, to the kernel's boot clock, so they agree to the tick and a
wall clock that is set back hides nothing. The wall clock is read once, when a file is new; after a reboot the anchor
goes on from the largest time stored, or from the wall clock where that is later.

A private store in memory takes its time from the clock that it was given.
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
"""Of 100 ns, in a second."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # goes on while a laptop sleeps


def boot_ticks() -> int:
    """100 ns steps since the machine was started, the same in every process."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 100


@cache
def boot_identity() -> str:
    """What tells this run of the machine from every other one.

    :raises ConfigurationError: on a system that does not say it (neither Linux nor macOS).
    """
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"the embedded store needs Linux or macOS: this system does not tell its boot id ({error}); "
            "use an Azure Storage connection instead"
        ) from error


def shift_for(*, same_boot: bool, shift: int, high: int, wall: int, boot: int) -> int:
    """What to add to the boot clock.

    :param same_boot: whether ``shift`` was made since the machine was started.
    :param shift, high: as stored: the last shift and the largest time given out. :param wall, boot: now, in ticks.
    """
    if same_boot and boot + shift >= high:
        return shift
    return max(wall, high + 1) - boot


def clock_ticks(clock: Clock) -> Callable[[], int]:
    """A time source over a given clock: its wall clock now, going on with its monotonic one."""
    start = clock.utc_now().ticks
    origin = clock.monotonic()
    return lambda: start + round((clock.monotonic() - origin) * TICKS)
