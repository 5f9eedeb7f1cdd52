"""Find the known names that a misspelt name probably means, for error texts."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 3
"""The largest number of names that a hint lists."""


def near(name: str, known: Iterable[str], most: int = MOST) -> tuple[str, ...]:
    """Return the known names that are most similar to a name, the most similar one first. The case does not matter.

    :param name: the name that is probably misspelt.
    :param known: all names that are right.
    :param most: the largest number of names to return.
    """
    spelt = {one.casefold(): one for one in known}
    return tuple(spelt[one] for one in get_close_matches(name.casefold(), spelt, n=most, cutoff=0.6))


def did_you_mean(name: str, known: Iterable[str], most: int = MOST) -> str:
    """Return a question that lists the similar names, for example ``did you mean 'a' or 'b'?``; "": none is similar.

    Parameters: as of :func:`near`.
    """
    found = near(name, known, most)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
