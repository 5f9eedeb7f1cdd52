"""Select instances for a list: first with a filter that the table applies, then with conditions that only Python can
check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hub.formats.instance_rows import PARENT, ROOT
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.storage.primitives import And, Compare, Filter, Or


def query_filter(
    *,
    statuses: Sequence[Status] = (),
    created_from: Timestamp | None = None,
    created_to: Timestamp | None = None,
    prefix: str = "",
    changed_since: Timestamp | None = None,
    orchestrator: str = "",
    failed_since: Timestamp | None = None,
) -> Filter | None:
    """Return the filter that the table applies. Call :func:`matches` for each row that passes the filter.

    :param statuses: wanted statuses; empty: all.
    :param created_from: earliest wanted time of creation, inclusive.
    :param created_to: latest wanted time of creation, inclusive.
    :param prefix: prefix of the instance id, not escaped.
    :param changed_since: a time by the clock of the store; only rows that were written later are wanted.
    :param orchestrator: name of the wanted orchestrator; "": all.
    :param failed_since: only instances that failed at this time or later are wanted.
    :returns: None if all instances are wanted.
    """
    parts: list[Filter] = []
    if prefix:
        key = escape(prefix)
        parts.append(Compare("PartitionKey", "ge", key))
        if (end := _successor(key)) is not None:
            parts.append(Compare("PartitionKey", "lt", end))
    if statuses:
        parts.append(_one_of(statuses))
    if created_from is not None:
        parts.append(Compare("CreatedTime", "ge", created_from))
    if created_to is not None:
        parts.append(Compare("CreatedTime", "le", created_to))
    if changed_since is not None:
        parts.append(Compare("Timestamp", "gt", changed_since))
    if orchestrator:
        parts.append(Compare("Name", "eq", orchestrator))
    if failed_since is not None:
        parts += [_one_of((Status.FAILED,)), Compare("CompletedTime", "ge", failed_since)]
    if len(parts) < 2:
        return parts[0] if parts else None
    return And(tuple(parts))


def between(first: str, last: str, statuses: Sequence[Status]) -> Filter:
    """Return a filter for the rows with some statuses in a range of keys.

    :param first: PartitionKey of the first row, inclusive.
    :param last: PartitionKey of the last row, inclusive.
    :param statuses: wanted statuses: at least one.
    """
    return And((Compare("PartitionKey", "ge", first), Compare("PartitionKey", "le", last), _one_of(statuses)))


def _one_of(statuses: Sequence[Status]) -> Filter:
    wanted = tuple(Compare("RuntimeStatus", "eq", status.value) for status in dict.fromkeys(statuses))
    return wanted[0] if len(wanted) == 1 else Or(wanted)


def family(root: str, instance_id: str) -> Filter:
    """Return a filter for all descendants of the oldest ancestor, and for all children of the instance.

    :param root: id of the family's oldest ancestor.
    :param instance_id: id of the instance, whose row may be missing, so that its root is not known.
    """
    return Or((Compare(ROOT, "eq", root), Compare(PARENT, "eq", instance_id)))


def matches(
    state: InstanceState, *, prefix: str = "", tags: Mapping[str, str] | None = None, roots: bool = False
) -> bool:
    """Return True if the id of an instance has the prefix, and the instance has all the tags and, if ``roots`` is True,
    no parent.

    The table's filter cannot compare tags or find missing columns, and it may let a few instances with another prefix
    pass.
    """
    if roots and state.parent is not None:
        return False
    own = state.tags or {}
    return state.instance_id.startswith(prefix) and all(own.get(name) == value for name, value in (tags or {}).items())


def _successor(key: str) -> str | None:
    """Return a text that sorts after all texts that begin with a key.

    The result is right for tables that sort by UTF-16 units and for tables that sort by code points. The character
    after U+D7FF is U+E000, because no text may contain a single surrogate. U+FFFF is not increased to U+10000, because
    the UTF-16 units of U+10000 sort before U+FFFF. So a filter with this text may let a few other keys pass, but it
    omits no key that begins with ``key``.

    :returns: None if no such text exists.
    """
    for end in range(len(key) - 1, -1, -1):
        following = ord(key[end]) + 1
        if following == 0xD800:
            following = 0xE000
        if following not in (0x10000, 0x110000):
            return key[:end] + chr(following)
    return None
