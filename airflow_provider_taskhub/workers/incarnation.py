"""The proof that a worker is dead: a lock on a local file that every incarnation holds for life.

The lock belongs to the open file, not to the process: executors inherit it, so it is free only when the worker and all
of its executors have ended. A worker that can lock the file of another incarnation knows that nothing of it runs any
more, and may take over its partitions and activities at once. Nothing else proves a death: neither a process id, nor a
time, nor a copy of the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import socket
import time
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
KEEP = timedelta(hours=1)
"""How long the file of a dead worker stays, so that other workers of this machine can read it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """The content of a lock file. :param itself: it is the file that was locked, and not a copy of it."""

    identity: WorkerIdentity
    boot: str
    itself: bool


class Incarnation:
    """This process as a worker: an identity that no other process ever has, and the lock that says it lives.

    Made by :meth:`claim`. :ivar identity: ``name@host/incarnation``. :ivar lock_fd: inheritable; pass it to executors.
    """

    def __init__(self, identity: WorkerIdentity, path: Path, lock_fd: int, *, trusted: bool) -> None:
        self.identity = identity
        self.lock_fd = lock_fd
        self._path = path
        self._trusted = trusted
        self._proven: dict[str, str] = {}

    @classmethod
    def claim(cls, name: str = "", home: Path | None = None) -> Incarnation:
        """Become a new incarnation of the worker ``name``; the host's name if empty.

        :param home: directory for local state; default ``$TASKHUB_HOME``.
        :raises ConfigurationError: for a name that keys and lists cannot show, or a directory that cannot be used.
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
        """Full names of the incarnations on this machine that are proven dead. Cheap enough for ten calls a second.

        It also removes files of workers that have been dead for long. Any thread may call it.
        """
        if not self._trusted:
            return ()
        dead = []
        names: list[str] = []
        with suppress(OSError):
            names = sorted(os.listdir(self._path.parent))
        for name in names:
            path = self._path.parent / name
            with suppress(OSError):  # another worker has renamed or removed it meanwhile: go on with the rest
                if path != self._path and (worker := self._worker_of(path)):
                    dead.append(worker)
        return tuple(dead)

    def _worker_of(self, path: Path) -> str:
        """Full name of the dead incarnation that a file belongs to; empty: the file does not prove a death.

        A file that has proved a death once is not read again.
        """
        if path.suffix == DEAD and path.name in self._proven and not _is_forgotten(path):
            return self._proven[path.name]
        identity = _dead(path)
        if identity is None:
            return ""
        return self._proven.setdefault(path.with_suffix(DEAD).name, str(identity))

    def release(self) -> None:
        """Remove the lock file after a graceful stop: nothing is left to take over. Executors must have ended."""
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            os.close(self.lock_fd)


def _lock_new(folder: Path, identity: WorkerIdentity) -> tuple[Path, int]:
    """Make a lock file. It gets its final name, under which others see it, only after it is locked and written."""
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
    """The incarnation that a file belongs to, if that is proven dead."""
    if path.suffix == DEAD:
        note = None if _is_forgotten(path) else _read(path)
        return note.identity if note else None
    if path.suffix != LIVE or not _lockable(path):
        return None
    note = _read(path)
    if note is None or not note.itself:  # nobody locks a copy, even while its worker lives
        _is_forgotten(path)
        return None
    # a folder shared with another machine may not share its locks: only what ran on this one is judged
    if note.boot != _boot() and note.identity.host != socket.gethostname():
        return None
    with suppress(OSError):  # another worker has renamed it at the same moment, with the same proof
        os.utime(path)
        path.rename(path.with_suffix(DEAD))
    log.info("worker_dead", worker=str(note.identity))
    return note.identity


def _is_forgotten(path: Path) -> bool:
    """Whether a file was kept for long enough; then it is removed."""
    if time.time() - path.stat().st_mtime <= KEEP.total_seconds():
        return False
    with suppress(OSError):
        path.unlink()
    return True


def _lockable(path: Path) -> bool:
    """Whether nobody holds the lock.

    The file is opened again for that, since two open files of one process exclude each other too.
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
    """The content of a lock file; None for a damaged file, which proves nothing."""
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        identity = WorkerIdentity(name=note["name"], host=note["host"], incarnation=note["incarnation"])
        itself = note.get("inode") == path.stat().st_ino  # not the device: its number may change with each mount
        return _Note(identity=identity, boot=str(note.get("boot", "")), itself=itself)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    """This boot of this machine; the same in all of its containers. Empty where the system does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
