"""A cancel that reaches an executor while it makes the Spark session of the attempt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.workers.executors.child.main import ChildExecutor, RunningActivity
from airflow_provider_taskhub.workers.executors.child.spark import SparkAttempt, SparkPlace
from airflow_provider_taskhub.workers.executors.protocol import Cancel, Configure, ExecutorMessage, Failed, Run


class Link:
    """Keeps what the executor sends to its host."""

    def __init__(self) -> None:
        self.sent: list[ExecutorMessage] = []

    def send(self, message: ExecutorMessage) -> None:
        self.sent.append(message)


class SlowSpark:
    """A Spark that does not know the attempt yet when the cancel comes."""

    place = SparkPlace(application_id="app", ui=None)

    def __init__(self) -> None:
        self.executor: ChildExecutor | None = None

    @contextmanager
    def session(self, attempt: SparkAttempt) -> Iterator[Any]:
        assert self.executor is not None
        self.executor._handle(Cancel(number=1))
        yield "a session"

    def cancel(self, job_group: str) -> None:
        """Do nothing: no session has this job group."""


def test_a_cancel_that_comes_before_the_session_stops_the_attempt() -> None:
    ran: list[object] = []
    app = App("cancelled")

    @app.spark_activity
    def load(spark: Any) -> None:
        ran.append(spark)

    link, spark = Link(), SlowSpark()
    configure = Configure(
        name="spark-1.1", apps=(), spark=True, master="", conf={}, lock_fd=None, max_result=1, max_log=1
    )
    executor = spark.executor = ChildExecutor(link, configure)  # type: ignore[arg-type]  # the link has no socket
    run = Run(
        number=1,
        name="load",
        instance_id="i",
        execution_id=None,
        task_id=0,
        action_id="a",
        attempt=1,
        tags={},
        job_group="taskhub-a-1",
        has_input=False,
    )
    attempt = RunningActivity(run, app.activities["load"], link, configure, spark)  # type: ignore[arg-type]  # as above
    executor._attempts[1] = attempt
    executor._run(attempt)
    executor._loop.close()
    assert ran == []
    (answer,) = link.sent
    assert isinstance(answer, Failed)
    assert answer.cancelled
