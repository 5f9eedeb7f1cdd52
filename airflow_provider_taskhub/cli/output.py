"""What commands print: tables for people, JSON for scripts; and how errors end a command."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from typing import Any, NoReturn, TypeVar

import typer
from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import (
    ConfigurationError,
    InputError,
    InstanceExists,
    InstanceNotFound,
    PartitionNotFound,
    PayloadTooLarge,
    StorageError,
    TaskHubError,
)

T = TypeVar("T")

WIDE = 100_000
"""Columns of an output that is no terminal: nothing in it is folded or cut."""
_LEAST = 8
"""To how many characters a column may fold and still be read."""


def writer(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints texts as they are: ids and messages are users' words, and may look like markup."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


console = writer()
errors = writer(stderr=True)


class Exit(IntEnum):
    """Exit codes of every command, for scripts and monitors."""

    OK = 0
    FAILED = 1  # the instance failed or was terminated; a check found something
    USAGE = 2  # wrong arguments or settings
    NOT_FOUND = 3
    EXISTS = 4
    UNAVAILABLE = 5  # the store does not answer
    TIMEOUT = 6


def plain(value: Any) -> Any:
    """A value as JSON sees it: dataclasses as objects, times as ISO 8601."""
    if isinstance(value, Timestamp):
        return value.text()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if not isinstance(item, bytes)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def as_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for people. Its ids stay in one piece, so that they can be copied: they are in a column named ``id``.

    A frame is only for a terminal with room for ids; elsewhere each row is one line, which a narrow terminal wraps.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    ids = max((cell_len(row[columns.index("id")]) for row in texts), default=0) if "id" in columns else 0
    framed = sys.stdout.isatty() and ids + _LEAST * (len(columns) - 1) + 3 * len(columns) + 1 <= console.width
    made = Table(box=HEAVY_HEAD if framed else None, pad_edge=framed, show_header=any(columns), header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=framed and column == "id")
    for row in texts:
        made.add_row(*map(Text, row))
    console.print(title, style="table.title", soft_wrap=True)
    if framed:
        console.print(made)
        return
    wide = writer(width=WIDE)
    with wide.capture() as printed:
        wide.print(made)
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def fail(message: str, code: Exit) -> NoReturn:
    """One line on standard error, and the exit code."""
    errors.print(Text.assemble(("taskhub:", "red"), f" {message}"), soft_wrap=True)
    raise typer.Exit(int(code))


def warn(message: str) -> None:
    """One line on standard error."""
    errors.print(Text.assemble(("warning:", "yellow"), f" {message}"), soft_wrap=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; TaskHub's errors become one line and an exit code."""
    try:
        return asyncio.run(work)
    except (InstanceNotFound, PartitionNotFound) as error:
        fail(str(error), Exit.NOT_FOUND)
    except InstanceExists as error:
        fail(str(error), Exit.EXISTS)
    except (ConfigurationError, InputError, PayloadTooLarge) as error:
        fail(str(error), Exit.USAGE)
    except StorageError as error:
        fail(f"{type(error).__name__}: {error}", Exit.UNAVAILABLE)
    except TimeoutError as error:
        fail(str(error), Exit.TIMEOUT)
    except TaskHubError as error:
        fail(str(error), Exit.FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def time_text(time: Timestamp | None) -> str:
    """A time for people, to the second."""
    return "" if time is None else f"{time.text()[:19]}Z"
