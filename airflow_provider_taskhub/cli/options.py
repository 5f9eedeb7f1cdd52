"""The options that many commands have, the settings that follow from options, and the client of a command."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Annotated, Any, TypeVar

import typer

from airflow_provider_taskhub.cli.output import Exit, fail, run
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import Settings, load_settings

T = TypeVar("T")

HubName = Annotated[
    str | None,
    typer.Option("--hub", help="Name of the hub. Default: TASKHUB_HUB, else the settings file, else TaskHub."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

source: ContextVar[Callable[..., Settings]] = ContextVar("source", default=load_settings)
"""The function that reads the settings of a command. ``airflow taskhub`` sets one that reads an Airflow connection."""


def settings_of(**arguments: object) -> Settings:
    """Return the settings from options, environment variables and the settings file.

    A wrong value ends the command with exit status 2.

    :param arguments: values of options by the name of the setting; None: the option was not given.
    """
    try:
        return source.get()(**arguments)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)


def with_client(hub: str | None, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """Call an async function with an open client of the hub, and return its result.

    :param hub: the value of ``--hub``; None: the settings name the hub.
    :param work: the async function.
    """
    settings = settings_of(hub=hub)

    async def opened() -> T:
        async with Client.open(settings) as client:
            return await work(client)

    return run(opened())
