"""Calls to a Spark Connect server that end after seconds: to look at a session, to interrupt it and to end it.

The clients of user code have no deadline, because reading the schema of a large table may take minutes, and PySpark
repeats a call to a server that is away for ten minutes. What TaskHub itself asks for must not wait so long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.masking import masked
from airflow_provider_taskhub.spark_connect import ConnectServer

if TYPE_CHECKING:
    from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient

DEADLINE = 10.0
"""Seconds after which one call to the server fails."""
APPLICATION = "spark.app.id"
"""The setting of Spark with the id of the application. Every server has it."""
_CLOSED = ("SESSION_CLOSED", "SESSION_NOT_FOUND")
"""Names of the server's errors that prove that a session has ended."""


class ServerError(ConfigurationError):
    """The Spark Connect server did not answer in time, or refused a call. The text names the server and the way out."""


class SessionEnded(ConfigurationError):
    """The session has ended: its attempt was cancelled, or another worker has taken the attempt over."""


@contextmanager
def explained(server: ConnectServer) -> Iterator[None]:
    """Raise :class:`ServerError` in place of an error of PySpark or gRPC. The text has the address without its
    parameters."""
    import pyspark

    try:
        yield
    except ConfigurationError:  # it says what is wrong
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).split("JVM stacktrace:")[0].splitlines() if line.strip()]
        detail = masked(" ".join(lines))[:600]
        raise ServerError(
            f"the Spark Connect server {server.address} did not accept a call within {DEADLINE:g} s "
            f"({type(error).__name__}: {detail}). Check that it runs, that TASKHUB_SPARK__MASTER, or the Airflow "
            "connection of the worker, has its address, port and token, and that it fits PySpark "
            f"{pyspark.__version__} of this worker"
        ) from error


def builder(server: ConnectServer, session: str) -> DefaultChannelBuilder:
    """Return what opens a channel to the server for a session; each call over it has a deadline."""
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class Details(grpc.ClientCallDetails):  # type: ignore[misc]  # grpc has no types
        def __init__(self, call: Any) -> None:
            self.method, self.metadata, self.credentials = call.method, call.metadata, call.credentials
            self.timeout = DEADLINE
            self.wait_for_ready, self.compression = call.wait_for_ready, call.compression

    class Deadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # grpc has no types
        def intercept_unary_unary(self, proceed: Callable[[Any, Any], Any], call: Any, request: Any) -> Any:
            return proceed(Details(call), request)

    made = DefaultChannelBuilder(server.url(session))
    made.add_interceptor(Deadline())
    return made


@contextmanager
def control(server: ConnectServer, session: str) -> Iterator[SparkConnectClient]:
    """Open a second client of a session, whose calls have a deadline and are not repeated.

    The client only sees what it asks for: closing it does not end the session.
    """
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient(builder(server, session))
    client.set_retry_policies([])
    try:
        yield client
    finally:
        with suppress(Exception):  # a channel that is broken needs no closing
            client.close()


def open_session(server: ConnectServer, session: str) -> None:
    """Make a session on the server.

    :raises SessionEnded: if the session has ended before.
    :raises ServerError: if the server did not answer in time.
    """
    with explained(server), control(server, session) as client:
        if _has_ended(client):
            raise SessionEnded(
                f"the Spark Connect session {session} has ended: its attempt was cancelled, or another worker has "
                "taken the attempt over"
            )


def end_session(server: ConnectServer, session: str) -> None:
    """Interrupt all operations of a session and end the session: the server refuses its id from then on.

    A session that has already ended stays so. The function returns when the server has confirmed the end: it refuses
    the session. Tasks that still run then are being killed by Spark, and can commit nothing any more.

    The release interrupts the operations. Rejected: to interrupt them before the release. A release fails in the middle
    while an operation that was interrupted before is still ending, and leaves later operations of the session running.

    :raises ServerError: if the server did not answer in time.
    :raises ConfigurationError: if the session is of another server than this worker's.
    """
    with explained(server), control(server, session) as client:
        if _has_ended(client):
            return
        client.release_session()
        if not _has_ended(client):
            raise RuntimeError("the session answers after its end")


def _has_ended(client: SparkConnectClient) -> bool:
    """Return whether the server refuses the session because it has ended. The first call with an id makes the session.

    :raises Exception: every other error of the call.
    """
    try:
        client.get_configs(APPLICATION)
    except Exception as error:
        if any(name in str(error) for name in _CLOSED):
            return True
        raise
    return False
