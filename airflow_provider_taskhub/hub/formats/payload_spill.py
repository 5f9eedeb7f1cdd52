"""Large columns of history rows: spilled to blobs and restored; rows grouped to transactions."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_taskhub.codec import Packed
from airflow_provider_taskhub.hub.formats.keys import history_folder, unescape
from airflow_provider_taskhub.storage.primitives import Entity, Property, PutBlob

SPILL_BYTES = 60 * 1024
"""UTF-16 bytes of a column above which it is spilled."""
COLUMNS = ("Name", "Input", "Result", "Output", "Reason", "Details", "Correlation", "FailureDetails", "Tags")
"""The columns that DurableTask spills."""
BATCH_ROWS = 99
"""Event rows of a transaction; the sentinel is the hundredth operation."""
BATCH_BYTES = 3 * 1024 * 1024
ROW_BYTES = 1024
"""Estimate for what a row holds beside its texts."""

_BLOB_NAME = "BlobName"
_ADDRESSES = tuple((column, f"{column}{_BLOB_NAME}") for column in COLUMNS)


def utf16_bytes(text: str) -> int:
    """Size of a text in a table (and in .NET)."""
    return 2 * len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass"))


def spill_columns(
    entity: Entity,
    container: str,
    *,
    token: Callable[[], int] = lambda: secrets.randbits(31),
) -> tuple[Entity, tuple[PutBlob, ...]]:
    """A history row without its large columns, and the blobs to write before it.

    :param container: name of the hub's large-message container.
    :param token: 31 random bits for each blob's name, so that a repeated checkpoint never overwrites a committed one.
    """
    if _characters(entity) * 4 <= SPILL_BYTES:  # a character has at most four bytes
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
    """Spilled columns of a row: column → name of its blob. Fetch these, then :func:`restore`."""
    return {
        column: name
        for column, address in _ADDRESSES
        if isinstance(name := entity.properties.get(address), str) and name
    }


def restore(entity: Entity, texts: Mapping[str, str]) -> Entity:
    """A row with its spilled columns put back.

    :param texts: column → text of its blob, decompressed.
    """
    properties: dict[str, Property | None] = {**entity.properties, **texts}
    for column in texts:
        properties.pop(column + _BLOB_NAME, None)
    return replace(entity, properties=properties)


def batches(rows: Sequence[Entity]) -> list[tuple[Entity, ...]]:
    """Rows in groups that fit one transaction each, the sentinel added: at most 99 rows and about 3 MiB.

    DurableTask lets a group go over the 3 MiB by its last row; ours ends before it, so that only a single row (at most
    1 MiB) could ever be more.
    """
    if 0 < len(rows) <= BATCH_ROWS and sum(ROW_BYTES + 12 * _characters(row) for row in rows) <= BATCH_BYTES:
        return [tuple(rows)]  # as the exact estimates would say: a character is escaped to at most twelve bytes
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
    """1 KiB and its texts, each as a table keeps it or as a request carries it, whichever is larger.

    DurableTask counts UTF-16 alone and is refused when a batch is full of characters that a request must escape.
    """
    texts = (value for value in row.properties.values() if isinstance(value, str))
    return ROW_BYTES + sum(max(utf16_bytes(text), len(json.dumps(text))) for text in texts)
