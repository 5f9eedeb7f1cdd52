"""Convert instance ids to keys of table rows and to names of blobs, and back. Name the logs of attempts."""

from __future__ import annotations

import re
from functools import lru_cache

from airflow_provider_taskhub.engine.events import OrchestrationInstance

_CODES = {"^": "^^", "/": "^0", "\\": "^1", "#": "^2", "?": "^3"}
_BACK = {code[1]: char for char, code in _CODES.items()}
_CONTROL_SHIFT = 0xC0
_ESCAPED = re.compile(r"[\^/\\#?\x00-\x1f\x7f-\x9f]")
_ESCAPE = re.compile(r"\^(.)", re.DOTALL)
_UNFIT = re.compile(r"[\^\\\x00-\x1f\x7f-\x9f]|(?:^|/|\.)(?:/|$)")
"""Matches ids that must be escaped in names of message blobs. Azure changes a blob name that contains a control
character, a backslash, an empty segment or a segment that ends in a dot. An id with ``^`` is escaped too, so that two
instances never have the same folder."""

QUARANTINE_FOLDER = "^quarantine"
"""Folder of the blobs of messages in quarantine. No instance can have this folder: an escaped id never has a ``^``
before an ASCII letter, and an id that is not escaped never has a ``^``."""


@lru_cache(maxsize=1024)  # a cache, because every history row of an episode needs the same key
def escape(instance_id: str) -> str:
    """Return the PartitionKey of an instance. Do not escape a key again: the result would differ."""
    return _ESCAPED.sub(lambda match: _escape(match.group()), instance_id)


def _escape(char: str) -> str:
    return _CODES.get(char) or "^" + chr(_CONTROL_SHIFT + ord(char))


def unescape(key: str) -> str:
    """Return the instance id that a PartitionKey stands for."""
    return _ESCAPE.sub(lambda match: _unescape(match.group(1)), key)


def _unescape(code: str) -> str:
    if code in _BACK:
        return _BACK[code]
    shifted = ord(code) - _CONTROL_SHIFT
    is_control = 0 <= shifted <= 0x1F or 0x7F <= shifted <= 0x9F
    return chr(shifted) if is_control else code


def history_folder(instance_id: str) -> str:
    """Return the folder of an instance's logs and of its blobs, except blobs of messages. The folder is the escaped id.

    If the escaped id ends in a dot, a ``^`` is added, because no part of a blob name may end in a dot.
    """
    key = escape(instance_id)
    return f"{key}^" if key.endswith(".") else key


def message_folder(instance_id: str) -> str:
    """Return the folder of the blobs of an instance's messages.

    The folder is the instance id itself, as in DurableTask, if a blob name can contain it unchanged. Else it is the
    escaped id. Readers take the blob's name from the message in the queue, so they find both forms.
    """
    return history_folder(instance_id) if _UNFIT.search(instance_id) else instance_id


def log_folder(instance: OrchestrationInstance) -> str:
    """Return the prefix of the names of all logs of one generation. The prefix ends with ``/``."""
    return f"{history_folder(instance.instance_id)}/{instance.execution_id or ''}/"


def log_prefix(instance: OrchestrationInstance, task_id: int) -> str:
    """Return the prefix of the names of the logs of all attempts of one activity.

    :param task_id: number of the event TaskScheduled of the activity.
    """
    return f"{log_folder(instance)}{task_id:06d}-"


def log_name(instance: OrchestrationInstance, task_id: int, attempt: int) -> str:
    """Return the name of the blob in the log container that keeps the log of an attempt.

    :param task_id: number of the event TaskScheduled of the activity.
    :param attempt: number of the attempt, from 1.
    """
    return f"{log_prefix(instance, task_id)}{attempt:03d}.log"


def parts_of_log(name: str) -> tuple[str, int, int]:
    """Return the execution id, the task id and the number of the attempt that :func:`log_name` wrote into a name."""
    *_, execution_id, file = name.split("/")
    task_id, _, attempt = file.removesuffix(".log").partition("-")
    return execution_id, int(task_id), int(attempt)


def blob_prefixes(instance_id: str) -> tuple[str, ...]:
    """Return the prefixes of the names of an instance's blobs. Each ends with ``/``.

    Other instances may have blobs with the same prefix. Call :func:`owns` for each blob.
    """
    return tuple(dict.fromkeys((f"{message_folder(instance_id)}/", f"{history_folder(instance_id)}/")))


def owns(instance_id: str, blob: str) -> bool:
    """Return True if a payload blob belongs to this instance. Blobs of ``job10`` or ``job1/part`` do not belong to
    ``job1``."""
    return any(blob.startswith(prefix) and "/" not in blob[len(prefix) :] for prefix in blob_prefixes(instance_id))


def owner_of(blob: str) -> str | None:
    """Return the id of the instance that a payload blob belongs to; None: the name belongs to no instance."""
    folder, slash, _ = blob.rpartition("/")
    key = folder[:-1] if folder.endswith(".^") else folder
    instance_id = unescape(key) if "^" in folder else folder
    return instance_id if slash and owns(instance_id, blob) else None
