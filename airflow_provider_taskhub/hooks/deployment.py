"""The name of this Airflow deployment, the same in its workers, triggerers and API servers."""

from __future__ import annotations

import json
import os
import socket
from urllib.parse import urlsplit

from airflow.sdk import conf

from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION, TaskHubHook

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # compared, never bound


def deployment() -> str:
    """The option ``[taskhub] deployment``, or where the API server is reached.

    Two Airflow deployments may share a hub. Each of them ends only instances that it has started itself, so the name
    must tell them apart. An address of this machine alone says nothing, so it gets the machine's name as well.
    """
    if name := conf.get("taskhub", "deployment", fallback="").strip():
        return str(name)
    url = conf.get("api", "base_url", fallback="") or conf.get("core", "execution_api_server_url", fallback="")
    parts = urlsplit(url or "http://localhost:8080")
    place = f"{parts.netloc}{parts.path.rstrip('/').removesuffix('/execution')}"
    return f"{socket.gethostname()}/{place}" if (parts.hostname or "localhost") in _LOOPBACK else place


def page_connections() -> list[str]:
    """Connections that the page offers."""
    named = conf.get("taskhub", "page_connections", fallback=DEFAULT_CONNECTION) or DEFAULT_CONNECTION
    return [name.strip() for name in named.split(",") if name.strip()] or [DEFAULT_CONNECTION]


def swept_connections() -> list[str]:
    """Connections in whose hubs an API server ends instances that no task waits for: those of the page, and those of
    type taskhub in its environment. Connections in the metadata database cannot be listed through Airflow's API."""
    names = page_connections()
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(_IN_ENVIRONMENT).lower()
        if variable.startswith(_IN_ENVIRONMENT) and _is_hub(value) and name not in names:
            names.append(name)
    return names


_IN_ENVIRONMENT = "AIRFLOW_CONN_"


def _is_hub(value: str) -> bool:
    """Whether a connection, written as a URI or as JSON, is of type taskhub."""
    if not value.startswith("{"):
        return value.partition(":")[0] == TaskHubHook.conn_type
    try:
        return bool(json.loads(value).get("conn_type") == TaskHubHook.conn_type)
    except ValueError:
        return False
