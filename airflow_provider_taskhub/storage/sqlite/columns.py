"""Store the properties of a table row as one JSON text that keeps their Edm types.

String, Boolean and Int32 become JSON strings, booleans and numbers. A value of another type becomes an object with one
member, whose name is the type: ``l`` Int64, ``d`` Double, ``t`` DateTime (ticks), ``g`` Guid, ``b`` Binary. Guid and
Binary are hexadecimal texts, because these sort in the same order as the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from pydantic_core import from_json, to_json

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.primitives import Int64, Property

Packed: TypeAlias = str | bool | int | dict[str, Any]
"""A property as a JSON value."""

_RESTORE: Mapping[str, Callable[[Any], Property]] = {
    "l": Int64,
    "d": float,
    "t": Timestamp,
    "g": lambda text: UUID(hex=text),
    "b": bytes.fromhex,
}


def pack(value: Property) -> Packed:
    """Return a property as a JSON value."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Int64):
        return {"l": int(value)}
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return {"d": value}
    if isinstance(value, Timestamp):
        return {"t": value.ticks}
    if isinstance(value, UUID):
        return {"g": value.hex}
    return {"b": value.hex()}


def unpack(packed: Packed) -> Property:
    """Return the property of a JSON value. This is the reverse of :func:`pack`."""
    if isinstance(packed, dict):
        ((kind, value),) = packed.items()
        return _RESTORE[kind](value)
    return packed


def kind_and_value(packed: Packed) -> tuple[str, Any]:
    """Return the type and the value of a packed property. A filter compares only values of the same type."""
    if isinstance(packed, dict):
        ((kind, value),) = packed.items()
        return kind, value
    return type(packed).__name__, packed


def pack_all(properties: Mapping[str, Property | None]) -> dict[str, Packed]:
    """Return all properties that are not None, as JSON values."""
    packed: dict[str, Packed] = {}
    for name, value in properties.items():
        if type(value) is str:  # the most frequent type is tested first, for speed
            packed[name] = value
        elif type(value) is Timestamp:
            packed[name] = {"t": value.ticks}
        elif value is not None:
            packed[name] = pack(value)
    return packed


def characters(packed: Mapping[str, Packed]) -> int:
    """Return the total number of characters of a row's texts and of its Binary values in hexadecimal."""
    texts = [value.get("b", "") if isinstance(value, dict) else value for value in packed.values()]
    return sum([len(text) for text in texts if isinstance(text, str)])


def unpack_all(packed: Mapping[str, Packed]) -> dict[str, Property]:
    return {name: unpack(value) for name, value in packed.items()}


def dump(packed: Mapping[str, Packed]) -> str:
    return to_json(packed).decode()


def load(text: str) -> dict[str, Packed]:
    loaded: dict[str, Packed] = from_json(text)
    return loaded
