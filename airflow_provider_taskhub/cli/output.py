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
from rich.console import Console
from rich.table import Table

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import (
    ConfigurationError,
    InputError,
    InstanceExists,
    InstanceNotFound,
    StorageError,
    TaskHubError,
)

T = TypeVar("T")

console = Console()
errors = Console(stderr=True)


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
    """A table for people."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(made)


def fail(message: str, code: Exit) -> NoReturn:
    """One line on standard error, and the exit code."""
    errors.print(f"[red]taskhub:[/red] {message}", highlight=False, markup=True, soft_wrap=True)
    raise typer.Exit(int(code))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine; TaskHub's errors become one line and an exit code."""
    try:
        return asyncio.run(work)
    except InstanceNotFound as error:
        fail(_escaped(error), Exit.NOT_FOUND)
    except InstanceExists as error:
        fail(_escaped(error), Exit.EXISTS)
    except (ConfigurationError, InputError) as error:
        fail(_escaped(error), Exit.USAGE)
    except StorageError as error:
        fail(f"{type(error).__name__}: {_escaped(error)}", Exit.UNAVAILABLE)
    except TimeoutError as error:
        fail(_escaped(error), Exit.TIMEOUT)
    except TaskHubError as error:
        fail(_escaped(error), Exit.FAILED)
    except KeyboardInterrupt:
        sys.exit(130)


def _escaped(error: Exception) -> str:
    return str(error).replace("[", r"\[")
