"""Options that several commands share, what they mean, and the client that a command works with."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.options import settings_of
from airflow_provider_taskhub.cli.output import run
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError

InstanceId = Annotated[str, typer.Argument(help="Id of the instance.")]
Statuses = Annotated[
    list[Status] | None,
    typer.Option("--status", case_sensitive=False, help="Only instances in this status. May be repeated."),
]
Prefix = Annotated[str | None, typer.Option(help="Only instances whose id begins with this text.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="Only instances with the tag NAME=VALUE. May be repeated.")
]
CreatedFrom = Annotated[
    str | None, typer.Option(help="Only instances created at this time or later: ISO 8601. Default zone: UTC.")
]
CreatedTo = Annotated[str | None, typer.Option(help="Only instances created at this time or earlier.")]
Reason = Annotated[str, typer.Option(help="Reason. It is stored as the output until the instance ends.")]


def moment_of(text: str | None, option: str) -> datetime | None:
    """The time that an option gives. :param option: its name, for the error."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{option} {text!r} is not a time: give one such as 2026-10-01 or 2026-10-01T12:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def tags_of(pairs: list[str] | None) -> dict[str, str]:
    """The tags that ``--tag`` gives."""
    tags = {}
    for pair in pairs or ():
        name, found, value = pair.partition("=")
        if not found or not name:
            raise InputError(f"--tag {pair!r} is not of the form NAME=VALUE")
        tags[name] = value
    return tags


def value_of(text: str | None, option: str) -> Any:
    """The JSON value that an option gives. :param option: its name, for the error."""
    if text is None:
        return None
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} is not JSON: {error}. Quote a text twice, as in '\"World\"'") from None


def with_client(hub: str | None, work: Callable[[Client], Any]) -> Any:
    """What the work returns, done with an open client of the hub."""
    settings = settings_of(hub=hub)

    async def opened() -> Any:
        async with Client.open(settings) as client:
            return await work(client)

    return run(opened())
