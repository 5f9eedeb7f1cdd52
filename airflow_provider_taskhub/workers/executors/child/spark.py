"""The warm Spark context of an executor, and a separate Spark session for every attempt.

The module imports pyspark only when Spark is started.

PySpark keeps the current session in two class attributes that all threads share. Its builder and UDFs read
``SparkSession._instantiatedSession``. ``createDataFrame`` writes ``_activeSession``, and ``getActiveSession`` reads it.
So one of two attempts could get the session of the other. :func:`_isolate` makes both attributes give the session of
the current attempt. Rejected: a metaclass (the class of an existing class cannot be changed), and patching every place
that reads the attributes (UDFs, table functions and the builder, in every release of PySpark).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_session: ContextVar[Any] = ContextVar("taskhub_spark_session")

DEFAULTS: Mapping[str, str] = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Spark's configuration unless the user's settings say otherwise."""
LOCAL_DEFAULTS: Mapping[str, str] = {
    # In many containers the host name does not resolve. A local Spark must start all the same, and no other machine
    # needs to reach it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class LaunchError(ConfigurationError):
    """Spark's JVM did not start. The raw output of the JVM says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """Where people find the Spark application of an executor.

    :param application_id: Spark's application id.
    :param ui: URL of Spark's UI; None if the UI is off.
    """

    application_id: str
    ui: str | None


class WarmSpark:
    """One Spark application. It is started once, and all attempts of this executor share it.

    :param context: the Spark context.
    :param root: a session from which the sessions of the attempts are made.
    :ivar place: where people find the application.
    """

    def __init__(self, context: Any, root: SparkSession) -> None:
        self._context = context
        self._root = root
        self._lock = threading.Lock()
        self._slots: set[int] = set()
        self.place = SparkPlace(application_id=context.applicationId, ui=context.uiWebUrl or None)

    @classmethod
    def start(
        cls,
        *,
        name: str,
        master: str,
        conf: Mapping[str, str],
        lock_fd: int | None,
        gone: Callable[[str], None],
    ) -> WarmSpark:
        """Start the JVM and the Spark context.

        :param name: name of the Spark application.
        :param master: the Spark master.
        :param conf: Spark's configuration; it overrides the defaults.
        :param lock_fd: descriptor of the worker's lock file, which the JVM keeps open until it ends; None: the worker
            has no lock file.
        :param gone: called with a reason when the JVM has ended. The call comes from another thread.
        :raises ConfigurationError: if pyspark is missing, or the master is not supported.
        :raises LaunchError: if the JVM does not start. It is a ``ConfigurationError``.
        """
        if master.startswith("sc://"):
            raise ConfigurationError(
                f"spark.master {master!r}: Spark Connect is not supported by this version; use local[*], "
                "spark://host:port or another classic master"
            )
        try:
            from pyspark import SparkConf, SparkContext
            from pyspark.java_gateway import launch_gateway
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise ConfigurationError(
                f"a Spark activity needs PySpark in the worker's environment ({error}): install TaskHub again with its "
                "extra [spark], such as pip install -c constraints.txt 'PATH[spark]', where PATH is your clone or "
                "wheel of TaskHub"
            ) from error
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = SparkConf(loadDefaults=False)
        settings.setMaster(master).setAppName(name)
        for key, value in {**DEFAULTS, **(LOCAL_DEFAULTS if master.startswith("local") else {}), **conf}.items():
            settings.set(key, value)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # at level INFO, py4j logs the connection of each thread
        try:
            gateway = launch_gateway(settings, {"pass_fds": () if lock_fd is None else (lock_fd,)})
        except Exception as error:
            raise LaunchError(
                f"Spark {master!r} did not start: {type(error).__name__}: {error}. "
                "Spark needs Java 17 or newer (JAVA_HOME, or `java` on PATH), and valid Spark settings"
            ) from error
        threading.Thread(target=_watch, args=(gateway.proc, gone), name="spark-jvm", daemon=True).start()
        context = SparkContext(conf=settings, gateway=gateway)
        root = SparkSession(context)
        _isolate(SparkSession, SparkContext)
        return cls(context, root)

    @contextmanager
    def session(
        self, job_group: str, description: str, conf: Mapping[str, str] | None = None
    ) -> Iterator[SparkSession]:
        """Make a new Spark session and activate it in this thread until the end of the ``with`` block.

        Spark jobs that this thread starts meanwhile belong to the job group. Enter the block in the thread that runs
        the user's function, because PySpark keeps the job group and the scheduler pool for each thread.

        :param job_group: name of the job group, by which :meth:`cancel` finds the jobs.
        :param description: text for Spark's UI.
        :param conf: configuration of the session. Spark jobs also have it as their local properties; None: nothing.
        """
        slot = self._take_slot()
        session = self._root.newSession()
        token = _session.set(session)
        try:
            java = type(session)._get_j_spark_session_class(session._jvm)
            java.setActiveSession(session._jsparkSession)
            self._context.setJobGroup(job_group, description, interruptOnCancel=True)
            # Attempts that run at the same time have different scheduler pools, because jobs within one pool run in
            # order. Later attempts use the same pools again, because Spark never deletes a pool.
            self._context.setLocalProperty("spark.scheduler.pool", f"taskhub-{slot}")
            for name, value in (conf or {}).items():
                session.conf.set(name, value)
                self._context.setLocalProperty(name, value)
            yield session
        finally:
            _session.reset(token)
            with self._lock:
                self._slots.discard(slot)
            self._leave_thread()

    def cancel(self, job_group: str) -> None:
        """Cancel the jobs of a group that run, and all jobs that are started in this group later.

        Any thread may call it.
        """
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(job_group)

    def _take_slot(self) -> int:
        """Return the smallest number that no running attempt has; the number names the attempt's scheduler pool."""
        with self._lock:
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
            self._slots.add(slot)
            return slot

    def _leave_thread(self) -> None:
        """Close this thread's connection to the JVM, so that the JVM thread that belongs to it ends now."""
        with suppress(Exception):  # after an error, py4j closes the connection when Python deletes the thread object
            connection = self._context._gateway._gateway_client.get_thread_connection()
            if connection is not None:
                connection.close()


class _OfAttempt:
    """A class attribute whose value is the session of the current attempt, or the shared session outside of attempts.

    PySpark assigns this attribute only while there is no session, or when the context stops. So no assignment replaces
    this object while an attempt runs.
    """

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def __get__(self, instance: Any, owner: Any) -> Any:
        return _session.get(self._shared)


def _watch(process: Any, gone: Callable[[str], None]) -> None:
    """Wait for the end of the JVM, then call ``gone``. Otherwise an idle executor would not notice that end."""
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    gone(f"Spark's JVM {how}" + ("; likely out of memory" if code == -9 else ""))


def _isolate(session_class: Any, context_class: Any) -> None:
    """Make PySpark's current session the session of the attempt, and make ``stop()`` raise an error inside attempts."""

    active = session_class.getActiveSession.__func__

    def active_of_attempt(cls: Any) -> Any:
        own = _session.get(None)
        return active(cls) if own is None else own

    session_class.getActiveSession = classmethod(active_of_attempt)
    session_class._instantiatedSession = _OfAttempt(session_class._instantiatedSession)
    stop = context_class.stop

    def guarded_stop(context: Any) -> None:
        if _session.get(None) is not None:
            raise ConfigurationError(
                "spark.stop() inside an activity: the Spark context is shared by all activities of this executor and "
                "stays warm. Remove the call (and `with` around the session); the session ends with the activity."
            )
        stop(context)

    context_class.stop = guarded_stop
