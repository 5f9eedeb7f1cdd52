"""Between the recordings' rows and ours: Edm types by name, as both of the recordings' notations have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.storage.primitives import Entity, Int64, Property

KEYS = ("PartitionKey", "RowKey")
Typed = tuple[str, Any]
"""Edm type and value."""


def from_state(row: Mapping[str, Mapping[str, Any]]) -> Entity:
    """A row of a recorded moment: every value with its Edm type."""
    values = {name: _value(cell["type"], cell["value"]) for name, cell in row.items()}
    return _entity(values)


def from_write(columns: Mapping[str, Any]) -> Entity:
    """A row as it was sent: types of what JSON has are implied, nulls are not stored."""
    values: dict[str, Property] = {}
    for name, value in columns.items():
        if name.endswith("@odata.type") or value is None:
            continue
        edm = columns.get(f"{name}@odata.type", "Edm." + _implied(value)).removeprefix("Edm.")
        values[name] = _value(edm, value)
    return _entity(values)


def edm(entity: Entity) -> dict[str, Typed]:
    """A row's columns with their Edm types, keys included, nulls left out: what a table would store."""
    found: dict[str, Typed] = {"PartitionKey": ("String", entity.partition_key), "RowKey": ("String", entity.row_key)}
    for name, value in entity.properties.items():
        if value is not None:
            found[name] = (_type(value), value.text(trim=False) if isinstance(value, Timestamp) else value)
    return found


def theirs(entity: Entity) -> dict[str, Typed]:
    """The same without the columns that are ours alone."""
    return {name: cell for name, cell in edm(entity).items() if not name.startswith("TaskHub") or name == "TaskHubName"}


def same_json(columns: Mapping[str, Typed], names: tuple[str, ...]) -> dict[str, Typed]:
    """Columns of nested objects as values, so that the order of their members and escapes do not count."""
    return {
        name: (kind, json.loads(value)) if name in names and kind == "String" and value else (kind, value)
        for name, (kind, value) in columns.items()
    }


def plain(message: str) -> str:
    """A queue's text as JSON."""
    return message if message.startswith("{") else base64.b64decode(message).decode()


def without_dictionary_types(value: Any) -> Any:
    """A message's JSON without the ``$type`` of dictionaries, which we do not write."""
    if isinstance(value, dict):
        return {
            name: without_dictionary_types(member)
            for name, member in value.items()
            if not (name == "$type" and str(member).startswith("System.Collections.Generic.Dictionary"))
        }
    if isinstance(value, list):
        return [without_dictionary_types(item) for item in value]
    return value


def _entity(values: Mapping[str, Property]) -> Entity:
    return Entity(
        partition_key=str(values["PartitionKey"]),
        row_key=str(values["RowKey"]),
        properties={name: value for name, value in values.items() if name not in KEYS},
    )


def _implied(value: Any) -> str:
    return {str: "String", bool: "Boolean", int: "Int32"}[type(value)]


def _value(edm_type: str, value: Any) -> Property:
    match edm_type:
        case "String" | "Boolean" | "Int32":
            assert _implied(value) == edm_type
            return value  # type: ignore[no-any-return]
        case "DateTime":
            return Timestamp.parse(value)
    raise AssertionError(f"no recording has Edm.{edm_type}")


def _type(value: Property) -> str:
    match value:
        case bool():
            return "Boolean"
        case Int64():
            return "Int64"
        case int():
            return "Int32"
        case str():
            return "String"
        case Timestamp():
            return "DateTime"
    raise AssertionError(f"{value!r} is of no type that DurableTask's columns have")
