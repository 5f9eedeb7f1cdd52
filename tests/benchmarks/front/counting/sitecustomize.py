"""Counts what Airflow's processes ask of the hub. Python imports this module when a process starts.

Each request appends one byte to a file of its process's role, such as ``triggerer``. Processes can append to one file
at the same time, and a process that is killed loses nothing. The store is patched when it is imported, so that no
process imports it sooner than without the count.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_STORE = "airflow_provider_taskhub.storage.sqlite.store"


class Counted(Counter[str]):
    """The counter of a store, which also appends to the file."""

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file

    def __setitem__(self, kind: str, count: int) -> None:
        os.write(self._file, b"." * (count - self[kind]))
        super().__setitem__(kind, count)


class _Patch(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _STORE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _count(module.SqliteStore, self._folder)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _count(store: Any, folder: Path) -> None:
    made = store.__init__
    role = sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[0]).name == "airflow" else "other"

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **more)
        self.requests = Counted(os.open(folder / role, os.O_WRONLY | os.O_APPEND | os.O_CREAT))

    store.__init__ = init


if "BENCH_REQUESTS" in os.environ:
    sys.meta_path.insert(0, _Patch(Path(os.environ["BENCH_REQUESTS"])))
