"""The folders for the temporary files of a Spark executor.

Spark removes its files only when it ends by itself, and an executor is always killed. So the host removes the folder
when the executor has ended. A host that was killed leaves its folders; the next host on the machine removes them. It
knows them by their locks, which the kernel releases when a process ends.

Spark has two kinds of such files: its own (``spark.local.dir``) and those of Java (``java.io.tmpdir``), such as native
libraries and the files of sessions. If the user has named folders for them, the executor gets new folders in these.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_LOCAL_DIR = "spark.local.dir"
_JAVA_DIR = "-Djava.io.tmpdir="
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


class SparkScratch:
    """New folders for one Spark executor. Those that executors of killed hosts have left beside them are removed.

    :param master: the Spark master. On a cluster, the folders are for the driver alone.
    :param conf: the settings of Spark.
    :param environment: the environment variables of the executor.
    :raises OSError: if a folder cannot be made.
    """

    def __init__(self, master: str, conf: Mapping[str, str], environment: Mapping[str, str]) -> None:
        options = [environment.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS")]
        java = re.findall(rf"{re.escape(_JAVA_DIR)}(\"[^\"]*\"|'[^']*'|\S+)", " ".join(options))
        self._folders: list[Scratch] = []
        self._environment = environment
        try:
            self._java = self._new(Path(java[-1].strip("\"'")) if java else None)
            # The pods of Kubernetes and the containers of YARN would get the driver's folders too.
            named = named_folders(conf, environment) if master.startswith(("local", "spark://")) else []
            self._local = [self._new(Path(parent)) for parent in named]
            if not named and master.startswith("local"):
                self._local = [self._java]
        except BaseException:
            self.remove()
            raise

    def _new(self, parent: Path | None) -> Path:
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        remove_left(parent)
        self._folders.append(Scratch(parent))
        return self._folders[-1].path

    @property
    def conf(self) -> dict[str, str]:
        """The settings of Spark that name the folders. Without them, the driver of a cluster takes Java's folder."""
        return {_LOCAL_DIR: ",".join(map(str, self._local))} if self._local else {}

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name the folders."""
        given = self._environment.get("SPARK_SUBMIT_OPTS", "")
        found = {"SPARK_SUBMIT_OPTS": f'{given} {_JAVA_DIR}"{self._java}"'.strip()}
        if self._local and "SPARK_LOCAL_DIRS" in self._environment:
            found["SPARK_LOCAL_DIRS"] = ",".join(map(str, self._local))
        return found

    def remove(self) -> None:
        """Remove the folders with all that is in them. A second call does nothing."""
        for one in self._folders:
            one.remove()


def named_folders(conf: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return where the user wants Spark's own temporary files: by a variable, a setting, or Spark's own file."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    file = Path(folder, "spark-defaults.conf") if folder else None
    try:
        lines = file.read_text(errors="replace").splitlines() if file is not None else []
    except OSError:
        lines = []
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines)
    in_file = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    found = environment.get("SPARK_LOCAL_DIRS") or conf.get(_LOCAL_DIR) or in_file.get(_LOCAL_DIR, "")
    return [one.strip() for one in found.split(",") if one.strip()]


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
