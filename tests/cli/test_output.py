"""What commands print: users' texts as they are, ids in one piece."""

from __future__ import annotations

import io
import sys

import pytest
import typer
from rich.console import Console

from airflow_provider_taskhub.cli import main, output
from airflow_provider_taskhub.cli.watching import MAX_MESSAGE, progress_of
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.demo.screen import Screen, attempts_table, months_line
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState
from tests.airflow.fake import record

ODD = "a [/b] [bold]c[/nope] :key:"
ID = "flights:delays:manual__2026-01-01T00:00"


class Terminal(io.StringIO):
    """A standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, width: int | None, *cells: object) -> list[str]:
    """A table of one row; width None is a pipe."""
    file = io.StringIO() if width is None else Terminal()
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setenv("COLUMNS", str(width or 80))
    monkeypatch.setattr(output, "console", output.writer())
    output.table("title", ("id", "x", "y", "z")[: len(cells)], [cells])
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [None, 20, 60, 100])
def test_a_table_shows_texts_as_they_are(monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    assert any(ODD in line for line in printed(monkeypatch, width, ODD))


def test_nothing_is_folded_or_cut_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, None, ID, "x" * 300, None, "z" * 300)
    assert len(lines) == 3, lines
    assert lines[-1].split() == [ID, "x" * 300, "z" * 300]
    assert lines[0] == "title", "no line is padded to the longest"


@pytest.mark.parametrize("width", [30, 50, 75, 76, 80, 120])
def test_an_id_is_in_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, ID, "some words " * 5, "2026-01-01T00:00:00Z", "y" * 40)
    assert any(ID in line for line in lines), lines
    framed = [line for line in lines if "│" in line]
    assert bool(framed) == (width >= 76), "the rest folds, down to a few characters"
    assert all(len(line) <= width for line in framed)


def test_an_error_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "errors", output.writer(stderr=True))
    with pytest.raises(typer.Exit):
        output.fail(f"install 'airflow-provider-taskhub[spark]' {ODD}", output.Exit.USAGE)
    output.warn(ODD)
    told = capsys.readouterr().err
    assert told == f"taskhub: install 'airflow-provider-taskhub[spark]' {ODD}\nwarning: {ODD}\n"


def test_a_demo_shows_texts_as_they_are() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system="standard")
    record = ActivityRecord(
        instance=OrchestrationInstance(instance_id="i"),
        task_id=1,
        action_id="a",
        executor="1",
        attempt=1,
        name="monthly",
        worker="[/b]@host/1",
        state=RecordState.RUNNING,
        claimed=Timestamp.parse("2026-01-01T00:00:00Z"),
    )
    Screen(console).say(("killed", "bold red"), " in /tmp/[/b]")
    console.print(months_line({1: None, 2: record}))
    console.print(attempts_table([("month", record)]))
    text = file.getvalue()
    assert "\x1b[1;31mkilled\x1b[0m in /tmp/[/b]" in text
    assert "months  \x1b[2m·01\x1b[0m  \x1b[33m▶\x1b[0m02 \x1b[2m[/b]\x1b[0m" in text
    assert "\x1b[33m▶\x1b[0m Running" in text or "\x1b[33m▶\x1b[0m running" in text


def test_the_help_of_every_command_is_wrapped_by_the_terminal_alone() -> None:
    """A line break of a docstring in the middle of a sentence would stay in the help."""
    texts: dict[str, str] = {}
    groups = [("taskhub", typer.main.get_command(main.app))]
    for name, group in groups:
        for part, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append((f"{name} {part}", command))
            else:
                texts[f"{name} {part}"] = command.help or ""
    assert len(texts) > 25
    assert {name: text for name, text in texts.items() if "\n" in text.replace("\n\n", "") or not text} == {}


def test_a_secret_that_the_limit_cuts_is_masked() -> None:
    known = record(RecordState.RUNNING, message="x" * 176 + " postgres://user:opensesame@host/db")
    assert "opens" not in progress_of(known)
    assert len(progress_of(known)) == MAX_MESSAGE
