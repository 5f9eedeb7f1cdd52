"""The pools of workers that a hub has had: rows of the hub's table of controls. The queues of a pool without a live
worker are found by these rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.hub.formats.keys import escape, unescape
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact

_KEY = "limit-pools"
"""The partition key of these rows, so that they are read together with the limits (:func:`.places.read`)."""


def declared(names: HubNames, pool: str) -> Transact:
    """Return the write that says that a pool exists."""
    row = Entity(partition_key=_KEY, row_key=escape(pool), properties={})
    return Transact(table=names.controls, rows=(RowOperation(verb=RowVerb.UPSERT_MERGE, entity=row),))


def known(found: Mapping[str, Sequence[Entity]]) -> list[str]:
    """Return the names of all pools but ``default``. :param found: rows, by their partition keys."""
    return [unescape(row.row_key) for row in found.get(_KEY, ())]
