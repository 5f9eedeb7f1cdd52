"""Opens the hubs of the connections that the page shows."""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hooks.deployment import page_connections
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, served_at
from airflow_provider_taskhub.plugins.client_cache import ClientCache, client_cache_of
from airflow_provider_taskhub.plugins.timeline import milliseconds


async def described(conn: str) -> dict[str, str]:
    """Return the name and the place of a connection's hub, for the list of hubs. :param conn: the connection's id."""
    try:
        settings = await TaskHubHook(conn).asettings()
    except ConfigurationError as error:
        return {"conn": conn, "hub": conn, "place": str(error)}
    return {"conn": conn, "hub": settings.hub, "place": served_at(settings).split(",")[0]}


async def open_hub(conn: str) -> tuple[ClientCache, dict[str, Any]]:
    """Return the client cache of a connection's hub, and the fields about the hub that every answer has.

    :param conn: the Airflow connection; "": the first connection of the page.
    :raises HTTPException: if the page does not show this connection. Airflow is not asked whether the connection
        exists, so that a user cannot find out the names of connections.
    """
    from fastapi import HTTPException

    offered = page_connections()
    conn = conn or offered[0]
    if conn not in offered:
        raise HTTPException(
            404,
            f"this page does not show connection {conn!r}: add it to the option page_connections in section [taskhub]",
        )
    settings = await TaskHubHook(conn).asettings()
    place = "embedded" if settings.embedded else "azure"
    return client_cache_of(settings), {
        "conn": conn,
        "hub": settings.hub,
        "place": place,
        "time": milliseconds(SYSTEM_CLOCK.utc_now()),
    }
