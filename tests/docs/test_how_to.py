"""Promises of the how-to pages that no code block shows: the list of reasons, and which rights are enough."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from airflow_provider_taskhub.hub.waiting.reasons import Reason
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
TASKHUB = Path(sys.executable).with_name("taskhub")
APP = """
from airflow_provider_taskhub.app import App

app = App("rights")


@app.activity(record=True)
def work(text: str) -> str:
    print("works")
    return text


@app.orchestrator
async def large(ctx, length: int) -> int:
    return len(await ctx.call_activity(work, "x" * length))
"""


def test_every_reason_stands_in_its_table() -> None:
    text = (HOW_TO / "waiting.md").read_text(encoding="utf-8")
    repair, _, others = text.partition("## Reasons that end by themselves")
    faults = set(re.findall(r"^\| `(\w+)` \|", repair, re.M))
    waits = set(re.findall(r"^\| `(\w+)` \|", others, re.M))
    assert faults == {str(reason) for reason in Reason if reason.is_fault}
    assert waits == {str(reason) for reason in Reason if not reason.is_fault}


def test_every_example_is_listed_with_its_app_and_run_by_a_test() -> None:
    folder = ROOT / "dags_examples"
    listed = re.findall(r"\| `(\w+)\.py` \| `taskhub worker --app (\w+):app` \|", (HOW_TO / "examples.md").read_text())
    assert sorted(name for name, _ in listed) == sorted(
        path.stem for path in folder.glob("*.py") if "DAG(" in path.read_text(encoding="utf-8")
    )
    run = re.findall(r'^    "(\w+)",$', (ROOT / "tests/airflow/dags/examples.py").read_text(), re.M)
    assert {name for name, _ in listed} == {*run, "flights_delays"}, "make demo runs flights_delays"
    for name, app in listed:
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        assert app in text or name == "flights_delays", f"{name}.py does not say which app it needs"


def rights(who: str) -> tuple[str, str]:
    """Resource types and permissions that the page about Azure names."""
    text = (HOW_TO / "azure.md").read_text(encoding="utf-8")
    found = re.search(rf"^\| {re.escape(who)} \| `(\w+)` \| `(\w+)` \|", text, re.M)
    assert found, f"azure.md has no row for {who}"
    return found[1], found[2]


def signed(connection: str, types: str, permissions: str) -> str:
    """A connection string with an account signature for an hour. Microsoft's clients make none for all services."""
    parts = dict(part.split("=", 1) for part in connection.split(";") if part)
    expiry, version = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}", "2021-12-02"
    text = "\n".join([parts["AccountName"], permissions, "bqt", types, "", expiry, "", "https,http", version, "", ""])
    digest = hmac.new(base64.b64decode(parts["AccountKey"]), text.encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    endpoints = "".join(f"{name}Endpoint={parts[f'{name}Endpoint']};" for name in ("Blob", "Queue", "Table"))
    query = f"sv={version}&ss=bqt&srt={types}&sp={permissions}&se={quote(expiry)}&spr=https,http&sig={signature}"
    return f"{endpoints}SharedAccessSignature={query}"


class Commands:
    """Commands of one part, with a signature that has only that part's rights."""

    def __init__(self, folder: Path, connection: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKHUB_", "AIRFLOW"))}
        settings = {"TASKHUB_HOME": str(folder / "home"), "TASKHUB_HUB": "Rights", "TASKHUB_CONNECTION": connection}
        self.folder, self.env = folder, kept | settings | {"NO_COLOR": "1"}

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [TASKHUB, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def worker(self) -> Iterator[Path]:
        """A worker; yields its log, which is whole after the block."""
        log = self.folder / "worker.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [TASKHUB, "worker", "--app", "rights_app:app"], cwd=self.folder, env=self.env, stdout=out, stderr=out
            )
            try:
                yield log
            finally:
                process.terminate()
                assert process.wait(PATIENCE) == 0, log.read_text()


def test_the_rights_that_the_page_names_are_enough(azurite: str, tmp_path: Path) -> None:
    (tmp_path / "rights_app.py").write_text(APP)
    creator, worker, airflow = (
        Commands(tmp_path, signed(azurite, *rights(who)))
        for who in ("`taskhub hub create`", "workers", "Airflow, and commands")
    )
    creator.run("hub", "create", "--partitions", "2")
    with worker.worker() as log:
        assert "Completed" in airflow.run("instances", "start", "large", "--id", "one", "--input", "300000", "--wait")
        assert "works" in airflow.run("instances", "logs", "one")
        airflow.run("partitions", "show", "--once")
        airflow.run("instances", "purge", "one", "--yes")
    assert "store_refused" not in log.read_text()


def test_a_worker_cannot_make_a_hub_with_the_rights_that_the_page_names(azurite: str, tmp_path: Path) -> None:
    worker = Commands(tmp_path, signed(azurite, *rights("workers")))
    assert "the storage account refused the credentials" in worker.run("hub", "create", "--hub", "Other", status=5)
