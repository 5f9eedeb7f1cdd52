"""Texts of instance rows that lie in blobs: where they go, how the row points there, how they are found.

A text goes to a blob when it is too large for a column, or when a .NET reader would take it for the address of a blob
(a terminate reason, a failure's text or a foreign input may look like one). The row then holds the blob's address:
.NET readers follow it and find the text unchanged, which a prefix would not have left so. A large ``CustomStatus``,
with which DurableTask fails for ever, goes to a blob too; .NET shows its address as a string.
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
"""UTF-16 bytes of a text that a column may keep, as in the history."""
START_BLOB = "ExecutionStarted.json.gz"
"""End of the name of a spilled start message: a text kept there is the ``Input`` of its event."""

_LIKE_A_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S*|[/\\]\S*")
"""Wider than what .NET takes for a well-formed absolute URI; no JSON text matches."""
_PART = r"[^/\\\x00-\x1f\x7f-\x9f]+"
_PAYLOAD = re.compile(rf"(?:{_PART}/)+(?:message|history|instance)-{_PART}\.json\.gz")
"""Names of payload blobs."""
_MAX_BLOB_NAME = 1024


def address_of(container_url: str, blob: str) -> str:
    """Address of a blob, each part of its name percent-encoded.

    :param container_url: of the hub's large-message container, without a slash at its end.
    """
    return f"{container_url}/{'/'.join(quote(part, safe='') for part in blob.split('/'))}"


def blob_at(container_url: str, text: str) -> str | None:
    """Name of the payload blob of the hub's own container that a text is the address of; None for all others."""
    base = f"{container_url}/"
    if not text.startswith(base):
        return None
    name = unquote(text[len(base) :])
    return name if len(name) <= _MAX_BLOB_NAME and _PAYLOAD.fullmatch(name) else None


def _must_spill(text: str) -> bool:
    return _LIKE_A_URI.fullmatch(text) is not None or utf16_bytes(text) > INLINE_BYTES


class LargeTexts:
    """Where a row's texts go: into the row, to a blob that history or message has already, or to one of the row's own.

    A blob of the row's own is named by its text, so that a repeated write of the row makes no second one.
    """

    def __init__(self, names: HubNames, container_url: str, instance_id: str, written: Sequence[PutBlob]) -> None:
        self.blobs: list[PutBlob] = []
        self._container = names.large_messages
        self._url = container_url
        self._folder = history_folder(instance_id)
        self._written = [blob.name for blob in written]

    def place(self, text: str | None, column: str, spilled: re.Pattern[str]) -> str | None:
        """The column's value for a text. :param spilled: of the names of blobs that hold this very text."""
        if text is None or not _must_spill(text):
            return text
        found = next((name for name in self._written if spilled.search(name)), None)
        return address_of(self._url, self._own(text, column) if found is None else found)

    def status(self, text: str | None, *, told: str | None = None) -> str:
        """The ``CustomStatus`` column: JSON; of a large one, the JSON string of its blob's address.

        :param told: as the row has it: its blob is there.
        """
        if text is None:
            return "null"
        if utf16_bytes(text) <= INLINE_BYTES and status_blob(text, self._url) is None:
            return text
        return json_values.dumps(address_of(self._url, self._own(text, "CustomStatus", there=text == told)))

    def _own(self, text: str, column: str, *, there: bool = False) -> str:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        name = f"{self._folder}/instance-{digest}-{column}.json.gz"
        if not there and name not in self._written:
            self._written.append(name)
            self.blobs.append(PutBlob(container=self._container, name=name, data=Packed(text)))
        return name


def status_blob(text: str, container_url: str) -> str | None:
    """The blob whose address a custom status is, when it is one that :class:`LargeTexts` has written."""
    if not text.endswith('-CustomStatus.json.gz"'):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return blob_at(container_url, value) if isinstance(value, str) else None


def text_of_blob(blob: str, text: str) -> str | None:
    """The value that a blob holds: of a start message the input of its event, else the text itself.

    :param text: of the blob, decompressed.
    """
    if not blob.endswith(START_BLOB):
        return text
    try:
        message = JsonObject(JsonObject(json.loads(text), blob).raw("TaskMessage"), "TaskMessage")
        value: str | None = JsonObject(message.raw("Event"), "TaskMessage.Event").get("Input", Kind.TEXT)
    except (InputError, ValueError, RecursionError):
        return text  # no start message: shown as it is, since one row must never break a listing
    return value
