"""The options that many commands have, and the settings that follow from options."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_taskhub.cli.output import Exit, fail
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.settings import Settings, load_settings

HubName = Annotated[
    str | None,
    typer.Option("--hub", help="Name of the hub. Default: TASKHUB_HUB, else the settings file, else TaskHub."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def settings_of(**arguments: object) -> Settings:
    """Return the settings from options, environment variables and the settings file.

    A wrong value ends the command with exit status 2.

    :param arguments: values of options by the name of the setting; None: the option was not given.
    """
    try:
        return load_settings(**arguments)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)
