"""The demo's output on the terminal: lines with the time, one line that changes, and the tables at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from airflow_provider_taskhub.hub.model import ActivityRecord, RecordState

SIGNS = {
    RecordState.RUNNING: ("▶", "yellow"),
    RecordState.COMPLETED: ("✓", "green"),
    RecordState.FAILED: ("✗", "red"),
    RecordState.LOST: ("✗", "red"),
    RecordState.CANCELLING: ("…", "yellow"),
    RecordState.CANCELLED: ("✗", "red"),
    RecordState.UNKNOWN: ("?", "red"),
}


class Screen:
    """Prints lines with the seconds since the start, and one line at the bottom that changes. A context manager.

    :param console: the console to print to. If it is not a terminal, there is no changing line.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._begun = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._status = self.console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, *parts: str | tuple[str, str]) -> None:
        """Print a line. :param parts: texts, or pairs of a text and its style."""
        self.console.print(Text.assemble((f"{time.monotonic() - self._begun:6.1f} s", "dim"), "  ", *parts))

    def now(self, text: str | Text) -> None:
        """Set the text of the changing line. :param text: what the demo is doing now."""
        if self._status is not None:
            self._status.update(Text(text) if isinstance(text, str) else text)


def months_line(months: Mapping[int, ActivityRecord | None]) -> Text:
    """Return a line with the state of each month's last attempt, for example ``✓01 ▶02 beta ·03``."""
    line = Text("months")
    for month, record in months.items():
        line.append("  ")
        if record is None:
            line.append(f"·{month:02d}", "dim")
            continue
        line.append(*SIGNS[record.state]).append(f"{month:02d}")
        if record.state is RecordState.RUNNING:
            line.append(" ").append(short(record.worker), "dim")
    return line


def short(worker: str) -> str:
    """Return the name of a worker. :param worker: the full name, ``name@host/incarnation``."""
    return worker.partition("@")[0]


def answer_tables(answer: Mapping[str, Any]) -> Iterable[Table]:
    """Yield the tables with the pipeline's result: totals, worst routes, punctuality of each carrier."""
    totals = answer["totals"]
    yield _table(
        f"Flights from New York, {answer['year']}",
        ("", "#"),
        [
            ("flights", f"{totals['flights']:,}"),
            ("mean departure delay", _minutes(totals["mean_dep_delay"])),
            ("mean arrival delay", _minutes(totals["mean_arr_delay"])),
            ("on time (under 15 min late)", f"{totals['on_time_share']:.1%}"),
            ("cancelled", f"{totals['cancelled']:,}"),
            *((f"rejected: {reason}", f"{count:,}") for reason, count in answer["rejected"].items()),
        ],
    )
    routes = [
        (f"{r['origin']} → {r['dest']}", r["name"] or "", f"{r['arrived']:,}", _minutes(r["mean_arr_delay"]))
        for r in answer["worst_routes"]
    ]
    yield _table("Worst routes", ("route", "to", "# arrivals", "# mean arrival delay"), routes)
    carriers = sorted(answer["carriers"], key=lambda c: -c["on_time_share"])
    yield _table(
        "On time by carrier",
        ("carrier", "# flights", "# on time"),
        [(c["name"] or c["carrier"], f"{c['flights']:,}", f"{c['on_time_share']:.1%}") for c in carriers],
    )


def stages_table(stages: Mapping[str, float]) -> Table:
    """Return a table with the duration of each stage of the orchestration, in seconds."""
    return _table("Stages", ("stage", "# seconds"), [(name, f"{seconds:.1f}") for name, seconds in stages.items()])


def attempts_table(rows: Sequence[tuple[str, ActivityRecord]]) -> Table:
    """Return a table with one line for each attempt: its activity, its worker and its outcome.

    :param rows: a label and the activity record of each attempt, in the order of the table.
    """
    lines = []
    for label, record in rows:
        took = "" if record.ended is None else f"{(record.ended - record.claimed).total_seconds():.1f}"
        outcome = Text.assemble(SIGNS[record.state], f" {record.state}")
        lines.append((label, str(record.attempt), short(record.worker), outcome, took))
    return _table("Who ran what", ("activity", "# attempt", "worker", "outcome", "# seconds"), lines)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Return a table. :param columns: the headings; the cells of a heading that begins with ``#`` are right-aligned."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip("# "), justify="right" if column.startswith("#") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _minutes(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} min"
