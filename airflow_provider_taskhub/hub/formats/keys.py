"""Instance ids in row keys and blob names."""

from __future__ import annotations

import re
from functools import lru_cache

_CODES = {"^": "^^", "/": "^0", "\\": "^1", "#": "^2", "?": "^3"}
_BACK = {code[1]: char for char, code in _CODES.items()}
_CONTROL_SHIFT = 0xC0
_ESCAPED = re.compile(r"[\^/\\#?\x00-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\^(.)", re.DOTALL)
_UNFIT = re.compile(r"[\^\\\x00-\x1f\x7f-\x9f]|(?:^|/|\.)(?:/|$)")
"""Ids that are escaped in the names of message blobs too: control characters, backslashes, segments that are empty or
end in a dot, which no blob name carries unchanged, and ``^``, so that no two instances share a folder."""

QUARANTINE_FOLDER = "^quarantine"
"""First part of the names of what is kept in quarantine: no escaped id has a ``^`` before an ASCII letter, no
raw one any."""


@lru_cache(maxsize=1024)  # asked for with every row of an episode
def escape(instance_id: str) -> str:
    """The PartitionKey of an instance; not idempotent."""
    return _ESCAPED.sub(lambda match: _escape(match.group()), instance_id)


def _escape(char: str) -> str:
    return _CODES.get(char) or "^" + chr(_CONTROL_SHIFT + ord(char))


def unescape(key: str) -> str:
    """The instance id of a PartitionKey."""
    return _ESCAPE.sub(lambda match: _unescape(match.group(1)), key)


def _unescape(code: str) -> str:
    if code in _BACK:
        return _BACK[code]
    shifted = ord(code) - _CONTROL_SHIFT
    is_control = 0 <= shifted <= 0x1F or 0x7F <= shifted <= 0x9F
    return chr(shifted) if is_control else code


def history_folder(instance_id: str) -> str:
    """First part of the names of an instance's blobs, but its messages', and of its logs: the escaped id.

    One that ends in a dot gets a ``^`` behind it: no blob name has a segment that ends so.
    """
    key = escape(instance_id)
    return f"{key}^" if key.endswith(".") else key


def message_folder(instance_id: str) -> str:
    """First part of the names of an instance's message blobs: the raw id, where that can be.

    Readers find a message's blob by the name in its wrapper, so the escaped id serves as well where the raw one cannot.
    """
    return history_folder(instance_id) if _UNFIT.search(instance_id) else instance_id


def blob_prefixes(instance_id: str) -> tuple[str, ...]:
    """Prefixes, with their ``/``, under which an instance's blobs lie; :func:`owns` says which of those are its own."""
    return tuple(dict.fromkeys((f"{message_folder(instance_id)}/", f"{history_folder(instance_id)}/")))


def owns(instance_id: str, blob: str) -> bool:
    """Whether a payload blob is this instance's: ``job1`` owns nothing of ``job10`` or ``job1/part``."""
    return any(blob.startswith(prefix) and "/" not in blob[len(prefix) :] for prefix in blob_prefixes(instance_id))


def owner_of(blob: str) -> str | None:
    """The instance whose payload blob this is by its name; None: of no instance."""
    folder, slash, _ = blob.rpartition("/")
    key = folder[:-1] if folder.endswith(".^") else folder
    instance_id = unescape(key) if "^" in folder else folder
    return instance_id if slash and owns(instance_id, blob) else None
