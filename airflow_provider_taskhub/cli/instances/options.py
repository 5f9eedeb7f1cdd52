"""The options that several commands share, and functions that read their values."""

from __future__ import annotations

import json as jsonlib
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

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
Orchestrator = Annotated[
    str | None, typer.Option("--orchestrator", help="Only instances of the orchestrator with this name.")
]
CreatedFrom = Annotated[
    str | None, typer.Option(help="Only instances created at this time or later: ISO 8601. Default zone: UTC.")
]
CreatedTo = Annotated[
    str | None, typer.Option(help="Only instances created at this time or earlier: ISO 8601. Default zone: UTC.")
]
FailedSince = Annotated[
    str | None, typer.Option(help="Only instances that failed at this time or later: ISO 8601. Default zone: UTC.")
]
Roots = Annotated[bool, typer.Option("--roots", help="Only instances without a parent.")]
Reason = Annotated[str, typer.Option(help="Reason. It is stored as the output until the instance ends.")]


def moment_of(text: str | None, option: str) -> datetime | None:
    """Return the time that an option gives; None if the option was not given. A time without a zone is UTC.

    :param text: the value of the option.
    :param option: the name of the option, for the error text.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{option} {text!r} is not a time: give one such as 2026-10-01 or 2026-10-01T12:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def where_of(
    *,
    status: list[Status] | None,
    prefix: str | None,
    tag: list[str] | None,
    orchestrator: str | None,
    created_from: str | None,
    created_to: str | None,
) -> dict[str, Any]:
    """Return the filters that options give, as ``Client.list`` and ``Client.purge_many`` take them."""
    return {
        "statuses": status or (),
        "prefix": prefix,
        "tags": tags_of(tag),
        "orchestrator": orchestrator,
        "created_from": moment_of(created_from, "--created-from"),
        "created_to": moment_of(created_to, "--created-to"),
    }


def tags_of(pairs: list[str] | None) -> dict[str, str]:
    """Return the tags that the values ``NAME=VALUE`` of ``--tag`` give; empty for None."""
    tags = {}
    for pair in pairs or ():
        name, found, value = pair.partition("=")
        if not found or not name:
            raise typer.BadParameter(f"--tag {pair!r} is not of the form NAME=VALUE")
        tags[name] = value
    return tags


def value_of(text: str | None, option: str) -> Any:
    """Return the JSON value that an option gives; None if the option was not given.

    :param text: the value of the option.
    :param option: the name of the option, for the error text.
    """
    if text is None:
        return None
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} is not JSON: {error}. Quote a text twice, as in '\"World\"'") from None
