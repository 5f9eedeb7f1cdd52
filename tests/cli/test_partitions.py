"""``taskhub partitions …`` on an embedded hub: what is printed, what is JSON, and the exit codes for monitors."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.partitions import app as partitions
from airflow_provider_taskhub.client.admin import HubAdmin
from airflow_provider_taskhub.hub.model import Failover, HubNames, Member
from airflow_provider_taskhub.hub.partitions.lease_stores import TableLeases
from airflow_provider_taskhub.hub.partitions.members import PATIENCE, PROOF, Members
from airflow_provider_taskhub.storage.primitives import Entity, RowOperation, RowVerb, Transact
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import START

COMMANDS = sorted(
    command.name or command.callback.__name__.replace("_", "-") for command in partitions.registered_commands
)  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.setenv("TASKHUB_CONNECTION", f"sqlite:///{tmp_path}/hub.db")


def taskhub(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["partitions", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return str(result.output)


def as_json(*arguments: str, code: int = 0) -> Any:
    return json.loads(taskhub(*arguments, "--json", code=code))


def test_all_commands_are_there() -> None:
    assert COMMANDS == [
        "allow",
        "cap",
        "check",
        "controls",
        "create",
        "detect-stale",
        "drain-node",
        "kick",
        "offline",
        "online",
        "prohibit",
        "show",
        "undrain-node",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example_and_has_json(command: str) -> None:
    text = taskhub(command, "--help")
    assert f"Example: taskhub partitions {command}" in " ".join(text.split())
    assert "--json" in text


@pytest.mark.rows("T02", "T04", "T05", "T70")
def test_create_makes_the_partitions_that_show_lists_and_refuses_other_counts() -> None:
    for count in ((), ("--partitions", "4")):
        told = "a cap of 9 is above the 4 partitions of hub 'TaskHub' and caps nothing: give 0 to 4"
        assert told in taskhub("create", *count, "--cap", "9", code=2)
        assert "there is no hub 'TaskHub'" in taskhub("show", code=2), "refused before anything is made"
    made = as_json("create", "--partitions", "4", "--cap", "3")
    assert (made["partitions"], made["cap"]) == (4, 3)
    taskhub("create", "--partitions", "4")
    taskhub("create", "--partitions", "8", code=2)
    taskhub("create", "--cap", "5", code=2)
    states = as_json("show")
    assert [(state["partition"], state["owner"], state["state"]) for state in states] == [
        (number, None, "new") for number in range(4)
    ]
    assert as_json("show", "2")[0]["partition"] == 2
    assert as_json("show", "--by-node") == [
        {"owner": "nobody", "partitions": [0, 1, 2, 3], "states": {"new": 4}, "load": 0}
    ]
    assert as_json("show", "--node", "etl") == []
    assert "nobody" in taskhub("show")
    assert "0 1 2 3" in taskhub("show", "--by-node")


def test_a_number_that_is_no_partition_is_exit_status_3_everywhere_and_nothing_is_ordered() -> None:
    taskhub("create")
    assert "no partition 4" in taskhub("show", "4", code=3)
    for order in (
        ("kick", "4", "--prohibit", "a"),
        ("prohibit", "0", "4", "--node", "a"),
        ("allow", "0", "4"),
        ("offline", "0", "4"),
        ("online", "0", "4"),
    ):
        assert "hub 'TaskHub' has partitions 0 to 3, not 4" in taskhub(*order, code=3)
    assert as_json("controls") == []
    assert "Exit status 3: the hub has no such partition" in " ".join(taskhub("--help").split())


@pytest.mark.rows("T05", "T73")
def test_create_completes_a_hub_that_lost_a_lease_row(tmp_path: Path) -> None:
    taskhub("create")

    async def lose() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            gone = Entity(partition_key="", row_key="taskhub-control-02")
            row = RowOperation(verb=RowVerb.DELETE, entity=gone, etag="*")
            await store.execute(Transact(table="TaskHubPartitions", rows=(row,)))

    asyncio.run(lose())
    assert "partition 2: no lease row: run `taskhub partitions create`" in as_json("check", code=1)["problems"]
    taskhub("create")
    assert [state["partition"] for state in as_json("show")] == [0, 1, 2, 3]


@pytest.mark.rows("K13")
def test_a_hub_with_another_lease_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHUB_LEASE_STORE", "blob")
    assert as_json("create")["lease_store"] == "blob"
    assert [state["owner"] for state in as_json("show")] == [None] * 4
    monkeypatch.setenv("TASKHUB_LEASE_STORE", "table")
    assert "keeps its leases in a blob store" in taskhub("show", code=2)
    monkeypatch.delenv("TASKHUB_LEASE_STORE")
    assert len(as_json("show")) == 4, "who asks for none takes the hub's own"


@pytest.mark.rows("T59", "T61", "T64", "T65", "T66", "T75", "T07")
def test_orders_are_given_listed_and_lifted() -> None:
    taskhub("create")
    taskhub("offline", "1", "2", "--reason", "history repair")
    taskhub("prohibit", "0", "--node", "etl@node7", "--node", "@node8")
    taskhub("cap", "2", "--node", "etl")
    taskhub("cap", "--per-turn", "1")
    taskhub("drain-node", "@node9")
    found = {
        (item["kind"], item["partition"], item["node"], item["value"]): item["reason"] for item in as_json("controls")
    }
    assert found == {
        ("offline", 1, None, None): "history repair",
        ("offline", 2, None, None): "history repair",
        ("prohibit", 0, "etl@node7", None): "",
        ("prohibit", 0, "@node8", None): "",
        ("cap", None, "etl", 2): "",
        ("turn", None, None, 1): "",
        ("drain", None, "@node9", None): "",
    }
    assert "history repair" in taskhub("controls")
    assert as_json("online", "1", "2")["lifted"] == 2
    assert as_json("allow", "0", "--node", "ETL@node7")["lifted"] == 1
    assert as_json("allow", "0")["lifted"] == 1
    assert as_json("cap", "--lift", "--node", "etl") == {"node": "etl", "lifted": 1}
    assert as_json("cap", "--lift") == {"node": None, "lifted": 1}
    assert as_json("undrain-node", "@node9")["lifted"] is True
    assert as_json("controls") == []
    assert "no orders in force" in taskhub("controls")
    taskhub("cap", code=2)
    taskhub("cap", "5", code=2)
    assert as_json("kick", "0") == {"partition": 0, "kicked": None, "prohibited": []}


@pytest.mark.rows("T72", "T73", "T74")
def test_monitors_get_exit_codes() -> None:
    taskhub("create")
    assert len(as_json("detect-stale", "0", code=1)) == 4
    assert "give the seconds between the two reads, not inf" in taskhub("detect-stale", "inf", code=2)
    taskhub("offline", "0", "1", "2", "3")
    assert as_json("detect-stale", "0") == []
    found = as_json("check", code=1)
    assert found["problems"] == ["live workers that may serve partitions: 0, fewer than 1"]
    assert len(found["controls"]) == 4
    assert as_json("check", "--min-nodes", "0")["problems"] == []
    assert "all is well" in taskhub("check", "--min-nodes", "0")


def test_the_help_of_a_check_says_how_long_it_looks() -> None:
    """That it does so is shown with the checks themselves, in virtual time."""
    told = " ".join(taskhub("check", "--help").split())
    assert (
        f"until every worker and every owner has renewed, at most {PATIENCE:g} renewal intervals of the slowest" in told
    )
    assert PROOF == 120
    assert "and two minutes in all" in told
    assert "If a worker renews less often than every two minutes, its partitions are reported as unknown" in told


@pytest.mark.rows("T54", "T70")
def test_a_dead_owner_is_not_shown_as_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("RENEW", "PT0.02S"), ("SCAN", "PT0.02S")):
        monkeypatch.setenv(f"TASKHUB_LEASE__{name}", seconds)
    taskhub("create", "--partitions", "2")

    async def take() -> None:
        async with SqliteStore(tmp_path / "hub.db") as store:
            leases = TableLeases(store, HubNames("TaskHub"))
            lease = (await leases.scan())[1]
            await leases.write(lease.claimed("dead@host/1", START, timedelta(seconds=30)))

    asyncio.run(take())
    assert [(state["owner"], state["state"]) for state in as_json("show")] == [(None, "new"), ("dead@host/1", "silent")]
    assert [(state["owner"], state["state"]) for state in as_json("show", "1", "--once")] == [
        ("dead@host/1", "unproven")
    ]
    assert as_json("show", "--by-node")[0]["states"] == {"silent": 1}
    assert "1 silent" in taskhub("show", "--by-node", "--node", "dead")
    told = "partition 1: its owner dead@host/1 does not renew it"
    assert told in as_json("check", "--min-nodes", "0", code=1)["problems"]
    assert told in taskhub("check", "--min-nodes", "0", code=1)
    taskhub("offline", "0", "1")
    assert [(state["state"], state["offline"]) for state in as_json("show")] == [("offline", True), ("silent", True)]
    nobodys, owned = taskhub("show").splitlines()[-2:]
    assert "ordered offline" not in nobodys
    assert "dead@host/1  silent, ordered offline" in owned


@pytest.mark.rows("T59", "T67", "T75")
@pytest.mark.rows("D105")
def test_lost_workers_are_listed_with_who_has_taken_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taskhub("create", "--partitions", "4")

    def show(*options: str) -> str:
        result = CliRunner().invoke(app, ["failover", "show", *options])
        assert result.exit_code == 0, result.output
        return str(result.output)

    assert "no failover in hub TaskHub" in show()

    async def take(
        partition: int, lost: str, by: str, minute: int, silent: float | None, proven: bool, **counted: int
    ) -> None:
        at = START + timedelta(minutes=minute)
        failover = Failover(lost=lost, taken_by=by, at=at, silent=silent, proven=proven, **counted)
        async with SqliteStore(tmp_path / "hub.db") as store:
            leases = TableLeases(store, HubNames("TaskHub"))
            lease = (await leases.scan())[partition].claimed(by, at, timedelta(seconds=30))
            await leases.write(replace(lease, failover=failover))

    asyncio.run(take(0, "old@host/1", "two@host/2", 1, 4.2, proven=False))
    asyncio.run(take(1, "one@host/3", "two@host/2", 7, 0.1, proven=True, messages=7, instances=3))
    asyncio.run(take(3, "one@host/3", "three@host/4", 8, 0.3, proven=True, messages=2, instances=2))
    one, old = json.loads(show("--json"))
    assert (one["worker"], one["noticed"], one["partitions"]) == ("one@host/3", "proven dead", [1, 3])
    assert (one["alive"], old["alive"]) == (False, False)
    assert (one["taken_by"], one["after"]) == (["three@host/4", "two@host/2"], 0.3)
    assert (one["first"], one["last"]) == ((START + timedelta(minutes=7)).text(), (START + timedelta(minutes=8)).text())
    assert (old["worker"], old["noticed"], old["partitions"]) == ("old@host/1", "lease expired", [0])
    assert (one["messages"], one["instances"], one["attempts"]) == (9, 5, 0)
    assert (old["messages"], old["instances"], old["attempts"]) == (None, None, 0)
    lines = show().splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["one@host/3", "old@host/1"]
    assert lines[-1].split("2026-01-01T00:01:00Z")[1].split() == ["4.2", "s", "-", "0"]
    assert lines[-2].split("0.3 s")[1].split() == ["9", "of", "5", "instances", "0"]
    proved = list[bool]()

    async def workers(self: HubAdmin, *, prove: bool = False) -> list[Member]:
        proved.append(prove)
        rest: dict[str, Any] = {"roles": (), "apps": {}, "orchestrators": (), "activities": (), "started": START}
        took = [{"one@host/3": 4, "old@host/1": 1}, {"one@host/3": 2, "only@runs/activities": 5}]
        return [
            Member(worker="old@host/1", alive=prove, **rest),
            Member(worker="two@host/2", taken_over=took[0], **rest),
            Member(worker="three@host/4", taken_over=took[1], **rest),
            Member(worker="gone@host/5", taken_over={"long@gone/1": 9, "one@host/3": 9}, alive=False, **rest),
        ]

    monkeypatch.setattr(HubAdmin, "workers", workers)
    assert re.search("old@host/1 +lease expired, alive again", show())
    losses = json.loads(show("--json"))
    assert [(loss["worker"], loss["alive"], loss["attempts"]) for loss in losses] == [
        ("one@host/3", False, 6),
        ("old@host/1", True, 1),
        ("only@runs/activities", False, 5),
    ]
    last = losses[-1]
    assert (last["noticed"], last["taken_by"]) == ("attempts taken over", ["three@host/4"])
    assert (last["partitions"], last["first"], last["after"], last["messages"]) == ([], None, None, None)
    assert re.search(r"only@runs/activities +attempts taken over +- +three@host/4 +- +- +5$", show(), re.M)
    assert proved == [True] * 3

    # one worker, of which one death was proven and one lease had expired, is one row with its attempts
    asyncio.run(take(0, "one@host/3", "two@host/2", 9, 4.2, proven=False, messages=10_000, instances=1))
    proved.clear()
    losses = json.loads(show("--json"))
    assert proved == [False], "only a worker whose lease had expired may be alive again"
    assert [(loss["worker"], loss["noticed"], loss["partitions"], loss["attempts"]) for loss in losses] == [
        ("one@host/3", "lease expired, and proven dead", [0, 1, 3], 6),
        ("old@host/1", "attempts taken over", [], 1),
        ("only@runs/activities", "attempts taken over", [], 5),
    ]
    assert (losses[0]["messages"], losses[0]["more"]) == (10_009, True)
    assert "2026-01-01T00:07:00Z to 2026-01-01T00:09:00Z" in show()
    assert re.search(r"10009\+ of 6 instances", show())
    asyncio.run(take(1, "one@host/3", "two@host/2", 9, 4.2, proven=True))
    asyncio.run(take(3, "one@host/3", "two@host/2", 9, None, proven=True, messages=0, instances=0, attempts=3))
    assert re.search(r" 4.2 s +10000\+ of 1 instance +6", show())

    # what a worker that has ended had taken over is kept with the partition, once for all its partitions
    asyncio.run(take(0, "one@host/3", "gone@host/5", 9, None, proven=True, messages=0, instances=0, attempts=7))
    asyncio.run(take(1, "one@host/3", "gone@host/5", 9, None, proven=True, messages=0, instances=0, attempts=8))
    asyncio.run(take(3, "one@host/3", "two@host/2", 9, None, proven=True, messages=0, instances=0, attempts=9))
    assert re.search(r" - +0 of 0 instances +19", show()), "8 of the one, 9 of two and 2 of three"


def test_a_name_that_no_worker_has_is_said_to_be_waited_for() -> None:
    taskhub("create", "--partitions", "2")
    for order in (
        ("prohibit", "0", "--node", "oen"),
        ("drain-node", "oen"),
        ("cap", "1", "--node", "oen"),
        ("kick", "0", "--prohibit", "oen"),
    ):
        told = " ".join(taskhub(*order).split())
        assert "warning: no worker has the name oen now: the order waits for one. Listed: no worker" in told
    assert "waits" not in taskhub("cap", "--lift", "--node", "oen")


@pytest.mark.rows("T60", "T75")
def test_an_order_that_is_called_otherwise_is_not_lifted_in_silence() -> None:
    taskhub("create", "--partitions", "2")
    taskhub("prohibit", "0", "--node", "one")
    taskhub("drain-node", "two")
    assert "nothing was lifted. In force: one from partition 0" in taskhub("allow", "0", "--node", "one@host")
    assert "nothing was lifted. In force: two" in taskhub("undrain-node", "two@host")
    assert "partition 0: 1 prohibition lifted" in taskhub("allow", "0", "--node", "ONE")
    assert "nothing was lifted: none in force" in taskhub("allow", "0")


def lines(*arguments: str, code: int = 0) -> list[str]:
    return taskhub(*arguments, code=code).splitlines()


@pytest.mark.rows("T65")
def test_what_is_said_of_partitions_is_what_was_done() -> None:
    taskhub("create", "--partitions", "4")
    assert lines("offline", "0", "0", "1") == [
        "partitions 0, 1: offline after one scan and the end of running episodes"
    ]
    assert lines("online", "0", "2", "0") == ["partitions 0, 2: online again (1 of them had been offline)"]
    assert lines("online", "1") == ["partition 1: online again"]
    assert lines("online", "1", "2") == ["partitions 1, 2: not offline"]
    assert as_json("online", "1") == {"partitions": [1], "lifted": 0}
    assert lines("prohibit", "0", "0", "--node", "@h", "--node", "@H")[-1] == "partition 0: prohibited to @h"
    assert lines("allow", "0", "1", "0") == ["partitions 0, 1: 1 prohibition lifted"]
    assert lines("kick", "3") == ["partition 3: no worker owns it"]
    assert lines("kick", "3", "--prohibit", "a")[-1] == "partition 3: no worker owns it; prohibited to a"
    assert lines("show", "3", "--node", "a") == ["a does not own partition 3"]
    assert lines("show", "--node", "a") == ["a does not own any partition"]


@pytest.mark.rows("T75")
def test_what_is_said_of_caps_is_what_was_done() -> None:
    taskhub("create", "--partitions", "4")
    assert lines("cap", "3", "--per-turn", "2") == ["every worker holds at most 3, every worker takes at most 2 a scan"]
    assert lines("cap", "0", "--node", "etl")[-1] == "etl holds at most 0"
    assert as_json("cap", "--per-turn", "1") == {"node": None, "cap": None, "per_turn": 1}
    assert lines("cap", "--lift") == ["lifted: cap of every worker, limit per scan"]
    told = lines("cap", "--lift")
    assert told == ["warning: nothing was lifted. In force: cap of etl: 0", "lifted: nothing"]
    assert lines("cap", "--lift", "--node", "ETL") == ["lifted: cap of ETL"]
    assert lines("controls") == ["no orders in force"]
    for wrong in (("2", "--lift"), ("--per-turn", "1", "--lift"), ("--per-turn", "1", "--node", "etl"), ()):
        taskhub("cap", *wrong, code=2)
    assert lines("controls") == ["no orders in force"]


async def listed(path: Path, worker: str, orchestrator: str) -> None:
    """A worker that lists itself once, and never again."""
    async with SqliteStore(path / "hub.db") as store:
        member = Member(
            worker=worker,
            started=START,
            roles=("orchestrator", "activity"),
            apps={"flights": "1"},
            orchestrators=(orchestrator,),
            activities=(),
        )
        await Members(store, HubNames("TaskHub")).announce(member)


def test_a_check_says_what_instances_wait_for_and_fails_for_what_must_be_mended(tmp_path: Path) -> None:
    taskhub("create")
    taskhub("offline", "0", "1", "2", "3", "--reason", "repair")
    start = ["instances", "start", "flights", "--id"]
    assert "all is well" in taskhub("check", "--min-nodes", "0")
    assert CliRunner().invoke(app, [*start, "lost"]).exit_code == 0
    found = as_json("check", "--min-nodes", "0", code=1)
    assert found["problems"] == []
    assert [(item["reason"], item["count"], item["fault"]) for item in found["waiting"]] == [
        ("partition_offline", 1, True)
    ]
    text = taskhub("check", "--min-nodes", "0", code=1)
    assert "all is well" not in text
    assert "1 instance waiting, partition_offline:" in text
    assert "lost: partition" in text
    assert "(repair). To bring it back: taskhub partitions online" in text
    assert "more" not in text
    for name in "abcd":
        assert CliRunner().invoke(app, [*start, name]).exit_code == 0
    assert re.search(r"5 instances waiting, partition_offline:\n(  .*\n){3}  and 2 more\n", taskhub("check", code=1))
    taskhub("online", "0", "1", "2", "3")
    assert CliRunner().invoke(app, [*start, "later", "--at", "2999-01-01"]).exit_code == 0
    asyncio.run(listed(tmp_path, "ann@a/1", "trains"))
    found = as_json("check", "--min-nodes", "0", code=1)
    assert [(item["reason"], item["count"], item["fault"]) for item in found["waiting"]] == [
        ("starts_later", 1, False),
        ("no_worker_knows_orchestrator", 5, True),
    ]
    assert found["waiting_complete"] is True
