"""The hook: an Airflow connection of type ``taskhub`` becomes settings and a client.

Owns the meaning of the connection's fields. Never logs or shows a secret: settings hold it as ``SecretStr``.
Imports neither storage SDKs nor the client at module level, since DAG files import this module.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_taskhub.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.settings import Settings

__all__ = ["TaskHubHook"]

R = TypeVar("R")

DEFAULT_CONNECTION = "taskhub_default"
FIELDS = ("hub", "storage", "path", "account_url")
"""The fields that a connection keeps in its extra."""
_CONNECTION_STRING = re.compile(r"(^|;)\s*(AccountName|UseDevelopmentStorage|\w+Endpoint|SharedAccessSignature)=", re.I)
_ACCOUNT_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(blob|queue|table)\.(?P<suffix>[a-z0-9.-]+)", re.ASCII)
_REQUEST = re.compile(r"^[^:]*\b(row|rows|table|queue|message|messages|blob|blobs|container)\b[^:]*: ")
"""What a storage error names first: the request, by names that only this package uses."""
_TEST_DEADLINE = 20.0
"""Seconds that the button "Test" waits for the hub."""


class TaskHubHook(BaseHook):  # type: ignore[misc]  # Airflow is not followed by mypy
    """A task hub, as an Airflow connection names it.

    :param taskhub_conn_id: connection of type ``taskhub``. When the default one does not exist, settings come from
        the environment and the configuration file, and the hub is the embedded one unless they say otherwise.
    """

    conn_name_attr = "taskhub_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "taskhub"
    hook_name = "TaskHub"

    def __init__(self, taskhub_conn_id: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.taskhub_conn_id = taskhub_conn_id

    def settings(self) -> Settings:
        """The settings that the connection describes.

        :raises ConfigurationError: the connection does not exist, is of another type, names no hub, or has a field
            that cannot work.
        """
        try:
            return settings_of(self.get_connection(self.taskhub_conn_id))
        except AirflowNotFoundException:
            return self._without_connection()

    async def asettings(self) -> Settings:
        """:meth:`settings` for code on an event loop: triggers and the API server."""
        try:
            return settings_of(await self.aget_connection(self.taskhub_conn_id))
        except AirflowNotFoundException:
            return self._without_connection()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of the hub, closed at the end of the block."""
        async with open_client(await self.asettings()) as client:
            yield client

    def get_conn(self) -> Settings:
        """What the connection describes (Airflow's name for :meth:`settings`)."""
        return self.settings()

    def run(self, use: Callable[[Client], Awaitable[R]], *, create: bool = False) -> R:
        """Call ``use`` with an open client, from synchronous code: the one bridge of the front.

        :param use: awaited once, on an event loop of its own.
        :param create: make an embedded hub that is missing, so that a DAG may run before the first worker starts.
        """
        settings = self.settings()

        async def call() -> R:
            async with open_client(settings, create=create and settings.embedded) as client:
                return await use(client)

        return _run(call)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the hub answers, and a text about the hub or the error.

        Airflow tests a copy of the connection under a random id, so the text does not name the connection. It has no
        names of the hub's tables and queues either.
        """
        try:
            return True, self.run(_describe)
        except StorageError as error:
            return False, f"the hub's storage does not answer: {_REQUEST.sub('', str(error))}"
        except Exception as error:
            text = str(error).replace(f"connection {self.taskhub_conn_id!r}", "this connection")
            return False, text if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {text}"

    def _without_connection(self) -> Settings:
        from airflow_provider_taskhub.settings import load_settings

        if self.taskhub_conn_id != DEFAULT_CONNECTION:
            raise ConfigurationError(
                f"connection {self.taskhub_conn_id!r} does not exist: create it with type 'taskhub', "
                f"or omit the connection id to use {DEFAULT_CONNECTION!r}"
            ) from None
        return load_settings()


@asynccontextmanager
async def open_client(settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
    """A client; its module (and a storage SDK) is imported in a thread, for that blocks a loop for a second."""
    module = await asyncio.to_thread(importlib.import_module, "airflow_provider_taskhub.client")
    async with module.Client.open(settings, create=create) as client:
        yield client


def settings_of(connection: Connection) -> Settings:
    """Settings from the fields of a connection.

    :raises ConfigurationError: naming the connection and the field; never the secret.
    """
    from airflow_provider_taskhub.settings import load_settings, nearest

    name = connection.conn_id
    if connection.conn_type != TaskHubHook.conn_type:
        raise ConfigurationError(f"connection {name!r} is of type {connection.conn_type!r}, not 'taskhub'")
    extra = connection.extra_dejson
    for field in sorted(extra.keys() - set(FIELDS)):
        raise ConfigurationError(
            f"connection {name!r}: its extra has {field!r}, which is not a field of a TaskHub connection"
            f"{nearest(field, FIELDS)}; the fields are {', '.join(FIELDS)}"
        )
    hub = str(extra.get("hub") or "").strip()
    if not hub:
        raise ConfigurationError(f"connection {name!r} has no hub: fill in the field 'Hub'")
    try:
        return load_settings(hub=hub, connection=_storage(connection.password, extra))
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {name!r}: {error}") from None


def served_at(settings: Settings) -> str:
    """Where the hub lives, for people: the file, or the account's name; never a secret."""
    secret = settings.connection.get_secret_value() if settings.connection else ""
    if settings.embedded:
        from airflow_provider_taskhub.settings import home

        return f"embedded, {secret.removeprefix('sqlite://') or home() / 'hub.db'}"
    if secret.startswith("https://"):
        return f"azure, {urlsplit(secret).hostname}"
    account = re.search(r"AccountName=([^;]+)", secret, re.I)
    return f"azure, {account[1]}" if account else "azure"


def _storage(secret: str | None, extra: dict[str, Any]) -> str:
    """The connection text of :class:`Settings` from the form's fields."""
    secret = (secret or "").strip()
    path, account_url = (str(extra.get(field) or "").strip() for field in ("path", "account_url"))
    kind = extra.get("storage") or ("azure" if secret or account_url else "embedded")
    if kind == "embedded":
        return _embedded(secret, path, account_url)
    if kind != "azure":
        raise ConfigurationError(f"field 'Storage' is {kind!r}: choose 'embedded' or 'azure'")
    if path:
        raise ConfigurationError("field 'SQLite file' belongs to storage 'embedded': clear it, or choose that storage")
    if _CONNECTION_STRING.search(secret):
        return secret
    if not account_url:
        raise ConfigurationError(
            "storage 'azure' needs a connection string as secret, or the field 'Account address' "
            "(with a key or SAS as secret, or without a secret for a managed identity)"
        )
    return _account(account_url, secret) if secret else account_url


def _embedded(secret: str, path: str, account_url: str) -> str:
    if secret or account_url:
        raise ConfigurationError(
            "storage 'embedded' has no secret and no account address: clear them, or choose 'azure'"
        )
    if path and not path.startswith("/"):
        raise ConfigurationError(f"field 'SQLite file' is {path!r}: give an absolute path")
    if not path:
        from airflow_provider_taskhub.settings import home

        path = str(home() / "hub.db")
    return f"sqlite://{path}"


def _account(account_url: str, secret: str) -> str:
    """A connection string of an account's address with its key or SAS."""
    host = urlsplit(account_url if "//" in account_url else f"//{account_url}").hostname or ""
    match = _ACCOUNT_HOST.fullmatch(host)
    if match is None:
        raise ConfigurationError(
            f"field 'Account address' is {account_url!r}: give https://NAME.blob.core.windows.net, "
            "or put a complete connection string into the secret"
        )
    account, suffix = match["account"], match["suffix"]
    sas = secret.lstrip("?")
    if re.search(r"(^|&)sig=", sas):
        places = "".join(
            f"{name}Endpoint=https://{account}.{name.lower()}.{suffix};" for name in ("Blob", "Queue", "Table")
        )
        return f"{places}SharedAccessSignature={sas}"
    return f"DefaultEndpointsProtocol=https;AccountName={account};AccountKey={secret};EndpointSuffix={suffix}"


async def _describe(client: Client) -> str:
    async with asyncio.timeout(_TEST_DEADLINE):
        info, members = client.admin.info, await client.admin.workers()
    from airflow_provider_taskhub.hub.model import WATCHER

    live = [member.worker for member in members if member.alive and WATCHER not in member.roles]
    return f"Hub with {info.partitions} partitions, served by {', '.join(live) if live else 'no worker now'}."


def _run(call: Callable[[], Awaitable[R]]) -> R:
    """``asyncio.run``, also from a thread whose loop is running (a notebook, ``dag.test()`` inside one)."""

    async def main() -> R:
        return await call()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        running = False
    else:
        running = True
    if not running:  # outside of the handler: an error of the run has no error of this check as its context
        return asyncio.run(main())
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="taskhub") as pool:
        return pool.submit(asyncio.run, main()).result()
