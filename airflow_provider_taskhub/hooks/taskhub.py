"""The hook: turns an Airflow connection of type ``taskhub`` into settings and a client.

This module defines the meaning of the connection's fields. It never logs or shows a secret, and the settings keep
secrets as ``SecretStr``. DAG files import this module, so it imports storage SDKs and the client only when they are
needed.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_taskhub.errors import ConfigurationError, HubError, StorageError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.settings import Settings

__all__ = ["TaskHubHook"]

R = TypeVar("R")

DEFAULT_CONNECTION = "taskhub_default"
FIELDS = ("hub", "storage", "path", "account_url")
"""The fields that a TaskHub connection stores in Airflow's field ``extra``."""
_CONNECTION_STRING = re.compile(r"(^|;)\s*(AccountName|UseDevelopmentStorage|\w+Endpoint|SharedAccessSignature)=", re.I)
_ACCOUNT_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(blob|queue|table)\.(?P<suffix>[a-z0-9.-]+)", re.ASCII)
_REQUEST = re.compile(r"^[^:]*\b(row|rows|table|queue|message|messages|blob|blobs|container)\b[^:]*: ")
"""The beginning of a storage error's text, which names the request by internal names of tables and queues."""
_TEST_DEADLINE = 20.0
"""Seconds for which the button "Test" of Airflow's connection form waits for the hub."""


class WrongConnection(ConfigurationError, AirflowFailException):  # type: ignore[misc]  # Airflow is not followed by mypy
    """An Airflow connection does not exist, or a field of it is wrong.

    Airflow does not retry a task that raises it: somebody must correct the connection, or its id in the DAG.
    """


class TaskHubHook(BaseHook):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Gives access to the task hub that an Airflow connection names.

    :param taskhub_conn_id: an Airflow connection of type ``taskhub``. If the default connection does not exist, the hub
        is the one that TaskHub's environment variables and configuration file name, or the embedded hub.
    """

    conn_name_attr = "taskhub_conn_id"
    default_conn_name = DEFAULT_CONNECTION
    conn_type = "taskhub"
    hook_name = "TaskHub"

    def __init__(self, taskhub_conn_id: str = DEFAULT_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.taskhub_conn_id = taskhub_conn_id

    def settings(self) -> Settings:
        """Return the settings that the connection describes.

        :raises WrongConnection: if the connection does not exist, is of another type, names no hub, or has a wrong
            field.
        :raises ConfigurationError: if there is no default connection, and a setting is wrong.
        """
        try:
            return settings_of(self.get_connection(self.taskhub_conn_id))
        except AirflowNotFoundException:
            return settings_without_connection(self.taskhub_conn_id)

    async def asettings(self) -> Settings:
        """Return the same as :meth:`settings`, for code that runs on an event loop: triggers and the API server."""
        try:
            return settings_of(await self.aget_connection(self.taskhub_conn_id))
        except AirflowNotFoundException:
            return settings_without_connection(self.taskhub_conn_id)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Open a client of the hub, and close it at the end of the block."""
        async with open_client(await self.asettings()) as client:
            yield client

    def get_conn(self) -> Settings:
        """Return the same as :meth:`settings`. Airflow requires a method of this name."""
        return self.settings()

    def run(self, use: Callable[[Client], Awaitable[R]], *, create: bool = False) -> R:
        """Call an async function with an open client, from synchronous code.

        :param use: the function. It is awaited once, on a new event loop.
        :param create: see :func:`open_client`.
        :returns: the result of the function.
        :raises HubError: if the hub does not exist and is not created. The text names the connection.
        """
        settings = self.settings()

        async def call() -> R:
            with naming(self.taskhub_conn_id):
                async with open_client(settings, create=create) as client:
                    return await use(client)

        return run_async(call)

    @classmethod
    def output(cls, returned: Any) -> Any:
        """Return the output of an orchestration from what its Airflow task returned.

        A task returns a reference in place of an output that is larger than the option ``[taskhub] max_output_bytes``.
        This method reads the output from the hub. It also opens references inside dicts and sequences, for example in
        the outputs of mapped tasks. A sequence becomes a list. Every other value is returned unchanged. Call this
        method in a task, not while the DAG file is parsed.

        :param returned: the return value of a ``TaskHubOperator``, a ``TaskHubRewindOperator`` or a ``TaskHubSensor``.
        :raises InstanceNotFound: if the hub has the output no longer, because the instance was purged or started again.
        :raises ConfigurationError: if the connection that the reference names is wrong or does not exist.
        :raises StorageError: if the hub's storage does not answer.
        """
        from airflow_provider_taskhub.hooks.outputs import read, reference_in

        if (reference := reference_in(returned)) is not None:
            return cls(reference.taskhub_conn_id).run(lambda client: read(client, reference))
        if isinstance(returned, dict):
            return {name: cls.output(value) for name, value in returned.items()}
        if isinstance(returned, Sequence) and not isinstance(returned, str | bytes | bytearray):
            return [cls.output(value) for value in returned[:]]  # Airflow reads all outputs with one request
        return returned

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the hub answers, and a text about the hub or about the error.

        Airflow tests a copy of the connection with a random id, so the text does not name the connection. Users do not
        know the names of the hub's tables and queues, so the text does not contain them either.
        """
        try:
            return True, self.run(_describe)
        except StorageError as error:
            return False, f"the hub's storage does not answer: {_REQUEST.sub('', str(error))}"
        except Exception as error:
            text = str(error).replace(f"connection {self.taskhub_conn_id!r}", "this connection")
            return False, text if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {text}"


@asynccontextmanager
async def open_client(settings: Settings, *, create: bool = False) -> AsyncIterator[Client]:
    """Open a client of a hub.

    The import of the client and of a storage SDK takes about a second. The import runs in a thread, so that it does not
    block the event loop.

    :param create: True: if the hub does not exist and is this machine's own, create it, so that a DAG may run before
        the first worker starts. The machine's own hub is the embedded one that TaskHub's settings name without an
        Airflow connection. Every other name was written into a connection, where it may be misspelt.
    :raises HubError: if the hub does not exist and is not created.
    """
    module = await asyncio.to_thread(importlib.import_module, "airflow_provider_taskhub.client")
    async with module.Client.open(settings, create=create and _is_machines_own(settings)) as client:
        yield client


@contextmanager
def naming(taskhub_conn_id: str) -> Iterator[None]:
    """Add the connection to the text of a HubError that the block raises, because the connection may be wrong.

    :param taskhub_conn_id: the Airflow connection that names the hub.
    """
    try:
        yield
    except HubError as error:
        raise HubError(f"connection {taskhub_conn_id!r}: {error}") from None


def _is_machines_own(settings: Settings) -> bool:
    from airflow_provider_taskhub.settings import load_settings

    if not settings.embedded:
        return False
    try:
        own = load_settings()
    except ConfigurationError:
        return False
    return (settings.hub, served_at(settings)) == (own.hub, served_at(own))


def settings_without_connection(taskhub_conn_id: str, **arguments: object) -> Settings:
    """Return the settings where Airflow has no connection of this id: TaskHub's own, if it is the default connection.

    :param arguments: settings by name that override all others; None: not given.
    :raises WrongConnection: if it is another connection.
    :raises ConfigurationError: if a setting is wrong.
    """
    from airflow_provider_taskhub.settings import load_settings

    if taskhub_conn_id != DEFAULT_CONNECTION:
        raise WrongConnection(
            f"connection {taskhub_conn_id!r} does not exist: create it with type 'taskhub', "
            f"or omit the connection id to use {DEFAULT_CONNECTION!r}"
        ) from None
    return load_settings(**arguments)


def settings_of(connection: Connection, **arguments: object) -> Settings:
    """Return the settings from the fields of a connection.

    :param arguments: settings by name that override the connection; None: not given.
    :raises WrongConnection: if a field is wrong. The text names the connection and the field, never the secret.
    """
    from airflow_provider_taskhub.settings import load_settings, nearest

    name = connection.conn_id
    if connection.conn_type != TaskHubHook.conn_type:
        raise WrongConnection(
            f"connection {name!r} is of type {connection.conn_type!r}, not 'taskhub': change its type, or give "
            "the id of a connection of type 'taskhub'"
        )
    extra = connection.extra_dejson
    for field in sorted(extra.keys() - set(FIELDS)):
        raise WrongConnection(
            f"connection {name!r}: its extra has {field!r}, which is not a field of a TaskHub connection"
            f"{nearest(field, FIELDS)}; the fields are {', '.join(FIELDS)}"
        )
    hub = str(extra.get("hub") or "").strip()
    if not hub:
        raise WrongConnection(f"connection {name!r} has no hub: fill in the field 'Hub'")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return load_settings(**{"hub": hub, "connection": _storage(connection.password, extra), **given})
    except ConfigurationError as error:
        raise WrongConnection(f"connection {name!r}: {error}") from None


def served_at(settings: Settings) -> str:
    """Return where the hub is stored, to show to people: the file or the account's name. It contains no secret."""
    secret = settings.secret or ""
    if settings.embedded:
        from airflow_provider_taskhub.settings import home

        return f"embedded, {secret.removeprefix('sqlite://') or home() / 'hub.db'}"
    if secret.startswith("https://"):
        return f"azure, {urlsplit(secret).hostname}"
    account = re.search(r"AccountName=([^;]+)", secret, re.I)
    return f"azure, {account[1]}" if account else "azure"


def _storage(secret: str | None, extra: dict[str, Any]) -> str:
    """Return the text of ``Settings.connection`` from the fields of the connection form."""
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
    """Return an Azure Storage connection string. :param secret: the account key, or a shared access signature (SAS)."""
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


def run_async(call: Callable[[], Awaitable[R]]) -> R:
    """Call ``asyncio.run``. If this thread already runs an event loop, as in a notebook, use another thread."""

    async def main() -> R:
        return await call()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        running = False
    else:
        running = True
    if not running:  # not inside the "except" block, or Python would show its RuntimeError with every error of the run
        return asyncio.run(main())
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="taskhub") as pool:
        return pool.submit(asyncio.run, main()).result()
