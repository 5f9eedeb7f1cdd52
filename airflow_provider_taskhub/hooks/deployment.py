"""The name of this Airflow deployment, the same in its workers, triggerers and API servers."""

from __future__ import annotations

import json
import os
import socket
from urllib.parse import urlsplit

from airflow.sdk import conf

from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # only compared: no server listens on them


def deployment() -> str:
    """Return the option ``[taskhub] deployment``; if it is empty, the address of the API server.

    Two Airflow deployments may share a hub. Each deployment terminates only the instances that it has started itself,
    so the names must differ. An address such as ``localhost`` is the same on every machine. Therefore the name of the
    machine is added to such an address.
    """
    if name := conf.get("taskhub", "deployment", fallback="").strip():
        return str(name)
    url = conf.get("api", "base_url", fallback="") or conf.get("core", "execution_api_server_url", fallback="")
    parts = urlsplit(url or "http://localhost:8080")
    place = f"{parts.netloc}{parts.path.rstrip('/').removesuffix('/execution')}"
    return f"{socket.gethostname()}/{place}" if (parts.hostname or "localhost") in _LOOPBACK else place


def page_connections() -> list[str]:
    """Return the Airflow connections whose hubs the page shows."""
    named = conf.get("taskhub", "page_connections", fallback=DEFAULT_CONNECTION) or DEFAULT_CONNECTION
    return [name.strip() for name in named.split(",") if name.strip()] or [DEFAULT_CONNECTION]


def swept_connections() -> list[str]:
    """Return the connections in whose hubs the API server terminates instances that no task waits for.

    These are the connections of the page, and the connections of type ``taskhub`` in environment variables. Airflow's
    API cannot list the connections in the metadata database.
    """
    names = page_connections()
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(_IN_ENVIRONMENT).lower()
        if variable.startswith(_IN_ENVIRONMENT) and _is_hub(value) and name not in names:
            names.append(name)
    return names


_IN_ENVIRONMENT = "AIRFLOW_CONN_"


def _is_hub(value: str) -> bool:
    """Return whether a connection is of type ``taskhub``. :param value: the connection as a URI or as JSON."""
    if not value.startswith("{"):
        return value.partition(":")[0] == TaskHubHook.conn_type
    try:
        return bool(json.loads(value).get("conn_type") == TaskHubHook.conn_type)
    except ValueError:
        return False
