"""The folder for the temporary files of a Spark executor.

Spark removes its files only when it ends by itself, and an executor is always killed. So the host removes the folder
when the executor has ended. A host that was killed leaves its folders; the next host on the machine removes them. It
knows them by their locks, which the kernel releases when a process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "taskhub-spark-"
_LOCK = "lock"


class Scratch:
    """A new folder, which this process has locked.

    :param parent: the folder to make it in; None: that of the machine for temporary files.
    :raises OSError: if the folder cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        new = self.path / f"{_LOCK}.new"  # under its name it must be locked from the beginning
        self._lock: int | None = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder with all that is in it. A second call does nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _remove(self.path)
            os.close(lock)


def remove_left(parent: Path | None = None) -> None:
    """Remove the folders whose processes have ended. Folders of other users stay.

    :param parent: as for :class:`Scratch`.
    """
    for path in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # it is another user's, or is being made or removed at this moment
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its process lives
        else:
            _remove(path)
        finally:
            os.close(lock)


def _remove(path: Path) -> None:
    """Remove a folder. The lock file is removed last: if this process dies before that, another process finds the lock
    free, and removes the rest.
    """
    for one in [*path.iterdir()] if path.is_dir() else ():
        if one.name != _LOCK:
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
