"""From settings to a store. The only place that knows that there are two."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import Settings, home
from airflow_provider_taskhub.storage.packages import missing
from airflow_provider_taskhub.storage.primitives import CrashPoint, Store

_EXAMPLE = "sqlite:///absolute/path/hub.db"


def open_store(settings: Settings, clock: Clock = SYSTEM_CLOCK, *, crash: CrashPoint | None = None) -> Store:
    """The store of the settings' connection, not opened yet: use it in ``async with``.

    :param crash: awaited at each crash point of a unit, for tests.
    :raises ConfigurationError: for a connection that cannot work, or a missing package, naming the pip extra; never
        with a part of a secret.
    """
    connection = settings.connection.get_secret_value().strip() if settings.connection else ""
    if not connection or connection.lower().startswith("sqlite:"):
        from airflow_provider_taskhub.storage.sqlite import SqliteStore

        return SqliteStore(_path(connection) if connection else home() / "hub.db", clock=clock, crash=crash)
    try:
        from airflow_provider_taskhub.storage.azure import AzureStore
    except ModuleNotFoundError as error:
        raise missing(error.name) from None
    return AzureStore(connection, timeout=settings.request_timeout, crash=crash)


def _path(connection: str) -> Path:
    """The file of ``sqlite:///absolute/path``.

    :raises ConfigurationError: for a relative path, a host, or none at all.
    """
    url = urlsplit(connection)
    path = Path(unquote(url.path)).expanduser()
    if url.netloc or url.query or url.fragment or not path.is_absolute() or path.name == "":
        raise ConfigurationError(f"connection {connection!r}: a file is named by its absolute path, like {_EXAMPLE}")
    return path
