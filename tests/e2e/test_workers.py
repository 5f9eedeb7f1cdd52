"""Worker processes that work, are killed, stopped, frozen: on the embedded store and on Azurite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import EventRaised, OrchestrationInstance, Status
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.hub.queues.quarantine import MAX_FAILURES
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.workers.executors.attempt_values import MAX_CRASHES, MAX_SHARED
from tests.e2e.house import House, Worker
from tests.waiting import PATIENCE, until, until_async

LIMIT = timedelta(seconds=PATIENCE)


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
    executors = psutil.Process(two.process.pid).children(recursive=True)
    two.kill()
    psutil.wait_procs(executors, timeout=PATIENCE)  # they hold the lock file too
    deleted = house.command("hub", "delete", "--yes")
    assert deleted.returncode == 0, deleted.stdout + deleted.stderr
    assert house.command("hub", "show").returncode == 2


@pytest.mark.rows("K06", "K26", "K27")
async def test_a_killed_worker_costs_time_and_nothing_else(house: House) -> None:
    """Chains and recorded activities: the other worker finishes. Only activities that ran at the kill run again."""
    one, two = house.worker("one", "--activities", "2"), house.worker("two", "--activities", "2")
    one.ready()
    two.ready()
    async with house.client() as client:
        for number in range(6):
            await client.start("paced", 25, instance_id=f"paced-{number}")
        await client.start("gated", 8, instance_id="gated")
        ended_before = until("an activity on the first worker", lambda: _begun(house, "one"))
        _let_go(house, ended_before)

        async def completed() -> bool:
            records = await client.instance("gated").activities()
            return ended_before <= {record.task_id for record in records if record.state is RecordState.COMPLETED}

        await until_async("their records are completed", completed)
        until("another activity on the first worker", lambda: _begun(house, "one") - ended_before)
        one.kill()
        _let_go(house, range(8))
        for number in range(6):
            end = await client.wait(f"paced-{number}", timeout=LIMIT)
            assert (end.status, end.output) == (Status.COMPLETED, "25")
        end = await client.wait("gated", timeout=LIMIT)
        assert (end.status, end.output) == (Status.COMPLETED, "280")
        runs = Counter(int(line.split()[1]) for line in house.effects() if line.startswith("begin"))
        ended = Counter(int(line.split()[1]) for line in house.effects() if line.startswith("end"))
        records = await client.instance("gated").activities()
    cut_off = _begun(house, "one") - ended_before
    lost = {record.task_id for record in records if record.state is RecordState.LOST}
    assert cut_off <= lost
    assert len(lost) <= 2, "as many as the killed worker has slots"
    assert {number for number, count in runs.items() if count > 1} == cut_off
    assert all(ended[number] == 1 for number in range(8) if number not in cut_off)
    assert two.end() == 0


def _begun(house: House, worker: str) -> set[int]:
    """The numbers of the activities that have begun on a worker."""
    lines = [line.split() for line in house.effects()]
    return {int(number) for kind, number, *on in lines if kind == "begin" and on == [worker]}


def _let_go(house: House, numbers: Iterable[int]) -> None:
    for number in numbers:
        house.let_go(number)


@pytest.mark.rows("K58")
async def test_a_worker_that_is_told_to_stop_hands_over_all_it_has(house: House) -> None:
    """The other worker takes released partitions, and no expired ones. Without that, nothing goes on for a minute."""
    house.lease = EMBEDDED_LEASE.model_copy(update={"give_up": timedelta(seconds=50), "take": timedelta(seconds=60)})
    one, two = house.worker("one"), house.worker("two", "--health-port", "0")
    one.ready()
    port = house.port(two.ready())
    until("a share of the partitions for each", lambda: len(_owners(house)) == 2)
    async with house.client() as client:
        for number in range(8):
            await client.start("paced", 40, instance_id=f"paced-{number}")
        await _all_run(client, 8)
        assert one.end() == 0
        for number in range(8):
            end = await client.wait(f"paced-{number}", timeout=LIMIT)
            assert (end.status, end.output) == (Status.COMPLETED, "40")
        until("it has all partitions", lambda: _figure(port, "taskhub_partitions_owned") == 4)
    taken = {name: count for name, count in _figures(port, "taskhub_partitions_taken_total").items() if count}
    assert taken.keys() <= {'change="new"', 'change="handed over"', 'change="released"'}, taken
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
        until("the end of the loop", lambda: "asks s" in embedded.effects())
        first.kill()
        second = embedded.worker("second", "--no-warm", **environment).ready()
        await client.raise_event("s", "go")
        ended = await client.wait("s", timeout=LIMIT)
        assert ended.status is Status.COMPLETED, ended.output
        assert json.loads(ended.output or "") == {name: [name.upper(), seed or "0"] for name in names}
        assert second.end() == 0


@pytest.mark.rows("K06", "K10", "D99")
async def test_a_frozen_worker_is_replaced_and_does_no_harm_when_it_thaws(embedded: House) -> None:
    """Its executors are not frozen, but stand still before the next attempts of their activities begin."""
    house = embedded
    one = house.worker("one").ready()
    async with house.client() as client:
        await client.start("gated", 2, instance_id="gated")
        until("both begin", lambda: {"begin 0 one", "begin 1 one"} <= set(house.effects()))
        two = house.worker("two").ready()
        for number in range(4):
            await client.start("paced", 40, instance_id=f"paced-{number}")
        await _all_run(client, 4)
        await _freeze(one, house.folder / "hub.db")
        ends = [await client.wait(f"paced-{number}", timeout=LIMIT) for number in range(4)]
        until("they begin again", lambda: {"begin 0 two", "begin 1 two"} <= set(house.effects()))
        for number in range(2):
            house.let_go(number)
        assert (await client.wait("gated", timeout=LIMIT)).output == "10"
        one.send(signal.SIGCONT)
        assert [end.output for end in ends] == ["40"] * 4
        await client.start("chain", 5, instance_id="after")
        assert (await client.wait("after", timeout=LIMIT)).output == "5"
        for number in range(4):
            again = await client.get(f"paced-{number}")
            assert again is not None
            assert (again.status, again.output) == (Status.COMPLETED, "40")
        until("a share of the partitions for each", lambda: len(_owners(house)) == 2)
    assert (one.end(), two.end()) == (0, 0)
    assert sorted(line for line in house.effects() if line.startswith("end")) == ["end 0", "end 1"]


async def _freeze(worker: Worker, file: Path) -> None:
    """Stop it at a moment when it does not hold the file's lock, with which it would stop all others too."""

    def stopped_without_the_lock() -> bool:
        worker.send(signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(file, timeout=2.0, isolation_level=None)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                worker.send(signal.SIGCONT)
                return False
            other.execute("ROLLBACK")
            return True

    await until_async("it is stopped without the lock", stopped_without_the_lock)


async def _all_run(client: Client, count: int) -> None:
    """Wait until the chains have begun."""

    async def begun() -> bool:
        found = [await client.get(f"paced-{number}") for number in range(count)]
        return all(state is not None and state.status is not Status.PENDING for state in found)

    await until_async("every chain runs", begun)


def _owners(house: House) -> set[str]:
    return {row["owner"] for row in house.json("partitions", "show") if row["owner"]}


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_tells_how_it_is(embedded: House) -> None:
    worker = embedded.worker("one", "--health-port", "0").ready()
    port = embedded.port(worker)
    assert (_get(port, "/live")[0], _get(port, "/ready")[0], _get(port, "/nothing")[0]) == (200, 200, 404)
    until("all partitions owned", lambda: "taskhub_partitions_owned 4" in _get(port, "/metrics")[1])
    done = embedded.json("instances", "start", "chain", "--input", "2", "--wait")
    assert done["output"] == "2"
    assert 'taskhub_storage_requests_total{kind="table.batch",part="work"}' in _get(port, "/metrics")[1]
    until("renewals", lambda: _figure(port, "taskhub_lease_renewals_total") >= 12)
    renewals = _figure(port, "taskhub_lease_renewals_total")
    assert _figure(port, 'taskhub_storage_requests_total{kind="table.update",part="partitions"}') >= renewals
    longest = EMBEDDED_LEASE.give_up.total_seconds()
    until("a young lease", lambda: 0 < _figure(port, "taskhub_lease_age_seconds_max") <= longest)
    waiting = 'taskhub_instances_waiting{fault="true",reason="no_worker_knows_orchestrator"}'
    assert _figure(port, waiting) == 0
    embedded.json("instances", "start", "nobody-has-it", "--id", "lost")
    until("the reason is counted", lambda: _figure(port, waiting) == 1)
    assert "waiting" not in _get(port, "/metrics?waiting=no")[1]
    assert _figure(port, "taskhub_messages_quarantined_total") == 0
    asyncio.run(_put_rubbish(embedded))
    until("all counted", lambda: _figure(port, "taskhub_messages_quarantined_total") == 3)
    assert worker.end() == 0


def _figures(port: int, name: str) -> dict[str, float]:
    """The values of a metric, by its label."""
    lines = [line for line in _get(port, "/metrics")[1].splitlines() if line.startswith(f"{name}{{")]
    return {line[len(name) + 1 : line.index("}")]: float(line.split()[-1]) for line in lines}


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
        assert one.process.wait(PATIENCE) == os.EX_SOFTWARE, one.text()
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
        until("the first one that is not closed is logged", lambda: "orchestrator_not_closed" in one.text())
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
