"""A warm Spark context, and a session of its own for every attempt. Runs in an executor; imports pyspark when started.

PySpark keeps "the" session in two class attributes: ``SparkSession._instantiatedSession``, which its builder and UDFs
read, and ``_activeSession``, which ``createDataFrame`` writes and ``getActiveSession`` reads, from any thread: two
attempts would get each other's. :func:`_isolate` makes both answers the attempt's. Rejected: a metaclass (the class of
a class cannot be changed), and patching every reader (UDFs, table functions, the builder, of every release).
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
LOCAL_DEFAULTS: Mapping[str, str] = {
    # A host name that does not resolve, as in many containers, must not stop a local Spark; nor need it be reachable.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class LaunchError(ConfigurationError):
    """The JVM did not come up; what it wrote says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlace:
    """Where an executor's Spark can be seen. :param ui: URL, None while the UI is off."""

    application_id: str
    ui: str | None


class WarmSpark:
    """One Spark application, started once and shared by the attempts of this executor."""

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
        """Launch the JVM and the Spark context.

        :param name: of the application. :param lock_fd: a descriptor that the JVM keeps open for life.
        :param gone: called from a thread of its own, with a reason, when the JVM has ended.
        :raises ConfigurationError: pyspark is missing, settings that this executor cannot serve, or (a
            :class:`LaunchError`) a JVM that does not come up.
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
                "a Spark activity needs PySpark in the worker's environment: "
                f"pip install 'airflow-provider-taskhub[spark]' ({error})"
            ) from error
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = SparkConf(loadDefaults=False)
        settings.setMaster(master).setAppName(name)
        for key, value in {**DEFAULTS, **(LOCAL_DEFAULTS if master.startswith("local") else {}), **conf}.items():
            settings.set(key, value)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # at INFO it tells of each thread's connection
        try:
            gateway = launch_gateway(settings, {"pass_fds": () if lock_fd is None else (lock_fd,)})
        except Exception as error:
            raise LaunchError(
                f"Spark {master!r} did not start: {type(error).__name__}: {error}. "
                "It needs Java 17 or newer (JAVA_HOME, or `java` on PATH), and settings that it knows"
            ) from error
        threading.Thread(target=_watch, args=(gateway.proc, gone), name="spark-jvm", daemon=True).start()
        context = SparkContext(conf=settings, gateway=gateway)
        root = SparkSession(context)
        _isolate(SparkSession, SparkContext)
        return cls(context, root)

    @contextmanager
    def session(self, job_group: str, description: str) -> Iterator[SparkSession]:
        """A session of one's own, active in this thread; jobs of this thread belong to the group.

        Enter it in the thread that runs the user's function: in pinned-thread mode, group and pool are the thread's.
        """
        slot = self._take_slot()
        session = self._root.newSession()
        token = _session.set(session)
        try:
            java = type(session)._get_j_spark_session_class(session._jvm)
            java.setActiveSession(session._jsparkSession)
            self._context.setJobGroup(job_group, description, interruptOnCancel=True)
            # A pool for each place, not for each attempt: Spark never forgets a pool. Within one pool jobs are FIFO.
            self._context.setLocalProperty("spark.scheduler.pool", f"taskhub-{slot}")
            yield session
        finally:
            _session.reset(token)
            with self._lock:
                self._slots.discard(slot)
            self._leave_thread()

    def cancel(self, job_group: str) -> None:
        """End the jobs of a group, and those that its thread would still start. Callable from any thread."""
        self._context._jsc.sc().cancelJobGroupAndFutureJobs(job_group)

    def _take_slot(self) -> int:
        with self._lock:
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
            self._slots.add(slot)
            return slot

    def _leave_thread(self) -> None:
        """Close this thread's connection, so that the JVM thread pinned to it ends now and not at some collection."""
        with suppress(Exception):  # best effort: py4j closes it when the thread object goes
            connection = self._context._gateway._gateway_client.get_thread_connection()
            if connection is not None:
                connection.close()


class _OfAttempt:
    """A class attribute that reads as the attempt's session, and outside of attempts as the shared one.

    PySpark assigns the attribute only while there is no session, or when the context stops: never under an attempt.
    """

    def __init__(self, shared: Any) -> None:
        self._shared = shared

    def __get__(self, instance: Any, owner: Any) -> Any:
        return _session.get(self._shared)


def _watch(process: Any, gone: Callable[[str], None]) -> None:
    """Wait for the JVM. A Python process that does not touch Spark would live on without it."""
    code = process.wait()
    told = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    gone(f"Spark's JVM {told}" + ("; likely out of memory" if code == -9 else ""))


def _isolate(session_class: Any, context_class: Any) -> None:
    """Make PySpark's idea of the current session the attempt's, and its own stop a refusal inside attempts."""

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
