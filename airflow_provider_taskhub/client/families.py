"""Finds the descendants of an instance: its children, the children of these, and so on.

The instance row of a child names its parent and its oldest ancestor. Rows that .NET workers have written do not.
"""

from __future__ import annotations

from collections import defaultdict

from airflow_provider_taskhub.hub.formats.instance_rows import SLIM_COLUMNS
from airflow_provider_taskhub.hub.history.queries import family
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.hub.model import InstanceState


async def descendants(hub: Hub, instance_id: str, root: str | None) -> list[InstanceState]:
    """Return the descendants of an instance. Their payloads are not read.

    A child whose id was started again by a client, or by another parent, does not belong to the family any more.

    :param root: id of the oldest ancestor of the instance; None: it has no ancestor, or its row is missing.
    """
    rows = await _family(hub, root or instance_id, instance_id)
    roots = {row.root for row in rows.values() if row.root is not None} - {root or instance_id}
    for other in sorted(roots):  # the row of the instance is missing, and its children name their oldest ancestor
        rows |= await _family(hub, other, instance_id)
    children: dict[str | None, list[InstanceState]] = defaultdict(list)
    for state in rows.values():
        children[state.parent].append(state)
    # If the instance is the oldest ancestor, every row of the family counts, also one whose parent's row is missing.
    level = [state for state in rows.values() if instance_id in (state.parent, state.root)]
    found: dict[str, InstanceState] = {}
    while level:
        found |= {state.instance_id: state for state in level}
        level = [one for state in level for one in children[state.instance_id] if one.instance_id not in found]
    return [state for state in found.values() if state.instance_id != instance_id]


async def _family(hub: Hub, root: str, instance_id: str) -> dict[str, InstanceState]:
    rows = hub.store.rows(hub.names.instances, family(root, instance_id), select=SLIM_COLUMNS)
    states = [hub.state_of(entity) async for entity in rows if entity.row_key == ""]
    return {state.instance_id: state for state in states}
