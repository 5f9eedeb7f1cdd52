"""Addresses of Spark Connect servers: what is accepted, what is shown, and which sessions a worker may end."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import SparkSettings, load_settings
from airflow_provider_taskhub.spark_connect import ConnectServer, connect_server
from airflow_provider_taskhub.workers.executors.protocol import Configure


@pytest.mark.parametrize(
    ("master", "address", "user"),
    [
        ("sc://spark", "sc://spark:15002", "taskhub"),
        ("sc://spark:7/", "sc://spark:7", "taskhub"),
        ("sc://spark:7/;user_id=a%20b;use_ssl=true", "sc://spark:7", "a b"),
        ("sc://[::1]:7/;token=s3cret", "sc://[::1]:7", "taskhub"),
    ],
)
def test_an_address_names_a_server(master: str, address: str, user: str) -> None:
    server = connect_server(master)
    assert server is not None
    assert (server.address, server.user) == (address, user)
    session = server.new_session()
    assert session.startswith(f"{address}/;user_id=")
    assert server.url(session).startswith(f"{address}/;")
    assert "s3cret" not in f"{server!r} {session}"
    assert ("s3cret" in server.url(session)) is ("s3cret" in master)


def test_the_same_server_with_another_token_opens_a_session() -> None:
    session = ConnectServer.parse("sc://spark/;token=old").new_session()
    assert ConnectServer.parse("sc://spark:15002/;token=new").url(session) == session.replace("/;", "/;token=new;")


@pytest.mark.parametrize("other", ["sc://elsewhere", "sc://spark:7", "sc://spark/;user_id=other"])
def test_a_session_of_another_server_or_user_is_refused(other: str) -> None:
    session = ConnectServer.parse("sc://spark").new_session()
    with pytest.raises(ConfigurationError, match="give all workers of a hub the same TASKHUB_SPARK__MASTER"):
        ConnectServer.parse(other).url(session)


def test_classic_masters_name_no_server() -> None:
    assert [connect_server(master) for master in ("local[*]", "spark://h:7077", "yarn", "k8s://h")] == [None] * 4


@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("sc://", "no address of a Spark Connect server"),
        ("sc:spark", "no address of a Spark Connect server"),
        ("sc://spark;token=s3cret", "no address of a Spark Connect server"),
        ("sc://spark:x/;token=s3cret", "no address of a Spark Connect server"),
        ("sc://spark/path;token=s3cret", "has no path"),
        ("sc://spark/;token=s3=cret", "parameter 'token' of a Spark Connect address must be NAME=VALUE"),
        ("sc://spark/;session_id=s3cret", "remove session_id"),
    ],
)
def test_a_wrong_address_is_named_when_the_settings_are_read(
    master: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__MASTER", master)
    with pytest.raises(ConfigurationError, match=f"TASKHUB_SPARK__MASTER: .*{why}") as raised:
        load_settings()
    assert "s3" not in str(raised.value)


def test_a_token_is_not_in_what_settings_show() -> None:
    spark = SparkSettings(master="sc://spark/;token=s3cret;x-header=s3cret")
    settings = load_settings(spark=spark)
    assert "s3cret" not in f"{spark!r} {spark} {settings!r} {settings}"
    assert "sc://spark:15002" in repr(settings)
    assert settings.spark.master.endswith("s3cret")


@pytest.mark.parametrize("master", ["sc://spark;token=s3cret", "sc://spark/;token=s3cret=x"])
def test_a_wrong_address_in_code_is_refused_without_its_token(master: str) -> None:
    with pytest.raises(ValueError, match="Spark Connect") as raised:
        SparkSettings(master=master)
    assert "s3cret" not in str(raised.value)


def test_values_of_the_configuration_are_not_in_what_settings_show() -> None:
    spark = SparkSettings(conf={"spark.hadoop.fs.s3a.secret.key": "s3cret"})
    assert "spark.hadoop.fs.s3a.secret.key" in repr(spark)
    configure = Configure(
        name="x",
        apps=(),
        spark=True,
        master=spark.master,
        conf=spark.conf,
        lock_fd=None,
        max_result=1,
        max_log=1,
    )
    assert "s3cret" not in f"{spark!r} {load_settings(spark=spark)!r} {configure!r}"
