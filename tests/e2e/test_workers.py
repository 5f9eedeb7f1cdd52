"""Worker processes that work, are killed, stopped, frozen: on the embedded store and on Azurite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventRaised, HistoryEvent, OrchestrationInstance, Status
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.hub.queues.quarantine import MAX_FAILURES
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.workers.executors.attempt_values import MAX_CRASHES, MAX_SHARED
from tests.e2e.house import House, Worker, until

LIMIT = timedelta(seconds=60)
TAKE = 4.0 + 0.5 + 4.0
"""Take time, a scan, and the visibility of what the dead worker held."""


def _gap(history: tuple[HistoryEvent, ...]) -> float:
    times = [event.timestamp for event in history]
    return max((after - before).total_seconds() for before, after in pairwise(times))


@pytest.mark.rows("K04", "K16", "K26")
async def test_two_workers_do_what_there_is_to_do_and_stop(house: House) -> None:
    one, two = house.worker("one"), house.worker("two")
    one.ready()
    two.ready()
    async with house.client() as client:
        starts = [client.start("hello", "World"), client.start("chain", 5), client.start("fan", 20)]
        ids = [state.instance_id for state in await asyncio.gather(*starts)]
        ends = await asyncio.gather(*(client.wait(instance_id, timeout=LIMIT) for instance_id in ids))
        assert [end.output for end in ends] == ['"Hello, World!"', "5", "210"]
        failed = await client.start("failing")
        end = await client.wait(failed.instance_id, timeout=LIMIT)
        assert (end.status, end.failure is not None) == (Status.FAILED, True)
        assert "broken 7" in (end.output or "")
        assert {member.worker.split("@")[0] for member in await client.admin.workers()} == {"one", "two"}
        family = await client.start("writer", [1, 2, 3])
        await client.wait(family.instance_id, timeout=LIMIT)
        lineage, left_out = await client.instance(family.instance_id).lineage()
        assert lineage.inlets == ("file:///data/source",)
        assert (lineage.outlets, left_out) == (tuple(f"file:///data/{number}" for number in (1, 2, 3)), 0)
    assert (one.end(), two.end()) == (0, 0)
    assert "Traceback" not in one.text() + two.text()


def test_a_hub_is_deleted_at_once_when_its_workers_were_killed_on_this_machine(house: House) -> None:
    """The lock files prove the deaths. The app lease alone would prove it only after a minute."""
    one, two = house.worker("one"), house.worker("two")
    one.ready()
    two.ready()
    one.kill()
    refused = house.command("hub", "delete", "--yes")
    assert (refused.returncode, "a worker serves it" in refused.stderr) == (2, True), refused.stderr
    two.kill()
    killed = time.monotonic()
    until(lambda: house.command("hub", "delete", "--yes").returncode == 0, what="the deletion")
    assert time.monotonic() - killed < 30.0, "half of the time that the app lease holds"
    assert house.command("hub", "show").returncode == 2


@pytest.mark.rows("K06", "K26", "K27")
async def test_a_killed_worker_costs_time_and_nothing_else(house: House) -> None:
    """Chains and recorded activities: the other worker finishes; what ran to its end is not run again."""
    one, two = house.worker("one", "--activities", "2"), house.worker("two", "--activities", "2")
    one.ready()
    two.ready()
    async with house.client() as client:
        for number in range(6):
            await client.start("paced", 25, instance_id=f"paced-{number}")
        await client.start("recorded", 8, instance_id="recorded")
        begun = until(
            lambda: [line for line in house.effects() if line.startswith("begin") and line.endswith(" one")],
            what="a recorded activity on the first worker",
        )
        assert begun
        await asyncio.sleep(0.5)
        one.kill()
        for number in range(6):
            end = await client.wait(f"paced-{number}", timeout=LIMIT)
            assert (end.status, end.output) == (Status.COMPLETED, "25")
            assert _gap(await client.instance(f"paced-{number}").history()) < TAKE + 2.0
        end = await client.wait("recorded", timeout=LIMIT)
        assert (end.status, end.output) == (Status.COMPLETED, "280")
        runs = Counter(int(line.split()[1]) for line in house.effects() if line.startswith("begin"))
        ended = Counter(int(line.split()[1]) for line in house.effects() if line.startswith("end"))
        records = await client.instance("recorded").activities()
    again = {record.task_id for record in records if record.state is RecordState.LOST}
    assert 1 <= len(again) <= 2, "what the killed worker was running"
    assert {number for number, count in runs.items() if count > 1} == again
    assert all(ended[number] == 1 for number in range(8) if number not in again)
    assert two.end() == 0


@pytest.mark.rows("K58")
async def test_a_worker_that_is_told_to_stop_leaves_nothing_standing(house: House) -> None:
    one, two = house.worker("one"), house.worker("two")
    one.ready()
    two.ready()
    async with house.client() as client:
        for number in range(8):
            await client.start("paced", 40, instance_id=f"paced-{number}")
        await asyncio.sleep(1.5)
        began = time.monotonic()
        assert one.end() == 0
        assert time.monotonic() - began < 15.0
        for number in range(8):
            end = await client.wait(f"paced-{number}", timeout=LIMIT)
            assert (end.status, end.output) == (Status.COMPLETED, "40")
            assert _gap(await client.instance(f"paced-{number}").history()) < 3.0
    assert two.end() == 0


@pytest.mark.parametrize("seed", [None, "7"])
async def test_an_orchestrator_that_goes_through_a_set_is_replayed_by_another_worker(
    embedded: House, monkeypatch: pytest.MonkeyPatch, seed: str | None
) -> None:
    """Without a fixed hash seed, the second worker would decide in another order. A seed of the user stays."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    environment = {} if seed is None else {"PYTHONHASHSEED": seed}
    names = [f"name-{number}" for number in range(12)]
    async with embedded.client() as client:
        first = embedded.worker("first", "--no-warm", **environment).ready()
        await client.start("over_a_set", names, instance_id="s")
        until(lambda: "asks s" in embedded.effects(), what="the end of the loop")
        first.kill()
        second = embedded.worker("second", "--no-warm", **environment).ready()
        await client.raise_event("s", "go")
        ended = await client.wait("s", timeout=LIMIT)
        assert ended.status is Status.COMPLETED, ended.output
        assert json.loads(ended.output or "") == {name: [name.upper(), seed or "0"] for name in names}
        assert second.end() == 0


@pytest.mark.rows("K06", "K10")
async def test_a_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws(embedded: House) -> None:
    house = embedded
    one, two = house.worker("one"), house.worker("two")
    one.ready()
    two.ready()
    async with house.client() as client:
        for number in range(4):
            await client.start("paced", 40, instance_id=f"paced-{number}")
        await asyncio.sleep(1.5)
        await _freeze(one, house.folder / "hub.db")
        ends = [await client.wait(f"paced-{number}", timeout=LIMIT) for number in range(4)]
        one.send(signal.SIGCONT)
        assert [end.output for end in ends] == ["40"] * 4
        await client.start("chain", 5, instance_id="after")
        assert (await client.wait("after", timeout=LIMIT)).output == "5"
        for number in range(4):
            again = await client.get(f"paced-{number}")
            assert again is not None
            assert (again.status, again.output) == (Status.COMPLETED, "40")
        until(lambda: len(_owners(house)) == 2, what="a share of the partitions for each")
    assert (one.end(), two.end()) == (0, 0)


async def _freeze(worker: Worker, file: Path) -> None:
    """Stop it at a moment when it does not hold the file's lock, with which it would stop all others too."""
    for _ in range(100):
        worker.send(signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(file, timeout=2.0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                worker.send(signal.SIGCONT)
                await asyncio.sleep(0.01)
                continue
            other.execute("ROLLBACK")
            return
    raise AssertionError("it holds the lock whenever it is looked at")


def _owners(house: House) -> set[str]:
    return {row["owner"] for row in house.json("partitions", "show") if row["owner"]}


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_tells_how_it_is(embedded: House) -> None:
    worker = embedded.worker("one", "--health-port", "0").ready()
    port = embedded.port(worker)
    assert (_get(port, "/live")[0], _get(port, "/ready")[0], _get(port, "/nothing")[0]) == (200, 200, 404)
    until(lambda: "taskhub_partitions_owned 4" in _get(port, "/metrics")[1], what="all partitions owned")
    done = embedded.json("instances", "start", "chain", "--input", "2", "--wait")
    assert done["output"] == "2"
    assert 'taskhub_storage_requests_total{kind="table.batch",part="work"}' in _get(port, "/metrics")[1]
    until(lambda: _figure(port, "taskhub_lease_renewals_total") >= 12, what="renewals")
    renewals = _figure(port, "taskhub_lease_renewals_total")
    assert _figure(port, 'taskhub_storage_requests_total{kind="table.update",part="partitions"}') >= renewals
    assert 0 < _figure(port, "taskhub_lease_age_seconds_max") <= EMBEDDED_LEASE.give_up.total_seconds()
    waiting = 'taskhub_instances_waiting{fault="true",reason="no_worker_knows_orchestrator"}'
    assert _figure(port, waiting) == 0
    embedded.json("instances", "start", "nobody-has-it", "--id", "lost")
    until(lambda: _figure(port, waiting) == 1, what="the reason in two scans", seconds=5)
    assert "waiting" not in _get(port, "/metrics?waiting=no")[1]
    assert _figure(port, "taskhub_messages_quarantined_total") == 0
    asyncio.run(_put_rubbish(embedded))
    until(lambda: _figure(port, "taskhub_messages_quarantined_total") == 3, what="all counted")
    assert worker.end() == 0


def _figure(port: int, name: str) -> float:
    (line,) = [line for line in _get(port, "/metrics")[1].splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


async def _put_rubbish(house: House) -> None:
    """What no reader delivers; and what is no work item, before its last try."""
    async with house.client() as client:
        names, event = client.hub.names, EventRaised(timestamp=Timestamp(0), name="no work item")
        last = replace(
            client.hub.message_to(event, OrchestrationInstance(instance_id="x")).envelope, failures=MAX_FAILURES
        )
        for queue, text in (
            (names.control(1), "rubbish"),
            (names.work_items, "rubbish"),
            (names.work_items, encode(last)),
        ):
            await client.hub.store.execute(PutMessage(queue=queue, text=text))


NO_AIRFLOW = """
import sys


class NoAirflow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "airflow":
            raise ImportError(f"{name} is not installed here")
        return None


sys.meta_path.insert(0, NoAirflow())
"""


def test_a_worker_needs_no_airflow(embedded: House) -> None:
    (embedded.folder / "sitecustomize.py").write_text(NO_AIRFLOW)
    path = f"{embedded.folder}:{embedded.environment['PYTHONPATH']}"
    worker = embedded.worker("one", PYTHONPATH=path).ready()
    done = embedded.command("instances", "start", "chain", "--input", "2", "--wait", "--json", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert worker.end() == 0


async def test_an_endless_orchestrator_ends_its_worker_and_no_other_instance(house: House) -> None:
    app = "endless_app:app"
    one = house.worker("one", app=app).ready()
    async with house.client() as client:
        await client.start("endless", instance_id="endless")
        for number in range(4):
            await client.start("other", instance_id=f"other-{number}")
        assert one.process.wait(60) == os.EX_SOFTWARE, one.text()
        assert "episode_slow" in one.text()
        assert re.search(r"episode_stuck .*endless_app\.py:2\d in endless", one.text()), one.text()
        kept = house.json("quarantine", "list")
        assert [(item["instance_id"], bool(item["stuck"])) for item in kept] == [("endless", True)]
        two = house.worker("two", app=app).ready()
        for number in range(4):
            assert (await client.wait(f"other-{number}", timeout=LIMIT)).output == "14"
        assert two.end() == 0
        house.worker("three", app=app, MENDED="1").ready()
        assert house.json("quarantine", "put-back", "--all")["done"] == 1
        assert (await client.wait("endless", timeout=LIMIT)).output == "7"


async def test_a_finally_that_does_not_end_when_its_orchestrator_is_evicted_holds_up_no_work(house: House) -> None:
    """The instances are evicted at the end of each episode; their worker goes on, with them too, and stops."""
    ways = ("blocks", "loops", "raises")
    one = house.worker("one", app="untidy_app:app", TASKHUB_SESSION_IDLE="PT0S").ready()
    async with house.client() as client:
        for how in ways:
            await client.start("untidy", how, instance_id=how)
        until(lambda: "orchestrator_not_closed" in one.text(), what="the first one that is not closed is logged")
        (first,) = re.findall(r"orchestrator_not_closed .*instance_id=(\w+)", one.text())
        assert first in {"blocks", "loops"}
        await client.start("other", instance_id="other")
        assert (await client.wait("other", timeout=LIMIT)).output == "14"
        for how in ways:
            await client.raise_event(how, "go", how)
            assert (await client.wait(how, timeout=LIMIT)).output == f'"{how}"'
        assert one.end() == 0


@pytest.mark.parametrize("activity", ["unrecorded", "recorded"])
async def test_who_kills_its_executor_fails_and_who_was_on_board_does_not(embedded: House, activity: str) -> None:
    """The loss of an executor does not count, unless it is the activity's own doing."""
    worker = embedded.worker("one", "--activities", "6", app="deadly_app:app").ready()
    async with embedded.client() as client:
        await client.start("together", activity, instance_id="together")
        *guilty, a, b, c, d = json.loads((await client.wait("together", timeout=LIMIT)).output or "")
    assert [a, b, c, d] == list("abcd")
    assert all("exited with code 7" in error for error in guilty)
    runs = Counter(embedded.effects())
    assert all(MAX_CRASHES <= runs[f"guilty {number}"] <= MAX_SHARED + MAX_CRASHES for number in (1, 2)), runs
    assert all(runs[who] <= MAX_SHARED + 1 for who in "abcd"), runs
    assert worker.end() == 0
