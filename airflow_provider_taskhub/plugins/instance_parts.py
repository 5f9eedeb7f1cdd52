"""The routes for the parts of an instance's page that can be long: earlier events of its history, and its children.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from airflow_provider_taskhub.concurrency import gather_bounded
from airflow_provider_taskhub.plugins import json_views
from airflow_provider_taskhub.plugins.access import rights_of
from airflow_provider_taskhub.plugins.listing import visible
from airflow_provider_taskhub.plugins.shown_hubs import open_hub
from airflow_provider_taskhub.plugins.shown_instances import readable, shows

if TYPE_CHECKING:
    from airflow_provider_taskhub.engine.events import ExecutionStarted
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.plugins.client_cache import ClientCache

MOST_CHILDREN = 25
"""The largest number of children in one answer."""
_PARALLEL = 8


def routes() -> Any:
    """Create the routes. They need the right to see plugins, as the page does."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, Query

    router = APIRouter(prefix="/api/instance", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
    Conn = Annotated[str, Query(max_length=250)]
    Id = Annotated[str, Query(min_length=1, max_length=300)]

    @router.get("/history")
    async def history(user: GetUserDep, id: Id, before: Annotated[int, Query(ge=0)], conn: Conn = "") -> dict[str, Any]:
        """Return the events of the history before the position ``before``, the newest first."""
        cache, head = await open_hub(conn)
        state, _ = await readable(cache, id, user)
        (show,) = await shows((state,), user)
        page = await cache.once(
            ("history", id, before),
            lambda client: client.instance(id).history_page(before=before, limit=json_views.MOST_EVENTS),
        )
        return head | json_views.history(page, show) | {"unreadable": [show(line) for line in page.unreadable]}

    @router.get("/children")
    async def children(
        user: GetUserDep, id: Id, after: Annotated[int, Query(ge=-1)] = -1, conn: Conn = ""
    ) -> dict[str, Any]:
        """Return children of the instance's current generation, the oldest first, with their status.

        ``after`` of the answer is where the next part begins; null: there are no more children. A child that was purged
        or has not begun has only an id and a name. Children that the user may not see are left out.
        """
        cache, head = await open_hub(conn)
        await readable(cache, id, user)
        part = await cache.once(
            ("children", id, after),
            lambda client: client.instance(id).children(after=after, limit=MOST_CHILDREN),
        )
        client = await cache.client()

        async def row(child_id: str | None) -> "InstanceState | None":
            return await client.get(child_id, payloads=False) if child_id else None

        may = visible(*await rights_of(user))
        found = await gather_bounded(row, [event.instance_id for event in part.events], limit=_PARALLEL)
        there = [state for state in found if state is not None and may(state)]
        shown = dict(zip((state.instance_id for state in there), await shows(there, user), strict=True))
        return head | {
            "after": part.after,
            "children": [
                {"id": event.instance_id, "name": event.name, "task": event.event_id, "status": None}
                if state is None
                else json_views.row(state, None, (), shown[state.instance_id]) | {"task": event.event_id}
                for event, state in zip(part.events, found, strict=True)
                if state is None or may(state)
            ],
        }

    return router


async def parent_of(cache: "ClientCache", start: "ExecutionStarted | None", user: Any) -> dict[str, Any] | None:
    """Return the id, name and status of an instance's parent; None if it has none, or if the user may not see it.

    :param cache: the cache of the hub.
    :param start: the event that started the instance; None: it is not known.
    :param user: the user who is logged in.
    """
    if start is None or start.parent is None:
        return None
    parent_id = start.parent.instance.instance_id
    state, rights = await asyncio.gather(
        cache.once(("row", parent_id), lambda client: client.get(parent_id, payloads=False)), rights_of(user)
    )
    if state is None or not visible(*rights)(state):
        return None
    return {"id": state.instance_id, "name": state.name, "status": str(state.status)}
