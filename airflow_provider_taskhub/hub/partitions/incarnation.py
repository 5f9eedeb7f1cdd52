"""Keeps a local file locked for the whole life of a worker process (its *incarnation*), which can prove its death.

The lock belongs to the open file and not to the process. Executors inherit the open file, so the lock is free only when
the worker and all its executors have ended. If another worker can lock the file, the incarnation is proven dead, and
the other worker may take over its partitions and activities at once. Nothing else proves a death: neither a process id,
nor a time, nor a copy of the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.model import WorkerIdentity
from airflow_provider_taskhub.settings import home as default_home

log = structlog.get_logger("taskhub.failover")

LIVE, DEAD = ".lock", ".dead"
"""Endings of the names of lock files: of an incarnation that is not proven dead, and of one that is proven dead."""
KEEP = timedelta(hours=1)
"""The time for which the file of a dead worker is kept, so that other workers on this machine can read it."""
RELISTED = 1.0
"""Seconds after which the folder is read again even if its time of change is the same."""
SETTLED = timedelta(seconds=0.1)
"""A list of the files is used again only if the folder had not changed for this time when it was read."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """The content of a lock file.

    :param identity: the incarnation that wrote the file.
    :param boot: identifies the boot of the machine on which the incarnation ran.
    :param itself: True if this is the locked file; False if it is a copy.
    """

    identity: WorkerIdentity
    boot: str
    itself: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """What a look into the folder of the lock files has found.

    :param changed: the folder's time of change, in nanoseconds.
    :param at: monotonic time of the look.
    :param paths: the paths of the files of other incarnations.
    """

    changed: int
    at: float
    paths: tuple[Path, ...]


class Incarnation:
    """The identity of this worker process, and its lock file. :meth:`claim` creates it.

    No other process ever has the same identity.

    :param trusted: True if locks work in the folder of the lock file, so that a free lock proves a death.
    :ivar identity: the full name of the worker, ``name@host/incarnation``.
    :ivar lock_fd: the file descriptor of the locked file. Executors must inherit it.
    """

    def __init__(self, identity: WorkerIdentity, path: Path, lock_fd: int, *, trusted: bool) -> None:
        self.identity = identity
        self.lock_fd = lock_fd
        self._path = path
        self._trusted = trusted
        self._proven: dict[str, str] = {}
        self._listed: _Listed | None = None

    @classmethod
    def claim(cls, name: str = "", home: Path | None = None) -> Incarnation:
        """Create a new incarnation of a worker, and lock its file.

        :param name: the name of the worker; "" stands for the host name.
        :param home: the directory for local state; None: ``$TASKHUB_HOME``.
        :raises ConfigurationError: if the name has forbidden characters, or the directory cannot be used.
        """
        host = socket.gethostname()
        name = name or re.sub(r"[^A-Za-z0-9._-]", "-", host)[:63].lstrip("._-") or "worker"
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"worker name {name!r}: use 1 to 63 letters, digits, dots, dashes and underscores, beginning with a "
                "letter or digit"
            )
        identity = WorkerIdentity(name=name, host=host, incarnation=f"{os.getpid()}-{secrets.token_hex(8)}")
        folder = (home or default_home()) / "incarnations"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path, descriptor = _lock_new(folder, identity)
        except OSError as error:
            raise ConfigurationError(
                f"cannot keep a lock file in {folder}: {error}. Set TASKHUB_HOME to a directory on a local disk"
            ) from error
        trusted = not _lockable(path)
        if not trusted:
            log.warning(
                "locks_do_nothing",
                folder=str(folder),
                effect="other workers notice the death of this worker only when its leases expire",
            )
        return cls(identity, path, descriptor, trusted=trusted)

    def predecessors(self) -> tuple[str, ...]:
        """Return the full names of the incarnations on this machine that are proven dead.

        This method also removes lock files of incarnations whose death was proven more than :data:`KEEP` ago. Any
        thread may call the method, even ten times a second.

        :returns: an empty tuple if locks do not work in the folder, because then nothing proves a death.
        """
        if not self._trusted:
            return ()
        dead = []
        for path in self._others():
            with suppress(OSError):  # another worker has renamed or removed the file: go on with the others
                if worker := self._worker_of(path):
                    dead.append(worker)
        return tuple(dead)

    def is_alone(self) -> bool:
        """Return whether :meth:`predecessors` has last seen no incarnation that may live beside this one."""
        listed = self._listed
        return listed is not None and all(path.suffix != LIVE for path in listed.paths)

    def _others(self) -> Sequence[Path]:
        """Return the paths of the other lock files. Read the folder only if it has changed, or after a second."""
        now, listed = time.monotonic(), self._listed
        with suppress(OSError):
            changed = os.stat(self._path.parent).st_mtime_ns
            if listed is not None and listed.changed == changed and now - listed.at < RELISTED:
                return listed.paths
            paths = tuple(self._path.parent / name for name in sorted(os.listdir(self._path.parent)))
            listed = _Listed(changed=changed, at=now, paths=tuple(path for path in paths if path != self._path))
            # Two changes within one tick of the file system's clock have the same time.
            settled = time.time_ns() - changed > SETTLED.total_seconds() * 1e9
            self._listed = listed if settled else None
            return listed.paths
        self._listed = None
        return ()

    def _worker_of(self, path: Path) -> str:
        """Return the full name of the incarnation that a lock file proves dead; "" if the file proves no death.

        A file that has proved a death once is not read again.
        """
        if path.suffix == DEAD and path.name in self._proven and not _removed_if_old(path):
            return self._proven[path.name]
        identity = _dead(path)
        if identity is None:
            return ""
        return self._proven.setdefault(path.with_suffix(DEAD).name, str(identity))

    def release(self) -> None:
        """Remove the lock file after a graceful stop, because nothing is left to take over.

        Call this method after all executors have ended.
        """
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self.lock_fd)


def dead_workers(home: Path | None = None) -> tuple[str, ...]:
    """Return the full names of the workers on this machine that are proven dead, for a process that is no worker.

    The process is an incarnation for a moment, because a lock of its own shows whether locks work in the folder.

    :param home: the directory for local state; None: ``$TASKHUB_HOME``.
    :returns: an empty tuple if the directory cannot be used, because then nothing proves a death.
    """
    try:
        incarnation = Incarnation.claim(home=home)
    except ConfigurationError:
        return ()
    try:
        return incarnation.predecessors()
    finally:
        incarnation.release()


def _lock_new(folder: Path, identity: WorkerIdentity) -> tuple[Path, int]:
    """Create, lock and write a lock file, and return its path and file descriptor.

    The file gets its final name last. Under its first name other workers ignore it.
    """
    hidden = folder / f".{identity.incarnation}.new"
    path = folder / f"{identity.incarnation}{LIVE}"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note = {
            "name": identity.name,
            "host": identity.host,
            "incarnation": identity.incarnation,
            "pid": os.getpid(),
            "boot": _boot(),
            "inode": os.fstat(descriptor).st_ino,
        }
        os.write(descriptor, json.dumps(note).encode())
        os.set_inheritable(descriptor, True)
        hidden.rename(path)
    except BaseException:
        os.close(descriptor)
        with suppress(OSError):
            hidden.unlink()
        raise
    return path, descriptor


def _dead(path: Path) -> WorkerIdentity | None:
    """Return the incarnation that a lock file proves dead; None if the file proves no death."""
    if path.suffix == DEAD:
        note = None if _removed_if_old(path) else _read(path)
        return note.identity if note else None
    if path.suffix != LIVE or not _lockable(path):
        return None
    note = _read(path)
    if note is None or not note.itself:  # a copy proves nothing: no process locks a copy
        _removed_if_old(path)
        return None
    # Machines that share a folder perhaps do not share its locks, so a free lock proves nothing about other machines.
    if note.boot != _boot() and note.identity.host != socket.gethostname():
        return None
    with suppress(OSError):  # another worker has proved the same death and renamed the file first
        os.utime(path)
        path.rename(path.with_suffix(DEAD))
    log.info("worker_dead", worker=str(note.identity))
    return note.identity


def _removed_if_old(path: Path) -> bool:
    """Return True if a file is older than :data:`KEEP`, and remove the file then."""
    if time.time() - path.stat().st_mtime <= KEEP.total_seconds():
        return False
    with suppress(OSError):
        path.unlink()
    return True


def _lockable(path: Path) -> bool:
    """Return True if no process holds the lock of a file.

    The file is opened anew for the test, because two open files of one process exclude each other too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> _Note | None:
    """Return the content of a lock file; None if the file is damaged, because a damaged file proves nothing."""
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        identity = WorkerIdentity(name=note["name"], host=note["host"], incarnation=note["incarnation"])
        # Only the inode is compared: the number of the device can change with each mount.
        itself = note.get("inode") == path.stat().st_ino
        return _Note(identity=identity, boot=str(note.get("boot", "")), itself=itself)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    """Return the identifier of the machine's current boot; "" if the system has none.

    All containers of the machine have the same identifier.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
