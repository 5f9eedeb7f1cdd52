"""Move large columns of history rows to blobs, put them back, and group rows into transactions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Packed
from airflow_provider_taskhub.hub.formats.keys import history_folder, unescape
from airflow_provider_taskhub.storage.primitives import Entity, Property, PutBlob

SPILL_BYTES = 60 * 1024
"""Largest text that stays in a column of a history row, in bytes of UTF-16. A larger text is moved to a blob."""
COLUMNS = ("Name", "Input", "Result", "Output", "Reason", "Details", "Correlation", "FailureDetails", "Tags")
"""The columns that DurableTask moves to blobs if they are large."""
BATCH_ROWS = 99
"""The most event rows in one transaction. A transaction has at most 100 operations, and one of them writes the
sentinel."""
BATCH_BYTES = 3 * 1024 * 1024
ROW_BYTES = 1024
"""Estimated size of a row without its texts, in bytes."""

_BLOB_NAME = "BlobName"
_ADDRESSES = tuple((column, f"{column}{_BLOB_NAME}") for column in COLUMNS)


def utf16_bytes(text: str) -> int:
    """Return the size of a text in a table, in bytes of UTF-16."""
    return 2 * len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass"))


def spill_columns(
    entity: Entity,
    container: str,
    *,
    token: Callable[[], int] = lambda: secrets.randbits(31),
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """Move the large columns of a history row to blobs.

    :param container: name of the hub's container of large payloads.
    :param token: returns 31 random bits for the name of a blob, so that a repeated checkpoint never overwrites a blob
        of a committed checkpoint.
    :returns: the row without the large columns, and the blobs. Write the blobs before the row.
    """
    if _characters(entity) * 4 <= SPILL_BYTES:  # no column is too large: a character has at most four bytes in UTF-16
        return entity, ()
    large = {
        column: value
        for column in COLUMNS
        if isinstance(value := entity.properties.get(column), str) and utf16_bytes(value) > SPILL_BYTES
    }
    if not large:
        return entity, ()
    stem = f"{history_folder(unescape(entity.partition_key))}/history-{entity.row_key}-{entity.properties['EventType']}"
    properties = dict(entity.properties)
    blobs = []
    for column, value in large.items():
        name = f"{stem}-{token():08X}-{column}.json.gz"
        blobs.append(PutBlob(container=container, name=name, data=Packed(value)))
        properties[column] = ""
        properties[column + _BLOB_NAME] = name
    return replace(entity, properties=properties), tuple(blobs)


def blob_columns(entity: Entity) -> dict[str, str]:
    """Return the columns of a row that are stored in blobs: name of the column → name of the blob.

    Read these blobs, then call :func:`restore`.
    """
    return {
        column: name
        for column, address in _ADDRESSES
        if isinstance(name := entity.properties.get(address), str) and name
    }


def restore(entity: Entity, texts: Mapping[str, str]) -> Entity:
    """Return a row with the columns that were stored in blobs.

    :param texts: name of the column → text of its blob, decompressed.
    """
    properties: dict[str, Property | None] = {**entity.properties, **texts}
    for column in texts:
        properties.pop(column + _BLOB_NAME, None)
    return replace(entity, properties=properties)


def batches(rows: Sequence[Entity]) -> list[tuple[Entity, ...]]:
    """Group rows so that each group and the sentinel fit into one transaction: at most 99 rows and about 3 MiB.

    DurableTask ends a group after the row that exceeds 3 MiB. TaskHub ends a group before this row, so that no group
    exceeds the limit of a request.
    """
    if 0 < len(rows) <= BATCH_ROWS and sum(ROW_BYTES + 12 * _characters(row) for row in rows) <= BATCH_BYTES:
        return [tuple(rows)]  # One group is enough: in a request, a character has at most twelve bytes.
    groups: list[tuple[Entity, ...]] = []
    group: list[Entity] = []
    size = 0
    for row in rows:
        estimate = _estimate(row)
        if group and (len(group) == BATCH_ROWS or size + estimate > BATCH_BYTES):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(row)
        size += estimate
    if group:
        groups.append(tuple(group))
    return groups


def _characters(row: Entity) -> int:
    return sum([len(value) for value in row.properties.values() if isinstance(value, str)])


def _estimate(row: Entity) -> int:
    """Estimate the size of a row in bytes: 1 KiB, and for each text its size in the table or in the JSON of a request,
    whichever is larger.

    DurableTask counts only the size in the table. If a batch has many characters that JSON escapes, the service refuses
    the batch of DurableTask.
    """
    texts = (value for value in row.properties.values() if isinstance(value, str))
    return ROW_BYTES + sum(max(utf16_bytes(text), len(json.dumps(text))) for text in texts)
