"""``taskhub instances …`` on an embedded hub without a worker: what is sent, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestratorStarted
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub.contract import HubNames
from airflow_provider_taskhub.hub.history.records import Sentinel, encode_event, encode_sentinel, row_key
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.setenv("TASKHUB_CONNECTION", f"sqlite:///{tmp_path}/hub.db")
    assert CliRunner().invoke(app, ["hub", "create"]).exit_code == Exit.OK
    return tmp_path / "hub.db"


def taskhub(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["instances", *arguments])


def as_json(*arguments: str) -> Any:
    result = taskhub(*arguments, "--json")
    assert result.exit_code == Exit.OK, (result.output, result.exception)
    return json.loads(result.stdout)


@pytest.mark.rows("K50")
def test_an_instance_is_started_with_a_version() -> None:
    as_json("start", "flights", "--id", "new", "--version", "3")
    as_json("start", "flights", "--id", "old")
    listed = as_json("list")["instances"]
    assert {row["instance_id"]: row["version"] for row in listed} == {"new": "3", "old": ""}
    assert "start flights_delays --version 3" in " ".join(taskhub("start", "--help").output.split())


async def ended(path: Path, *instance_ids: str) -> None:
    async with SqliteStore(path) as store:
        for instance_id in instance_ids:
            row = Entity(partition_key=instance_id, row_key="", properties={"RuntimeStatus": "Completed"})
            merge = RowOperation(verb=RowVerb.MERGE, entity=row, etag="*")
            await store.execute(Transact(table=HubNames("TaskHub").instances, rows=(merge,)))


@pytest.mark.rows("K46")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_purge_that_fails_in_part_names_what_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    for instance_id in ("a", "b", "c"):
        as_json("start", "flights", "--id", instance_id)
    asyncio.run(ended(path, "a", "b", "c"))
    real = Client.purge

    async def purge(client: Client, instance_id: str) -> bool:
        if instance_id == "b":
            raise Unavailable("the store said nothing")
        return await real(client, instance_id)

    monkeypatch.setattr(Client, "purge", purge)
    result = taskhub("purge", "--all", "--yes", *form)
    assert result.exit_code == Exit.UNAVAILABLE, result.output
    assert "'b' cannot be purged: the store said nothing" in result.stderr
    if form:
        assert json.loads(result.stdout) == {
            "purged": 2,
            "complete": False,
            "failed": {"b": "the store said nothing"},
        }
    else:
        assert "2 purged, more are left" in result.stdout
    assert [row["instance_id"] for row in as_json("list")["instances"]] == ["b"]


@pytest.mark.rows("K46")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_purge_of_ids_names_what_it_did_and_what_it_could_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    for instance_id in ("a", "b", "c", "d"):
        as_json("start", "flights", "--id", instance_id)
    asyncio.run(ended(path, "a", "c", "d"))
    result = taskhub("purge", "a", "b", "nobody", "c", "a", *form)
    assert result.exit_code == Exit.USAGE, result.output
    assert "'b' cannot be purged: instance 'b' is Pending: terminate it" in result.stderr
    assert "no instance 'nobody' in hub TaskHub" in result.stderr
    if form:
        found = json.loads(result.stdout)
        assert (found["purged"], found["complete"], list(found["failed"])) == (2, False, ["b"])
    else:
        assert result.stdout == "a: purged\nc: purged\n"

    async def purge(client: Client, instance_id: str) -> bool:
        raise Unavailable("the store said nothing")

    monkeypatch.setattr(Client, "purge", purge)
    result = taskhub("purge", "b", "d", *form)
    assert result.exit_code == Exit.UNAVAILABLE, result.output
    assert "'d' cannot be purged: the store said nothing" in result.stderr
    assert [row["instance_id"] for row in as_json("list")["instances"]] == ["b", "d"]


def test_the_next_page_of_a_list_can_be_asked_for_as_it_is_printed() -> None:
    for instance_id in ("c'1", "c'2"):
        as_json("start", "flights", "--id", instance_id)
    (line,) = [line for line in taskhub("list", "--limit", "1").stdout.splitlines() if line.startswith("more: ")]
    (row,) = as_json("list", *shlex.split(line)[1:])["instances"]
    assert row["instance_id"] == "c'1", "the newest stood on the first page"
    (line,) = [
        line for line in taskhub("list", "--limit", "1", "--order", "id").stdout.splitlines() if "more: " in line
    ]
    (row,) = as_json("list", *shlex.split(line)[1:])["instances"]
    assert row["instance_id"] == "c'2"


def test_the_newest_instances_are_listed_first_with_times_to_the_second() -> None:
    ids = ["b", "c", "a"]
    for instance_id in ids:
        as_json("start", "flights", "--id", instance_id)
    table = taskhub("list").stdout
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["a", "c", "b"]
    assert re.search(r" \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", table)
    assert not re.search(r":\d\d\.\d", table)
    assert [row["instance_id"] for row in as_json("list", "--order", "newest")["instances"]] == ["a", "c", "b"]
    assert [row["instance_id"] for row in as_json("list")["instances"]] == ["a", "b", "c"], "by id, as scripts page"
    pages, after = [], ()
    while True:
        page = as_json("list", "--order", "newest", "--limit", "2", *after)
        pages.append([row["instance_id"] for row in page["instances"]])
        if page["continuation"] is None:
            break
        after = ("--continuation", page["continuation"])
    assert pages == [["a", "c"], ["b"]]
    assert taskhub("list", "--continuation", "newest:x").exit_code == Exit.USAGE


@pytest.mark.parametrize("status", ["Pending", "pending", "PENDING"])
def test_a_status_is_understood_in_any_case(status: str) -> None:
    as_json("start", "flights", "--id", "a")
    assert [row["instance_id"] for row in as_json("list", "--status", status)["instances"]] == ["a"]
    assert taskhub("list", "--status", "asleep").exit_code == Exit.USAGE


async def damaged(path: Path, instance_id: str) -> None:
    """A history of which one row is of a version that is not there yet."""
    names, now = HubNames("TaskHub"), Timestamp.parse("2026-03-01T12:00:00Z")
    start = OrchestratorStarted(timestamp=now)
    rows = [
        encode_event(start, instance_id=instance_id, execution_id="e", ordinal=0),
        Entity(partition_key=instance_id, row_key=row_key(1), properties={"EventType": "Dream", "ExecutionId": "e"}),
        encode_sentinel(Sentinel(execution_id="e", complete=True), instance_id=instance_id),
    ]
    async with SqliteStore(path) as store:
        inserts = tuple(RowOperation(verb=RowVerb.INSERT, entity=row) for row in rows)
        await store.execute(Transact(table=names.history, rows=inserts))


@pytest.mark.rows("K46")
def test_what_can_be_read_of_an_instance_is_shown_and_what_cannot_is_said(path: Path) -> None:
    as_json("start", "flights", "--id", "bad")
    asyncio.run(damaged(path, "bad"))
    result = taskhub("show", "bad")
    assert result.exit_code == Exit.OK
    assert "Pending" in result.stdout
    assert "OrchestratorStarted" in result.stdout
    said = "history row 0000000000000001 of 'bad': EventType is 'Dream', which no version writes"
    assert f"unreadable: {said}" in result.stderr
    shown = as_json("show", "bad")
    assert shown["unreadable"] == [said]
    assert [event["type"] for event in shown["history"]] == ["OrchestratorStarted"]
    assert as_json("logs", "bad") == []
    as_json("start", "flights", "--id", "good")
    assert as_json("show", "good")["unreadable"] == []


async def of_the_future(path: Path, instance_id: str) -> None:
    """An attempt in a state that this version does not know."""
    row = Entity(partition_key=instance_id, row_key="e:0000000000:000001", properties={"State": "paused"})
    async with SqliteStore(path) as store:
        insert = RowOperation(verb=RowVerb.INSERT, entity=row)
        await store.execute(Transact(table=HubNames("TaskHub").activities, rows=(insert,)))


def test_what_is_logged_stands_in_no_answer(path: Path) -> None:
    as_json("start", "flights", "--id", "bad")
    asyncio.run(of_the_future(path, "bad"))
    command = "from airflow_provider_taskhub.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "instances", "show", "bad", "--json"], capture_output=True, text=True
    )
    assert json.loads(done.stdout)["activities"][0]["state"] == "unknown"
    assert "row_unreadable" in done.stderr
    assert "'paused'" in done.stderr


def test_show_says_what_an_instance_waits_for() -> None:
    as_json("start", "flights", "--id", "later", "--at", "2999-01-01")
    as_json("start", "flights", "--id", "lost")
    assert "waits: its start is scheduled for 2999-01-01 00:00:00 UTC" in taskhub("show", "later").stdout
    assert "waits: no live worker knows orchestrator 'flights'" in taskhub("show", "lost").stdout
    (why,) = as_json("show", "lost", "--once")["waits"]
    assert why["reason"] == "no_worker_knows_orchestrator"
    assert "no worker that runs orchestrators is alive" in why["text"]


def test_wait_says_on_standard_error_what_an_instance_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.instances.LOOK", 0.1)
    as_json("start", "flights", "--id", "lost")
    for form in ((), ("--json",)):
        result = taskhub("wait", "lost", "--timeout", "1", *form)
        assert result.exit_code == Exit.TIMEOUT
        assert result.stdout == ""
        assert result.stderr.count("waits: no live worker knows orchestrator 'flights'") == 1, "only what changes"


async def with_log(path: Path, name: str, text: str) -> None:
    async with SqliteStore(path) as store:
        await store.append_blob(HubNames("TaskHub").logs, name, text.encode())


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_logs_are_printed_without_the_values_of_secrets(path: Path, form: tuple[str, ...]) -> None:
    as_json("start", "flights", "--id", "i")
    asyncio.run(with_log(path, "i/1-1.log", "loads 3 months\npassword=hunter2\n"))
    result = taskhub("logs", "i", *form)
    assert result.exit_code == Exit.OK, result.output
    assert "loads 3 months" in result.stdout
    assert "password=***" in result.stdout
    assert "hunter2" not in result.output
