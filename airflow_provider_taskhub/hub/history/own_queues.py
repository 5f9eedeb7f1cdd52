"""The activities that have had a queue of their own without a limit: rows of the hub's table of controls. A queue that
no live worker reads is found by its row. The row of a limit does the same for the queue of an activity with a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact

_KEY = "limit-queues"
"""The partition key of these rows, so that they are read together with the limits (:func:`.places.read`)."""


def declared(names: HubNames, activity: str) -> Transact:
    """Return the write that says that an activity has a queue."""
    row = Entity(partition_key=_KEY, row_key=escape(activity), properties={})
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row),))


def known(found: Mapping[str, Sequence[Entity]]) -> list[str]:
    """Return the names of these activities. :param found: rows, by their partition keys."""
    return [unescape(row.row_key) for row in found.get(_KEY, ())]
