"""The route that compares two runs of one orchestrator.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of routes that are defined
inside a function.
"""

import asyncio
from typing import Annotated, Any

from airflow_provider_taskhub.hub.history.pages import HistoryPage
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.plugins import comparison, json_views
from airflow_provider_taskhub.plugins.client_cache import ClientCache
from airflow_provider_taskhub.plugins.json_views import Show
from airflow_provider_taskhub.plugins.shown_hubs import open_hub
from airflow_provider_taskhub.plugins.shown_instances import readable, shows

MOST_EVENTS = 5_000
"""The largest number of events of each history that are compared: the first ones."""


def routes() -> Any:
    """Create the route. It needs the right to see plugins, as the page does."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
    from fastapi import APIRouter, Depends, HTTPException, Query

    router = APIRouter(prefix="/api", dependencies=[Depends(requires_access_view(AccessView.PLUGINS))])
    Id = Annotated[str, Query(min_length=1, max_length=300)]

    @router.get("/compare")
    async def compare(
        user: GetUserDep, id: Id, other: Id, conn: Annotated[str, Query(max_length=250)] = ""
    ) -> dict[str, Any]:
        cache, head = await open_hub(conn)
        states = [(await readable(cache, one, user))[0] for one in (id, other)]
        if states[0].name != states[1].name:
            raise HTTPException(
                422,
                f"{id!r} is a run of orchestrator {states[0].name!r} and {other!r} one of {states[1].name!r}: "
                "only runs of the same orchestrator can be compared",
            )
        left, right = await shows(states, user)
        pages = await asyncio.gather(_events(cache, id), _events(cache, other))
        calls = [comparison.calls_of(page.events) for page in pages]
        return head | {
            "one": _run(states[0], left),
            "other": _run(states[1], right),
            "input": comparison.differences(left(states[0].input), right(states[1].input)),
            "output": comparison.differences(_output(states[0], left), _output(states[1], right)),
            "calls": comparison.pairs(calls[0], calls[1], (left, right)),
            "events": MOST_EVENTS if any(page.total > MOST_EVENTS for page in pages) else None,
        }

    return router


async def _events(cache: ClientCache, instance_id: str) -> HistoryPage:
    """Return the first :data:`MOST_EVENTS` events of a history."""
    return await cache.once(
        ("first events", instance_id),
        lambda client: client.instance(instance_id).history_page(before=MOST_EVENTS, limit=MOST_EVENTS),
    )


def _run(state: InstanceState, show: Show) -> dict[str, Any]:
    """Return the facts about one of the two runs."""
    found = json_views.instance(state, (), show)
    names = ("id", "execution", "status", "name", "version", "created", "ended", "failure", "airflow")
    return {name: found[name] for name in names}


def _output(state: InstanceState, show: Show) -> str:
    return show(state.output) if state.status.is_final else ""
