"""The instances of one Airflow task. They are read by id, so the other instances of the hub cost nothing."""

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
"""Generations that are read at the same time. A gap of so many purged generations ends the search."""
MOST = 200
"""Generations that are read at most: about as many requests."""
_LISTED = 100
"""Instances of the listing that is read when the first generations are gone."""


async def of_task(client: Client, ids: TaskIds) -> tuple[InstanceState, ...]:
    """Instances that the task has started, the newest generation first; at most :data:`MOST` reads and one listing.

    Children of these instances are not among them: they have their parent's tags, but ids of their own.
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
    """What is left of a task whose first generations were purged."""
    prefix = ids.instance_id(1).removesuffix("1")
    page = await client.list(prefix=prefix, limit=_LISTED)
    numbers = {row.instance_id: row.instance_id.removeprefix(prefix) for row in page.instances}
    mine = [
        row
        for row in page.instances
        if re.fullmatch(r"[1-9][0-9]{0,8}", numbers[row.instance_id]) and ids.started(row.tags)
    ]
    return sorted(mine, key=lambda row: int(numbers[row.instance_id]))
