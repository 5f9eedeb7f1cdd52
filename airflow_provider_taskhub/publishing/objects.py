"""Files in an object store, through fsspec. A commit is one conditional request: create it, if it does not exist.

Hadoop's connectors were rejected here. An object store has no atomic rename, and Hadoop reaches conditional requests
only in new versions and by options of each connector. The packages s3fs, gcsfs and adlfs all have ``mode="create"``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_taskhub.errors import ConfigurationError

_OLDEST = (2024, 12)
"""The oldest version, of each package, that has ``mode="create"``. An older one may overwrite instead of refusing."""


class ObjectFiles:
    """Files below one target.

    :param system: the fsspec file system. Its ``pipe_file`` must know ``mode="create"``.
    :param root: the target, as the file system writes it.
    """

    def __init__(self, system: Any, root: str) -> None:
        self._system = system
        self._root = root.rstrip("/")

    @classmethod
    def opened(cls, target: str, package: str, options: Mapping[str, Any]) -> ObjectFiles:
        """Return the files of a target.

        :param package: the package that has the file system; for the error.
        :param options: arguments of the file system.
        :raises ConfigurationError: if the package is missing or too old.
        """
        try:
            import fsspec

            version = importlib.metadata.version(package)
            if tuple(map(int, version.split(".")[:2])) < _OLDEST:
                raise ConfigurationError(
                    f"publishing to {target!r} needs {package} {_OLDEST[0]}.{_OLDEST[1]} or newer, and {version} is "
                    f"installed: pip install --upgrade {package}"
                )
            url = "s3" + target.removeprefix("s3a") if target.startswith("s3a:") else target
            system, root = fsspec.url_to_fs(url, **options)
        except ImportError as error:
            raise ConfigurationError(
                f"publishing to {target!r} needs the package {package} where the activity runs ({error}): "
                f"pip install {package}"
            ) from error
        return cls(system, root)

    def names(self, path: str) -> dict[str, bool]:
        """See :class:`.stores.Files`."""
        self._system.invalidate_cache()
        full = self._path(path)
        try:
            found = self._system.ls(full, detail=True)
        except FileNotFoundError:
            return {}
        # Some stores list the marker of the folder itself, too.
        names = {entry["name"].rstrip("/"): entry["type"] == "directory" for entry in found}
        return {name.rpartition("/")[2]: folder for name, folder in names.items() if name != full}

    def read(self, path: str) -> bytes | None:
        """See :class:`.stores.Files`."""
        try:
            return bytes(self._system.cat_file(self._path(path)))
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes, scratch: str) -> bool:
        """See :class:`.stores.Files`. One request has the whole content, so there is no unfinished file."""
        try:
            self._system.pipe_file(self._path(path), content, mode="create")
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See :class:`.stores.Files`."""
        self._system.invalidate_cache()
        with suppress(FileNotFoundError):
            self._system.rm(self._path(path), recursive=True)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"
