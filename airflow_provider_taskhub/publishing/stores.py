"""The few operations on files that a commit needs, and the choice of the file system by the target's scheme.

``create`` is the heart: it creates a file with its content only if no file of this name exists, in one step. A local
disk does it with a hard link, HDFS with a rename that does not overwrite, an object store with a conditional request.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_taskhub.errors import ConfigurationError, InputError
from airflow_provider_taskhub.publishing.hadoop import HadoopFiles, default_scheme, executors_see
from airflow_provider_taskhub.publishing.objects import ObjectFiles

HADOOP = ("hdfs", "viewfs", "ofs")
"""Schemes whose rename is atomic and does not overwrite. They are reached through the JVM of a Spark session."""
OBJECTS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""Schemes of object stores that have conditional requests, and the package that reaches each of them."""


class Files(Protocol):
    """Files below one target. All paths are relative to the target."""

    def names(self, path: str) -> dict[str, bool]:
        """Return what is directly in a folder: for each name whether it is a folder. A missing folder is empty."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: it does not exist."""
        ...

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        """Create a file with its content in one step, if it does not exist.

        :param scratch: name of a file for an unfinished content, which nobody else uses.
        :returns: False if the file exists; nothing has changed then.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that it contains. A missing one is no error."""
        ...


class LocalFiles:
    """Files on a disk of this machine, or on one that it has mounted.

    :param root: absolute path of the target.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def names(self, path: str) -> dict[str, bool]:
        """See :class:`Files`."""
        try:
            with os.scandir(self._path(path)) as entries:
                return {entry.name: entry.is_dir() for entry in entries}
        except FileNotFoundError:
            return {}

    def read(self, path: str) -> bytes | None:
        """See :class:`Files`."""
        try:
            with open(self._path(path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        """See :class:`Files`. A rename was rejected, because it overwrites a file that exists."""
        final, unfinished = self._path(path), self._path(scratch)
        os.makedirs(os.path.dirname(final), exist_ok=True)
        with open(unfinished, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, final)
        except FileExistsError:
            return False
        except OSError as error:
            if not os.path.exists(unfinished):
                raise
            raise ConfigurationError(
                f"{self._root}: this file system cannot make a hard link ({error.strerror}), which a commit needs: "
                "publish to another disk, or to the object store by its URL"
            ) from error
        finally:
            self.delete(scratch)
        return True

    def delete(self, path: str) -> None:
        """See :class:`Files`."""
        full = self._path(path)
        try:
            os.unlink(full)
        except FileNotFoundError:
            pass
        except OSError:  # it is a folder: IsADirectoryError on Linux, PermissionError on macOS
            shutil.rmtree(full, ignore_errors=True)
            if os.path.isdir(full):
                shutil.rmtree(full)

    def is_shared(self, path: str) -> bool:
        """Return whether the machines that write with the active Spark session see a file."""
        return executors_see(self._path(path))

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path)


def files_of(target: str, storage_options: Mapping[str, Any] | None) -> Files:
    """Return the files of a target.

    :param target: absolute path of a folder, or its URL.
    :param storage_options: for an object store: arguments of its fsspec file system, such as credentials.
    :raises InputError: if the target is a relative path, or its scheme has no atomic creation of a file.
    :raises ConfigurationError: if a package or a Spark session is missing.
    """
    if not isinstance(target, str) or not target:
        raise InputError(f"the target {target!r} is no folder: pass an absolute path or a URL as a text")
    if urlsplit(target).password is not None:
        raise InputError("the target's URL contains a password, which logs would show: pass it in storage_options")
    scheme = urlsplit(target).scheme
    if storage_options and scheme not in OBJECTS:
        raise InputError(f"the target {target!r} is in no object store, so it takes no storage_options")
    if scheme in HADOOP:
        return HadoopFiles.of_session(target)
    if scheme in OBJECTS:
        return ObjectFiles.opened(target, OBJECTS[scheme], storage_options or {})
    if scheme == "file" and any(sign in target for sign in "%?#"):
        raise InputError(
            f"the target {target!r} has one of the signs % ? #, which Spark and pyarrow read in different ways in a "
            "file: URL: use a folder without them in its path"
        )
    if scheme in ("", "file") and (signs := [sign for sign in "*?[]{}\\" if sign in target]):
        raise InputError(
            f"the target {target!r} has the sign {signs[0]}, which Spark takes for a part of a pattern when it reads: "
            "use a folder without it in its path"
        )
    if scheme not in ("", "file"):
        known = ", ".join(("file", *HADOOP, *OBJECTS))
        raise InputError(f"the target {target!r} has the scheme {scheme!r}; publish() knows {known}")
    path = urlsplit(target).path if scheme else target
    if not os.path.isabs(path):
        raise InputError(f"the target {target!r} is a relative path: Spark and Python may stand in different folders")
    default = None if scheme else default_scheme()
    if default not in (None, "file"):
        raise InputError(
            f"the target {target!r} has no scheme, and this Spark session takes such a path for one of {default!r}: "
            f"write '{default}://…' or 'file://…'"
        )
    return LocalFiles(path)
