"""Reads the address of Spark from an Airflow connection of the type Spark or Spark Connect.

A worker reads it once, when it starts. Airflow's own code finds the connection: in the variable ``AIRFLOW_CONN_...`` of
the worker, or in a secrets backend that is configured for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import ValidationError

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.masking import masked
from airflow_provider_taskhub.settings import Settings, SparkSettings

if TYPE_CHECKING:
    from airflow.sdk import Connection

_CONF = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
}
"""Spark's setting for each name in the extra of a connection of the type Spark."""
_KEYTAB = "spark.kerberos.keytab"


def with_spark_of_connection(settings: Settings) -> Settings:
    """Return settings whose ``spark`` has the address and the configuration of the connection that it names.

    The given ``spark.conf`` comes before what the connection says.

    :raises ConfigurationError: if Airflow or the connection is missing, or the connection is not of Spark or says what
        a worker cannot do. The text has no secret.
    """
    conn_id = settings.spark.conn_id
    if conn_id is None:
        return settings
    what = f"TASKHUB_SPARK__CONN_ID is {conn_id!r}"
    connection = airflow_connection(conn_id, what)
    read = _READERS.get(connection.conn_type or "")
    if read is None:
        raise ConfigurationError(
            f"{what}: the type of this connection is {connection.conn_type!r}: name one of the type spark or "
            "spark_connect (in an address: spark-connect://...)"
        )
    host = connection.host or ""
    if not host or "/" in host.partition("://")[2].removeprefix("https://"):
        raise ConfigurationError(
            f"{what}: the host of this connection is {masked(host)!r}: set it to the host of Spark"
        )
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise ConfigurationError(f"{what}: the extra of this connection is no JSON object: correct it")
    try:
        found = read(connection, extra)
        if extra.get("keytab") and _KEYTAB not in settings.spark.conf:
            raise ValueError(
                "it has a keytab, which is the content of a file: put the file on the machine of the worker, and set "
                f"{_KEYTAB} in TASKHUB_SPARK__CONF to its path"
            )
        spark = SparkSettings(master=found.master, conf={**found.conf, **settings.spark.conf})
    except ValidationError as error:
        texts = [str(one["msg"]).removeprefix("Value error, ") for one in error.errors(include_input=False)]
        raise ConfigurationError(f"{what}: {'; '.join(texts)}") from None
    except ValueError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    return settings.model_copy(update={"spark": spark})


def airflow_connection(conn_id: str, what: str) -> Connection:
    """Return an Airflow connection.

    :param what: who needs the connection, for the error text.
    :raises ConfigurationError: if Airflow or the connection is missing.
    """
    try:
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowException
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"{what}: connections need Airflow, which this worker does not have: "
            "pip install 'airflow-provider-taskhub[airflow]'"
        ) from None
    try:
        connection: Connection = BaseHook.get_connection(conn_id)
    except (AirflowException, ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{what}: this worker has no Airflow connection {conn_id!r}, or cannot read it: set "
            f"AIRFLOW_CONN_{conn_id.upper()} in its environment, such as "
            f'\'{{"conn_type": "spark", "host": "spark://HOST", "port": 7077}}\' ({error})'
        ) from None
    return connection


def _spark(connection: Any, extra: dict[str, Any]) -> SparkSettings:
    if extra.get("deploy-mode") not in (None, "", "client"):
        raise ValueError(
            f"its deploy-mode is {extra['deploy-mode']!r}, but the driver runs in the worker: use a connection of the "
            "deploy-mode client, or submit applications with the activity spark_submit"
        )
    host, port = connection.host, f":{connection.port}" if connection.port else ""
    # A connection that was given as an address has only the name of the host of a standalone master.
    scheme = "" if "://" in host or host == "yarn" or host.startswith("local") else "spark://"
    if scheme and not port:
        raise ValueError(f"its host is {host!r}, without a port: give the port of the master, or spark://HOST:PORT")
    conf = {setting: str(extra[name]) for name, setting in _CONF.items() if extra.get(name)}
    return SparkSettings(master=f"{scheme}{host}{port if '://' in host or scheme else ''}", conf=conf)


def _spark_connect(connection: Any, extra: dict[str, Any]) -> SparkSettings:
    address = f"sc://{connection.host.removeprefix('sc://')}{f':{connection.port}' if connection.port else ''}"
    given = {"user_id": connection.login, "token": connection.password, "use_ssl": extra.get("use_ssl")}
    parameters = [f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value not in (None, "")]
    return SparkSettings(master=f"{address}/;{';'.join(parameters)}" if parameters else address)


_READERS: dict[str, Callable[[Any, dict[str, Any]], SparkSettings]] = {"spark": _spark, "spark_connect": _spark_connect}
