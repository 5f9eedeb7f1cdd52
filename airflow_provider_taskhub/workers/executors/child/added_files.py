"""Removes the files that attempts have added to the Spark application: ``addFile``, ``addPyFile`` and ``addArchive``.

Spark itself keeps the first version of a file for as long as the application runs: another ``addFile`` of the same path
changes nothing, so an attempt would read the file of an earlier one.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

_MODULES = (".py", ".zip", ".egg", ".jar")
"""Endings of files that Python can import from."""
_KINDS = ("Files", "Archives")
_ALL = "default"
"""The key under which Spark keeps what belongs to the whole application."""


class AddedFiles:
    """The files that were added to an application.

    :param context: the Spark context. What it has now was added by its configuration, and stays.
    """

    def __init__(self, context: Any) -> None:
        self._context, self._scala = context, context._jsc.sc()
        self._first = {kind: self._urls(kind) for kind in _KINDS}
        self._kept = {_name(url) for urls in self._first.values() for url in urls}
        self._includes, self._path = list(context._python_includes), list(sys.path)

    def remove_new(self) -> bool:
        """Remove what was added since the start. Call it only while no attempt runs that may need it.

        :returns: whether Python may have imported a module of it.
        """
        modules = False
        for kind in _KINDS:
            if self._count(kind) == len(self._first[kind]):
                continue
            added = getattr(self._scala, f"added{kind}")()
            for url in self._urls(kind) - self._first[kind]:
                if added.contains(_ALL):
                    added.apply(_ALL).remove(url)
                self._remove_copy(_name(url))
                modules |= _name(url).endswith(_MODULES)
        return modules

    def _remove_copy(self, name: str) -> None:
        """Remove the driver's copy of a file, and its place in the search paths of Python."""
        from pyspark import SparkFiles

        if name in ("", ".", "..") or name in self._kept:
            return
        root = SparkFiles.getRootDirectory()
        path = os.path.join(root, name)
        for module, loaded in [*sys.modules.items()]:
            file = getattr(loaded, "__file__", None) or ""
            if file == path or file.startswith(f"{path}{os.sep}"):
                del sys.modules[module]
        for compiled in glob.glob(f"{glob.escape(root)}/__pycache__/{glob.escape(name.removesuffix('.py'))}.*"):
            os.unlink(compiled)  # another version of the same second and size would be taken for this one
        with suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        if path not in self._path:
            sys.path[:] = [one for one in sys.path if one != path]
        if name not in self._includes:
            self._context._python_includes[:] = [one for one in self._context._python_includes if one != name]

    def _count(self, kind: str) -> int:
        return int(getattr(self._scala, f"allAdded{kind}")().size())

    def _urls(self, kind: str) -> set[str]:
        found = getattr(self._scala, f"allAdded{kind}")().keysIterator()
        urls = set[str]()
        while found.hasNext():
            urls.add(str(found.next()))
        return urls


def _name(url: str) -> str:
    """Return the name under which Spark keeps the copy of an added file."""
    parts = urlsplit(url)
    return parts.fragment or unquote(parts.path.rstrip("/").rpartition("/")[2])
