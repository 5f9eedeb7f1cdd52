"""The processes of an executor as one thing: found by their session, killed as one.

A process group is not enough: PySpark's worker daemon makes a group of its own (``os.setpgid`` in
``pyspark/daemon.py``), so that ``killpg`` leaves it, and the user's code in it, running for seconds. The session
survives ``setpgid``.
"""

from __future__ import annotations

import contextlib
import os
import signal

import psutil


def members(session: int) -> tuple[int, ...]:
    """Pids of the processes of a session that still run; zombies (nobody reaps them in some containers) do not
    count.
    """
    return tuple(pid for pid in psutil.pids() if pid != 0 and _is_member(pid, session))


def _is_member(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


def kill(session: int, *, leader: bool = True) -> tuple[int, ...]:
    """SIGKILL every process of a session, the caller last if it is one of them.

    :param leader: whether the session's first process is meant too; False once it has been reaped, when its pid may be
        another's.
    :returns: the pids that were signalled.
    """
    found = [pid for pid in members(session) if leader or pid != session]
    for pid in sorted(found, key=lambda pid: pid == os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return tuple(found)
