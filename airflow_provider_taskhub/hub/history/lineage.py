"""Reads which data the activities of an instance and of its children have declared."""

from __future__ import annotations

from functools import partial

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.engine.events import EventType
from airflow_provider_taskhub.hub.formats.keys import escape
from airflow_provider_taskhub.hub.history import activity_records as records
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.lineage import Lineage
from airflow_provider_taskhub.storage.primitives import And, Compare, Or, Store

MAX_INSTANCES = 1_000
"""How many instances of a family are read. Each costs two requests."""
AT_ONCE = 16
"""How many instances are read at the same time."""


async def lineage_of_family(store: Store, names: HubNames, instance_id: str) -> tuple[Lineage, int]:
    """Read the data that the completed activities of an instance have declared, and those of its completed children.

    :returns: the URIs, sorted; and how many children were not read, because the family has more than
        :data:`MAX_INSTANCES` instances.
    """
    inlets: set[str] = set()
    outlets: set[str] = set()
    seen, level, left_out = {instance_id}, [instance_id], 0
    while level:
        for found in await gather_bounded(partial(records.lineage, store, names), level, limit=AT_ONCE):
            inlets.update(found.inlets)
            outlets.update(found.outlets)
        families = await gather_bounded(partial(_completed_children, store, names), level, limit=AT_ONCE)
        children = [child for family in families for child in family if child not in seen]
        level = list(dict.fromkeys(children))[: MAX_INSTANCES - len(seen)]
        left_out += len(set(children)) - len(level)
        seen.update(level)
    return Lineage(inlets=tuple(sorted(inlets)), outlets=tuple(sorted(outlets))), left_out


async def _completed_children(store: Store, names: HubNames, instance_id: str) -> list[str]:
    """Return the ids of the children whose result the current generation of an instance has got."""
    created = EventType.SubOrchestrationInstanceCreated.name
    completed = EventType.SubOrchestrationInstanceCompleted.name
    kinds = Or((Compare("EventType", "eq", created), Compare("EventType", "eq", completed)))
    within = And((Compare("PartitionKey", "eq", escape(instance_id)), kinds))
    ids: dict[object, str] = {}
    children = []
    # the event of a child's creation stands before the event of its completion
    async for row in store.rows(
        names.history, within, select=("EventType", "EventId", "InstanceId", "TaskScheduledId")
    ):
        columns = row.properties
        child = columns.get("InstanceId")
        if columns.get("EventType") == created and isinstance(child, str):
            ids[columns.get("EventId")] = child
        elif (known := ids.get(columns.get("TaskScheduledId"))) is not None:
            children.append(known)
    return children
