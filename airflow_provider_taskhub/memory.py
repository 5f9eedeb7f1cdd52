"""Amounts of memory as text, such as ``4g``.

An activity says with ``@app.activity(memory="4g")`` how much one attempt needs. A worker has a total, ``--memory 16g``.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

MEMORY_FORM = "a number with k, m, g or t, such as '4g' or '512m'"
"""What an amount of memory may be, for errors."""
MOST = "1024t"
"""The largest amount."""
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt])b?", re.ASCII | re.IGNORECASE)
_BYTES = {"t": 1024**4, "g": 1024**3, "m": 1024**2, "k": 1024}


def memory_of(text: Any) -> int:
    """Return an amount of memory in bytes.

    :param text: the amount as Spark writes it: ``512m``, ``4g``. A ``b`` may follow, and upper case means the same.
    :raises ValueError: if the value is no such text, or the amount is 0 or above :data:`MOST`.
    """
    found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
    amount = int(Decimal(found[1]) * _BYTES[found[2].lower()]) if found is not None else 0
    if not 0 < amount <= 1024 * _BYTES["t"]:
        raise ValueError(f"give {MEMORY_FORM}, above 0 and at most {MOST}")
    return amount


def memory_text(amount: int, *, at_least: bool = False) -> str:
    """Return an amount of memory as text: ``4g``. An odd amount is rounded to two places.

    :param at_least: True: round up, so that the text stands for enough; False: round down.
    """
    for unit, size in _BYTES.items():
        if amount % size == 0 and 0 < amount // size < 10_000:
            return f"{amount // size}{unit}"
    unit, size = next(((unit, size) for unit, size in _BYTES.items() if amount >= size), ("k", 1024))
    hundredths = -(-amount * 100 // size) if at_least else amount * 100 // size
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + unit
