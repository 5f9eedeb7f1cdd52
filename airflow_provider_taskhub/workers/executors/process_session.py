"""Finds, stops and kills all processes of an executor by their POSIX session.

A process group is not enough. PySpark's worker daemon makes its own group (``os.setpgid`` in ``pyspark/daemon.py``), so
``killpg`` would let the daemon and the user's code in it run on for seconds. A process stays in its session after
``setpgid``.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable

import psutil

_STOPS = 5
"""Largest number of times that :func:`stop` reads the session."""


def members(session: int) -> tuple[int, ...]:
    """Return the pids of the processes of a session that still run.

    Zombies are omitted, because in some containers no process ever reaps them.
    """
    return tuple(pid for pid in psutil.pids() if pid != 0 and _is_member(pid, session))


def _is_member(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


def memory(session: int) -> int:
    """Return the resident memory of all processes of a session, in bytes. Memory that several share counts for each."""
    total = 0
    for pid in members(session):
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def stop(session: int) -> None:
    """Let every process of a session stand still (SIGSTOP), also those that start while this function runs.

    A process that is not stopped yet can start another one behind our back, so the session is read until all are
    stopped. The loop has a bound, because a process in a system call of the kernel stops only after it.
    """
    for _ in range(_STOPS):
        running = [pid for pid in members(session) if not _is_stopped(pid)]
        if not running:
            return
        _signal(running, signal.SIGSTOP)


def resume(session: int) -> None:
    """Let the processes of a session go on (SIGCONT) after :func:`stop`."""
    _signal(members(session), signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return True  # it has ended


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill(session: int, *, leader: bool = True) -> tuple[int, ...]:
    """Send SIGKILL to every process of a session. If the calling process is in the session, it is killed last.

    :param session: id of the session, which is the pid of its first process (the session's leader).
    :param leader: whether to kill the leader too. Pass False after the leader was reaped, because its pid may then
        belong to another process.
    :returns: the pids that got the signal.
    """
    found = [pid for pid in members(session) if leader or pid != session]
    _signal(sorted(found, key=lambda pid: pid == os.getpid()), signal.SIGKILL)
    return tuple(found)
