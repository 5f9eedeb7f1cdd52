"""What the fields of a connection mean, and that its secret is never shown."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import ConfigurationError, HubError, Unavailable
from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hooks.taskhub import TaskHubHook, served_at, settings_of
from airflow_provider_taskhub.settings import home, load_settings
from tests.airflow.fake import FakeHub, member

ACCOUNT = "https://reports.blob.core.windows.net"
STRING = "DefaultEndpointsProtocol=https;AccountName=reports;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"


def connection(password: str | None = None, *, conn_type: str = "taskhub", **extra: Any) -> Connection:
    return Connection(conn_id="c", conn_type=conn_type, password=password, extra=json.dumps(extra))


def secret_of(made: Connection) -> str:
    settings = settings_of(made)
    assert settings.connection is not None
    return settings.connection.get_secret_value()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (connection(hub="Flights"), f"sqlite://{home()}/hub.db"),
        (connection(hub="Flights", storage="embedded", path="/data/hub.db"), "sqlite:///data/hub.db"),
        (connection(STRING, hub="Flights"), STRING),
        (connection("UseDevelopmentStorage=true", hub="Flights", storage="azure"), "UseDevelopmentStorage=true"),
        (connection(hub="Flights", storage="azure", account_url=ACCOUNT), ACCOUNT),
        (connection("c2VjcmV0", hub="Flights", storage="azure", account_url=ACCOUNT), STRING),
        (
            connection("?sv=2024&sig=abc", hub="Flights", account_url=ACCOUNT),
            "BlobEndpoint=https://reports.blob.core.windows.net;QueueEndpoint=https://reports.queue.core.windows.net;"
            "TableEndpoint=https://reports.table.core.windows.net;SharedAccessSignature=sv=2024&sig=abc",
        ),
    ],
    ids=["embedded", "path", "connection string", "development", "account", "account key", "shared access signature"],
)
def test_storage_of_a_connection(made: Connection, expected: str) -> None:
    assert settings_of(made).hub == "Flights"
    assert secret_of(made) == expected


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (connection(), "'c' has no hub"),
        (connection(hub="  "), "'c' has no hub"),
        (connection(hub="my-hub"), "hub name 'my-hub' cannot name Azure queues"),
        (
            connection(conn_type="http", hub="Flights"),
            "is of type 'http', not 'taskhub': change its type, or give the id",
        ),
        (connection(hub="Flights", storage="nfs"), "'Storage' is 'nfs'"),
        (connection(hub="Flights", path="hub.db"), "'hub.db': give an absolute path"),
        (connection("s3cret", hub="Flights", storage="embedded"), "has no secret and no account address"),
        (connection("s3cret", hub="Flights", storage="azure"), "needs a connection string"),
        (connection("s3cret", hub="Flights", storage="azure", path="/x"), "belongs to storage 'embedded'"),
        (connection("s3cret", hub="Flights", account_url="http://example"), "'http://example': give https://NAME"),
    ],
)
def test_a_connection_that_cannot_work_says_why_and_the_way_out(made: Connection, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as error:
        settings_of(made)
    assert "connection 'c'" in str(error.value) or "Azure" in str(error.value) or made.conn_type == "taskhub"
    assert "s3cret" not in str(error.value)


def test_secrets_are_in_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(connection(STRING, hub="Flights"))
    assert "c2VjcmV0" not in f"{settings!r} {settings} {served_at(settings)}"
    assert served_at(settings) == "azure, reports"


def test_without_the_default_connection_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_HUB", "Flights")
    settings = TaskHubHook().settings()
    assert (settings.hub, settings.embedded) == ("Flights", True)


def test_the_default_connection_counts_where_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_HUB", "Flights")
    monkeypatch.setenv("AIRFLOW_CONN_TASKHUB_DEFAULT", json.dumps({"conn_type": "taskhub", "extra": {"hub": "Other"}}))
    assert TaskHubHook().settings().hub == "Other"


async def test_another_connection_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="connection 'gone' does not exist: create it"):
        TaskHubHook("gone").settings()
    with pytest.raises(ConfigurationError, match="connection 'gone' does not exist: create it"):
        await TaskHubHook("gone").asettings()


def test_the_test_button_says_which_worker_serves_the_hub_or_what_is_wrong(hub: FakeHub) -> None:
    assert TaskHubHook().test_connection() == (True, "Hub with 4 partitions, served by a@host/1.")
    hub.workers = (replace(member("a triggerer"), roles=("watcher",)),)
    assert TaskHubHook().test_connection() == (True, "Hub with 4 partitions, served by no worker now.")
    hub.down = HubError("there is no hub 'TaskHub': taskhub hub create")
    assert TaskHubHook().test_connection() == (False, "this connection: there is no hub 'TaskHub': taskhub hub create")


@pytest.mark.parametrize(
    "request_text", ["row ('hub', 'hub') of table 'HubControls': ", "queue 'hub-control-00': ", ""]
)
def test_the_test_button_names_no_table_of_the_hub(hub: FakeHub, request_text: str) -> None:
    hub.down = Unavailable(f"{request_text}no connection to http://127.0.0.1:10002: refused")
    text = "the hub's storage does not answer: no connection to http://127.0.0.1:10002: refused"
    assert TaskHubHook().test_connection() == (False, text)


def test_the_test_button_does_not_show_the_random_id_that_airflow_tests_under(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra, text in (
        ({}, "this connection has no hub: fill in the field 'Hub'"),
        (
            {"hub": "Flights", "acount_url": "x"},
            "this connection: its extra has 'acount_url', which is not a field of a",
        ),
        ({"hub": "Flights", "storage": "tape"}, "this connection: field 'Storage' is 'tape'"),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_QKDZXY", json.dumps({"conn_type": "taskhub", "extra": extra}))
        works, said = TaskHubHook("qkdzxy").test_connection()
        assert not works
        assert said.startswith(text)
        assert "qkdzxy" not in said


async def test_the_hook_also_runs_where_a_loop_runs(hub: FakeHub) -> None:
    async def use(client: Any) -> int:
        return client.admin.info.partitions  # type: ignore[no-any-return]

    assert TaskHubHook().run(use) == 4


@pytest.mark.process
def test_a_dag_that_uses_us_imports_nothing_heavy() -> None:
    """DAG files are parsed for ever: azure, pyspark, fastapi, pandas, the client and the stores stay out."""
    code = """
import sys, airflow.sdk, airflow.triggers.base
before = set(sys.modules)
import airflow_provider_taskhub.operators.taskhub, airflow_provider_taskhub.sensors.taskhub
import airflow_provider_taskhub.operators.control, airflow_provider_taskhub.operators.repair
import airflow_provider_taskhub.decorators.orchestration
import airflow_provider_taskhub.notifications.taskhub, airflow_provider_taskhub.triggers.events
import airflow_provider_taskhub.provider_info, airflow_provider_taskhub.plugins.taskhub
roots = {name.split('.')[0] for name in set(sys.modules) - before}
ours = {name for name in sys.modules if name.startswith('airflow_provider_taskhub.')}
print(sorted(roots & {'azure', 'pyspark', 'fastapi', 'starlette', 'pandas', 'aiohttp', 'pydantic_settings', 'typer'}))
print(sorted(name for name in ours if name.split('.')[1] in {'client', 'storage', 'engine', 'hub', 'workers', 'app'}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"year": 1, "db_pwd": ["a", "b"]}', '{"year": 1, "db_pwd": "***"}'),
        ('{"access_token": "abc", "note": "AccountKey=abc"}', '{"access_token": "***", "note": "AccountKey=***"}'),
        ("AccountKey=abc and year 1", "AccountKey=*** and year 1"),
        ('"7"', '"7"'),
        (None, ""),
    ],
)
def test_texts_for_airflow_are_without_the_secrets_that_the_package_knows_in_json_too(
    text: str | None, shown: str
) -> None:
    assert masked(text) == shown


def _first_operator(monkeypatch: pytest.MonkeyPatch, folder: Path, **extra: str) -> TaskHubHook:
    """Return a hook as the first task of a new machine has it. ``extra``: the fields of a connection, or nothing."""
    monkeypatch.setenv("TASKHUB_HOME", str(folder / "own"))
    if extra:
        value = json.dumps({"conn_type": "taskhub", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_TASKHUB_DEFAULT", value)
    return TaskHubHook()


async def _name(client: Client) -> str:
    return client.hub.names.hub


def test_the_machines_own_hub_is_created_before_the_first_worker_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _first_operator(monkeypatch, tmp_path).run(_name, create=True) == "TaskHub"
    assert _first_operator(monkeypatch, tmp_path, hub="TaskHub").run(_name, create=True) == "TaskHub", "the same hub"


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"hub": "Meters", "path": "{folder}/nowhere/hub.db"}, "there is no hub 'Meters' at .*/nowhere/hub.db"),
        ({"hub": "Meters", "path": "{folder}/meter.db"}, "there is no hub 'Meters' at .*/meter.db"),
        ({"hub": "Metres", "path": "{folder}/hub.db"}, r"there is no hub 'Metres' at .*: did you mean 'Meters'\?"),
    ],
    ids=["folder", "file", "hub"],
)
def test_a_misspelt_connection_creates_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: dict[str, str], text: str
) -> None:
    async def create() -> None:
        async with Client.open(load_settings(hub="Meters", connection=f"sqlite://{tmp_path}/hub.db"), create=True):
            pass

    asyncio.run(create())
    before = (tmp_path / "hub.db").read_bytes()
    hook = _first_operator(
        monkeypatch, tmp_path, **{name: value.format(folder=tmp_path) for name, value in extra.items()}
    )
    with pytest.raises(HubError, match=f"connection 'taskhub_default': {text}.*[Cc]reate it with `taskhub hub create`"):
        hook.run(_name, create=True)
    assert ([file.name for file in tmp_path.iterdir()], (tmp_path / "hub.db").read_bytes()) == (["hub.db"], before)
