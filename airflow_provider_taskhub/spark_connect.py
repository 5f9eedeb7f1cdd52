"""Addresses of Spark Connect: the setting ``spark.master`` as ``sc://host:port/;name=value``, and names of sessions.

This module does no I/O and imports no pyspark. The worker, which has no Spark, chooses the session of an attempt here
and writes its name into the activity record. The executor then opens the session with this id.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from airflow_provider_taskhub.errors import ConfigurationError

SCHEME = "sc://"
DEFAULT_PORT = 15002
USER = "taskhub"
"""User of the sessions if the address names none. The name is fixed, so that every worker finds the sessions of another
worker. PySpark's own default is the user of the machine."""
_FORM = "write sc://HOST:PORT, with parameters after '/;', such as sc://spark:15002/;use_ssl=true"
_OWN = ("user_id", "session_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectServer:
    """A Spark Connect server, and how to connect to it.

    :param host: the host; an IPv6 address is in brackets.
    :param port: the port.
    :param user: the user id of the sessions.
    :param parameters: the other parameters of the address, as they were written. They may contain a token, so ``repr``
        omits them.
    """

    host: str
    port: int
    user: str = USER
    parameters: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, master: str) -> ConnectServer:
        """Parse the setting ``spark.master``.

        :raises ConfigurationError: if the text is no address of a server. The error has no value of a parameter.
        """
        place, _, text = master.removeprefix(SCHEME).partition("/")
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port or DEFAULT_PORT
        except ValueError:
            host, port = None, 0
        if not master.startswith(SCHEME) or not host or any(sign in place for sign in ";=@ "):
            raise ConfigurationError(f"this is no address of a Spark Connect server: {_FORM}")
        if text and not text.startswith(";"):
            raise ConfigurationError(f"the address of a Spark Connect server has no path: {_FORM}")
        given = [part.partition("=") for part in text.split(";") if part]
        for name, equals, value in given:
            if not equals or "=" in value:
                raise ConfigurationError(
                    f"parameter {name!r} of a Spark Connect address must be NAME=VALUE, with the value percent-encoded"
                )
        if any(name == "session_id" for name, _, _ in given):
            raise ConfigurationError(
                "remove session_id from the Spark Connect address: each attempt has its own session"
            )
        users = [unquote(value) for name, _, value in given if name == "user_id"]
        return cls(
            host=f"[{host}]" if ":" in host else host,
            port=port,
            user=users[-1] if users else USER,
            parameters=tuple(f"{name}={value}" for name, _, value in given if name not in _OWN),
        )

    @property
    def address(self) -> str:
        """``sc://host:port``, which has no secret and may be shown."""
        return f"{SCHEME}{self.host}:{self.port}"

    def new_session(self) -> str:
        """Return the name of a new session: the address of the server, the user and a new id. It has no secret."""
        return self._named(str(uuid.uuid4()))

    def url(self, session: str) -> str:
        """Return the address for PySpark that opens a session. It may contain a secret: never show it.

        :param session: the name of the session, from :meth:`new_session`, perhaps of another worker.
        :raises ConfigurationError: if the session is of another server or user than this worker uses.
        """
        name = session.rpartition("=")[2]
        if session != self._named(name):
            raise ConfigurationError(
                f"the Spark Connect session {session} is not one of {self.address} with user {self.user!r}, which this "
                "worker uses: give all workers of a hub the same TASKHUB_SPARK__MASTER, or connection"
            )
        own = (f"user_id={quote(self.user, safe='')}", f"session_id={name}")
        return f"{self.address}/;{';'.join((*self.parameters, *own))}"

    def _named(self, name: str) -> str:
        return f"{self.address}/;user_id={quote(self.user, safe='')};session_id={name}"


def connect_server(master: str) -> ConnectServer | None:
    """Return the Spark Connect server that a Spark master names; None for a classic master such as ``local[*]``.

    :raises ConfigurationError: if the master begins with ``sc:`` and is no address of a server.
    """
    return ConnectServer.parse(master) if master.lower().startswith("sc:") else None
