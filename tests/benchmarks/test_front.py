"""The benchmark of Airflow's tasks without an Airflow: its plan, its sums, its verdicts; never times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from tests.benchmarks.front.__main__ import main, plan
from tests.benchmarks.front.figures import ROLES, WORKLOADS, Run, changes, compared, parse_line, slot_seconds, table
from tests.benchmarks.front.stage import HERE, Usage, repeating, tree_cpu


def run(workload: str, seconds: float, **more: Any) -> Run:
    given: dict[str, Any] = {
        "heartbeat": 1,
        "repetition": 1,
        "tasks": WORKLOADS[workload].tasks,
        "succeeded": WORKLOADS[workload].tasks,
        "in_workers": 0,
        "most_slots": 0,
        "slot_seconds": 0.0,
        "slots": [(0.0, 0)],
        "requests": {"triggerer": 9},
        "cpu": dict.fromkeys(ROLES, 0.5),
    }
    return Run(workload=workload, seconds=seconds, **given | more)


def shown(*runs: Run) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  # ends with the process
    console.print(table(runs))
    return console.export_text()


def test_what_needs_no_slot_runs_with_one_heartbeat_interval_only() -> None:
    workloads = [WORKLOADS["task-1"], WORKLOADS["zero-1"]]
    found = [(repetition, heartbeat, each.name) for repetition, heartbeat, each in plan(workloads, (1, 5), 2)]
    assert found == [
        (1, 1, "task-1"),
        (1, 1, "zero-1"),
        (1, 5, "task-1"),
        (2, 5, "task-1"),
        (2, 1, "zero-1"),
        (2, 1, "task-1"),
    ]


def test_a_workload_is_compared_with_the_trivial_tasks_of_its_repetition_and_interval() -> None:
    runs = [
        run("task-1", 2.0),
        run("worker-1", 3.0),
        run("task-1", 4.0, repetition=2),
        run("worker-1", 4.0, repetition=2),
        run("task-1", 8.0, heartbeat=5),
        run("worker-1", 9.0, repetition=3),  # its trivial task is missing
    ]
    assert compared(runs, WORKLOADS["worker-1"], 1) == [1.5, 1.0]
    assert compared(runs, WORKLOADS["worker-1"], 5) == []


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([run("outlet-1", 6.0)], "≤ 6 s ✓"),
        ([run("outlet-1", 6.1)], "≤ 6 s ✗"),
        ([run("trigger-100", 6.0), run("zero-100", 9.0)], "1.50 of ≤ 1.5 ✓"),
        ([run("trigger-100", 6.0), run("zero-100", 9.1)], "1.52 of ≤ 1.5 ✗"),
        ([run("trigger-1", 3.0), run("zero-1", 3.5)], "+0.50 s of ≤ +0.5 ✓"),
        ([run("trigger-1", 3.0), run("zero-1", 3.6)], "+0.60 s of ≤ +0.5 ✗"),
        ([run("zero-100", 9.0)], "0 ✓"),
        ([run("zero-100", 9.0, most_slots=1)], "1 ✗"),
        ([run("zero-100", 9.0, succeeded=99), run("zero-100", 9.0, repetition=2)], "1 of 200 ✗"),
        ([run("task-100", 10.0), run("worker-100", 12.0)], "1.20 of ≤ 1.2 ✓"),
        ([run("task-100", 10.0), run("worker-100", 12.1)], "1.21 of ≤ 1.2 ✗"),
    ],
)
def test_the_table_tells_whether_a_goal_is_met(runs: list[Run], says: str) -> None:
    assert says in shown(*runs)


def test_a_row_is_the_median_of_its_runs() -> None:
    seconds = (2.0, 9.0, 4.0)
    text = shown(*(run("task-1", each, repetition=number) for number, each in enumerate(seconds)))
    assert "4" in text
    assert "2 … 9" in text
    assert "0 of 3 ✓" in text
    assert "✗" in parse_line([31.0, 29.0, 32.0]).plain
    assert "30.0 ms of ≤ 30 ✓" in parse_line([30.0]).plain


def test_a_line_has_everything_of_its_run() -> None:
    line = json.loads(run("zero-1", 1.5).line("a machine"))
    assert line["slots"] == [[0.0, 0]]
    assert line.keys() >= {"workload", "heartbeat", "repetition", "seconds", "requests", "cpu", "most_slots"}
    assert line["machine"] == "a machine"


def test_slot_seconds_are_the_area_below_the_samples() -> None:
    assert slot_seconds([(0.0, 0), (1.0, 2), (1.5, 1), (3.5, 0), (9.0, 0)]) == 2 * 0.5 + 1 * 2.0
    assert slot_seconds([]) == 0


def test_slots_over_time_are_the_moments_at_which_their_number_changes() -> None:
    assert changes([(7.0, 0), (7.2, 0), (7.4, 3), (7.6, 3), (8.04, 0)]) == [(0.0, 0), (0.4, 3), (1.0, 0)]
    assert changes([]) == []


def test_a_usage_is_the_difference_of_two_readings() -> None:
    before, after = Usage({"tasks": 1.0}, {"triggerer": 5}), Usage({"tasks": 1.5, "new": 2.0}, {"triggerer": 8})
    assert after.since(before) == Usage({"tasks": 0.5, "new": 2.0}, {"triggerer": 3})


@pytest.mark.process
def test_the_cpu_of_children_that_have_ended_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert tree_cpu(psutil.Process(parent.pid)) > 0.4
        parent.communicate(b"\n")


def test_looks_go_on_until_the_block_ends_and_their_error_ends_it() -> None:
    seen: list[str] = []
    with repeating(lambda: seen.append("a look"), 3600.0):
        pass
    assert len(seen) == 2  # one at each end
    with pytest.raises(ZeroDivisionError), repeating(lambda: print(1 / 0), 60.0):
        pass


@pytest.mark.process
def test_each_request_to_the_hub_is_counted_by_its_role(tmp_path: Path) -> None:
    program = tmp_path / "airflow"  # the role is the subcommand of a program of this name
    program.write_text(
        "import asyncio\n"
        "from airflow_provider_taskhub.storage.sqlite.store import SqliteStore\n"
        "store = SqliteStore(None)\n"
        "store.requests['table.get'] += 1\n"
        "store.requests.update(['queue.put', 'queue.put'])\n"
        "assert store.requests == {'table.get': 1, 'queue.put': 2}\n"
    )
    counts = tmp_path / "counts"
    counts.mkdir()
    env = os.environ | {"PYTHONPATH": str(HERE / "counting"), "BENCH_REQUESTS": str(counts)}
    for _ in range(2):
        subprocess.run([sys.executable, str(program), "triggerer"], env=env, check=True, timeout=60)
    assert {file.name: file.stat().st_size for file in counts.iterdir()} == {"triggerer": 6}


def test_unknown_workloads_and_numbers_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, says in (("--workloads=zero-1,none", "'none' is none of task-1"), ("--repeat=0", "0 is not above 0")):
        with pytest.raises(SystemExit):
            main([wrong])
        assert says in capsys.readouterr().err
