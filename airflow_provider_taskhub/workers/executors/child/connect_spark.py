"""Spark Connect: each attempt has its own session on a Spark Connect server, and the executor needs no JVM.

Only public names of PySpark are used. PySpark gives a thread without a session of its own the *default* session, which
is the first session of the process: the session of another attempt. So the first session is one that is closed at
once, which PySpark never gives to anybody. Threads that user code starts get the session of their attempt
(``inheritable_thread_target``).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.spark_connect import ConnectServer
from airflow_provider_taskhub.workers.executors.child import capture
from airflow_provider_taskhub.workers.executors.child.connect_control import (
    APPLICATION,
    ServerError,
    builder,
    control,
    end_session,
    explained,
    open_session,
)
from airflow_provider_taskhub.workers.executors.child.ended_session import hand_over
from airflow_provider_taskhub.workers.executors.child.spark import SparkAttempt, SparkPlace, SparkStart, configure
from airflow_provider_taskhub.workers.executors.child.spark_work import Operations, SparkWork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_session: ContextVar[Any] = ContextVar("taskhub_connect_session")

_LOOK_EVERY = 2.0
"""Seconds between two looks at the server."""
_MAX_SILENT = 3
"""Number of looks in a row without an answer after which the server counts as gone."""
_TRIES = 10
_UI = "spark.driver.appUIAddress"


class ConnectSpark:
    """The sessions of one Spark Connect server.

    :param server: the server.
    :param conf: configuration for each session.
    :param look: name of a session without operations, by which the server is watched.
    :ivar place: the Spark application of the server.
    """

    def __init__(self, server: ConnectServer, conf: Mapping[str, str], place: SparkPlace, look: str) -> None:
        self._server, self._conf, self._look = server, conf, look
        self._sessions: dict[str, str] = {}
        self._operations: dict[str, Operations] = {}
        self.place = place

    @classmethod
    def start(cls, start: SparkStart) -> ConnectSpark:
        """Check the server and the configuration, and begin to watch the server.

        :raises ConfigurationError: if a package is missing, the server does not answer, or it refuses a setting.
        """
        server = ConnectServer.parse(start.master)
        try:
            from pyspark.sql.connect.session import SparkSession
        except ImportError as error:
            raise ConfigurationError(
                f"Spark Connect ({server.address}) needs more packages in the worker's environment ({error}): install "
                "TaskHub again with its extra [spark-connect], such as pip install -c constraints.txt "
                "'PATH[spark-connect]', where PATH is your clone or wheel of TaskHub"
            ) from error
        # PySpark's public builder looks here for its server. It takes the active session if there is one.
        os.environ["SPARK_REMOTE"] = server.address
        look = server.new_session()
        with explained(server):
            probe = SparkSession.builder.channelBuilder(builder(server, look)).create()
            probe.client.set_retry_policies([])
            found = {name: probe.conf.get(name, "") for name in (APPLICATION, _UI)}
        try:
            for name, value in start.conf.items():
                probe.conf.set(name, value)
        except Exception as error:
            raise ConfigurationError(
                f"the Spark Connect server {server.address} refuses the setting {name!r} of TASKHUB_SPARK__CONF "
                f"({str(error).splitlines()[0][:300]}): give only settings that a running session can change, and set "
                "the others where the server is started"
            ) from error
        probe.client.close()  # not stop(): then the next session would become PySpark's default session
        place = SparkPlace(application_id=found[APPLICATION] or "", ui=found[_UI] or None)
        spark = cls(server, start.conf, place, look)
        threading.Thread(target=spark._watch, args=(start.gone,), name="spark-connect", daemon=True).start()
        return spark

    @contextmanager
    def session(self, attempt: SparkAttempt) -> Iterator[SparkSession]:
        from pyspark import inheritable_thread_target
        from pyspark.sql import SparkSession

        assert attempt.session is not None
        self._sessions[attempt.job_group] = attempt.session
        session: SparkSession | None = None
        try:
            self._open(attempt.session)
            session = SparkSession.builder.remote(self._server.url(attempt.session)).create()
            session.addTag(attempt.job_group)
            session.registerProgressHandler(self._operations.setdefault(attempt.job_group, Operations()))
            # Spark gives the settings of a session to its jobs as local properties, so listeners see them too.
            configure(session, {**self._conf, **attempt.conf})
            token = _session.set(session)
            try:
                with capture.threads_run_as(inheritable_thread_target(session)):
                    yield session
            finally:
                _session.reset(token)
        finally:
            self._sessions.pop(attempt.job_group, None)
            self._operations.pop(attempt.job_group, None)
            self._end(attempt.session)
            if session is not None:
                with suppress(Exception):  # a channel that is broken needs no closing
                    session.client.close()
                hand_over(session, _session)

    def work(self, job_group: str) -> SparkWork | None:
        found = self._operations.get(job_group)
        return found.newest if found is not None else None

    def cancel(self, job_group: str) -> None:
        session = self._sessions.get(job_group)
        if session is not None:
            self._end(session)

    def _open(self, session: str) -> None:
        """Make the session on the server. If the server is away for a moment, wait for it.

        :raises SessionEnded: if the attempt was cancelled meanwhile.
        :raises ServerError: if the server still does not answer after ten tries. If nobody gets an answer,
            :meth:`_watch` ends the executor sooner, and the attempt runs again.
        """
        pause = threading.Event()
        for left in reversed(range(_TRIES)):
            try:
                open_session(self._server, session)
                return
            except ServerError:
                if not left:
                    raise
                pause.wait(1)

    def _end(self, session: str) -> None:
        """End a session with all its operations. If the server does not answer, say so in the log of the attempt."""
        try:
            end_session(self._server, session)
        except ServerError as error:
            _log.warning("Spark Connect session %s was not ended: %s", session, error)

    def _watch(self, gone: Callable[[str], None]) -> None:
        """Look at the server again and again, and call ``gone`` when it is away or was started again.

        Without this look, user code would wait for ten minutes for a server that does not come back.
        """
        silent = 0
        pause = threading.Event()
        while True:
            pause.wait(_LOOK_EVERY)
            try:
                with explained(self._server), control(self._server, self._look) as client:
                    (application,) = client.get_configs(APPLICATION)
            except ServerError as error:
                silent += 1
                if silent >= _MAX_SILENT:
                    gone(f"Spark Connect is away: {error}")
                    return
                continue
            silent = 0
            if application != self.place.application_id:
                gone(f"the Spark Connect server {self._server.address} was started again")
                return
