"""Tells whether a DAG file has changed since Airflow read it.

Airflow starts a task in the triggerer with the arguments that the DAG file had when Airflow last stored the DAG. That
may be some time ago: Airflow stores a DAG at most every 30 s (``[core] min_serialized_dag_update_interval``). An
Airflow worker reads the file itself, so it always has the newest arguments.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def fingerprint(path: str | None) -> str | None:
    """Return the hash of a DAG file; None: there is no such file here, or it cannot be read.

    :param path: the path of the file; None: the DAG is of no file.
    """
    if path is None:
        return None
    try:
        state = Path(path).stat()
        return _hash(path, state.st_mtime_ns, state.st_size)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _hash(path: str, _modified: int, _size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def has_changed(path: str | None, before: str | None) -> bool:
    """Return whether a DAG file differs from what it was. A file that is not on this machine counts as unchanged.

    :param path: the path of the file.
    :param before: what :func:`fingerprint` returned for the file when Airflow read it.
    """
    now = fingerprint(path)
    return None not in (now, before) and now != before
