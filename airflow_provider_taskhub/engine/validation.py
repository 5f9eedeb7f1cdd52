"""Names, versions, tags and times that no row could hold, refused where they are given.

A store refuses them too, but only when the decision that they belong to is to be committed: then nothing is left but
to fail the whole instance. Large payloads are nobody's concern: they are spilled to blobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError

MAX_COLUMN = 32_768
"""UTF-16 units that a column of a table holds: 64 KiB (Azure: "Understanding the Table service data model")."""
FIRST_TIME, LAST_TIME = Timestamp.parse("1601-01-01T00:00:00Z"), Timestamp.parse("9999-12-31T23:59:59.9999999Z")
"""What a column of a table holds (Azure: "Understanding the Table service data model")."""
_WAY_OUT = "Put large values into the input."


def check_column(text: Any, what: str) -> None:
    """A name, a version or a reason.

    :param what: how the error names it. :raises InputError: no text, longer than a column, or with half a character.
    """
    units = _units(text, what)
    if units > MAX_COLUMN:
        raise InputError(f"{what} is {units:,} characters: at most {MAX_COLUMN:,}. {_WAY_OUT}")


def check_text(text: Any, what: str) -> None:
    """A text of any length, which is spilled where it is large. :raises InputError: no text, or half a character."""
    _units(text, what)


def check_event(name: Any, where: str) -> None:
    """The name of an event, which its receiver's history is to hold. :raises InputError: as :func:`check_column`."""
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: name is {name!r}; give a text")
    check_column(name, f"{where}: the name {name[:40]!r}…")


def check_time(time: Timestamp, what: str) -> None:
    """A time. :raises InputError: before or after what a column holds."""
    if not FIRST_TIME <= time <= LAST_TIME:
        raise InputError(f"{what} is out of range: give a time in the years 1601 to 9999 (UTC)")


def _units(text: Any, what: str) -> int:
    if not isinstance(text, str):
        raise InputError(f"{what} is {text!r}: give a text")
    try:
        return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise InputError(f"{what} contains an unpaired surrogate, which no store accepts") from None


def check_tags(tags: Mapping[str, str], of: str, *, spilled: bool = False) -> None:
    """Tags of a start, a child or an activity.

    :param of: whose they are, e.g. ``activity 'publish'``.
    :param spilled: nothing but a history row holds them, and that spills them to a blob.
    :raises InputError: for what is no text, a name that .NET would misread, or more than a column holds together.
    """
    for name, value in tags.items():
        for part in (name, value):
            _units(part, f"tag {str(name)[:40]!r} of {of}")
        if name == "$type":
            raise InputError(f"a tag of {of} is named '$type': .NET takes that for the type of the dictionary")
    size = len(json.dumps(dict(tags), separators=(",", ":")))
    if size > MAX_COLUMN and not spilled:
        raise InputError(f"tags of {of} are {size:,} characters of JSON: at most {MAX_COLUMN:,}. {_WAY_OUT}")
