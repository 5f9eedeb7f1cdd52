"""Checks of names, versions, tags and times: a value that no row can hold raises an error in the caller's code.

Without these checks the store would refuse the value later, at the commit of the decision. The worker would then
have to fail the whole instance. Large inputs and results need no check, because they are spilled to blobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from math import ceil
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError

MAX_COLUMN = 32_768
"""Maximum UTF-16 units in a column of a table, 64 KiB (Azure: "Understanding the Table service data model")."""
FIRST_TIME, LAST_TIME = Timestamp.parse("1601-01-01T00:00:00Z"), Timestamp.parse("9999-12-31T23:59:59.9999999Z")
"""First and last time that a column of a table can hold (Azure: "Understanding the Table service data model")."""
TERMINATE_EVENT = "taskhub.terminate"
"""Name of the event that tells of a terminate with time for a clean-up (:mod:`.grace`). Nobody else can raise it or
wait for it."""
LONGEST_GRACE = timedelta(days=6)
"""The longest time for a clean-up after a terminate: that of a timer which is one message."""
_WAY_OUT = "Put large values into the input."


def is_own_event(name: str) -> bool:
    """Return whether an event of this name is TaskHub's own, in capital or small letters."""
    return name.casefold() == TERMINATE_EVENT


def grace_seconds(grace: Any, what: str = "grace") -> int | None:
    """Return the whole seconds of a time for a clean-up, rounded up; None if no time is given.

    :param what: how an error names the value.
    :raises InputError: the time is not above zero, is longer than :data:`LONGEST_GRACE`, or is no ``timedelta``.
    """
    if grace is None:
        return None
    if not isinstance(grace, timedelta):
        raise InputError(f"{what} is {grace!r}: give a timedelta, for example timedelta(seconds=60)")
    if not timedelta(0) < grace <= LONGEST_GRACE:
        raise InputError(
            f"{what} is {grace}: give a time above zero and of at most {LONGEST_GRACE.days} days, or leave it out to "
            "end the instance at once"
        )
    return ceil(grace.total_seconds())


def check_column(text: Any, what: str) -> None:
    """Check a text that is stored in one column, such as a name, a version or a reason.

    :param text: the value to check.
    :param what: how an error names the value.
    :raises InputError: the value is not a text, is longer than :data:`MAX_COLUMN`, or has an unpaired surrogate.
    """
    units = _units(text, what)
    if units > MAX_COLUMN:
        raise InputError(f"{what} is {units:,} characters: at most {MAX_COLUMN:,}. {_WAY_OUT}")


def check_text(text: Any, what: str) -> None:
    """Check a text of any length; a large text is spilled to a blob.

    :param text: the value to check.
    :param what: how an error names the value.
    :raises InputError: the value is not a text, or has an unpaired surrogate.
    """
    _units(text, what)


def check_event(name: Any, where: str) -> None:
    """Check the name of an external event. The receiver's history stores the name in one column.

    :param name: the value to check.
    :param where: the function that got the name, for errors.
    :raises InputError: the name is empty or TaskHub's own, or :func:`check_column` raises.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"{where}: name is {name!r}; give a text")
    if is_own_event(name):
        raise InputError(f"{where}: {name!r} is TaskHub's own event: choose another name, or call terminate with grace")
    check_column(name, f"{where}: the name {name[:40]!r}…")


def check_time(time: Timestamp, what: str) -> None:
    """Check a time that is stored in a column.

    :param time: the time to check.
    :param what: how an error names the time.
    :raises InputError: the time is before :data:`FIRST_TIME` or after :data:`LAST_TIME`.
    """
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
    """Check the tags of a start, a child or an activity.

    :param tags: the tags to check.
    :param of: what the tags belong to, for errors, e.g. ``activity 'publish'``.
    :param spilled: whether large tags are spilled to a blob, so that they have no size limit.
    :raises InputError: the tags are no mapping, a name or value is not a text, a name is ``$type``, or all tags
        together are longer than :data:`MAX_COLUMN` as JSON.
    """
    if not isinstance(tags, Mapping):
        raise InputError(f"tags of {of} are {tags!r}: give a dict of texts by name")
    for name, value in tags.items():
        for part in (name, value):
            _units(part, f"tag {str(name)[:40]!r} of {of}")
        if name == "$type":
            raise InputError(
                f"a tag of {of} is named '$type', which .NET reads as the type of the dictionary: choose another name"
            )
    size = len(json.dumps(dict(tags), separators=(",", ":")))
    if size > MAX_COLUMN and not spilled:
        raise InputError(f"tags of {of} are {size:,} characters of JSON: at most {MAX_COLUMN:,}. {_WAY_OUT}")
