"""Finds and kills all processes of an executor by their POSIX session.

A process group is not enough. PySpark's worker daemon makes its own group (``os.setpgid`` in ``pyspark/daemon.py``), so
``killpg`` would let the daemon and the user's code in it run on for seconds. A process stays in its session after
``setpgid``.
"""

from __future__ import annotations

import contextlib
import os
import signal

import psutil


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


def kill(session: int, *, leader: bool = True) -> tuple[int, ...]:
    """Send SIGKILL to every process of a session. If the calling process is in the session, it is killed last.

    :param session: id of the session, which is the pid of its first process (the session's leader).
    :param leader: whether to kill the leader too. Pass False after the leader was reaped, because its pid may then
        belong to another process.
    :returns: the pids that got the signal.
    """
    found = [pid for pid in members(session) if leader or pid != session]
    for pid in sorted(found, key=lambda pid: pid == os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return tuple(found)
