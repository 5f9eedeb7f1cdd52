"""Reads the instances that one Airflow task has started.

The ids of these instances follow from the ids of the task and from its generation (a counter that a clear of the task
raises). So the cost does not depend on the number of other instances in the hub.
"""

from __future__ import annotations

import asyncio
import re
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hooks.identity import TaskIds
    from airflow_provider_taskhub.hub.model import InstanceState

AT_ONCE = 8
"""The number of generations whose instances are read at the same time. If none of these instances exists, the search
ends."""
MOST = 200
"""The largest number of generations that are read. Each generation needs one request."""
_LISTED = 100
"""The largest number of instances in the list. The list is read only if none of the first :data:`AT_ONCE` generations
has an instance of the task, for example because these instances were purged."""


async def of_task(client: Client, ids: TaskIds) -> tuple[InstanceState, ...]:
    """Return the instances that the task has started, the newest generation first.

    Children of these instances have the same tags but other ids, and are not returned.

    :param client: a client of the hub.
    :param ids: the ids of the task.
    """
    found = await _numbered(client, ids) or await _listed(client, ids)
    return tuple(reversed(found))


async def _numbered(client: Client, ids: TaskIds) -> list[InstanceState]:
    found: list[InstanceState] = []
    for first in count(1, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, MOST + 1))
        rows = await asyncio.gather(*(client.get(ids.instance_id(number), payloads=False) for number in numbers))
        mine = [row for row in rows if row is not None and ids.started(row.tags)]
        found.extend(mine)
        if not mine or first + AT_ONCE > MOST:
            break
    return found


async def _listed(client: Client, ids: TaskIds) -> list[InstanceState]:
    """Return the instances of a task whose first generations were purged, from a list of ids with the same prefix."""
    prefix = ids.instance_id(1).removesuffix("1")
    page = await client.list(prefix=prefix, limit=_LISTED)
    numbers = {row.instance_id: row.instance_id.removeprefix(prefix) for row in page.instances}
    mine = [
        row
        for row in page.instances
        if re.fullmatch(r"[1-9][0-9]{0,8}", numbers[row.instance_id]) and ids.started(row.tags)
    ]
    return sorted(mine, key=lambda row: int(numbers[row.instance_id]))
