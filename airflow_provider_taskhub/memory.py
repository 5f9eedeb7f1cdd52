"""Amounts of memory: as text, such as ``4g``, and what this machine or its container gives.

An activity says with ``@app.activity(memory="4g")`` how much one attempt needs. A worker has a total, ``--memory 16g``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

MEMORY_FORM = "a number with k, m, g or t, such as '4g' or '512m'"
"""What an amount of memory may be, for errors."""
MOST = "1024t"
"""The largest amount."""
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt])b?", re.ASCII | re.IGNORECASE)
_BYTES = {"t": 1024**4, "g": 1024**3, "m": 1024**2, "k": 1024}
_V2, _V1 = "memory.max", "memory.limit_in_bytes"
"""The files with the limit of a control group, of the two versions of Linux' control groups."""


def memory_of(text: Any) -> int:
    """Return an amount of memory in bytes.

    :param text: the amount as Spark writes it: ``512m``, ``4g``. A ``b`` may follow, and upper case means the same.
    :raises ValueError: if the value is no such text, or the amount is 0 or above :data:`MOST`.
    """
    found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
    amount = int(Decimal(found[1]) * _BYTES[found[2].lower()]) if found is not None else 0
    if not 0 < amount <= 1024 * _BYTES["t"]:
        raise ValueError(f"give {MEMORY_FORM}, above 0 and at most {MOST}")
    return amount


def memory_text(amount: int, *, at_least: bool = False) -> str:
    """Return an amount of memory as text: ``4g``. An odd amount is rounded to two places.

    :param at_least: True: round up, so that the text stands for enough; False: round down.
    """
    for unit, size in _BYTES.items():
        if amount % size == 0 and 0 < amount // size < 10_000:
            return f"{amount // size}{unit}"
    unit, size = next(((unit, size) for unit, size in _BYTES.items() if amount >= size), ("k", 1024))
    hundredths = -(-amount * 100 // size) if at_least else amount * 100 // size
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + unit


@lru_cache
def memory_of_machine(root: Path = Path("/")) -> int:
    """Return the memory in bytes that this process may use: that of the machine, or less if its container has a limit.

    :param root: the folder that has ``proc`` and ``sys``.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the control groups of this process. A limit of a group holds for the groups in it, too."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "sys/fs/cgroup/memory", _V1) if controllers else (root / "sys/fs/cgroup", _V2)
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):  # in a container, only the last of them may exist
            text = _read(base / folder / name).strip()
            if text.isdecimal() and int(text) > 0:  # "max": no limit
                yield int(text)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
