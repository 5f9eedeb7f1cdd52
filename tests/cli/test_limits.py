"""``taskhub limits`` on an embedded hub."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_taskhub.cli.limits import different
from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.partitions import checking
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.history import own_queues, places
from airflow_provider_taskhub.hub.model import ActivityRecord, HubNames, Member, RecordState
from airflow_provider_taskhub.hub.partitions.administration import create_hub
from airflow_provider_taskhub.hub.partitions.members import Members
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START

NAMES = HubNames("TaskHub")
INSTANCES = places.LimitKind.INSTANCES
RECORD = ActivityRecord(
    instance=OrchestrationInstance(instance_id="monday", execution_id="e"),
    task_id=3,
    action_id="a",
    attempt=1,
    name="load",
    state=RecordState.RUNNING,
    worker="one@host/1",
    executor="",
    claimed=Timestamp(0),
)


def taskhub(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return str(result.output)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub in which one of two places of "load" is held, and two of three calls wait."""
    file = tmp_path / "hub.db"
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.setenv("TASKHUB_CONNECTION", f"sqlite:///{file}")
    limit = places.Limit(name="load", places=2)

    async def make() -> None:
        async with SqliteStore(file) as store:
            await create_hub(store, NAMES, 1)
            await store.create_queue(NAMES.limited("load"))
            await store.execute(places.declared(NAMES, limit))
            await store.execute(own_queues.declared(NAMES, "load", "load"))
            for name in "abc":
                await store.execute(PutMessage(queue=NAMES.limited("load"), text=name))
            await store.receive(NAMES.limited("load"), limit=1, visibility=timedelta(minutes=5))
            _, second = (await places.state_of(store, NAMES, limit)).free()
            await store.execute(places.taken(NAMES, second, RECORD))

    asyncio.run(make())


def test_a_row_for_each_activity_with_a_limit() -> None:
    lines = taskhub("limits", "list").splitlines()
    head, row = (line.split() for line in lines[-2:])
    assert head == ["of", "name", "limit", "running", "waiting", "oldest", "who"]
    assert (row[:5], row[6:]) == (["activity", "load", "2", "1", "2"], ["monday", "#3"])
    assert row[5].startswith("20")


def test_as_json() -> None:
    (found,) = json.loads(taskhub("limits", "list", "--json"))
    assert found.pop("oldest").startswith("20")
    assert [found] == [
        {
            "kind": "activity",
            "name": "load",
            "limit": 2,
            "seconds": None,
            "activities": ["load"],
            "declared": 2,
            "ordered_by": None,
            "running": 1,
            "waiting": 2,
            "holders": [{"instance_id": "monday", "task_id": 3, "attempt": 1, "worker": "one@host/1"}],
        }
    ]


def test_a_check_counts_what_waits_and_finds_no_fault_in_it() -> None:
    taskhub("partitions", "offline", "0")
    lines = taskhub("partitions", "check", "--min-nodes", "0").splitlines()
    assert any(line.startswith("all is well") for line in lines), lines
    assert any(line.startswith("2 calls wait for the limit 'load' (2), the first since 20") for line in lines), lines
    found = json.loads(taskhub("partitions", "check", "--min-nodes", "0", "--json"))
    assert [(one["kind"], one["name"], one["waiting"]) for one in found["limits"]] == [("activity", "load", 2)]
    assert (found["memory"], found["waiting_for_slots"]) == ({}, [])


def test_a_check_with_a_warning_does_not_say_that_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "different", lambda members, limits, now: ["two numbers"])
    taskhub("partitions", "offline", "0")
    told = taskhub("partitions", "check", "--min-nodes", "0")
    assert "no problem, but a warning: 0 live workers" in told
    assert "warning: two numbers" in told


def test_workers_that_declare_different_numbers_are_told_until_one_is_ordered(tmp_path: Path) -> None:
    async def add() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            for number in (2, 3, None):
                member = Member(
                    worker=f"w{number}@host/1",
                    started=START,
                    roles=("activity",),
                    apps={"app": ""},
                    orchestrators=(),
                    activities=("load",),
                    limits={} if number is None else {"activity load": str(number)},
                )
                await Members(store, NAMES).announce(member)

    asyncio.run(add())
    said = "different numbers for the limit 'load': 2 on w2@host/1 (app); 3 on w3@host/1 (app). 2 counts"
    without = "they run its activities without it until they end: wNone@host/1 (app). Declared: 2 on w2@host/1"
    told = taskhub("limits", "list")
    assert said in told
    assert without in told
    taskhub("limits", "set", "load", "5")
    told = taskhub("limits", "list")
    assert "different numbers" not in told
    assert without in told


def test_starts_that_change_a_number_twice_are_told_for_a_day_until_one_is_ordered() -> None:
    first = Timestamp.parse("2026-11-23T03:40:12Z")
    state = places.LimitState(name="the db", kind=INSTANCES, declared=0)
    state = state.after_start(4, first + timedelta(hours=-30)).after_start(1, first + timedelta(hours=-2))
    assert different([], [state], first) == [], "the number was changed once"
    state = state.after_start(2, first)
    said = (
        "starts have changed the number of the limit 'the db' twice within a day, the last time at "
        "2026-11-23T03:40:12Z: 4, 1, 2. That of the newest start counts. Give all starts the same number, or order "
        "one: taskhub limits set 'the db' NUMBER --of instances"
    )
    assert different([], [state], first + timedelta(hours=23)) == [said]
    assert different([], [state], first + timedelta(hours=25)) == []
    assert different([], [replace(state, ordered=3)], first + timedelta(hours=3)) == []
    days = [(number, at + timedelta(days=30 * index)) for index, (number, at) in enumerate(state.changes)]
    assert different([], [replace(state, changes=tuple(days))], days[-1][1]) == [], "two changes in two months"


def test_a_name_with_two_lines_stands_in_one(tmp_path: Path) -> None:
    async def add() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            await store.execute(places.declared(NAMES, places.Limit(name="two\nlines", places=1, kind=INSTANCES)))

    asyncio.run(add())
    assert "two\\nlines" in taskhub("limits", "list").splitlines()[-1]


def _limit() -> tuple[int, str | None]:
    (found,) = json.loads(taskhub("limits", "list", "--json"))
    return found["limit"], found["ordered_by"]


def test_an_order_counts_until_it_is_lifted() -> None:
    said = taskhub("limits", "set", "load", "5")
    assert said.strip() == "at most 5 of the activity load run at once from now on; 1 run now"
    number, by = _limit()
    assert (number, bool(by)) == (5, True)
    assert "5 by " in taskhub("limits", "list")
    assert json.loads(taskhub("limits", "set", "load", "--declared", "--json"))["limit"] == 2
    assert _limit() == (2, None)


def test_an_order_for_a_divided_limit_counts_what_runs_for_all_values(tmp_path: Path) -> None:
    divided = places.Limit(name="load", places=2, key_tag="tenant")

    async def add() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            (held,) = (await places.state_of(store, NAMES, divided)).holders
            await store.execute(places.freed(NAMES, held))
            await store.execute(places.declared(NAMES, divided))
            for tenant in ("a", "b"):
                place = places.Place(key=replace(divided, value=tenant).key, number=0)
                await store.execute(places.taken(NAMES, place, RECORD))

    asyncio.run(add())
    said = taskhub("limits", "set", "load", "3")
    assert said.strip() == "at most 3 of the activity load run at once for each tenant from now on; 2 run now"
    found = json.loads(taskhub("limits", "set", "load", "--declared", "--json"))
    assert (found["running"], found["activities"]) == (2, ["load"])


def test_a_rate_has_its_time_and_counts_what_has_begun(tmp_path: Path) -> None:
    async def add() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            rate = places.Limit(name="load", places=10, seconds=60, kind=places.LimitKind.RATE)
            await store.execute(places.declared(NAMES, rate))

    asyncio.run(add())
    assert taskhub("limits", "list").splitlines()[-1].split()[:5] == ["rate", "load", "10/m", "0", "2"]
    assert taskhub("limits", "set", "load", "20", "--of", "rate").strip() == "at most 20/m of load begin from now on"
    for arguments, said in {
        ("load", "20"): "'load' is the name of several limits: add --of activity or rate",
        ("load", "101", "--of", "rate"): "the rate 'load': 101 is too many; give a whole number from 1 to 100",
    }.items():
        result = CliRunner().invoke(app, ["limits", "set", *arguments])
        assert (result.exit_code, said in " ".join(result.output.replace("│", " ").split())) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lode", "5"], "'lode' is the name of no limit. Did you mean 'load'? To see all"),
        (["other", "5"], "'other' is the name of no limit. To see all limits: taskhub limits list"),
        (["load"], "give a number, or --declared"),
        (["load", "5", "--declared"], "give a number, or --declared"),
        (
            ["load", "0"],
            "0 is no number of places; give a whole number from 1 to 10,000. To let nothing begin, suspend",
        ),
        (["load", "10001"], "10001 is no number of places; give a whole number from 1 to 10,000"),
        (["load", "5", "--of", "instances"], "'load' is a limit of the kind activity: use --of activity. To see all"),
    ],
)
def test_a_wrong_order_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["limits", "set", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())
    assert _limit() == (2, None)


def test_the_queues_of_limits_are_deleted_with_the_hub(tmp_path: Path) -> None:
    taskhub("hub", "delete", "--yes")

    async def left() -> list[str]:
        async with SqliteStore(tmp_path / "hub.db") as store:
            return await store.list_queues("taskhub-")

    assert asyncio.run(left()) == []


def test_an_intake_limit_is_set_listed_checked_and_lifted() -> None:
    taskhub("partitions", "offline", "0")
    assert "intake" not in taskhub("limits", "list")
    assert json.loads(taskhub("partitions", "check", "--min-nodes", "0", "--json"))["intake"] is None
    taskhub("instances", "start", "hello", "--id", "a")
    said = "new starts wait while 2 or more messages wait for a worker (now: about 1)"
    assert taskhub("limits", "intake", "2", "--policy", "wait").strip() == said
    row = taskhub("limits", "list").splitlines()[-1].split()
    assert (row[:4], row[-1]) == (["intake", "2,", "wait", "by"], "1")
    *_, limit = json.loads(taskhub("limits", "list", "--json"))
    by = limit.pop("ordered_by")
    assert by == row[4]
    assert limit == {"kind": "intake", "limit": 2, "policy": "wait", "waiting": 1}
    check = ["partitions", "check", "--min-nodes", "0"]  # its exit status is 1, because no worker has the orchestrator
    assert json.loads(CliRunner().invoke(app, [*check, "--json"]).stdout)["intake"]["limit"] == 2
    assert said in CliRunner().invoke(app, check).output
    assert taskhub("limits", "intake", "--lift").strip() == "every start is taken from now on"
    assert "intake" not in taskhub("limits", "list")


@pytest.mark.parametrize("options", [[], ["--policy", "wait"]])
def test_a_start_above_the_intake_limit_fails_with_the_way_out(options: list[str]) -> None:
    taskhub("instances", "start", "hello", "--id", "a")
    taskhub("limits", "intake", "1", *options)
    result = CliRunner().invoke(app, ["instances", "start", "hello", "--id", "b", "--intake-timeout", "0"])
    assert result.exit_code == 1
    assert "about 1 message waits for a worker, and its intake limit is 1" in " ".join(result.output.split())
    assert "b" not in [one["instance_id"] for one in json.loads(taskhub("instances", "list", "--json"))["instances"]]
    assert taskhub("instances", "start", "hello", "--id", "a", "--policy", "attach").splitlines()[-1] == "a"


@pytest.mark.parametrize("arguments", [[], ["5", "--lift"], ["0"], ["5", "--policy", "drop"]])
def test_a_wrong_intake_limit_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["limits", "intake", *arguments]).exit_code == 2
    assert "intake" not in taskhub("limits", "list")
