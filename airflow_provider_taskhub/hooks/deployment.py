"""The name of this Airflow deployment, the same in its workers, triggerers and API servers."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from airflow.sdk import conf

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
