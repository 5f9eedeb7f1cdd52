"""Encode and decode rows and filters for the table service (JSON with minimal metadata).

No value changes: times keep their units of 100 ns, Int32 and Int64 stay different types, and a Double with a whole
number stays a Double.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote
from uuid import UUID

from pydantic_core import to_json

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.primitives import And, Compare, Entity, Filter, Int64, Or, Property

TYPE = "@odata.type"
_INT32 = 1 << 31
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


# --- encode rows for requests -------------------------------------------------------------------------------------


def encode_row(entity: Entity) -> bytes:
    """Return the JSON of a row with its keys. Columns with the value ``None`` are omitted."""
    row: dict[str, object] = {"PartitionKey": entity.partition_key, "RowKey": entity.row_key}
    for name, value in entity.properties.items():
        if value is None:
            continue
        edm, plain = _encode(value)
        if edm:
            row[name + TYPE] = edm
        row[name] = plain
    # to_json does not fail for this row: rules.py has refused unpaired surrogates, and _encode writes NaN as a text
    return to_json(row, ensure_ascii=True)


def _encode(value: Property) -> tuple[str | None, object]:
    match value:
        case str() | bool():
            return None, value
        case Int64():
            return "Edm.Int64", str(int(value))
        case int():
            return None, value
        case float():
            return "Edm.Double", value if math.isfinite(value) else _not_finite(value)
        case Timestamp():
            return "Edm.DateTime", value.text(trim=False)
        case UUID():
            return "Edm.Guid", str(value)
        case _:
            return "Edm.Binary", base64.b64encode(value).decode()


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# --- decode rows from answers -------------------------------------------------------------------------------------


def decode_row(row: Mapping[str, Any], *, etag: str = "") -> Entity:
    """Return the row that an answer of the service contains.

    :param etag: ETag from the answer's header, for a row without ``odata.etag`` in the body.
    """
    properties: dict[str, Property] = {}
    for name, value in row.items():
        if value is None or "." in name or name in ("PartitionKey", "RowKey", "Timestamp"):
            continue  # names with a dot are annotations: `odata.etag`, `Column@odata.type`
        properties[name] = _decode(row.get(name + TYPE), value)
    timestamp = row.get("Timestamp")
    return Entity(
        partition_key=row["PartitionKey"],
        row_key=row["RowKey"],
        properties=properties,
        etag=row.get("odata.etag") or etag,
        timestamp=Timestamp.parse(timestamp) if timestamp else None,
    )


def _decode(edm: str | None, value: Any) -> Property:
    decode = _DECODERS.get(edm) if edm else None
    if decode is not None:
        return decode(value)
    if isinstance(value, bool | float | str):
        return value
    return int(value) if -_INT32 <= value < _INT32 else Int64(value)


def _double(value: Any) -> float:
    return float(value.replace("Infinity", "inf")) if value in _NOT_FINITE else float(value)


_DECODERS: Mapping[str, Callable[[Any], Property]] = {
    "Edm.Int64": Int64,
    "Edm.Double": _double,
    "Edm.DateTime": Timestamp.parse,
    "Edm.Guid": UUID,
    "Edm.Binary": base64.b64decode,
}


# --- encode filters and keys for requests -------------------------------------------------------------------------


def encode_filter(filter: Filter) -> str:
    """Return a filter as the text of an OData ``$filter``."""
    match filter:
        case Compare():
            return f"{filter.column} {filter.operator} {_literal(filter.value)}"
        case And():
            return _joined(" and ", filter.parts)
        case Or():
            return _joined(" or ", filter.parts)


def _joined(word: str, parts: tuple[Filter, ...]) -> str:
    return "(" + word.join(encode_filter(part) for part in parts) + ")"


def _literal(value: Property) -> str:
    match value:
        case str():
            return _quoted(value)
        case bool():
            return "true" if value else "false"
        case Int64():
            return f"{int(value)}L"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else _not_finite(value)
        case Timestamp():
            return f"datetime'{value.text(trim=False)}'"
        case UUID():
            return f"guid'{value}'"
        case _:
            return f"X'{value.hex()}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def row_path(table: str, partition_key: str, row_key: str) -> str:
    """Return the percent-encoded path of a row."""
    return f"/{table}(PartitionKey={_key(partition_key)},RowKey={_key(row_key)})"


def _key(value: str) -> str:
    return "'" + quote(value.replace("'", "''"), safe="") + "'"
