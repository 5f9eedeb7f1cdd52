"""Prints what commands return, as tables for people or as JSON for scripts, and ends a command after an error."""

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

from airflow_provider_taskhub.codec import Timestamp, one_line
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
"""The width of an output that is not a terminal, in characters. It is so large that no line is folded or cut."""
_LEAST = 8
"""The smallest width of a column, in characters, at which people can still read it."""


def writer(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints texts as they are. Ids and messages of users may look like Rich's markup.

    :param stderr: True: print to standard error.
    :param width: the width in characters; None: the width of the terminal.
    """
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


console = writer()
errors = writer(stderr=True)


class Exit(IntEnum):
    """The exit statuses of all commands, for scripts and monitors."""

    OK = 0
    FAILED = 1  # the instance failed or was terminated, or a check found a fault
    USAGE = 2  # wrong arguments or settings
    NOT_FOUND = 3
    EXISTS = 4
    UNAVAILABLE = 5  # the store does not answer
    TIMEOUT = 6


def plain(value: Any) -> Any:
    """Return a value in the types of JSON.

    A dataclass becomes a dictionary, a time a text of ISO 8601, an Enum its value, a set or tuple a list, and any other
    object ``str(value)``. Entries of a mapping whose value is bytes are omitted.
    """
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
    """Print a value as a JSON document on standard output."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people. The values of a column named ``id`` are never folded, so that they can be copied.
    Control characters are escaped, because each row is one line.

    The table has a frame only on a terminal that is wide enough for the ids. Otherwise each row is one line without a
    frame, which a narrow terminal wraps.
    """
    texts = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
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
    """Print an error on standard error, and end the command with this exit status."""
    errors.print(Text.assemble(("taskhub:", "red"), f" {message}"), soft_wrap=True)
    raise typer.Exit(int(code))


def warn(message: str) -> None:
    """Print a warning on standard error."""
    errors.print(Text.assemble(("warning:", "yellow"), f" {message}"), soft_wrap=True)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine and return its result. After an error of TaskHub, print its text and end the command.

    The class of the error decides the exit status.
    """
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
    """Return a time in whole seconds, to show to people; "" for None."""
    return "" if time is None else f"{time.text()[:19]}Z"
