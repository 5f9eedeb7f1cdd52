"""Pools of workers: an activity runs only on workers of its pool.

An activity names its pool with ``@app.activity(pool="heavy")``, and a worker its pools with ``--pools heavy,default``.
"""

from __future__ import annotations

import re
from typing import Any

DEFAULT_POOL = "default"
"""The pool of workers without ``--pools``, and of activities without ``pool=``."""
POOL_FORM = "1 to 50 letters, digits, dots, hyphens and underscores, such as 'heavy'"
"""What the name of a pool may be, for errors."""
_POOL = re.compile(r"[A-Za-z0-9._-]{1,50}")


def is_pool(name: Any) -> bool:
    """Return True if a value can be the name of a pool."""
    return isinstance(name, str) and _POOL.fullmatch(name) is not None


def pools_of(text: str) -> tuple[str, ...]:
    """Return the names of pools in a text, each once.

    :param text: names separated by commas.
    :raises ValueError: if there is no name, or one of them is wrong.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("give at least one pool of workers, such as heavy,default")
    for name in names:
        if not is_pool(name):
            raise ValueError(f"{name!r} cannot name a pool of workers: use {POOL_FORM}")
    return names
