"""The address of Spark from an Airflow connection: ``TASKHUB_SPARK__CONN_ID``."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from airflow_provider_taskhub import telemetry
from airflow_provider_taskhub.cli.main import app as cli
from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import Settings, SparkSettings, load_settings
from airflow_provider_taskhub.spark_connection import with_spark_of_connection


def spark_of(monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any]) -> SparkSettings:
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    monkeypatch.setenv("TASKHUB_SPARK__CONN_ID", "lake")
    return with_spark_of_connection(load_settings()).spark


@pytest.mark.parametrize(
    ("connection", "master", "conf"),
    [
        ({"conn_type": "spark", "host": "spark://h", "port": 7077}, "spark://h:7077", {}),
        ("spark://h:7077", "spark://h:7077", {}),
        ({"conn_type": "spark", "host": "local[2]"}, "local[2]", {}),
        ({"conn_type": "spark", "host": "yarn", "extra": {"queue": "night"}}, "yarn", {"spark.yarn.queue": "night"}),
        (
            {"conn_type": "spark", "host": "k8s://https://h", "port": 6443, "extra": {"namespace": "jobs"}},
            "k8s://https://h:6443",
            {"spark.kubernetes.namespace": "jobs"},
        ),
        ({"conn_type": "spark", "host": "yarn", "port": 8032}, "yarn", {}),
        ({"conn_type": "spark_connect", "host": "h", "port": 15002}, "sc://h:15002", {}),
        (
            {
                "conn_type": "spark_connect",
                "host": "sc://h",
                "login": "a b",
                "password": "s;t",
                "extra": {"use_ssl": True},
            },
            "sc://h/;user_id=a%20b;token=s%3Bt;use_ssl=True",
            {},
        ),
        ("spark-connect://ann:pass@h:15002/?use_ssl=true", "sc://h:15002/;user_id=ann;token=pass;use_ssl=true", {}),
    ],
)
def test_the_master_and_its_settings_are_those_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any], master: str, conf: dict[str, str]
) -> None:
    spark = spark_of(monkeypatch, connection)
    assert (spark.master, spark.conf) == (master, conf)


def test_own_configuration_comes_before_that_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__CONF", json.dumps({"spark.yarn.queue": "day", "spark.executor.memory": "2g"}))
    spark = spark_of(monkeypatch, {"conn_type": "spark", "host": "yarn", "extra": {"queue": "night"}})
    assert spark.conf == {"spark.yarn.queue": "day", "spark.executor.memory": "2g"}


def test_the_path_of_a_keytab_is_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__CONF", json.dumps({"spark.kerberos.keytab": "/keys/lake"}))
    spark = spark_of(monkeypatch, {"conn_type": "spark", "host": "yarn", "extra": {"principal": "p", "keytab": "aGV5"}})
    assert spark.conf == {"spark.kerberos.principal": "p", "spark.kerberos.keytab": "/keys/lake"}


def test_a_worker_that_has_read_a_connection_logs_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    configured = structlog.get_config()
    try:
        root.handlers, root.level = [logging.StreamHandler(sys.stdout)], logging.INFO
        telemetry.configure()
        assert (root.level, [one.stream for one in root.handlers]) == (logging.WARNING, [sys.stderr])
    finally:
        root.handlers, root.level = before
        structlog.configure(**configured)


def test_the_token_of_a_connection_is_in_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = spark_of(monkeypatch, {"conn_type": "spark_connect", "host": "h", "password": "hidden-word"})
    assert "hidden-word" in spark.master
    assert "hidden-word" not in repr(spark)


@pytest.mark.parametrize(
    ("connection", "text"),
    [
        ({"conn_type": "http", "host": "h"}, "the type of this connection is 'http': name one of the type spark or"),
        ({"conn_type": "spark"}, "the host of this connection is '': set it to the host of Spark"),
        ({"conn_type": "spark", "host": "lake"}, "its host is 'lake', without a port: give the port of the master, or"),
        (
            {"conn_type": "spark", "host": "yarn", "extra": {"keytab": "hidden-word"}},
            "it has a keytab, which is",
        ),
        ({"conn_type": "spark", "host": "yarn", "extra": "[1]"}, "the extra of this connection is no JSON object"),
        (
            {"conn_type": "spark_connect", "host": "sc://h/;token=hidden-word"},
            "the host of this connection is 'sc://h/",
        ),
        (
            {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}},
            "its deploy-mode is 'cluster', but the driver runs in the worker: use a connection of the",
        ),
        (
            {"conn_type": "spark_connect", "host": "a b", "password": "hidden-word"},
            "this is no address of a Spark Connect server: write sc://HOST:PORT",
        ),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        spark_of(monkeypatch, connection)
    assert str(refused.value).startswith(f"TASKHUB_SPARK__CONN_ID is 'lake': {text}")
    assert "hidden-word" not in str(refused.value)


def test_a_connection_that_is_missing_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__CONN_ID", "lake")
    with pytest.raises(ConfigurationError, match="'lake', or cannot read it: set AIRFLOW_CONN_LAKE"):
        with_spark_of_connection(load_settings())


def test_a_worker_reads_the_connection_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__CONN_ID", "lake")
    result = CliRunner().invoke(cli, ["worker", "--app", "nowhere:app"])
    assert result.exit_code == Exit.USAGE
    assert "no Airflow connection 'lake'" in result.stderr


def test_without_a_connection_nothing_changes() -> None:
    settings = Settings(hub="Any")
    assert with_spark_of_connection(settings) is settings


def test_a_connection_and_a_master_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_SPARK__CONN_ID", "lake")
    monkeypatch.setenv("TASKHUB_SPARK__MASTER", "local")
    with pytest.raises(ConfigurationError, match="conn_id is 'lake' and master is given too: remove one of the two"):
        load_settings()
