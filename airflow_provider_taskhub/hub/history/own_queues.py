"""The activities whose calls wait in queues of their own: rows of the hub's table of controls. Such a queue is found by
its row when no live worker reads it any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact

_KEY = "limit-queues"
"""The partition key of these rows, so that they are read together with the limits (:func:`.places.read`)."""


def declared(names: HubNames, activity: str, limit_name: str) -> Transact:
    """Return the write that says that an activity has a queue of its own.

    :param limit_name: name of the limit for which its calls wait; "": it has none.
    """
    row = Entity(partition_key=_KEY, row_key=escape(activity), properties={"Limit": limit_name})
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row),))


def known(found: Mapping[str, Sequence[Entity]]) -> dict[str, str]:
    """Return the activities that have had queues of their own, and the names of their limits.

    :param found: rows, by their partition keys.
    """
    return {unescape(row.row_key): str(row.properties.get("Limit") or "") for row in found.get(_KEY, ())}
