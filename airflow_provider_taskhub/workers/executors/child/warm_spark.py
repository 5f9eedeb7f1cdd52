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
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.workers.executors.child import capture
from airflow_provider_taskhub.workers.executors.child.added_files import AddedFiles
from airflow_provider_taskhub.workers.executors.child.cluster_executors import ClusterExecutors
from airflow_provider_taskhub.workers.executors.child.ended_session import hand_over
from airflow_provider_taskhub.workers.executors.child.hadoop_settings import HadoopSettings
from airflow_provider_taskhub.workers.executors.child.spark import (
    LaunchError,
    SparkAttempt,
    SparkPlace,
    SparkStart,
    configure,
)
from airflow_provider_taskhub.workers.executors.child.spark_work import SparkWork, job_of_group, plan_of_failed_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQueryManager

_log = logging.getLogger(__name__)
T = TypeVar("T")
_session: ContextVar[Any] = ContextVar("taskhub_spark_session")

DEFAULTS: Mapping[str, str] = {
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark looks every 2 s whether a Python worker runs a cancelled task, and then waits for this time, 2 s by default.
    "spark.python.task.killTimeout": "100ms",
    # How long an attempt that ends waits for its streaming queries. Spark's default is for ever.
    "spark.sql.streaming.stopTimeout": "10s",
}
"""Spark's configuration unless the user's settings say otherwise."""
LOCAL_DEFAULTS: Mapping[str, str] = {
    # In many containers the host name does not resolve. A local Spark must start all the same, and no other machine
    # needs to reach it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_STANDALONE = "spark://"
_CONNECT_TIMEOUT = 5.0
"""Seconds to wait for a connection to a standalone master."""
_STOPPING = 0.2
"""Seconds that a cancelled task has to leave its Python worker by itself."""
_LOOK_EVERY = 2.0
"""Seconds between two looks whether the Spark context still runs."""
_DYING = 10.0
"""Longest time from the first error of a connection to a dead JVM to the end of this process, in seconds."""


class WarmSpark:
    """One Spark application. It is started once, and all attempts of this executor share it.

    :param context: the Spark context.
    :param root: a session from which the sessions of the attempts are made.
    :param gone: called with a reason if the context was stopped.
    :ivar place: where people find the application.
    """

    def __init__(self, context: Any, root: SparkSession, gone: Callable[[str], None]) -> None:
        self._context = context
        self._scala = context._jsc.sc()
        self._root = root
        self._shared: Any = root._jsparkSession.sharedState()
        """What all sessions share: cached data and global temporary views."""
        self._fields: dict[str, Any] = {}
        self._files, self._hadoop = AddedFiles(context), HadoopSettings(context)
        self._checkpoints = self._scala.getCheckpointDir()
        self._stuck: set[str] = set()
        """Streaming queries that did not stop in time. Spark still runs them, and no attempt waits for them again."""
        self._gone = gone
        self._executors = ClusterExecutors()
        self._lock = threading.Lock()
        self._slots: dict[int, str] = {}
        """The job group of each running attempt, by the number of its scheduler pool."""
        self._cancelled: set[str] = set()
        """The job groups of attempts that were asked to stop."""
        self._sessions: dict[str, SparkSession] = {}
        """The session of each running attempt, by its job group."""
        self.place = SparkPlace(application_id=context.applicationId, ui=context.uiWebUrl or None)

    @classmethod
    def start(cls, start: SparkStart) -> WarmSpark:
        """Start the JVM and the Spark context.

        :raises ConfigurationError: if pyspark is missing, or a standalone master does not answer.
        :raises LaunchError: if the JVM does not start. It is a ``ConfigurationError``.
        """
        try:
            from pyspark import SparkConf, SparkContext
            from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
            from pyspark.sql import SparkSession
            from pyspark.sql.utils import ForeachBatchFunction
        except ImportError as error:
            raise ConfigurationError(
                f"a Spark activity needs PySpark in the worker's environment ({error}): install TaskHub again with its "
                "extra [spark], such as pip install -c constraints.txt 'PATH[spark]', where PATH is your clone or "
                "wheel of TaskHub"
            ) from error
        _check_standalone(start.master)
        os.environ.setdefault("PYSPARK_PYTHON", start.conf.get("spark.pyspark.python", sys.executable))
        settings = SparkConf(loadDefaults=False)
        settings.setMaster(start.master)
        for key, value in {
            **DEFAULTS,
            **(LOCAL_DEFAULTS if start.master.startswith("local") else {}),
            **start.conf,
        }.items():
            settings.set(key, value)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # at level INFO, py4j logs the connection of each thread
        try:
            gateway = launch_gateway(settings, {"pass_fds": () if start.lock_fd is None else (start.lock_fd,)})
        except Exception as error:
            raise LaunchError(
                f"Spark {start.master!r} did not start: {type(error).__name__}: {error}. "
                "Spark needs Java 17 or newer (JAVA_HOME, or `java` on PATH), and valid Spark settings"
            ) from error
        threading.Thread(target=_watch, args=(gateway.proc, start.gone), name="spark-jvm", daemon=True).start()
        try:
            context = SparkContext(conf=settings, gateway=gateway)
        except Exception as error:
            raise ConfigurationError(
                f"Spark {start.master!r} did not start: {_first_line(error)}. Check that the master answers, and the "
                "settings of the worker (TASKHUB_SPARK__CONF, or its Airflow connection) and of the activity"
            ) from error
        root = SparkSession(context)
        # Here, and not in an attempt: the server's threads would run in the context of the attempt for ever.
        ensure_callback_server_started(gateway)
        _isolate(SparkSession, SparkContext, ForeachBatchFunction)
        spark = cls(context, root, start.gone)
        threading.Thread(target=spark._watch_context, name="spark-context", daemon=True).start()
        return spark

    @contextmanager
    def session(self, attempt: SparkAttempt) -> Iterator[SparkSession]:
        from pyspark import inheritable_thread_target

        slot = self._take_slot(attempt.job_group)
        try:
            session = self._sessions[attempt.job_group] = self._root.newSession()
            token = _session.set(session)
            try:
                java = type(session)._get_j_spark_session_class(session._jvm)
                java.setActiveSession(session._jsparkSession)
                self._context.setJobGroup(attempt.job_group, attempt.description, interruptOnCancel=True)
                # Attempts that run at the same time have different scheduler pools, because jobs within one pool run in
                # order. Later attempts use the same pools again, because Spark never deletes a pool.
                self._context.setLocalProperty("spark.scheduler.pool", f"taskhub-{slot}")
                configure(session, attempt.conf)
                for name, value in attempt.conf.items():
                    self._context.setLocalProperty(name, value)
                self._context.addJobTag(attempt.job_group)  # user code may set another job group
                # A copy of the properties for each thread: Spark also keeps the SQL execution of the thread in them.
                with capture.threads_run_as(lambda run: inheritable_thread_target(session)(run)):
                    yield session
            except Exception as error:
                if _is_of_spark(error) and attempt.job_group not in self._cancelled:
                    self._tell_plan(attempt.job_group)
                raise
            finally:
                _session.reset(token)
                self._remove_what_is_left(slot, attempt.job_group, session)
        except BaseException:
            if self._has_stopped() is not False:
                # The thread that watches the JVM, or the one that watches the context, sends the reason and ends this
                # process. If this error were reported, the attempt would count as failed and not as lost, and would not
                # be repeated.
                threading.Event().wait(_DYING)
            raise
        finally:
            if (ended := self._sessions.pop(attempt.job_group, None)) is not None:
                hand_over(ended, _session)
            self._cancelled.discard(attempt.job_group)
            with self._lock:
                if self._slots.get(slot) == attempt.job_group:  # it has got no session
                    del self._slots[slot]
            self._leave_thread()

    def work(self, job_group: str) -> SparkWork | None:
        found = job_of_group(self._context, job_group)
        return found and replace(found, without_executors=self._executors.waiting)

    def cancel(self, job_group: str) -> None:
        if job_group in self._sessions:
            self._cancelled.add(job_group)
        self._cancel_jobs(job_group)
        if (session := self._sessions.get(job_group)) is not None:
            streams = session.streams
            threading.Thread(target=_stop_streams, args=(streams,), daemon=True).start()  # each may take ten seconds
        time.sleep(_STOPPING)
        with self._lock:
            # The cancelled attempt may have ended already. No attempt can begin while this thread has the lock.
            if not set(self._slots.values()) - {job_group}:
                _kill_python_workers()

    def _cancel_jobs(self, job_group: str) -> None:
        """Cancel the jobs of an attempt, and those that it would still start. User code may have set another group."""
        self._scala.cancelJobGroupAndFutureJobs(job_group)
        self._context.cancelJobsWithTag(job_group)

    def _tell_plan(self, job_group: str) -> None:
        """Write the plan of the query that has failed into the log of the attempt. Its error often names no column."""
        with suppress(Exception):  # Spark has stopped, or has forgotten the query
            if plan := plan_of_failed_job(self._context, self._shared, job_group):
                print(f"The plan of the query that has failed:\n{plan}", file=sys.stderr)

    def _remove_what_is_left(self, slot: int, job_group: str, session: SparkSession) -> None:
        """End the streams and the jobs that an attempt has left running, for example in threads. If no other attempt
        runs, also remove what all sessions share: cached data, global temporary views, added files and Hadoop's
        configuration. Spark does not tell which attempt has made them.
        """
        try:
            self._cancel_jobs(job_group)
            if self._used(session._jsparkSession.sessionState(), "streamingQueryManager") is not None:
                _stop_streams(session.streams)
        except Exception as error:  # the result of the attempt counts all the same
            _not_removed(error)
        with self._lock:
            del self._slots[slot]  # in the same step: of two attempts that end together, one finds itself alone
            if self._slots:
                return
            slow = [self._left_streams, self._left_checkpoints]
            later = [done for find in slow if (done := _tried(find)) is not None]
            for remove in (self._remove_cached, self._remove_views, self._remove_files, self._hadoop.restore):
                _tried(remove)
        for remove in later:  # without the lock, because it may take long: others may begin
            _tried(remove)

    def _left_streams(self) -> Callable[[], None] | None:
        """Return what stops the streaming queries of other sessions, which user code has made with ``newSession()``."""
        if (streams := self._shared.activeStreamingQueries()).isEmpty():
            return None
        found = [(str(stream.runId()), stream) for stream in list(streams.values())]

        def stop() -> None:
            self._stuck &= {name for name, _ in found}  # forget those that have ended
            for name, stream in found:
                if name not in self._stuck:
                    self._stuck.add(name)
                    _tried(stream.stop)

        return stop

    def _left_checkpoints(self) -> Callable[[], None] | None:
        """Take back the checkpoint directory that an attempt has set. Return what removes Spark's folder in it, which
        nothing reads in another session."""
        folder = self._scala.getCheckpointDir()
        if str(folder) == str(self._checkpoints):
            return None
        getattr(self._scala, "checkpointDir_$eq")(self._checkpoints)
        path = self._context._jvm.org.apache.hadoop.fs.Path(folder.get())
        return lambda: path.getFileSystem(self._context._jsc.hadoopConfiguration()).delete(path, True)

    def _remove_files(self) -> None:
        if self._files.remove_new():
            _kill_python_workers()  # they keep the modules that they have imported

    def _remove_cached(self) -> None:
        if not self._shared.cacheManager().isEmpty():
            self._root.catalog.clearCache()
        if not (cached := self._context._jsc.getPersistentRDDs()).isEmpty():
            for rdd in list(cached.values()):
                rdd.unpersist(False)

    def _remove_views(self) -> None:
        # The first use of the views asks the catalog, which may be a service that does not answer.
        if (views := self._used(self._shared, "globalTempViewManager")) is not None:
            names = views.listViewNames("*")  # listTables() would run a job
            for number in range(names.size()):
                self._root.catalog.dropGlobalTempView(names.apply(number))

    def _used(self, owner: Any, field: str) -> Any:
        """Return what a lazy field of a JVM object holds; None: nobody has used it. Its first use would take time, and
        there are many attempts.
        """
        found = self._fields.get(field)
        if found is None:
            found = self._fields[field] = owner.getClass().getDeclaredField(field)
            found.setAccessible(True)
        return found.get(owner)

    def _has_stopped(self) -> bool | None:
        """Return whether the Spark context was stopped, by the cluster or by code of an activity. None: the JVM does
        not answer."""
        try:
            jsc = self._context._jsc
            return jsc is None or bool(jsc.sc().isStopped())
        except Exception:
            return None

    def _watch_context(self) -> None:
        """Call ``gone`` when the Spark context was stopped, or its cluster gives it no executor any more: each later
        attempt in this executor would fail, or wait for ever."""
        pause = threading.Event()
        while not self._has_stopped():
            self._look_at_executors()
            if self._executors.lost and self._keeps_executors:
                self._gone(
                    f"the cluster has given this application no Spark executor for {self._executors.waiting:.0f} s"
                )
                return
            pause.wait(_LOOK_EVERY)
        self._gone("the Spark context was stopped, by the cluster or by code of an activity")

    @property
    def _keeps_executors(self) -> bool:
        """Whether an application without executors was forgotten: only by a standalone cluster, which takes none away.

        With dynamic allocation an idle application gives its executors back, and may wait for new ones.
        """
        dynamic = str(self._context.getConf().get("spark.dynamicAllocation.enabled", "false"))
        return str(self._context.master).startswith(_STANDALONE) and dynamic.lower() != "true"

    def _look_at_executors(self) -> None:
        """Count the executors of the cluster. A local Spark has none: its tasks run in the driver."""
        if self._context.master.startswith("local"):
            return
        with suppress(Exception):  # the JVM ends: the thread that watches it says so
            found = self._scala.getExecutorMemoryStatus().size() - 1  # one entry is the driver
            jobs = len(self._context.statusTracker().getActiveJobsIds())
            self._executors.seen(executors=found, jobs=jobs, now=SYSTEM_CLOCK.monotonic())

    def _take_slot(self, job_group: str) -> int:
        """Return the smallest number that no running attempt has; the number names the attempt's scheduler pool."""
        with self._lock:
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
            self._slots[slot] = job_group
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


def _check_standalone(master: str) -> None:
    """Connect once to a standalone master. Spark itself tries for a minute, and then ends without naming the cause.

    :raises ConfigurationError: if none of the hosts of ``spark://HOST:PORT,HOST:PORT`` answers.
    """
    if not master.startswith(_STANDALONE):
        return
    reasons = []
    for place in master.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {error}")
    raise ConfigurationError(
        f"the Spark master {master} does not answer ({'; '.join(reasons)}). Check that it runs, and that "
        "the setting of the worker, or its Airflow connection, is spark://HOST:PORT as the master's own page shows it"
    )


def _watch(process: Any, gone: Callable[[str], None]) -> None:
    """Wait for the end of the JVM, then call ``gone``. Otherwise an idle executor would not notice that end."""
    code = process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
    gone(f"Spark's JVM {how}" + ("; likely out of memory" if code == -9 else ""))


def _kill_python_workers() -> None:
    """Kill Spark's Python workers on this machine, with what the user's functions have started in them.

    Spark itself ends the worker of a cancelled task up to 2 s later. It cannot be told which worker runs which task, so
    this may be called only if no other attempt runs. Spark replaces the workers when the next task needs them.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and "pyspark.daemon" in parent.cmdline():
                for worker in (*process.children(recursive=True), process):
                    worker.kill()


def _tried(call: Callable[[], T]) -> T | None:
    """Return the result of a call, or None after an error. What an attempt has left does not change its result."""
    try:
        return call()
    except Exception as error:
        _not_removed(error)
        return None


def _not_removed(error: Exception) -> None:
    _log.warning("what this attempt has left in Spark was not removed: %s", str(error).splitlines()[:1])


def _is_of_spark(error: BaseException) -> bool:
    """Return whether an error, or one that has led to it, comes from Spark."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__ or error
    return any(type(one).__module__.partition(".")[0] in ("pyspark", "py4j") for one in seen)


def _stop_streams(streams: StreamingQueryManager) -> None:
    """Stop the streaming queries that were started with a session."""
    for query in streams.active:
        try:
            query.stop()
        except Exception as error:  # its code does not end in time: the others are stopped all the same
            _log.warning("streaming query %s was not stopped: %s", query.id, str(error).splitlines()[:1])


def _first_line(error: Exception) -> str:
    """Return the line of a Java error that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (found or lines or [type(error).__name__])[0][:600]


def _isolate(session_class: Any, context_class: Any, batch_class: Any) -> None:
    """Make PySpark's current session the session of the attempt, make ``stop()`` raise an error inside attempts, and
    run the functions of ``foreachBatch``, which the JVM calls, in the context of the attempt that has given them.
    """
    made = batch_class.__init__

    def made_in_attempt(batch: Any, session: Any, function: Callable[..., Any]) -> None:
        context = copy_context()
        made(batch, session, lambda *given: context.copy().run(function, *given))

    batch_class.__init__ = made_in_attempt

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
