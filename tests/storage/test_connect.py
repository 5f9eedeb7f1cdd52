"""From settings to the right store, or to an error that says the way out."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.storage.azure.store import AzureStore
from airflow_provider_taskhub.storage.connect import open_store
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.delenv("TASKHUB_CONNECTION", raising=False)
    monkeypatch.delenv("TASKHUB_CONFIG", raising=False)


def test_without_a_connection_the_hub_is_a_file_at_home(tmp_path: Path) -> None:
    store = open_store(load_settings())
    assert isinstance(store, SqliteStore)
    assert str(tmp_path / "hub.db") in store.describe()
    assert store.local


def test_a_file_by_its_address(tmp_path: Path) -> None:
    store = open_store(load_settings(connection=f"sqlite://{tmp_path}/a%20b.db"))
    assert str(tmp_path / "a b.db") in store.describe()


@pytest.mark.parametrize(
    "connection", ["sqlite:hub.db", "sqlite://host/hub.db", "sqlite:///", "sqlite:///x.db?mode=ro"]
)
def test_a_file_that_is_not_absolute_is_refused(connection: str) -> None:
    with pytest.raises(ConfigurationError, match="absolute path") as caught:
        open_store(load_settings(connection=connection))
    assert connection in str(caught.value)


def test_an_azure_account_with_the_settings_deadline() -> None:
    settings = load_settings(connection="AccountName=flights;AccountKey=c2VjcmV0", request_timeout=timedelta(seconds=7))
    store = open_store(settings)
    assert isinstance(store, AzureStore)
    assert not store.local
    assert store._wire.timeout == 7.0


def test_a_wrong_connection_string_is_named_and_not_echoed() -> None:
    with pytest.raises(ConfigurationError, match="AccountName") as caught:
        open_store(load_settings(connection="AccountKey=topsecret"))
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "connection"),
    [
        ("aiohttp", "AccountName=flights;AccountKey=c2VjcmV0"),
        ("azure.storage.queue", "AccountName=flights;AccountKey=c2VjcmV0"),
        ("azure.data.tables", "AccountName=flights;AccountKey=c2VjcmV0"),
        ("azure.storage.blob", "AccountName=flights;AccountKey=c2VjcmV0"),
        ("azure.identity", "https://flights.blob.core.windows.net"),
    ],
)
@pytest.mark.process
def test_a_missing_package_names_the_extra(missing: str, connection: str) -> None:
    program = f"""
import asyncio, sys
sys.modules[{missing!r}] = None
if {missing!r} == "azure.identity":
    sys.modules["azure.identity.aio"] = None
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.storage.connect import open_store
async def main():
    async with open_store(load_settings(connection={connection!r})):
        pass
try:
    asyncio.run(main())
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "pip install -c constraints.txt 'PATH[azure]'" in done.stdout, done.stderr


@pytest.mark.process
def test_connecting_imports_nothing_of_azure_before_it_is_asked_for() -> None:
    program = (
        "import sys, airflow_provider_taskhub.storage.connect\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('azure', 'aiohttp', 'sqlite3')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
