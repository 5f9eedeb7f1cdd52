"""What a listing of instances asks its table, and what it must look at itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Filter, Or


def query_filter(
    *,
    statuses: Sequence[Status] = (),
    created_from: Timestamp | None = None,
    created_to: Timestamp | None = None,
    prefix: str = "",
) -> Filter | None:
    """What a listing asks the table for; None: everything. :func:`matches` does what a table cannot.

    :param created_from, created_to: both inclusive. :param prefix: of the raw instance id.
    """
    parts: list[Filter] = []
    if prefix:
        key = escape(prefix)
        parts.append(Compare("PartitionKey", "ge", key))
        if (end := _successor(key)) is not None:
            parts.append(Compare("PartitionKey", "lt", end))
    if statuses:
        wanted = tuple(Compare("RuntimeStatus", "eq", status.value) for status in dict.fromkeys(statuses))
        parts.append(wanted[0] if len(wanted) == 1 else Or(wanted))
    if created_from is not None:
        parts.append(Compare("CreatedTime", "ge", created_from))
    if created_to is not None:
        parts.append(Compare("CreatedTime", "le", created_to))
    if len(parts) < 2:
        return parts[0] if parts else None
    return And(tuple(parts))


def matches(state: InstanceState, *, prefix: str = "", tags: Mapping[str, str] | None = None) -> bool:
    """Whether an instance has the prefix exactly and all of the tags; to be applied to what the table returns."""
    own = state.tags or {}
    return state.instance_id.startswith(prefix) and all(own.get(name) == value for name, value in (tags or {}).items())


def _successor(key: str) -> str | None:
    """A text above all that start with a key, whether a table sorts by UTF-16 units or by code points; None: no such.

    Stepped over the surrogates, which no text may hold alone, and never from U+FFFF, the last unit, to U+10000, whose
    units sort before it. So a few keys more may get through, never fewer.
    """
    for end in range(len(key) - 1, -1, -1):
        following = ord(key[end]) + 1
        if following == 0xD800:
            following = 0xE000
        if following not in (0x10000, 0x110000):
            return key[:end] + chr(following)
    return None
