"""``airflow taskhub …``: what Airflow's command line passes on, which hub a command uses, and how it ends."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.cli import cli_parser

from airflow_provider_taskhub import __version__
from airflow_provider_taskhub.airflow_command import command, get_commands
from airflow_provider_taskhub.cli.main import app
from airflow_provider_taskhub.cli.options import source
from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.client import HubAdmin, Member
from airflow_provider_taskhub.provider_info import get_provider_info
from tests.airflow.fake import member

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``airflow taskhub …`` in this process: exit code, standard output, standard error.

    There are the connections ``sales`` and ``http``, and a hub Flights of the environment.
    """
    extra = {"hub": "Sales", "storage": "embedded", "path": str(tmp_path / "sales.db")}
    monkeypatch.setenv("AIRFLOW_CONN_SALES", json.dumps({"conn_type": "taskhub", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_HTTP", json.dumps({"conn_type": "http", "host": "example.com"}))
    monkeypatch.setenv("TASKHUB_HUB", "Flights")
    monkeypatch.setenv("TASKHUB_CONNECTION", f"sqlite:///{tmp_path}/flights.db")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command()(args=list(arguments), prog_name="airflow taskhub")
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def hub_of(answer: tuple[int, str, str]) -> str:
    assert answer[0] == Exit.OK, answer
    return str(json.loads(answer[1])["hub"])


# what Airflow passes on


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["-h"],
        ["--version"],
        ["instances", "list", "--conn-id", "sales", "--json"],
        ["instances", "start", "f", "--", "--data", "-1"],
        ["--unknown", "instances"],
    ],
    ids=" ".join,
)
def test_airflow_passes_every_argument_on(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="airflow")
    commands = parser.add_subparsers(dest="subcommand")
    for one in get_commands():
        cli_parser._add_command(commands, one)
    read = parser.parse_args(["taskhub", *arguments])
    assert (read.subcommand, read.arguments) == ("taskhub", arguments)


def test_the_provider_names_the_function_that_airflow_calls() -> None:
    assert get_provider_info()["cli"] == [f"{get_commands.__module__}.{get_commands.__name__}"]


def test_the_help_is_that_of_taskhub_with_the_name_that_was_typed(airflow: Run) -> None:
    code, out, _ = airflow("instances", "show", "--help")
    assert code == Exit.OK
    assert "Usage: airflow taskhub instances show" in out
    assert "Print one instance: state, input and output" in out
    assert "--conn-id" in out
    assert airflow("--version")[:2] == (0, f"{__version__}\n")


def commands_of(group: Any, name: str) -> dict[str, set[str]]:
    """Options of every command by its name."""
    found = {}
    for word, inner in group.commands.items():
        if hasattr(inner, "commands"):
            found |= commands_of(inner, f"{name} {word}")
        else:
            found[f"{name} {word}"] = {option for one in inner.params for option in one.opts}
    return found


def test_every_command_with_a_hub_takes_a_connection_in_airflow_alone() -> None:
    from typer.main import get_command

    plain, inside = commands_of(get_command(app), "taskhub"), commands_of(command(), "taskhub")
    plain.pop("taskhub demo", None)
    assert inside.pop("taskhub dags check") == {"folder", "--app", "--json"}, "each task has its own connection"
    assert len(plain) > 30
    assert inside == {name: options | {"--conn-id"} for name, options in plain.items()}
    assert all("--hub" in options for options in plain.values())
    assert not any("--conn-id" in options for options in plain.values())


# the hub of a command


def test_the_connection_names_the_hub(airflow: Run, tmp_path: Path) -> None:
    assert hub_of(airflow("hub", "create", "--conn-id", "sales", "--json")) == "Sales"
    assert (tmp_path / "sales.db").exists()
    assert not (tmp_path / "flights.db").exists()
    code, out, err = airflow("instances", "start", "report", "--id", "a", "--conn-id", "sales")
    assert (code, out) == (Exit.OK, "a\n"), err
    assert [
        one["instance_id"]
        for one in json.loads(airflow("instances", "list", "--conn-id", "sales", "--json")[1])["instances"]
    ] == ["a"]


def test_an_option_of_the_command_overrides_the_connection(airflow: Run) -> None:
    assert hub_of(airflow("hub", "create", "--conn-id", "sales", "--hub", "Other", "--json")) == "Other"
    created = json.loads(airflow("hub", "create", "--conn-id", "sales", "--partitions", "7", "--json")[1])
    assert (created["hub"], created["partitions"]) == ("Sales", 7)


def test_without_an_id_the_hub_is_that_of_the_operators(airflow: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_of(airflow("hub", "create", "--json")) == "Flights", "there is no taskhub_default"
    monkeypatch.setenv("AIRFLOW_CONN_TASKHUB_DEFAULT", os.environ["AIRFLOW_CONN_SALES"])
    assert hub_of(airflow("hub", "create", "--json")) == "Sales"


def test_a_command_leaves_no_connection_behind(airflow: Run) -> None:
    before = source.get()
    airflow("hub", "create", "--conn-id", "sales")
    assert source.get() is before


# DAGs and workers

DAGS = """
print("of the DAG file")
from airflow.sdk import DAG, task
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG("reports", schedule=None):
    TaskHubOperator(task_id="right", orchestrator="report", taskhub_conn_id="sales")
    TaskHubOperator(task_id="misspelt", orchestrator="reprot", taskhub_conn_id="sales")
    TaskHubOperator(task_id="old", orchestrator="report", version="1", taskhub_conn_id="sales")
    TaskHubOperator(task_id="later", orchestrator="{{ params.name }}", taskhub_conn_id="sales")
    TaskHubOperator.partial(task_id="rows", orchestrator="weekly", taskhub_conn_id="sales").expand(input=[1, 2])
    TaskHubOperator.partial(task_id="names", taskhub_conn_id="sales").expand(orchestrator=["a", "b"])
    TaskHubOperator(task_id="elsewhere", orchestrator="report", taskhub_conn_id="nobody")
    TaskHubOperator(task_id="lost", orchestrator="report", taskhub_conn_id="lost")
    task(lambda: 1, task_id="of_airflow")()
"""


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with DAGs. The hub of the connection ``sales`` has one live worker, and one that has died."""
    old = member("dead@host/1", "reprot", "weekly", alive=False)
    live = replace(member("a@host/1", "report", "monthly"), accepts={"report": ("3",)})

    async def workers(self: HubAdmin, *, prove: bool = False) -> tuple[Member, ...]:
        assert prove, "a dead worker stays in the list for a while"
        return old, live

    monkeypatch.setattr(HubAdmin, "workers", workers)
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "reports.py").write_text(DAGS)
    return folder


def test_names_that_no_live_worker_has_are_found_in_dag_files(
    airflow: Run, dags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"hub": "Lost", "storage": "embedded", "path": f"{tmp_path}/nowhere/hub.db"}
    monkeypatch.setenv("AIRFLOW_CONN_LOST", json.dumps({"conn_type": "taskhub", "extra": extra}))
    airflow("hub", "create", "--conn-id", "sales")
    code, out, _ = airflow("dags", "check", str(dags))
    *problems, last = out.splitlines()
    assert code == Exit.FAILED
    assert problems == [
        problems[0],
        "task 'elsewhere' of DAG 'reports': connection 'nobody' does not exist: create it with type 'taskhub', or omit "
        "the connection id to use 'taskhub_default'",
        "task 'misspelt' of DAG 'reports': no live worker has orchestrator 'reprot'. Alive: a@host/1 (flights 3); they "
        "know: monthly, report. For 'reprot', did you mean 'report'? If not, start a worker with the app that declares "
        "it: taskhub worker --app MODULE:APP",
        "task 'old' of DAG 'reports': no live worker has orchestrator 'report' of version '1'. Alive: a@host/1 "
        "(flights 3). Start a worker whose app has that version, or declares it compatible",
        "task 'rows' of DAG 'reports': no live worker has orchestrator 'weekly'. Alive: a@host/1 (flights 3); they "
        "know: monthly, report. Correct the name, or start a worker with the app that declares it: "
        "taskhub worker --app MODULE:APP",
    ]
    assert problems[0].startswith("task 'lost' of DAG 'reports': connection 'lost': there is no hub 'Lost' at ")
    assert last == (
        "6 tasks checked, 5 problems; not checked, because their names are known only when they run: "
        "task 'later' of DAG 'reports', task 'names' of DAG 'reports'"
    )


def test_a_path_without_any_dag_is_refused(airflow: Run, tmp_path: Path) -> None:
    code, _, error = airflow("dags", "check", str(tmp_path / "typo"))
    assert (code, f"there is no file or folder {tmp_path / 'typo'}" in error) == (Exit.USAGE, True)
    (tmp_path / "none.py").write_text("x = 1  # not a DAG, says airflow\n")
    code, _, error = airflow("dags", "check", str(tmp_path))
    assert (code, f"Airflow finds no DAG in {tmp_path}" in error) == (Exit.USAGE, True)


def test_a_dag_file_without_a_problem_ends_with_0_and_one_that_is_broken_with_1(airflow: Run, dags: Path) -> None:
    airflow("hub", "create", "--conn-id", "sales")
    lines = [line for line in DAGS.splitlines() if not any(f'"{name}"' in line for name in WRONG)]
    (dags / "reports.py").write_text("\n".join(lines))
    code, out, _ = airflow("dags", "check", str(dags), "--json")
    later = ["task 'later' of DAG 'reports'", "task 'names' of DAG 'reports'"]
    assert (code, json.loads(out)) == (Exit.OK, {"checked": 1, "not_checked": later, "problems": []})
    (dags / "broken.py").write_text("from airflow.sdk import DAG\nraise ValueError('no config')")
    code, out, _ = airflow("dags", "check", str(dags))
    assert code == Exit.FAILED
    assert "broken.py cannot be imported: ValueError: no config" in out


APP = """
from dataclasses import dataclass
from airflow_provider_taskhub.app import App

app = App("flights")

@dataclass
class Month:
    year: int
    month: int = 1

@app.orchestrator
async def report(ctx, month: Month): ...

@app.orchestrator
async def nothing(ctx): ...

@app.activity(standalone=True)
def monthly(rows: list[int]): ...
"""

INPUTS = """
from airflow.sdk import DAG, task
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

given = {"taskhub_conn_id": "sales"}
with DAG("inputs", schedule=None):
    TaskHubOperator(task_id="right", orchestrator="report", input={"year": 2026}, **given)
    TaskHubOperator(task_id="later", orchestrator="report", input={"yeer": "{{ ds }}"}, **given)
    TaskHubOperator(task_id="key", orchestrator="report", input={"year": 1, "mont": 2}, **given)
    TaskHubOperator(task_id="none", orchestrator="report", **given)
    TaskHubOperator(task_id="of_activity", activity="monthly", input=["x"], **given)
    TaskHubOperator.partial(task_id="rows", activity="monthly", **given).expand(input=[[1], 2, "{{ ds }}"])

    @task.orchestration(orchestrator="report", **given)
    def stub(year, mont): ...

    @task.activity(activity="monthly", **given)
    def stubs(rows): ...

    stub.partial(mont=1).expand(year=[1, 2])
    stubs.expand_kwargs([{"rows": [1]}, {"rows": "x"}, {"rows": "{{ ds }}"}])
"""


STUBS = """
from airflow.sdk import DAG, task

with DAG("stubs", schedule=None):

    @task.orchestration(taskhub_conn_id="sales")
    def report(year: int): ...

    @task.activity(taskhub_conn_id="sales")
    def montly(year: int): ...

    report.expand(year=[2025, 2026])
    montly.expand(year=[2025, 2026])
"""


def test_the_name_of_a_mapped_stub_is_checked(airflow: Run, dags: Path) -> None:
    airflow("hub", "create", "--conn-id", "sales")
    (dags / "reports.py").write_text(STUBS)
    code, out, _ = airflow("dags", "check", str(dags))
    (text, last) = out.splitlines()
    assert (code, last) == (Exit.FAILED, "2 tasks checked, 1 problem")
    assert text.startswith("task 'montly' of DAG 'stubs': no live worker has orchestrator 'montly'")
    assert "did you mean 'monthly'?" in text


def test_inputs_that_an_app_does_not_take_are_found_in_dag_files(
    airflow: Run, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow("hub", "create", "--conn-id", "sales")
    (dags / "reports.py").write_text(INPUTS)
    (dags.parent / "checked_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(dags.parent))
    code, out, _ = airflow("dags", "check", str(dags), "--app", "checked_app:app")
    *problems, last = out.splitlines()
    assert (code, last) == (Exit.FAILED, "8 tasks checked, 7 problems")
    assert [text.split(":")[0] for text in problems] == [
        f"task {name!r} of DAG 'inputs'" for name in ("key", "none", "of_activity", "rows", "stub", "stub", "stubs")
    ]
    assert "unknown key 'mont', did you mean 'month'?" in problems[0]
    assert "input of 'monthly' does not fit" in problems[2]
    assert all(text.endswith(". Correct the input in the DAG file") for text in problems)
    assert airflow("dags", "check", str(dags))[0] == Exit.OK, "without --app, inputs are not compared"
    code, _, error = airflow("dags", "check", str(dags), "--app", "checked_app:nothing")
    assert (code, "has no App named 'nothing'" in error) == (Exit.USAGE, True)


WRONG = ("misspelt", "old", "rows", "elsewhere", "lost")


# how a command ends


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ["instances", "show", "none", "--conn-id", "sales"],
            Exit.NOT_FOUND,
            "taskhub: no instance 'none' in hub Sales",
        ),
        (["instances", "list", "--conn-id", "nobody"], Exit.USAGE, "taskhub: connection 'nobody' does not exist"),
        (["instances", "list", "--conn-id", "http"], Exit.USAGE, "connection 'http' is of type 'http', not 'taskhub'"),
        (["instances", "list", "--conn-id", "sales", "--hub", "1"], Exit.USAGE, "hub name '1' cannot name"),
        (["instances", "lost"], Exit.USAGE, "No such command 'lost'"),
        (["instances", "list", "--limit", "x"], Exit.USAGE, "--limit"),
    ],
    ids=["not found", "unknown connection", "other type", "wrong option", "unknown command", "wrong value"],
)
def test_errors_and_exit_codes_are_those_of_taskhub(airflow: Run, arguments: list[str], code: Exit, text: str) -> None:
    assert airflow("hub", "create", "--conn-id", "sales")[0] == Exit.OK
    ended, _, err = airflow(*arguments)
    assert ended == code
    assert text in err


# the real command line


@pytest.mark.process
def test_a_start_of_airflow_loads_neither_the_commands_nor_the_stores() -> None:
    code = """
import sys
from airflow.cli import cli_parser
assert cli_parser.ALL_COMMANDS_DICT["taskhub"].help
print(sorted(name for name in sys.modules if name.startswith("airflow_provider_taskhub.") or name == "typer"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    ours = ["airflow_provider_taskhub.airflow_command", "airflow_provider_taskhub.provider_info"]
    assert done.stdout.splitlines()[-1] == str(ours)


@pytest.mark.process
def test_the_process_prints_only_the_answer_and_ends_with_the_codes_of_taskhub(tmp_path: Path) -> None:
    extra = {"hub": "Sales", "storage": "embedded", "path": str(tmp_path / "sales.db")}
    connection = json.dumps({"conn_type": "taskhub", "extra": extra})

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        changed = {"AIRFLOW_CONN_SALES": connection, "AIRFLOW_HOME": str(tmp_path)}
        environment = os.environ | changed | {"AIRFLOW__CORE__UNIT_TEST_MODE": "False"}
        line = [Path(sys.executable).with_name("airflow"), "taskhub", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)

    created = run("hub", "create", "--conn-id", "sales", "--json")
    assert created.returncode == Exit.OK, created.stderr
    assert json.loads(created.stdout)["hub"] == "Sales"
    missing = run("instances", "show", "none", "--conn-id", "sales")
    assert (missing.returncode, missing.stdout) == (Exit.NOT_FOUND, "")
    assert missing.stderr.splitlines()[-1].startswith("taskhub: no instance 'none' in hub Sales")
