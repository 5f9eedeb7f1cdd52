"""The generated reference has everything that the code has."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from airflow_provider_taskhub.cli.output import Exit
from airflow_provider_taskhub.engine.lifecycle import ACTIVITY, INSTANCE
from airflow_provider_taskhub.settings import LeaseTimes, Settings, SparkSettings
from airflow_provider_taskhub.workers.orchestrations.watchdog import STATUS as STUCK_STATUS
from tests.docs.blocks import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import check_links
import taskhub_reference as reference


def rows(markdown: str) -> dict[str, list[str]]:
    """Cells of each row of a table by its first cell."""
    lines = [line for line in markdown.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {one[0].strip("`"): one[1:] for one in cells}


def test_every_setting_has_its_variable_and_a_meaning() -> None:
    found = {name.split("` `")[0]: [name.split("` `")[1], *rest] for name, rest in rows(reference.settings()).items()}
    names = {*Settings.model_fields, *(f"lease.{name}" for name in LeaseTimes.model_fields)}
    names |= {f"spark.{name}" for name in SparkSettings.model_fields}
    assert set(found) == names - {"lease", "spark"}
    for name, (variable, default, kind, meaning) in found.items():
        assert variable == f"TASKHUB_{name.upper().replace('.', '__')}"
        assert default, name
        assert kind, name
        assert len(meaning.split()) > 2, f"{name} needs a text under it in settings.py"


def test_every_command_and_option_is_in_the_reference() -> None:
    text = reference.command_reference()
    found = reference.commands()
    assert len(found) > 20
    for name, command in found:
        assert f"# {name}\n" in text
        for one in command.params:
            for option in one.opts if one.param_type_name == "option" else ():
                assert option == "--help" or f"`{option}`" in text, (name, option)


def test_the_demo_is_not_in_the_reference_of_commands() -> None:
    assert "taskhub demo" not in reference.command_reference()


def test_every_log_event_has_a_meaning_and_no_meaning_is_left_over() -> None:
    logged, told = set(reference.events()), set(reference.meanings())
    assert logged - told == set(), "write their meaning into docs/reference/log-events.toml"
    assert told - logged == set(), "no code logs them: remove them from docs/reference/log-events.toml"


def test_events_are_found_however_they_are_logged() -> None:
    assert {"worker_ready", "quarantined", "partition_not_renewed", "receive_failed"} <= reference.events().keys()


def test_events_whose_level_depends_are_in_the_reference_with_their_levels_and_fields() -> None:
    found = reference.events()
    assert found["instance_ended"].levels == {"info", "warning"}
    assert {"instance_id", "status", "error", "at"} <= found["instance_ended"].fields
    assert found["orchestrator_unknown"].levels == found["activity_unknown"].levels == {"debug", "warning"}
    assert "retry_in" in found["AbandoningMessage"].fields


def test_every_metric_is_in_the_reference() -> None:
    sources = (ROOT / "airflow_provider_taskhub" / "workers").rglob("*.py")
    named = {
        name
        for source in sources
        for name in re.findall(r'(?<!ContextVar\()["\s](taskhub_[a-z_]+)["\s{]', source.read_text(encoding="utf-8"))
    }
    assert len(named) > 15
    assert named - set(reference.metrics()) == set()


def test_every_move_of_the_lifecycles_is_in_the_reference() -> None:
    page, text = (ROOT / "docs/reference/lifecycles.md").read_text(encoding="utf-8"), reference.lifecycle()
    assert "{include} _generated/lifecycle.md" in page
    assert reference.PAGES["lifecycle"] is reference.lifecycle
    told = {
        (state, happening): (reaction, after.strip("`") or state)
        for state, happenings, reaction, after in re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.*?) \|$", text, re.M)
        for happening in happenings.split(", ")
    }
    assert told == {
        (str(state), str(happening)): (str(move.reaction), str(move.state))
        for table in (INSTANCE, ACTIVITY)
        for state, row in table.items()
        for happening, move in row.items()
    }


def test_every_exit_code_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    for code in Exit:
        assert f"| {code.value} | `{code.name}` |" in text
    assert f"| {STUCK_STATUS} | |" in text, "the watchdog over episodes ends the worker"


def test_broken_links_and_foreign_scripts_of_the_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here">A</h1><a href="b.html">b</a><a href="#here">ok</a><a href="#nowhere">no</a>'
        '<script src="https://example.org/x.js"></script><a href="https://example.org">fine</a>'
    )
    assert check_links.problems(tmp_path) == [
        "a.html: loads https://example.org/x.js from another server",
        "a.html: b.html: there is no such file",
        "a.html: #nowhere: there is no such anchor",
    ]


def test_every_table_column_and_field_that_taskhub_writes_is_in_the_storage_formats() -> None:
    text = (ROOT / "docs" / "reference" / "storage-formats.md").read_text(encoding="utf-8")
    for table in ("Controls", "Members", "Activities", "Completions", "Quarantine"):
        assert f"`{{Hub}}{table}`" in text
    assert set(_column_names()) >= {"TaskHubCommit", "TaskHubEpoch", "TaskHubFailures", "CurrentOwner", "Cause"}
    assert [name for name in _column_names() if f"`{name}`" not in text] == []


NESTED = {
    *("ActivityStartTime", "ErrorMessage", "ErrorType", "Id", "InnerFailure", "IsNonRetriable", "Properties"),
    *("SpanId", "StackTrace", "TaskScheduleId", "Timestamp", "TraceParent", "TraceState"),
}
"""Members of DurableTask's own values inside of a column or field."""


def _column_names() -> list[str]:
    """Keys of the dictionaries that the hub's code writes, and every name that is TaskHub's own."""
    found = set()
    for path in (ROOT / "airflow_provider_taskhub" / "hub").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            keys = node.keys if isinstance(node, ast.Dict) else [node] if isinstance(node, ast.Constant) else []
            texts = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
            pattern = r"[A-Z][A-Za-z]+" if isinstance(node, ast.Dict) else r"TaskHub[A-Z][A-Za-z]+"
            found |= {text for text in texts if re.fullmatch(pattern, text)}
    return sorted(found - NESTED)


REASON = re.compile(r'Reason\(f?"([^"]*)"')


def test_a_page_names_each_option_for_which_a_task_needs_a_worker() -> None:
    """The log gives such a reason, and the user looks for its name in the page."""
    triggers = ROOT / "airflow_provider_taskhub" / "triggers"
    texts = [text for file in triggers.glob("*.py") for text in REASON.findall(file.read_text(encoding="utf-8"))]
    names = {name for text in texts for name in re.findall(r"[a-z]+(?:_[a-z]+)+", text)}
    assert {"map_index_template", "openlineage_inject_parent_job_info", "on_success_callback"} <= names
    page = (ROOT / "docs" / "how-to" / "no-worker.md").read_text(encoding="utf-8")
    assert {name for name in names if name not in page} == set()
