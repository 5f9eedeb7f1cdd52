"""Encode and decode the blob with the rows that a generation switch has not written yet.

A generation switch is the commit of a ``continue_as_new``. If it needs several transactions, the first one overwrites
the old generation. Some rows of the new generation are events that the old generation had received. If the worker dies
after the first transaction, these events are nowhere else. So the rows behind the first transaction are stored in a
blob before. Each sentinel of an incomplete transaction names the blob.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hub.formats import json_values
from airflow_provider_taskhub.hub.formats.keys import escape, history_folder
from airflow_provider_taskhub.storage.primitives import Entity, Int64, Property


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwrittenRows:
    """The content of the blob.

    :param rows: history rows of the new generation, from the first row behind the first transaction to the last one.
        Large columns are in blobs of their own.
    :param awaits: what the instance waits for after the switch, as the sentinel stores it.
    """

    rows: tuple[Entity, ...]
    awaits: str


def blob_name(instance_id: str, commit_id: str) -> str:
    """Return the name of the blob. A purge of the instance finds the name, because it begins with the instance's
    folder. The name contains the id of the commit, so that a sentinel of a later commit cannot mean this blob."""
    return f"{history_folder(instance_id)}/history-{commit_id}-Unwritten.json.gz"


def is_of_commit(blob: str, commit_id: str) -> bool:
    """Return True if the blob belongs to the commit."""
    return blob.endswith(f"/history-{commit_id}-Unwritten.json.gz")


def encode(rows: Sequence[Entity], awaits: str) -> str:
    """Return the text of the blob."""
    packed = [[row.row_key, {name: _packed(value) for name, value in row.properties.items()}] for row in rows]
    return json_values.dumps({"rows": packed, "awaits": awaits})


def decode(text: str, instance_id: str) -> UnwrittenRows:
    """Decode the text of the blob.

    :raises InputError: the text is damaged.
    """
    key = escape(instance_id)
    try:
        found = json.loads(text)
        rows = tuple(
            Entity(
                partition_key=key,
                row_key=str(row_key),
                properties={str(name): _unpacked(value) for name, value in properties.items()},
            )
            for row_key, properties in found["rows"]
        )
        return UnwrittenRows(rows=rows, awaits=str(found["awaits"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"it holds no history rows: {error!r}") from error


def _packed(value: Property | None) -> object:
    """Return a value that JSON can express. A history row has no UUID and no bytes."""
    if isinstance(value, Timestamp):
        return {"time": value.ticks}
    return {"int64": int(value)} if isinstance(value, Int64) else value


def _unpacked(value: object) -> Property | None:
    if isinstance(value, dict):
        return Timestamp(value["time"]) if "time" in value else Int64(value["int64"])
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{json_values.shown(value)} is no value of a column")
