"""The command line: what it prints, how it ends, and what it says about what is wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_provider_taskhub.hub.queues import quarantine
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.storage.primitives import DeleteBlob, PutMessage
from tests.e2e.house import House
from tests.waiting import PATIENCE, until

OK, FAILED, USAGE, NOT_FOUND, EXISTS, UNAVAILABLE, TIMEOUT = range(7)


@pytest.mark.rows("K44", "K45", "K46")
def test_instances_from_start_to_end(embedded: House) -> None:
    house = embedded
    worker = house.worker("one").ready()
    assert (
        house.json("instances", "start", "chain", "--input", "3", "--id", "a", "--tag", "x=y", "--wait")["output"]
        == "3"
    )
    taken = house.command("instances", "start", "chain", "--input", "3", "--id", "a")
    assert (taken.returncode, "'a' exists already" in taken.stderr) == (EXISTS, True)
    assert "replace_finished" in taken.stderr, "it has ended"
    large = house.command("instances", "start", "chain", "--id", "b", "--tag", f"x={'y' * 65_536}")
    assert (large.returncode, "tags of orchestrator 'chain' are 65,54" in large.stderr) == (USAGE, True), large.stderr
    assert house.json("instances", "start", "chain", "--input", "9", "--id", "a", "--policy", "attach")["output"] == "3"

    assert house.json("instances", "start", "failing", "--id", "b", "--wait", status=FAILED)["status"] == "Failed"
    told = house.command("instances", "wait", "b")
    assert (told.returncode, "broken 7" in told.stdout) == (FAILED, True)

    house.json("instances", "start", "waiting", "--id", "c")
    slow = house.command("instances", "wait", "c", "--timeout", "0.3")
    assert slow.returncode == TIMEOUT
    sent = house.command("instances", "raise-event", "c", "go", "--data", "5")
    assert sent.returncode == OK, sent.stderr
    assert house.json("instances", "wait", "c")["output"] == "5"
    late = house.command("instances", "raise-event", "c", "go", "--data", "5")
    assert (late.returncode, "is Completed since" in late.stderr) == (USAGE, True)

    house.json("instances", "start", "waiting", "--id", "d")
    ended = house.command("instances", "terminate", "d", "--reason", "enough", "--wait")
    assert (ended.returncode, "Terminated" in ended.stdout) == (OK, True)

    listed = house.json("instances", "list")["instances"]
    assert {row["instance_id"]: row["status"] for row in listed} == {
        "a": "Completed",
        "b": "Failed",
        "c": "Completed",
        "d": "Terminated",
    }
    assert [row["instance_id"] for row in house.json("instances", "list", "--status", "Failed")["instances"]] == ["b"]
    page = house.json("instances", "list", "--limit", "3")
    rest = house.json("instances", "list", "--limit", "3", "--continuation", page["continuation"])
    assert [len(page["instances"]), len(rest["instances"]), rest["continuation"]] == [3, 1, None]
    shown = house.json("instances", "show", "a")
    assert (shown["instance"]["tags"], shown["history"][-1]["type"]) == ({"x": "y"}, "OrchestratorCompleted")
    missing = house.command("instances", "show", "nobody")
    assert (missing.returncode, "'nobody'" in missing.stderr) == (NOT_FOUND, True)

    house.json("instances", "start", "recorded", "--input", "1", "--id", "e", "--wait")
    (log,) = until("a log", lambda: house.json("instances", "logs", "e"))
    assert (log["activity"], log["attempt"]) == ("kept", 1)
    assert "kept 0 speaks" in log["log"]
    assert len(house.json("partitions", "show")) == 4
    assert worker.end() == OK


@pytest.mark.rows("K30", "K41", "K45", "K46")
def test_instances_are_suspended_rewound_and_purged(house: House, tmp_path: Path) -> None:
    worker = house.worker("one").ready()
    house.json("instances", "start", "waiting", "--id", "held", "--tag", "team=a")
    held = house.command("instances", "suspend", "held", "--reason", "hold on")
    assert (held.returncode, held.stdout) == (OK, "held: asked to suspend\n"), held.stderr
    shown = ("instances", "show", "held", "--once")
    until("suspended", lambda: house.json(*shown)["instance"]["status"] == "Suspended")
    assert [why["reason"] for why in house.json(*shown)["waits"]] == ["suspended"]
    checked = house.command("partitions", "check")
    told = "suspended by" in checked.stdout and ": hold on. To resume it" in checked.stdout
    assert (checked.returncode, told) == (OK, True), checked.stdout
    assert house.json("instances", "raise-event", "held", "go", "--data", "5")["sent"] is True
    refused = house.command("instances", "purge", "held")
    assert (refused.returncode, "terminate it first, then purge it" in refused.stderr) == (USAGE, True), refused.stderr
    assert house.json("instances", "resume", "held")["instance_id"] == "held"
    assert house.json("instances", "wait", "held")["output"] == "5"

    path = tmp_path / "there"
    house.json("instances", "start", "mending", "--id", "mends", "--input", f'"{path}"', "--wait", status=FAILED)
    path.touch()
    assert house.json("instances", "rewind", "mends", "--reason", "it is there", "--wait")["output"] == f'"{path}"'
    again = house.command("instances", "rewind", "mends")
    assert (again.returncode, "only a failed instance can be rewound" in again.stderr) == (USAGE, True)
    assert house.effects() == ["hop 1"], "what has completed is not done again"

    new = house.json("instances", "restart", "mends", "--new-id", "--wait")
    assert (new["output"], new["instance_id"] != "mends") == (f'"{path}"', True)
    assert house.json("instances", "restart", "mends", "--wait")["restarts"] == 1
    house.json("instances", "start", "waiting", "--id", "later", "--at", "2099-01-01")
    assert house.command("instances", "restart", "later").returncode == EXISTS

    tagged = house.json("instances", "list", "--tag", "team=a", "--created-to", "2099-01-01")["instances"]
    assert [row["instance_id"] for row in tagged] == ["held"]
    assert house.json("instances", "list", "--created-from", "2099-01-01")["instances"] == []
    assert house.json("instances", "purge", "held") == {"purged": 1, "complete": True, "failed": {}}
    assert house.command("instances", "purge", "held").returncode == NOT_FOUND
    assert house.json("instances", "purge", "--all", "--limit", "1", "--yes") == {
        "purged": 1,
        "complete": False,
        "failed": {},
        "watched": [],
    }
    assert house.json("instances", "purge", "--status", "Completed", "--yes") == {
        "purged": 1,
        "complete": True,
        "failed": {},
        "watched": [],
    }
    assert [row["instance_id"] for row in house.json("instances", "list")["instances"]] == ["later"]
    assert worker.end() == OK


@pytest.mark.rows("K42")
async def test_what_is_in_quarantine_is_shown_put_back_and_dropped(embedded: House) -> None:
    house = embedded
    house.worker("one").ready()
    async with house.client() as client:
        for text in ("nonsense", "[/more]"):
            put = PutMessage(queue=client.hub.names.work_items, text=text)
            await client.hub.store.execute(put)
    listed = until("both", lambda: len(found := house.json("quarantine", "list")) == 2 and found)
    assert all("neither JSON nor Base64" in item["cause"] and "text" not in item for item in listed)
    table = house.command("quarantine", "list", "--limit", "1")
    assert ("more than 1" in table.stdout, table.returncode) == (True, OK)
    ids = [item["message_id"] for item in listed]
    texts = {house.json("quarantine", "show", message_id)["text"] for message_id in ids}
    assert texts == {"nonsense", "[/more]"}
    assert house.command("quarantine", "show", "nobody").returncode == NOT_FOUND
    assert house.json("quarantine", "drop", ids[0]) == {"done": 1, "missing": [], "failed": {}}
    assert house.command("quarantine", "drop", ids[0]).returncode == NOT_FOUND
    assert house.json("quarantine", "put-back", "--all") == {"done": 1, "missing": [], "failed": {}}
    (again,) = until("the one that was put back", lambda: house.json("quarantine", "list"))
    assert again["message_id"] not in ids, "it is a new message"
    assert house.json("quarantine", "drop", "--all", "--yes")["done"] == 1
    assert house.command("quarantine", "put-back").returncode == USAGE


@pytest.mark.rows("K42")
async def test_what_cannot_be_put_back_does_not_keep_the_others(embedded: House) -> None:
    house = embedded
    assert house.command("hub", "create").returncode == OK
    async with house.client() as client:
        store, names = client.hub.store, client.hub.names
        for name, text in (("a", random.Random(1).randbytes(70_000).hex()), ("b", "nonsense")):
            item = Quarantined(
                queue=names.work_items,
                message_id=name,
                cause="broken",
                text=text,
                dequeue_count=1,
                inserted=client.hub.clock.utc_now(),
            )
            await quarantine.keep(store, names, item, None)
        (lost, _) = await client.admin.quarantined()
        await store.execute(DeleteBlob(container=names.large_messages, name=lost.blobs[0]))
    done = house.command("quarantine", "put-back", "--all")
    assert (done.returncode, done.stdout) == (FAILED, "1 put back\n")
    assert "the text of message a is gone" in done.stderr
    assert [item["message_id"] for item in house.json("quarantine", "list")] == ["a"]
    both = house.command("quarantine", "put-back", "a", "nobody")
    assert (both.returncode, "not in quarantine: nobody" in both.stderr) == (FAILED, True)
    assert house.json("quarantine", "drop", "--all", "--yes") == {"done": 1, "missing": [], "failed": {}}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["instances", "purge"], "say which"),
        (["instances", "purge", "x", "--all"], "not both"),
        (["instances", "purge", "--all", "--prefix", "x"], "say which"),
        (["instances", "purge", "--status", "Running", "--yes"], "Running: only instances that have ended"),
        (["instances", "list", "--created-from", "yesterday"], "is not a time"),
        (["instances", "start", "hello", "--input", "{"], "--input is not JSON"),
        (["instances", "start", "hello", "--input", "[" * 3000 + "]" * 3000], "--input is not JSON"),
        (["instances", "start", "hello", "--input", "[" * 501 + "]" * 501], "nested more than 500 levels deep"),
        (["instances", "start", "hello", "--at", "9999-12-31T23:59:59-05:00"], "in the years 1601 to 9999"),
        (["instances", "start", "hello", "--at", "1600-12-31"], "in the years 1601 to 9999"),
        (["instances", "start", "hello", "--tag", "x"], "is not of the form NAME=VALUE"),
        (["instances", "start", "hello", "--limit", "x=-1"], "instances is -1; give a whole number from 1 to 10,000"),
        (["instances", "list", "--tag", "x"], "is not of the form NAME=VALUE"),
        (["instances", "start", "hello", "--id", ""], "1 to 256 characters"),
        (["instances", "start", "hello", "--id", "x" * 300], "256"),
        (["instances", "start", "hello", "--id", "x\ufffe"], "holds U+FFFE"),
        (["instances", "show", "a [/b] 'c[spark]'"], "a [/b] 'c[spark]'"),
        (["instances", "wait", "x", "--timeout", "-1"], "Invalid value for '--timeout'"),
    ],
)
def test_wrong_arguments_are_named(embedded: House, arguments: list[str], says: str) -> None:
    assert embedded.command("hub", "create").returncode == OK
    done = embedded.command(*arguments)
    assert (done.returncode, says in done.stderr) == (NOT_FOUND if "show" in arguments else USAGE, True), done.stderr
    assert "Traceback" not in done.stderr


def test_texts_that_look_like_markup_are_printed_as_they_are(embedded: House) -> None:
    house, odd = embedded, "[bold]x[/nope]:key:" + "y" * 100
    assert house.command("hub", "create").returncode == OK
    started = house.command("instances", "start", "[/who]", "--id", odd, "--input", '{"op": "a [/b] c"}')
    assert (started.returncode, started.stdout) == (OK, f"{odd}\n"), started.stderr
    assert "no worker has orchestrator '[/who]' now" in started.stderr
    for *arguments, says in (
        ("list", odd),
        ("show", odd, '{"op":"a [/b] c"}'),
        ("raise-event", odd, "[/z]", f"{odd}: event [/z] sent"),
        ("terminate", odd, "--reason", "[/r]", f"{odd}: asked to end"),
    ):
        done = house.command("instances", *arguments, COLUMNS="80")
        assert (done.returncode, says in done.stdout, done.stderr) == (OK, True, ""), done.stdout + done.stderr


def _refused(house: House, *says: str, app: str = "house_app:app", **environment: str) -> None:
    worker = house.worker("refused", app=app, **environment)
    assert worker.process.wait(PATIENCE) == USAGE, worker.text()
    text = " ".join(worker.text().split())
    for part in says:
        assert part in text, text
    assert "Traceback" not in text


def test_a_worker_that_cannot_start_says_why(embedded: House, tmp_path: Path) -> None:
    _refused(embedded, "no_such_module", app="no_such_module:app")
    _refused(embedded, "nothing", app="house_app:nothing")
    _refused(embedded, "9lives", "3 to 45 letters and digits", TASKHUB_HUB="9lives")
    _refused(embedded, TASKHUB_CONNECTION="AccountName=x;nonsense")
    _refused(embedded, "TASKHUB_PARTITIONS is 'abc'", TASKHUB_PARTITIONS="abc")
    _refused(embedded, "TASKHUB_CONNECTION_STRING: there is no", app="x:y", TASKHUB_CONNECTION_STRING="1")
    _refused(embedded, "cannot be imported: SystemExit: 0", app="ending_app:app")
    _refused(embedded, "app 'vague'", "activity 'work'", "'Nope'", app="vague_app:app")
    other = tmp_path / "other.db"
    other.write_bytes(b"another program's file, surely no database" * 100)
    _refused(embedded, str(other), TASKHUB_CONNECTION=f"sqlite:///{other}")


def test_a_name_declared_twice_is_a_start_error(embedded: House) -> None:
    worker = embedded.worker("refused", "--app", "twice_app:app")
    assert worker.process.wait(PATIENCE) == USAGE
    text = " ".join(worker.text().split())
    assert "hello" in text
    assert "Traceback" not in text


@pytest.mark.rows("K01")
def test_a_hub_keeps_its_partitions(embedded: House) -> None:
    assert embedded.json("hub", "create", "--partitions", "3")["partitions"] == 3
    again = embedded.command("hub", "create", "--partitions", "5")
    assert (again.returncode, "3" in again.stderr, "5" in again.stderr) == (USAGE, True, True)
    worker = embedded.command("worker", "--app", "tests.e2e.house_app:app", TASKHUB_PARTITIONS="5")
    assert (worker.returncode, "3" in worker.stderr, "5" in worker.stderr) == (USAGE, True, True), worker.stderr
    assert embedded.json("hub", "show")["partitions"] == 3


def test_commands_that_change_something_say_so_in_json(embedded: House) -> None:
    embedded.json("hub", "create")
    embedded.json("instances", "start", "waits", "--id", "one")
    assert embedded.json("instances", "raise-event", "one", "go") == {"instance_id": "one", "event": "go", "sent": True}
    assert embedded.json("instances", "terminate", "one")["instance_id"] == "one"
    assert embedded.json("hub", "delete", "--yes")["deleted"] is True


@pytest.mark.parametrize("command", [("hub", "show"), ("instances", "list"), ("partitions", "show")], ids=" ".join)
def test_looking_makes_no_file(embedded: House, tmp_path: Path, command: tuple[str, ...]) -> None:
    nowhere = tmp_path / "nowhere" / "hub.db"
    done = embedded.command(*command, TASKHUB_CONNECTION=f"sqlite:////{nowhere}")
    assert (done.returncode, f"at {nowhere}: create it" in done.stderr) == (USAGE, True), done.stderr
    assert not nowhere.parent.exists()


def test_a_missing_hub_is_named(embedded: House) -> None:
    done = embedded.command("instances", "list", "--hub", "Nowhere")
    assert (done.returncode, "Nowhere" in done.stderr) == (USAGE, True), done.stderr
