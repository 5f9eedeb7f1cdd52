"""Open the store that the settings name. Only this module chooses between SQLite and Azure Storage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_taskhub.errors import ConfigurationError, HubError
from airflow_provider_taskhub.settings import Settings, home
from airflow_provider_taskhub.storage.packages import missing
from airflow_provider_taskhub.storage.primitives import Store

_EXAMPLE = "sqlite:///absolute/path/hub.db"


def open_store(settings: Settings, *, create: bool = True, holder: str = "") -> Store:
    """Return the store that the settings' connection names. The caller opens the store with ``async with``.

    :param create: True: create the SQLite file of an embedded hub if the file does not exist. False: raise HubError.
    :param holder: full name of the worker that receives messages through this store (:meth:`Store.release_claims`).
    :raises HubError: if the file does not exist and ``create`` is False.
    :raises ConfigurationError: if the connection cannot work, or if a package is missing. The error text names the pip
        extra of the package. No part of a secret is ever in the text.
    """
    connection = (settings.secret or "").strip()
    if not connection or connection.lower().startswith("sqlite:"):
        from airflow_provider_taskhub.storage.sqlite.store import SqliteStore

        path = _path(connection) if connection else home() / "hub.db"
        if not create and not path.exists():
            raise HubError(
                f"there is no hub {settings.hub!r} at {path}: create it with `taskhub hub create`, or start a worker"
            )
        return SqliteStore(path, holder=holder)
    try:
        from airflow_provider_taskhub.storage.azure.store import AzureStore
    except ModuleNotFoundError as error:
        raise missing(error.name) from None
    return AzureStore(connection, timeout=settings.request_timeout)


def _path(connection: str) -> Path:
    """Return the file path in a connection ``sqlite:///absolute/path``.

    :raises ConfigurationError: if the connection has a relative path, a host, or no path.
    """
    url = urlsplit(connection)
    path = Path("/" + unquote(url.path).lstrip("/"))  # one slash: POSIX allows //x to mean another file
    if url.netloc or url.query or url.fragment or not url.path.startswith("/") or path.name == "":
        raise ConfigurationError(f"connection {connection!r}: give the absolute path of the file, like {_EXAMPLE}")
    return path
