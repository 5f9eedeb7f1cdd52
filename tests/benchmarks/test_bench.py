"""The benchmark itself, tiny and embedded: the shape of its output, and exact counts of requests; never times."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from airflow_provider_taskhub.demo.azurite import Azurite
from tests.benchmarks.__main__ import WIDTH, main
from tests.benchmarks.ceiling import Checkpoint, Orchestration, Row, orchestration
from tests.benchmarks.cpu import EXECUTORS, HOST, SERVICE, spent, usage
from tests.benchmarks.figures import REQUESTS, Figure, percentile, summarise, tables
from tests.benchmarks.goals import GOALS, Goal
from tests.benchmarks.peers.__main__ import ours
from tests.benchmarks.peers.__main__ import table as peers_table
from tests.benchmarks.requests import Requests
from tests.benchmarks.stage import AZURITE, ROOT
from tests.benchmarks.workloads import BUDGETED, DECIDED, TIMED, WORKLOADS
from tests.waiting import PATIENCE, until

Lines = dict[str, dict[str, dict[str, Any]]]
"""Workload → figure → its JSON object."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """One run of every workload."""
    output = tmp_path_factory.mktemp("bench") / "figures.jsonl"
    before = {name: value for name, value in os.environ.items() if name.startswith("TASKHUB_")}
    assert main(["--store", "embedded", "--scale", "0.02", "--repeat", "1", "--output", str(output)]) == 0
    assert before == {name: value for name, value in os.environ.items() if name.startswith("TASKHUB_")}
    found: Lines = defaultdict(dict)
    for line in map(json.loads, output.read_text().splitlines()):
        found[line["workload"]][line["figure"]] = line
    return found


CPUS = ["cpu host", "cpu executors", "cpu client"]


def operations(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Requests by kind, without those whose number depends on the moment: receives, and renewals of what is held."""
    kinds = {name.removeprefix(REQUESTS): line["value"] for name, line in figures.items() if name.startswith(REQUESTS)}
    return {kind: value for kind, value in kinds.items() if kind not in TIMED}


@pytest.mark.process
def test_every_workload_has_its_figures(lines: Lines) -> None:
    figures = {workload: [name for name in found if not name.startswith(REQUESTS)] for workload, found in lines.items()}
    assert figures == {
        "a0": [
            "p50",
            "p99",
            "p50 until its end is decided",
            BUDGETED,
            *CPUS,
        ],
        "a": ["finished", "started", *CPUS],
        "b": ["whole", *CPUS],
        "c": ["step", *CPUS],
        "d": ["step, first 2", "step, last 2", "last / first"],
        "i": ["CPU of worker and executors"],
    }
    assert [found["size"] for found in (next(iter(each.values())) for each in lines.values())] == [2, 20, 20, 2, 20, 1]


def test_a_line_tells_store_unit_runs_and_machine(lines: Lines) -> None:
    line = lines["a0"]["p50"]
    assert line.keys() == {
        *("store", "workload", "size", "figure", "unit", "value", "runs", "machine"),
        *("goal", "ceilings", "reached"),
    }
    assert (line["store"], line["unit"], line["runs"]) == ("embedded", "ms", [line["value"]])
    assert line["value"] > 0
    assert "cores" in line["machine"]
    assert sys.version.split()[0] in line["machine"]


def test_times_and_rates_have_their_ceiling_of_the_same_run(lines: Lines) -> None:
    """And its CPU: the bare program has a child, and no client beside its host."""
    bare = {(workload, name) for workload, found in lines.items() for name, line in found.items() if line["ceilings"]}
    cpu = {(workload, name) for workload in ("a0", "a", "b", "c") for name in ("cpu host", "cpu executors")}
    assert bare - cpu == {("a0", "p50"), ("a0", "p99"), ("a", "finished"), ("b", "whole"), ("c", "step")}
    assert cpu <= bare
    assert all(lines[workload][name]["reached"] > 0 for workload, name in bare - cpu)
    assert lines["a0"]["p50"]["goal"] is None  # a goal is of the full size


def test_an_orchestration_of_one_activity_is_nine_operations(lines: Lines) -> None:
    """Row of the start; start and work item; two episodes' histories and row merges; two messages deleted."""
    found, looks = _without_looks(lines["a0"])
    assert looks <= 1
    assert found == {
        "table.insert": 1,
        "queue.put": 2,
        "table.batch": 2,
        "table.update": 2,
        "queue.delete": 2,
    }
    assert lines["a0"][BUDGETED]["value"] == 9 + looks


def _without_looks(figures: dict[str, dict[str, Any]]) -> tuple[dict[str, float], float]:
    """Return the operations without the looks at the instance before an activity begins, and the number of looks.

    An activity that begins at once needs none. On a machine that stands still for a moment it does not begin at once.
    tests/hub/test_request_counts.py counts them in virtual time.
    """
    found = operations(figures)
    looks = found.pop("table.get", 0.0)
    return found, looks


def test_a_step_of_a_chain_is_a_work_item_and_an_episode(lines: Lines) -> None:
    """Of n steps: n + 1 messages with the start that the client puts; n + 1 episodes; the row as it starts and ends."""
    steps = lines["c"]["step"]["size"]
    found, looks = _without_looks(lines["c"])
    assert looks <= 1
    assert {kind: round(value * steps, 2) for kind, value in found.items()} == {
        "queue.put": steps,
        "queue.delete": steps + 1,
        "table.batch": steps + 1,
        "table.update": 2,
    }


def test_a_fan_out_costs_four_queue_operations_an_activity_at_most(lines: Lines) -> None:
    width = lines["b"]["whole"]["size"]
    operations_of_one, looks = _without_looks(lines["b"])
    assert looks <= 1
    found = {kind: round(value * width, 2) for kind, value in operations_of_one.items()}
    episodes = found.pop("table.batch")
    put, deleted = found.pop("queue.put"), found.pop("queue.delete")
    assert found == {"table.update": 2}
    assert width <= put == deleted - 1 <= 2 * width
    assert 2 <= episodes <= width + 1  # responses that arrive together share an episode: how many is a matter of time


def figure(name: str, value: float, unit: str = "ms", **other: Any) -> Figure:
    rest: dict[str, Any] = {"store": "embedded", "workload": "a0", "size": 100, **other}
    return Figure(name=name, value=value, unit=unit, **rest)


def test_medians_are_over_runs_and_percentiles_are_of_values() -> None:
    runs = [figure("p50", value) for value in (3.0, 1.0, 8.0)]
    assert [(found.value, found.runs) for found in summarise(runs)] == [(3.0, (3.0, 1.0, 8.0))]
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)


def test_a_figure_reaches_a_share_of_its_ceilings_median() -> None:
    """Whatever the unit, 1 is as fast as the store."""
    runs = [figure("p50", 4.0), *(figure("p50", value, ceiling=True) for value in (1.0, 2.0, 9.0))]
    rates = [figure("finished", 150, "per s"), figure("finished", 200, "per s", ceiling=True)]
    alone = [figure("started", 7, "per s", ceiling=True)]
    nothing = [figure("cpu host", 0.0), figure("cpu host", 0.0, ceiling=True)]
    assert [(found.name, found.ceiling, found.reached) for found in summarise([*runs, *rates, *alone, *nothing])] == [
        ("p50", 2.0, 0.5),
        ("finished", 200, 0.75),
        ("cpu host", 0.0, None),
    ]


def test_a_goal_is_at_most_a_time_at_least_a_rate_and_a_share_of_the_ceiling() -> None:
    step, rate = Goal(value=3, unit="ms", size=1), Goal(value=170, unit="per s", size=1, share=0.9)
    assert [str(step), str(rate)] == ["≤ 3", "≥ 170, 90%"]
    assert [step.met(value, None) for value in (2.9, 3.0, 3.1)] == [True, True, False]
    assert [rate.met(value, 0.95) for value in (169, 170, 180)] == [False, True, True]
    assert [rate.met(180, reached) for reached in (None, 0.9, 0.89)] == [True, True, False]


def test_every_goal_is_of_a_figure_that_its_workload_has(lines: Lines) -> None:
    for (_, workload, name), goal in GOALS.items():
        assert lines[workload][name]["unit"] == goal.unit
        assert WORKLOADS[workload].size == goal.size


def test_cpu_is_told_by_role_over_processes_that_come_and_go() -> None:
    before = {(HOST, 1): 10.0, (EXECUTORS, 2): 1.0, (EXECUTORS, 3): 5.0}
    after = {(HOST, 1): 12.5, (EXECUTORS, 2): 1.25, (EXECUTORS, 4): 0.5, (SERVICE, 5): 0.0}
    assert spent(before, after) == {HOST: 2.5, EXECUTORS: 0.75, SERVICE: 0.0}


@pytest.mark.process
def test_a_process_that_has_ended_has_no_usage() -> None:
    me = psutil.Process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    gone = psutil.Process(child.pid)
    assert list(usage({HOST: [me], EXECUTORS: [gone]})) == [(HOST, me.pid), (EXECUTORS, gone.pid)]
    child.communicate()
    assert list(usage({HOST: [me], EXECUTORS: [gone]})) == [(HOST, me.pid)]


def test_the_tables_show_goal_ceiling_and_cost_within_a_terminal() -> None:
    figures = [
        *(figure("p50", value) for value in (2.0, 2.5, 7.25)),
        figure("p50", 1.0, ceiling=True),
        figure("operations beside receives", 11, "per orchestration"),
        figure("cpu host", 1.5, "ms per orchestration"),
        figure("cpu host", 0.25, "ms per orchestration", ceiling=True),
        figure("cpu executors", 0.5, "ms per orchestration"),
        *(figure(f"requests queue.{kind}", 3, "per orchestration") for kind in ("put", "delete", "receive", "update")),
        *(figure("finished", value, "per s", store="azurite", workload="a", size=1000) for value in (150, 149, 151)),
        figure("finished", 185, "per s", store="azurite", workload="a", size=1000, ceiling=True),
    ]
    screen = Console(width=WIDTH, file=io.StringIO(), record=True)
    for table in tables(summarise(figures)):
        screen.print(table)
    text = screen.export_text()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert ["embedded a0 × 100", "p50, ms", "2.5", "≤ 3 ✓", "1", "40%", "2 … 7.25"] in rows
    assert ["azurite a × 1000", "finished, per s", "150", "≥ 170, 90% ✗", "185", "81%", "149 … 151"] in rows
    assert ["embedded a0, per orchestration", "1.50", "0.50", "2.00"] in [row[:-1] for row in rows]
    assert ["its ceiling", "0.25", "", "0.25", ""] in rows
    assert "12: 3 queue.put," in text


class Counted:
    """A hub that counts what is written, and writes nothing."""

    def __init__(self) -> None:
        self.others: Mapping[str, int] = {}
        self.counts: Counter[str] = Counter()

    async def settled(self) -> None: ...

    async def start(self, of: Orchestration, row: Row, message: str) -> str:
        self.counts += Counter(instance=1, put=1)
        return "start"

    async def checkpoint(self, of: Orchestration, value: Checkpoint) -> Sequence[str]:
        self.counts += Counter(str(row["EventType"]) for row in value.history)
        self.counts += Counter(
            episode=1, instance=value.row is not None, put=len(value.works), delete=len(value.consumed)
        )
        assert value.sentinel["TaskHubRows"] == of.rows + len(value.history)
        return value.works

    async def respond(self, of: Orchestration, work: Any, text: str) -> str:
        self.counts += Counter(put=1, delete=1)
        return "response"


async def test_the_ceilings_writes_are_those_of_an_orchestration() -> None:
    """Of one activity: the row three times, 3 puts and deletes, 2 transactions, 8 events: what a worker writes."""
    one, chain, fan = Counted(), Counted(), Counted()
    await orchestration(one)
    assert one.counts == {
        "instance": 3,
        "put": 3,
        "delete": 3,
        "episode": 2,
        "OrchestratorStarted": 2,
        "OrchestratorCompleted": 2,
        "ExecutionStarted": 1,
        "ExecutionCompleted": 1,
        "TaskScheduled": 1,
        "TaskCompleted": 1,
    }
    await orchestration(chain, steps=10)
    assert [chain.counts[each] for each in ("instance", "put", "delete", "episode")] == [3, 21, 21, 11]
    await orchestration(fan, width=10)
    assert [fan.counts[each] for each in ("instance", "put", "delete", "TaskScheduled", "TaskCompleted")] == [
        *(3, 21, 21, 10, 10)
    ]


@pytest.mark.parametrize(("direct", "one", "activity"), [(False, 11, 4), (True, 9, 2)])
@pytest.mark.process
async def test_azurites_ceiling_sends_the_budget_and_no_more(direct: bool, one: int, activity: int) -> None:
    """With responses that are no messages it sends what TaskHub itself does (tests/hub/test_request_counts.py)."""
    with Azurite(AZURITE) as azurite:
        async with Requests(azurite, direct=direct) as hub:
            before = hub.sent
            await orchestration(hub)
            await hub.settled()
            assert hub.sent - before == one
            await orchestration(hub, width=20)
            await hub.settled()
            episodes = hub.sent - before - one - activity * 20 - 5  # row of the start, its put and delete, two merges
            assert 2 <= episodes <= 21


def test_peers_are_compared_by_what_a_caller_sees() -> None:
    figures = [figure("p50", 2), figure(DECIDED, 1), figure("step, first 100", 3), figure("step, last 100", 4)]
    assert ours([*figures, figure("whole", 5, "s"), figure("cpu host", 6)]) == {
        "p50": 2,
        "first": 3,
        "last": 4,
        "whole": 5,
    }
    runs = {("TaskHub", "a0", "p50"): [2.0, 1.0, 9.0], ("other", "d", "last"): [250.4]}
    table = peers_table(runs, {"a0": 100, "d": 1000})
    cells = [list(column.cells) for column in table.columns]
    assert table.title == "Medians of 3 (a0 100, d 1000)"
    assert [cells[0], cells[1], cells[-1]] == [["TaskHub", "other"], ["2", ""], ["", "250"]]


def test_unknown_workloads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "a0,z"])
    assert "'z' is none of a0, a, b, c, d, i" in capsys.readouterr().err


@pytest.mark.process
def test_nothing_stays_behind_on_ctrl_c(tmp_path: Path) -> None:
    """Neither the worker nor its executors, nor the folder of the hub."""
    command = [sys.executable, "-m", "tests.benchmarks", "--store", "embedded", "--workloads", "d"]
    bench = subprocess.Popen(
        [*command, "--output", str(tmp_path / "figures.jsonl")],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def found() -> list[psutil.Process] | None:
            assert bench.poll() is None
            children = psutil.Process(bench.pid).children(recursive=True)
            return children if len(children) >= 3 else None

        children = until("a worker and its executors", found)
        bench.send_signal(signal.SIGINT)
        assert bench.wait(PATIENCE) == 130
        assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
        assert list(tmp_path.iterdir()) == []
    finally:
        if bench.poll() is None:
            bench.kill()
