"""What an executor needs of Spark, in two kinds: a warm classic context, or sessions of a Spark Connect server.

The master chooses the kind. The module imports pyspark only when Spark is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_provider_taskhub.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_taskhub.workers.executors.child.spark_work import SparkWork


class LaunchError(ConfigurationError):
    """Spark's JVM did not start. The raw output of the JVM says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """Where people find the Spark application of an executor.

    :param application_id: Spark's application id.
    :param ui: URL of Spark's UI; None if the UI is off, or if Spark does not say where it is.
    """

    application_id: str
    ui: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStart:
    """How to start Spark in an executor.

    :param master: the Spark master, or the address of a Spark Connect server.
    :param conf: Spark's configuration.
    :param lock_fd: descriptor of the worker's lock file, which a JVM keeps open until it ends; None: the worker has no
        lock file.
    :param gone: called with a reason when the JVM or the server has ended. The call comes from another thread.
    """

    master: str
    conf: Mapping[str, str]
    lock_fd: int | None
    gone: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAttempt:
    """What Spark has to know of an attempt.

    :param job_group: name of the job group or tag of the attempt's Spark operations. It is unique in the executor.
    :param description: text for Spark's UI.
    :param conf: configuration of the attempt's session.
    :param session: name of the attempt's Spark Connect session; None without Spark Connect.
    """

    job_group: str
    description: str
    conf: Mapping[str, str]
    session: str | None


class Spark(Protocol):
    """The Spark of an executor. Attempts run in it side by side, each with a session of its own."""

    @property
    def place(self) -> SparkPlace: ...

    def session(self, attempt: SparkAttempt) -> AbstractContextManager[SparkSession]:
        """Make a session for the attempt, and activate it in this thread until the end of the ``with`` block.

        Enter the block in a new thread that runs the user's function, because PySpark keeps the session, tags and
        properties for each thread.
        """

    def work(self, job_group: str) -> SparkWork | None:
        """Return what is done of the job that an attempt runs; None: no job of it runs. Any thread may call it.

        :raises Exception: if Spark does not answer.
        """

    def cancel(self, job_group: str) -> None:
        """Cancel the Spark operations of an attempt, and refuse those that it would still start.

        Any thread may call it. The call does nothing if the attempt has ended.
        """


def configure(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Set the configuration of an attempt's session.

    :raises ConfigurationError: if Spark refuses a setting. The text has its name, and not its value.
    """
    for name, value in conf.items():
        try:
            session.conf.set(name, value)
        except Exception as error:
            raise ConfigurationError(
                f"Spark refuses the setting {name!r} of this activity ({str(error).splitlines()[0][:300]}): correct "
                "its value, or, if only the start of Spark can set it, set it in TASKHUB_SPARK__CONF"
            ) from error


def start_spark(start: SparkStart) -> Spark:
    """Start Spark, or connect to the Spark Connect server.

    :raises ConfigurationError: if a package is missing, Spark refuses a setting, or the server does not answer.
    :raises LaunchError: if the JVM does not start. It is a ``ConfigurationError``.
    """
    if start.master.startswith("sc://"):
        from airflow_provider_taskhub.workers.executors.child.connect_spark import ConnectSpark

        return ConnectSpark.start(start)
    from airflow_provider_taskhub.workers.executors.child.warm_spark import WarmSpark

    return WarmSpark.start(start)
