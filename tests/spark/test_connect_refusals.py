"""A Spark Connect server that does not answer or refuses, a setting that it refuses, and missing packages: each is an
error in seconds that names the address and never the token."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.spark_connect import ConnectServer
from airflow_provider_taskhub.workers.executors.child import connect_control
from airflow_provider_taskhub.workers.executors.child.connect_spark import ConnectSpark
from airflow_provider_taskhub.workers.executors.child.spark import SparkStart, start_spark
from airflow_provider_taskhub.workers.executors.executor import ExecutorError
from airflow_provider_taskhub.workers.executors.left_sessions import LeftSessions

SOON = 30.0


def start(port: int) -> SparkStart:
    master = f"sc://localhost:{port}/;token=s3cret"
    return SparkStart(master=master, conf={}, lock_fd=None, gone=print)


@contextmanager
def silent() -> Iterator[int]:
    """A server that accepts connections and never says anything."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@contextmanager
def refusing() -> Iterator[int]:
    """A server that knows none of PySpark's calls, as one of a far version does."""
    import grpc  # type: ignore[import-untyped]

    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    yield port
    server.stop(None)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "")
    monkeypatch.setattr(connect_control, "DEADLINE", 1.0)


@pytest.mark.parametrize(("server", "why"), [(silent, "DEADLINE_EXCEEDED"), (refusing, "UNIMPLEMENTED")])
def test_a_server_that_does_not_serve_is_named_without_its_token(server: Any, why: str) -> None:
    with server() as port, pytest.raises(ConfigurationError) as raised:
        start_spark(start(port))
    text = str(raised.value)
    assert f"the Spark Connect server sc://localhost:{port} did not accept a call within" in text
    assert "TASKHUB_SPARK__MASTER" in text
    assert "fits PySpark" in text
    assert why in text
    assert "s3cret" not in text


def test_missing_packages_are_named_with_the_extra_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name.startswith("pyspark.sql.connect"):
            raise ImportError("grpcio >= 1.76.0 must be installed; however, it was not found.")
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"grpcio >= .*extra \[spark-connect\]") as raised:
        ConnectSpark.start(start(1))
    assert "s3cret" not in str(raised.value)


@pytest.mark.process
async def test_a_left_session_that_cannot_be_ended_is_an_error_after_the_patience(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        master = f"sc://127.0.0.1:{closed.getsockname()[1]}"
        session = ConnectServer.parse(master).new_session()
        left = LeftSessions(master, None, SYSTEM_CLOCK, patience=0.5)
        with pytest.raises(ExecutorError, match=f"an earlier attempt left running on Spark may still run.*{master}"):
            await left.end((session,))
        await left.end_own(session, once=True)
    said = capsys.readouterr().out + caplog.text
    assert "spark_session_not_ended" in said
    assert session in said


def test_a_session_of_another_server_is_named_and_not_taken_for_a_silent_server() -> None:
    session = ConnectServer.parse("sc://elsewhere").new_session()
    with pytest.raises(ConfigurationError, match="is not one of sc://localhost:1 with user 'taskhub'") as raised:
        connect_control.end_session(ConnectServer.parse("sc://localhost:1/;token=s3cret"), session)
    assert "did not accept a call" not in str(raised.value)
