"""The benchmark itself, tiny and embedded: the shape of its output, and exact counts of requests; never times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.figures import REQUESTS, Figure, percentile, summarise
from tests.benchmarks.stage import ROOT
from tests.benchmarks.workloads import BUDGETED, TIMED

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


def operations(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Requests by kind, without those whose number depends on the moment: receives, and renewals of what is held."""
    kinds = {name.removeprefix(REQUESTS): line["value"] for name, line in figures.items() if name.startswith(REQUESTS)}
    return {kind: value for kind, value in kinds.items() if kind not in TIMED}


def test_every_workload_has_its_figures(lines: Lines) -> None:
    figures = {workload: [name for name in found if not name.startswith(REQUESTS)] for workload, found in lines.items()}
    assert figures == {
        "a0": [
            "p50",
            "p99",
            "p50 as Client.wait sees it",
            "p99 as Client.wait sees it",
            BUDGETED,
        ],
        "a": ["finished", "started"],
        "b": ["whole"],
        "c": ["step"],
        "d": ["median step of the first 2", "median step of the last 2", "last / first (flat: 1)"],
        "i": ["CPU of worker and executors"],
    }
    assert [found["size"] for found in (next(iter(each.values())) for each in lines.values())] == [2, 20, 20, 2, 20, 1]


def test_a_line_tells_store_unit_runs_and_machine(lines: Lines) -> None:
    line = lines["a0"]["p50"]
    assert line.keys() == {"store", "workload", "size", "figure", "unit", "value", "runs", "machine"}
    assert (line["store"], line["unit"], line["runs"]) == ("embedded", "ms", [line["value"]])
    assert line["value"] > 0
    assert "cores" in line["machine"]
    assert sys.version.split()[0] in line["machine"]


def test_an_orchestration_of_one_activity_is_eleven_operations(lines: Lines) -> None:
    """Row of the start; start, work item, response; two episodes' histories and row merges; three messages deleted."""
    assert operations(lines["a0"]) == {
        "table.insert": 1,
        "queue.put": 3,
        "table.batch": 2,
        "table.update": 2,
        "queue.delete": 3,
    }
    assert lines["a0"][BUDGETED]["value"] == 11


def test_a_step_of_a_chain_is_a_work_item_and_a_response(lines: Lines) -> None:
    """Of n steps: n + 1 messages with the start that the client puts; n + 1 episodes; the row as it starts and ends."""
    steps = lines["c"]["step"]["size"]
    assert {kind: round(value * steps, 2) for kind, value in operations(lines["c"]).items()} == {
        "queue.put": 2 * steps,
        "queue.delete": 2 * steps + 1,
        "table.batch": steps + 1,
        "table.update": 2,
    }


def test_a_fan_out_costs_four_queue_operations_an_activity(lines: Lines) -> None:
    width = lines["b"]["whole"]["size"]
    found = {kind: round(value * width, 2) for kind, value in operations(lines["b"]).items()}
    episodes = found.pop("table.batch")
    assert found == {"queue.put": 2 * width, "queue.delete": 2 * width + 1, "table.update": 2}
    assert 2 <= episodes <= width + 1  # responses that arrive together share an episode: how many is a matter of time


def test_medians_are_over_runs_and_percentiles_are_of_values() -> None:
    runs = [Figure(store="embedded", workload="c", name="step", unit="ms", value=v, size=9) for v in (3.0, 1.0, 8.0)]
    assert [(found.value, found.runs) for found in summarise(runs)] == [(3.0, (3.0, 1.0, 8.0))]
    values = [float(value) for value in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)


def test_unknown_workloads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "a0,z"])
    assert "'z' is none of a0, a, b, c, d, i" in capsys.readouterr().err


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
        deadline = time.monotonic() + 60
        while len(children := psutil.Process(bench.pid).children(recursive=True)) < 3:
            assert bench.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        bench.send_signal(signal.SIGINT)
        assert bench.wait(60) == 130
        assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
        assert list(tmp_path.iterdir()) == []
    finally:
        if bench.poll() is None:
            bench.kill()
