"""What this machine gives, or its container, if that gives less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from pathlib import Path


@lru_cache
def memory_of_machine(root: Path = Path("/")) -> int:
    """Return the memory in bytes that this process may use.

    :param root: the folder that has ``proc`` and ``sys``.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    v2 = (int(text) for (text,) in _limits(root, "memory", 1, "memory.max", v2=True))
    v1 = (int(text) for (text,) in _limits(root, "memory", 1, "memory.limit_in_bytes", v2=False))
    return min([machine, *v2, *v1])


@lru_cache
def cores_of_machine(root: Path = Path("/")) -> int:
    """Return the cores that this process may use, rounded up.

    :param root: the folder that has ``proc`` and ``sys``.
    """
    v2 = (int(quota) / int(period) for quota, period in _limits(root, "cpu", 2, "cpu.max", v2=True))
    v1 = (
        int(quota) / int(period)
        for quota, period in _limits(root, "cpu", 2, "cpu.cfs_quota_us", "cpu.cfs_period_us", v2=False)
    )
    return ceil(min([float(len(os.sched_getaffinity(0))), *v2, *v1]))


def _limits(root: Path, controller: str, count: int, *names: str, v2: bool) -> Iterator[list[str]]:
    """Yield the limits of the control groups of this process: the words in their files. A limit of a group holds for
    the groups in it, too.

    :param count: how many words the files have together.
    :param names: the names of the files.
    :param v2: whether those of version 2 of Linux' control groups are meant, or of version 1.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if bool(controllers) == v2 or (controllers and controller not in controllers.split(",")):
            continue
        base = root / "sys/fs/cgroup" / ("" if v2 else controller)
        inner = Path(path.lstrip("/"))
        for folder in (inner, *inner.parents):  # in a container, only the last of them may exist
            words = [word for name in names for word in _read(base / folder / name).split()]
            numbers = [word for word in words if word.isdecimal() and int(word) > 0]  # "max" and "-1": no limit
            if len(numbers) == len(words) == count:
                yield numbers


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
