"""From settings to a store. The only place that knows that there are two."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_taskhub.errors import ConfigurationError, HubError
from airflow_provider_taskhub.settings import Settings, home
from airflow_provider_taskhub.storage.packages import missing
from airflow_provider_taskhub.storage.primitives import Store

_EXAMPLE = "sqlite:///absolute/path/hub.db"


def open_store(settings: Settings, *, create: bool = True, holder: str = "") -> Store:
    """The store of the settings' connection, not opened yet: use it in ``async with``.

    :param create: make the file of an embedded hub if it is missing; else that is an error.
    :param holder: full name of the worker that claims messages through it (:meth:`Store.release_claims`).
    :raises HubError: there is no such file and none is to be made.
    :raises ConfigurationError: for a connection that cannot work, or a missing package, naming the pip extra; never
        with a part of a secret.
    """
    connection = settings.connection.get_secret_value().strip() if settings.connection else ""
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
    """The file of ``sqlite:///absolute/path``.

    :raises ConfigurationError: for a relative path, a host, or none at all.
    """
    url = urlsplit(connection)
    path = Path("/" + unquote(url.path).lstrip("/"))  # of //x the first slash would have a meaning of its own
    if url.netloc or url.query or url.fragment or not url.path.startswith("/") or path.name == "":
        raise ConfigurationError(f"connection {connection!r}: give the absolute path of the file, like {_EXAMPLE}")
    return path
