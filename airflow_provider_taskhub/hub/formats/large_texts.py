"""Store large texts of instance rows in blobs.

A text is stored in a blob if it is too large for a column, or if a .NET reader would take the text itself for the
address of a blob. For example, the reason of a terminate may look like a URL. The column then has the address of the
blob, and .NET readers read the text from there, unchanged. A prefix before the text would be simpler, but .NET readers
would show the prefix. A large ``CustomStatus`` is stored in a blob too; DurableTask cannot store a large one at all.
.NET readers show the address of this blob as a string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from airflow_provider_taskhub.codec import Packed
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.formats import json_values
from airflow_provider_taskhub.hub.formats.json_values import JsonObject, Kind
from airflow_provider_taskhub.hub.formats.keys import history_folder
from airflow_provider_taskhub.hub.formats.payload_spill import utf16_bytes
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import PutBlob

INLINE_BYTES = 60 * 1024
"""Largest text that is stored in a column, in bytes of UTF-16. History rows have the same limit."""
START_BLOB = "ExecutionStarted.json.gz"
"""End of the name of a blob that holds a large start message. If an input column names such a blob, the input is the
``Input`` of the event in this message."""

_LIKE_A_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*|[/\\]\S*")
"""Matches each text that .NET may take for an absolute URI, and some more texts. JSON never matches."""
_PART = r"[^/\\\x00-\x1f\x7f-\x9f]+"
_PAYLOAD = re.compile(rf"(?:{_PART}/)+(?:message|history|instance)-{_PART}\.json\.gz")
"""Matches the names of payload blobs."""
_MAX_BLOB_NAME = 1024


def address_of(container_url: str, blob: str) -> str:
    """Return the address of a blob. Each part of the blob's name is percent-encoded.

    :param container_url: address of the hub's container of large payloads, without a slash at its end.
    :param blob: name of the blob.
    """
    return f"{container_url}/{'/'.join(quote(part, safe='') for part in blob.split('/'))}"


def blob_at(container_url: str, text: str) -> str | None:
    """Return the name of a payload blob from its address.

    :returns: None if the text is no address of a payload blob in the hub's own container.
    """
    base = f"{container_url}/"
    if not text.startswith(base):
        return None
    name = unquote(text[len(base) :])
    return name if len(name) <= _MAX_BLOB_NAME and _PAYLOAD.fullmatch(name) else None


def _must_spill(text: str) -> bool:
    return _LIKE_A_URI.fullmatch(text) is not None or utf16_bytes(text) > INLINE_BYTES


class LargeTexts:
    """Decides where each text of an instance row is stored: in the row, in a blob that the history or the start message
    already has, or in a new blob.

    The name of a new blob is a hash of its text, so that a second write of the row makes no second blob.
    """

    def __init__(self, names: HubNames, container_url: str, instance_id: str, written: Sequence[PutBlob]) -> None:
        self.blobs: list[PutBlob] = []
        self._container = names.large_messages
        self._url = container_url
        self._folder = history_folder(instance_id)
        self._written = [blob.name for blob in written]

    def place(self, text: str | None, column: str, spilled: re.Pattern[str]) -> str | None:
        """Return the value of a column for a text: the text itself, or the address of a blob. None stays None.

        :param spilled: matches the names of blobs of the history or the start message that hold this text.
        """
        if text is None or not _must_spill(text):
            return text
        found = next((name for name in self._written if spilled.search(name)), None)
        return address_of(self._url, self._own(text, column) if found is None else found)

    def status(self, text: str | None, *, row_value: str | None = None) -> str:
        """Return the value of the column ``CustomStatus``: JSON. For a large custom status, this is a JSON string with
        the address of a blob.

        :param text: the custom status as JSON; None: there is none.
        :param row_value: custom status that the row has already. If ``text`` is the same, its blob exists already.
        """
        if text is None:
            return "null"
        if utf16_bytes(text) <= INLINE_BYTES and status_blob(text, self._url) is None:
            return text
        return json_values.dumps(address_of(self._url, self._own(text, "CustomStatus", there=text == row_value)))

    def _own(self, text: str, column: str, *, there: bool = False) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"{self._folder}/instance-{digest}-{column}.json.gz"
        if not there and name not in self._written:
            self._written.append(name)
            self.blobs.append(PutBlob(container=self._container, name=name, data=Packed(text)))
        return name


def status_blob(text: str, container_url: str) -> str | None:
    """Return the name of the blob in which :class:`LargeTexts` stored a custom status; None: the column contains it.

    :param text: value of the column ``CustomStatus``.
    """
    if not text.endswith('-CustomStatus.json.gz"'):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return blob_at(container_url, value) if isinstance(value, str) else None


def text_of_blob(blob: str, text: str) -> str | None:
    """Return the value that a column of the instance row has in a blob.

    If the blob holds a start message, the value is the input in its event; None: no input. Else the value is the text.

    :param blob: name of the blob.
    :param text: content of the blob, decompressed.
    """
    if not blob.endswith(START_BLOB):
        return text
    try:
        message = JsonObject(JsonObject(json.loads(text), blob).raw("TaskMessage"), "TaskMessage")
        value: str | None = JsonObject(message.raw("Event"), "TaskMessage.Event").get("Input", Kind.TEXT)
    except (InputError, ValueError, RecursionError):
        return text  # The blob holds no start message. Show the text: a damaged row must not break a listing.
    return value
