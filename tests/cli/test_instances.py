"""``taskhub instances …`` on an embedded hub without a worker: what is sent, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from airflow_provider_taskhub.cli.instances import listing
from airflow_provider_taskhub.cli.instances.attempts import print_activities
from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.client import Client, HubAdmin, InstanceHandle, purging
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.actions import FIRE_AND_FORGET
from airflow_provider_taskhub.engine.events import (
    ExecutionTerminated,
    FailureDetails,
    HistoryEvent,
    OrchestrationInstance,
    OrchestratorStarted,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    TaskScheduled,
    TimerFired,
)
from airflow_provider_taskhub.engine.grace import as_stored
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.hub import watches
from airflow_provider_taskhub.hub.formats.history_rows import Sentinel, encode_event, encode_sentinel, row_key
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    HubNames,
    InstanceState,
    Member,
    Ownership,
    OwnerState,
    RecordState,
)
from airflow_provider_taskhub.hub.partitions.routing import Routes
from airflow_provider_taskhub.hub.waiting.reasons import Reason, Why, unreadable_history
from airflow_provider_taskhub.hub.watches import Watch
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from tests.waiting import until_async


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--limit", "a=1", "--limit", "b=2"), "--limit a=1 --limit b=2: an instance has one limit; give one --limit"),
        (("--tag", "taskhub.limit=1 x"), "--tag taskhub.limit: names that start with taskhub. are TaskHub's: give "
         "--limit NAME=NUMBER"),
        (("--tag", "TaskHub.Priority=7"), "are TaskHub's: give --priority NUMBER"),
        (("--tag", "taskhub.owner=o"), "are TaskHub's: use another name"),
    ],
)  # fmt: skip
def test_a_second_limit_and_tags_of_taskhub_itself_are_refused(options: tuple[str, ...], says: str) -> None:
    result = taskhub("start", "flights", *options)
    assert result.exit_code == Exit.USAGE
    assert says in " ".join(re.sub("[│╭╮╰╯─]", " ", result.stderr).split())
    assert as_json("list")["instances"] == []


def test_the_input_null_is_another_thing_than_no_input() -> None:
    assert [as_json("start", "o", *given)["input"] for given in ((), ("--input", "null"))] == [None, "null"]


async def merged(path: Path, **properties: dict[str, Any]) -> None:
    """Change columns of instance rows. :param properties: the columns of each instance, by its id."""
    async with SqliteStore(path) as store:
        for instance_id, columns in properties.items():
            row = Entity(partition_key=instance_id, row_key="", properties=columns)
            merge = RowOperation(verb=RowVerb.MERGE, entity=row, etag="*")
            await store.execute(Transact(table=HubNames("TaskHub").instances, rows=(merge,)))


async def ended(path: Path, *instance_ids: str) -> None:
    await merged(path, **{instance_id: {"RuntimeStatus": "Completed"} for instance_id in instance_ids})


async def failed_at(path: Path, **times: str) -> None:
    failed = {name: {"RuntimeStatus": "Failed", "CompletedTime": Timestamp.parse(time)} for name, time in times.items()}
    await merged(path, **failed)


async def related(path: Path, **parents: tuple[str, str]) -> None:
    """Let instances be children: their parent and their oldest ancestor."""
    await merged(path, **{one: {"TaskHubParent": of, "TaskHubRoot": root} for one, (of, root) in parents.items()})


def test_a_family_is_listed_shown_and_purged(path: Path) -> None:
    for instance_id, name in (("a", "top"), ("b", "middle"), ("c", "low"), ("d", "low")):
        as_json("start", name, "--id", instance_id)
    asyncio.run(related(path, b=("a", "a"), c=("b", "a")))

    def listed(*options: str) -> list[str]:
        return [row["instance_id"] for row in as_json("list", *options)["instances"]]

    assert listed("--roots") == ["a", "d"]
    assert listed("--orchestrator", "low") == ["c", "d"]
    assert listed("--orchestrator", "low", "--roots") == ["d"]
    shown = " ".join(taskhub("show", "c", "--once").stdout.split())
    assert "parent b oldest ancestor a" in shown
    assert "oldest" not in taskhub("show", "b", "--once").stdout
    assert "needs ids" in " ".join(taskhub("purge", "--all", "--yes", "--recurse").stderr.split())
    asyncio.run(ended(path, "a", "b"))
    result = taskhub("purge", "a", "--recurse")
    assert result.exit_code == Exit.USAGE
    assert re.search(
        r"'a' cannot be purged: instance 'c' is Pending, created .* UTC: it belongs to 'a': term", result.stderr
    )
    asyncio.run(ended(path, "c"))
    assert taskhub("purge", "a", "--recurse").stdout == "a: purged with its descendants\n"
    assert listed() == ["d"]


@pytest.mark.rows("K46")
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_purge_that_fails_in_part_names_what_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    for instance_id in ("a", "b", "c"):
        as_json("start", "flights", "--id", instance_id)
    asyncio.run(ended(path, "a", "b", "c"))
    real = purging.purge_instance

    async def purge(instance: InstanceHandle, **more: Any) -> bool:
        if instance.id == "b":
            raise Unavailable("the store said nothing")
        return await real(instance, **more)

    monkeypatch.setattr(purging, "purge_instance", purge)
    result = taskhub("purge", "--all", "--yes", *form)
    assert result.exit_code == Exit.UNAVAILABLE, result.output
    assert "'b' cannot be purged: the store said nothing" in result.stderr
    if form:
        assert json.loads(result.stdout) == {
            "purged": 2,
            "complete": False,
            "failed": {"b": "the store said nothing"},
            "watched": [],
        }
    else:
        assert "2 purged, more are left" in result.stdout
    assert [row["instance_id"] for row in as_json("list")["instances"]] == ["b"]


async def started(*instance_ids: str) -> None:
    """Start instances as an Airflow task does."""
    async with Client.open(load_settings()) as client:
        for instance_id in instance_ids:
            await client.start("flights", instance_id=instance_id, tags={"taskhub.owner": "o"})


async def watched(path: Path, instance_id: str) -> None:
    watch = Watch(
        instance_id=instance_id, deployment="here", dag_id="d", run_id="r", task_id="t", map_index=-1, owner="o",
        generation=1,
    )  # fmt: skip
    async with SqliteStore(path) as store:
        await watches.write(store, HubNames("TaskHub"), watch)


@pytest.mark.parametrize(("more", "code"), [((), Exit.OK), (("--timeout", "60"), Exit.TIMEOUT)])
def test_a_purge_says_what_it_has_left_for_airflow(path: Path, more: tuple[str, ...], code: Exit) -> None:
    asyncio.run(started("a", "b"))
    asyncio.run(ended(path, "a", "b"))
    asyncio.run(watched(path, "b"))
    result = taskhub("purge", "--all", "--yes", *more)
    assert (result.exit_code, result.stdout) == (code, "1 purged, 1 left: an Airflow task may still read it\n")
    assert taskhub("purge", "b").stdout == "b: purged\n"


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
    assert re.search(r"'b' cannot be purged: instance 'b' is Pending, created .* UTC: terminate it", result.stderr)
    assert "no instance 'nobody' in hub TaskHub" in result.stderr
    if form:
        found = json.loads(result.stdout)
        assert (found["purged"], found["complete"], list(found["failed"])) == (2, False, ["b"])
    else:
        assert result.stdout == "a: purged\nc: purged\n"

    async def purge(instance: InstanceHandle, *, recurse: bool) -> bool:
        raise Unavailable("the store said nothing")

    monkeypatch.setattr(InstanceHandle, "purge", purge)
    result = taskhub("purge", "b", "d", *form)
    assert result.exit_code == Exit.UNAVAILABLE, result.output
    assert "'d' cannot be purged: the store said nothing" in result.stderr
    assert [row["instance_id"] for row in as_json("list")["instances"]] == ["b", "d"]


def test_failures_since_a_time_are_listed_and_counted_as_all_other_filters(path: Path) -> None:
    for instance_id in ("a", "b", "c", "d"):
        as_json(
            "start", "flights" if instance_id < "d" else "other", "--id", instance_id, "--tag", f"own={instance_id}"
        )
    asyncio.run(related(path, b=("a", "a")))
    asyncio.run(failed_at(path, a="2026-10-01T10:00:00Z", b="2026-10-01T12:00:00Z"))
    asyncio.run(ended(path, "c"))

    def both(*options: str) -> tuple[list[str], dict[str, int]]:
        found = as_json("count", *options)
        assert found["total"] == sum(found["statuses"].values())
        return [row["instance_id"] for row in as_json("list", *options)["instances"]], found["statuses"]

    assert both() == (["a", "b", "c", "d"], {"Pending": 1, "Completed": 1, "Failed": 2})
    assert both("--failed-since", "2026-10-01T10:00") == (["a", "b"], {"Failed": 2})
    assert both("--failed-since", "2026-10-01T10:00:01") == (["b"], {"Failed": 1})
    assert both("--failed-since", "2026-10-01", "--roots") == (["a"], {"Failed": 1})
    assert both("--orchestrator", "other") == (["d"], {"Pending": 1})
    assert both("--tag", "own=c", "--prefix", "c") == (["c"], {"Completed": 1})
    assert both("--status", "completed") == (["c"], {"Completed": 1})
    assert both("--created-to", "2020-01-01") == ([], {})
    shown = taskhub("count", "--status", "Failed").stdout.split()
    assert shown[-4:] == ["Failed", "2", "all", "2"], shown
    assert taskhub("count", "--failed-since", "lately").exit_code == Exit.USAGE


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


def test_the_newest_of_an_embedded_hub_are_found_in_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED", 1)
    monkeypatch.setattr(listing, "MAX_SORTED", 1)
    for instance_id in ("a", "c", "b"):
        as_json("start", "flights", "--id", instance_id)
    found = taskhub("list", "--limit", "1")
    assert found.stdout.splitlines()[2].split()[0] == "b"
    assert "sorted" not in found.output
    monkeypatch.setattr(Client, "lists_by_time", False)
    assert "only the first 1 instances by id were sorted" in " ".join(taskhub("list", "--limit", "1").output.split())


@pytest.mark.parametrize("embedded", [True, False])
def test_the_newest_instances_are_listed_first_with_times_to_the_second(
    monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    monkeypatch.setattr(Client, "lists_by_time", embedded)
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
    refused = taskhub("list", "--status", "asleep")
    assert refused.exit_code == Exit.USAGE
    assert "'asleep' is not one of" in refused.output
    assert "Value error" not in refused.output, "Typer's words for pydantic's error"


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
    text = f"its history cannot be read: {said}"
    assert f"waits: {text}. To end it: taskhub instances terminate bad" in result.stdout
    assert shown["waits"][0]["reason"] == "history_unreadable"
    assert Reason.UNREADABLE.is_fault
    assert as_json("logs", "bad") == []
    as_json("start", "flights", "--id", "good")
    assert as_json("show", "good")["unreadable"] == []


async def of_the_future(path: Path, instance_id: str) -> None:
    """An attempt in a state that this version does not know."""
    row = Entity(partition_key=instance_id, row_key="e:0000000000:000001", properties={"State": "paused"})
    async with SqliteStore(path) as store:
        insert = RowOperation(verb=RowVerb.INSERT, entity=row)
        await store.execute(Transact(table=HubNames("TaskHub").activities, rows=(insert,)))


@pytest.mark.process
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


def test_who_attaches_to_an_instance_of_another_orchestrator_is_told() -> None:
    as_json("start", "flights", "--id", "taken")
    same, other = (taskhub("start", name, "--id", "taken", "--policy", "attach") for name in ("flights", "trains"))
    assert "is an instance of" not in same.stderr
    assert "taken is an instance of orchestrator 'flights', not of 'trains'" in other.stderr


def test_show_prints_an_instance_without_the_values_of_secrets() -> None:
    given = '{"year": 1, "db": {"password": "hunter22"}}'
    as_json("start", "flights", "--id", "dark", "--input", given, "--tag", "note=token=abc")
    shown = taskhub("show", "dark", "--once").stdout
    assert '{"year": 1, "db": {"password": "***"}}' in shown
    assert "note=token=***" in shown
    assert json.loads(as_json("show", "dark", "--once")["instance"]["input"]) == json.loads(given)


def test_show_says_what_an_instance_waits_for() -> None:
    as_json("start", "flights", "--id", "later", "--at", "2999-01-01")
    as_json("start", "flights", "--id", "lost")
    assert "waits: its start is scheduled for 2999-01-01 00:00:00 UTC" in taskhub("show", "later").stdout
    assert "waits: no live worker knows orchestrator 'flights'" in taskhub("show", "lost").stdout
    (why,) = as_json("show", "lost", "--once")["waits"]
    assert why["reason"] == "no_worker_knows_orchestrator"
    assert "no worker that runs orchestrators is alive" in why["text"]


@pytest.mark.parametrize("odd", ["-x $HOME it's", "--help"])
def test_a_command_that_is_the_way_out_can_be_run_as_it_is(odd: str) -> None:
    as_json("start", "flights", f"--id={odd}")
    command = unreadable_history(odd, "a row").remedy.partition("taskhub instances ")[2]
    assert taskhub(*shlex.split(command)).output == f"{odd}: asked to end\n"


def test_wait_says_on_standard_error_what_an_instance_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.LOOK", 0.1)
    as_json("start", "flights", "--id", "lost")
    for form in ((), ("--json",)):
        result = taskhub("wait", "lost", "--timeout", "1", *form)
        assert result.exit_code == Exit.TIMEOUT
        assert result.stdout == ""
        assert result.stderr.count("waits: no live worker knows orchestrator 'flights'") == 1, "only what changes"


def test_on_a_narrow_terminal_the_way_out_is_folded_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=60, markup=False)
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.errors", terminal)
    as_json("start", "flights", "--id", "lost")
    for command in ("wait", "terminate"):
        screen.truncate(0)
        form = ("--wait",) if command == "terminate" else ()
        assert taskhub(command, "lost", *form, "--timeout", "1").exit_code == Exit.TIMEOUT
        shown = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[⠀-⣿]|0:00:0\d|\0", "", screen.getvalue()).split())
        assert "Pending, waits: no live worker knows orchestrator 'flights'" in shown
        assert "Start one: taskhub worker --app MODULE:APP" in shown


@pytest.mark.rows("K46")
def test_terminate_says_on_standard_error_what_it_waits_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.LOOK", 0.1)
    as_json("start", "flights", "--id", "lost")
    as_json("start", "flights", "--id", "held")
    taskhub("suspend", "held", "--reason", "hold on")
    for instance_id, form in (("lost", ()), ("lost", ("--json",)), ("held", ())):
        result = taskhub("terminate", instance_id, "--wait", "--timeout", "1", *form)
        assert result.exit_code == Exit.TIMEOUT
        assert result.stdout == ""
        assert result.stderr.count("waits: no live worker knows orchestrator 'flights'") == 1, "only what changes"
        assert "Start one: taskhub worker" in result.stderr
        assert "resume" not in result.stderr, "a suspended instance ends without a resume"
    assert taskhub("terminate", "lost").output == "lost: asked to end\n"


@pytest.mark.parametrize("seconds", [None, "90"])
def test_terminate_says_when_its_wait_for_missing_code_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, seconds: str | None
) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.LOOK", 0.1)
    as_json("start", "flights", "--id", "lost")
    form = () if seconds is None else ("--grace", seconds)
    result = taskhub("terminate", "lost", "--wait", "--timeout", "1", *form)
    assert result.exit_code == Exit.TIMEOUT
    told = "; without its code, the instance ends 90 s after a worker has got the request. Start one: taskhub worker"
    assert (told in result.stderr) == (seconds is not None)
    assert "waits: no live worker knows orchestrator 'flights'" in result.stderr


@pytest.mark.parametrize("form", [(), ("--wait",)])
def test_terminate_leaves_time_for_a_clean_up(monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]) -> None:
    as_json("start", "flights", "--id", "i")
    asked, terminate = list[timedelta | None](), InstanceHandle.terminate

    async def noted(instance: InstanceHandle, reason: str, **given: Any) -> InstanceState:
        asked.append(given["grace"])
        return await terminate(instance, reason, **given | {"wait": False})

    monkeypatch.setattr(InstanceHandle, "terminate", noted)
    assert taskhub("terminate", "i", "--grace", "60", *form).output == "i: asked to end\n"
    assert asked == [timedelta(seconds=60)]


def test_terminate_refuses_a_time_that_is_none() -> None:
    as_json("start", "flights", "--id", "i")
    result = taskhub("terminate", "i", "--grace", "0")
    assert result.exit_code == Exit.USAGE
    assert "grace is 0:00:00: give a time above zero and of at most 6 days, or leave it out" in result.stderr


def test_a_suspend_with_children_says_why_they_are_not_suspended() -> None:
    as_json("start", "flights", "--id", "lost")
    result = taskhub("suspend", "lost", "--recurse", "--timeout", "0.1")
    assert result.exit_code == Exit.TIMEOUT
    assert "instance 'lost' is Pending and is not suspended yet" in result.stderr
    assert "`taskhub instances show lost`, then suspend the instance with its children again" in result.stderr
    assert taskhub("resume", "lost", "--recurse").output == "lost: asked to resume with its children\n"


def test_a_command_that_an_instance_does_not_need_says_its_state_and_since_when(path: Path) -> None:
    as_json("start", "flights", "--id", "i")
    time = r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.match(
        f"i: is Pending, created{time[6:]}, and not suspended: this only takes back a", taskhub("resume", "i").output
    )
    held = {"TaskHubSuspended": f"{Timestamp.parse('2026-01-01T00:00:00Z').ticks}:ann"}
    asyncio.run(merged(path, i=held))
    said = "i: is Pending, suspended since 2026-01-01 00:00:00 UTC: nothing changes\n"
    assert taskhub("suspend", "i").output == said
    assert taskhub("resume", "i").output == "i: asked to resume\n"
    asyncio.run(merged(path, i={"RuntimeStatus": "Suspended"}))
    assert taskhub("suspend", "i").output.startswith("i: is Suspended")
    assert taskhub("suspend", "i").output.endswith(": nothing changes\n")
    assert taskhub("resume", "i").output == "i: asked to resume\n"
    over = {"RuntimeStatus": "Completed", "CompletedTime": Timestamp.parse("2026-01-01T00:00:00Z")}
    asyncio.run(merged(path, i=over))
    told = f"instance 'i' is Completed{time}: there is nothing to end. It takes: restart, purge\n"
    assert re.fullmatch(told, taskhub("terminate", "i").output)
    asyncio.run(merged(path, i={"RuntimeStatus": "Failed"}))
    assert re.fullmatch(
        f"i: is Failed{time}. What still runs of it was asked to end\n", taskhub("terminate", "i").output
    )


def test_a_second_terminate_with_time_for_a_clean_up_says_that_the_first_one_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch)

    async def terminate(instance: InstanceHandle, reason: str, **given: Any) -> InstanceState:
        return told.state

    monkeypatch.setattr(InstanceHandle, "terminate", terminate)
    assert taskhub("terminate", "i", "--grace", "5").output == "i: asked to end\n"
    told.history = (
        as_stored(ExecutionTerminated(timestamp=Timestamp.parse("2026-01-01T00:00:00Z"), taskhub_grace=60)),
    )
    said = "i: is Running. It is about to end already: the first request counts\n"
    assert taskhub("terminate", "i", "--grace", "5").output == said
    assert taskhub("terminate", "i").output == "i: asked to end\n"


def test_terminate_names_the_child_that_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.LOOK", 0.01)
    told = Told(monkeypatch, status=Status.TERMINATED)
    told.records = (replace(RECORD, state=RecordState.CANCELLING, message=None),)

    async def terminate(instance: InstanceHandle, reason: str, **given: Any) -> InstanceState:
        given["progress"]("i:3")
        wanted = told.looks + 2  # what the first look saw has been printed before the second one
        await until_async("two looks", lambda: told.looks >= wanted)
        raise TimeoutError("too long")

    monkeypatch.setattr(InstanceHandle, "terminate", terminate)
    result = taskhub("terminate", "i", "--wait")
    assert result.exit_code == Exit.TIMEOUT
    nobody = "waits: no worker that runs activities is alive. Start one: taskhub worker --app MODULE:APP"
    assert result.stderr.splitlines()[0] == f"child 'i:3': running 1: load (cancelling) 50 %; {nobody}"
    told.members = (
        Member(worker="ann@a/1", started=NOON, roles=("activity",), apps={}, orchestrators=(), activities=("load",)),
    )
    assert "waits" not in taskhub("terminate", "i", "--wait").stderr


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


class Told:
    """An instance as the store tells it: what `show` and `wait` read of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.state = replace(
            InstanceState(instance_id="i", execution_id="e", name="flights", status=Status.RUNNING), **changes
        )
        self.records: tuple[ActivityRecord, ...] = ()
        self.history: tuple[HistoryEvent, ...] = ()
        self.members: tuple[Member, ...] = ()
        self.unproven: tuple[Member, ...] | None = None
        self.waits: tuple[Why, ...] = ()
        self.logs: tuple[str, ...] = ()
        self.looks = 0
        """How often the records of activities were read."""
        answers = {
            "get": lambda *_, **__: self.state,
            "activities": lambda *_: self._looked(),
            "readable_history": lambda *_: (self.history, ()),
            "waiting": lambda *_, **__: self.waits,
            "logs": lambda *_: self.logs,
            "log": lambda _, name, **__: f"text of {name}",
        }
        for name, answer in answers.items():
            monkeypatch.setattr(InstanceHandle, name, self._reader(answer))
        monkeypatch.setattr(
            HubAdmin,
            "workers",
            self._reader(lambda *_, prove=False: self.members if prove or self.unproven is None else self.unproven),
        )
        served = Ownership(partition=1, owner="ann@a/1", state=OwnerState.LIVE)
        monkeypatch.setattr(Routes, "refresh", self._reader(lambda *_: served))

    def _looked(self) -> tuple[ActivityRecord, ...]:
        self.looks += 1
        return self.records

    @staticmethod
    def _reader(answer: Any) -> Any:
        async def read(*given: Any, **named: Any) -> Any:
            return answer(*given, **named)

        return read


NOON = Timestamp.parse("2026-11-23T12:00:00.1234567Z")
RECORD = ActivityRecord(
    instance=OrchestrationInstance(instance_id="i", execution_id="e"),
    task_id=0,
    action_id="a",
    attempt=1,
    name="load",
    state=RecordState.RUNNING,
    worker="ann@a/1",
    executor="plain-1",
    claimed=NOON,
    progress=0.5,
    message="May, password=hunter2\nJune",
)
LOADING = "50 %  May, password=*** June"


def test_show_tells_the_progress_of_a_recorded_activity_with_times_to_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch, created=NOON)
    told.records = (RECORD, replace(RECORD, task_id=1, progress=None, message=None))
    lines = taskhub("show", "i").stdout.splitlines()
    (begun, fresh) = [line for line in lines if line.startswith("load ")]
    assert LOADING in begun
    assert "2026-11-23T12:00:00Z" in begun
    assert "%" not in fresh
    assert "created       2026-11-23T12:00:00Z" in lines
    assert "running, not proved" in begun
    assert lines[-1] == "running on a worker that lives: load #0, load #1"
    assert "that lives" not in taskhub("show", "i", "--once").stdout


def test_wait_tells_the_progress_of_recorded_activities_and_what_else_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_taskhub.cli.watching.LOOK", 0.1)
    told = Told(monkeypatch)
    told.records = (RECORD, replace(RECORD, task_id=1, state=RecordState.COMPLETED, name="begin"))
    told.waits = (Why(reason=Reason.ACTIVITIES, text="activities 'load', 'plain'"),)
    result = taskhub("wait", "i", "--timeout", "1")
    assert result.exit_code == Exit.TIMEOUT, result.output
    assert result.stderr.count(f"running 1: load {LOADING}; waits: activities 'load', 'plain'") == 1
    told.records = tuple(replace(RECORD, task_id=number) for number in range(50))
    assert " more; waits: " in taskhub("wait", "i", "--timeout", "1").stderr


def test_the_reason_of_a_suspension_is_not_shown_as_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for status in (Status.SUSPENDED, Status.RUNNING):  # a resume leaves its own reason there
        Told(monkeypatch, status=status, output="look at data")
        assert "look at data" not in taskhub("show", "i").stdout
    Told(monkeypatch, status=Status.COMPLETED, output="look at data")
    assert "output        look at data" in taskhub("show", "i").stdout


def test_show_says_whether_the_owner_of_the_partition_lives_where_it_was_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch)
    owner = Member(
        worker="ann@a/1", started=NOON, roles=("orchestrator",), apps={}, orchestrators=("flights",), activities=()
    )
    told.members = told.unproven = (owner,)
    assert "partition 1: owned by ann@a/1, which is alive" in taskhub("show", "i").stdout
    for members in ((), (replace(owner, alive=False),), (replace(owner, worker="ann@a/2"),)):
        told.members = members
        assert "partition 1: owned by ann@a/1, which is not alive" in taskhub("show", "i").stdout
    shown = taskhub("show", "i", "--once").stdout
    assert "partition 1: owned by ann@a/1; is it alive? taskhub partitions show 1" in shown


def test_show_lists_the_children_that_an_instance_awaits_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.history = (
        *(
            SubOrchestrationInstanceCreated(timestamp=NOON, event_id=number, name="month", instance_id=f"i:{number}")
            for number in range(30)
        ),
        SubOrchestrationInstanceCreated(
            timestamp=NOON, event_id=30, name="month", instance_id="i:30", tags={FIRE_AND_FORGET: "true"}
        ),
        SubOrchestrationInstanceCompleted(timestamp=NOON, task_scheduled_id=0, result="1"),
    )
    printed = taskhub("show", "i").stdout
    assert "awaited children (29, the first 20)" in printed
    lines = printed.partition("awaited children")[2].splitlines()
    assert [line.split() for line in lines[2:22]] == [["month", f"i:{number}"] for number in range(1, 21)]
    assert "i:21" not in printed
    told.state = replace(told.state, status=Status.TERMINATED)
    assert "awaited children" not in taskhub("show", "i").stdout


def test_the_history_shows_when_a_timer_fired(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.history = (TimerFired(timestamp=NOON, timer_id=3, fire_at=NOON + timedelta(hours=1)),)
    (line,) = [line for line in taskhub("show", "i").stdout.splitlines() if line.startswith("TimerFired")]
    assert line.split()[2:] == ["2026-11-23T13:00:00Z", "answers", "3"]


def test_show_says_where_an_instance_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = FailureDetails(
        error_type="KeyError",
        error_message="'missing'",
        stack_trace='Traceback (most recent call last):\n  File "jobs/load.py", line 24, in load\n    d["missing"]\n',
    )
    outer = FailureDetails(
        error_type="TaskFailedError",
        error_message="activity 'load' failed: KeyError: 'missing'",
        stack_trace='  File "jobs/flights.py", line 7, in flights\n    await ctx.load()  # password=hunter2\n',
        inner_failure=inner,
    )
    Told(monkeypatch, status=Status.FAILED, output=outer.error_message, failure=outer)
    printed = taskhub("show", "i").stdout
    assert "failed at     jobs/load.py:24, in load\n" in printed
    shown = printed.partition("history")[2]
    assert "stack trace of TaskFailedError\n" in shown
    assert '  File "jobs/flights.py", line 7, in flights\n' in shown
    assert 'stack trace of KeyError\nTraceback (most recent call last):\n  File "jobs/load.py", line 24' in shown
    assert "hunter2" not in printed


def test_logs_of_several_generations_are_in_their_order_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    other, first = "a" * 32, "f" * 32
    second = next_execution_id(first)
    told = Told(monkeypatch, execution_id=second)
    told.history = (TaskScheduled(timestamp=NOON, event_id=0, name="report"),)
    told.records = (replace(attempt(first), log=f"i/{first}/000000-001.log"),)
    told.logs = tuple(f"i/{one}/000000-001.log" for one in (second, other, first))
    assert taskhub("logs", "i").stdout.splitlines() == [
        "── activity #0, attempt 1, generation 1 of aaaaaaaa ──",
        f"text of {told.logs[1]}",
        "── load0 #0, attempt 1, generation 1 ──",
        f"text of {told.logs[2]}",
        "── report #0, attempt 1, generation 2 ──",
        f"text of {told.logs[0]}",
    ]
    found = as_json("logs", "i")
    assert [one["execution_id"] for one in found] == [other, first, second]
    assert [one["activity"] for one in found] == ["", "load0", "report"], "number 0 meant something else before"
    only = taskhub("logs", "i", "--activity", "report")
    assert only.stdout.splitlines() == ["── report #0, attempt 1 ──", f"text of {told.logs[0]}"]
    assert "1 log of earlier generations not shown" in only.stderr


def attempt(execution_id: str, task: int = 0, number: int = 1) -> ActivityRecord:
    instance = OrchestrationInstance(instance_id="i", execution_id=execution_id)
    return replace(RECORD, instance=instance, task_id=task, attempt=number, message=None, name=f"load{task}")


def test_recorded_activities_of_several_generations_are_in_their_order_and_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = "f" * 32
    second = next_execution_id(first)
    third = next_execution_id(second)
    records = [attempt(third), attempt(first), attempt(second, 1), attempt(second, 0, 2), attempt(second)]
    print_activities([*records, attempt("a" * 32)], third)
    rows = [re.split(r"\s{2,}", line.strip(" │┃|"))[:4] for line in capsys.readouterr().out.splitlines()]
    told = [[cell.strip(" │") for cell in row] for row in rows if "load" in "".join(row)]
    assert [" ".join(" ".join(row).replace("│", " ").split()).split(" running")[0] for row in told] == [
        "1 of aaaaaaaa load0 0 1",
        "1 load0 0 1",
        "2 load0 0 1",
        "2 load0 0 2",
        "2 load1 1 1",
        "3 load0 0 1",
    ]
    print_activities(records[:1], third)
    assert "generation" not in capsys.readouterr().out
