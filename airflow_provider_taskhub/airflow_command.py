"""``airflow taskhub …``: the commands of ``taskhub`` in Airflow's command line, on the hub of an Airflow connection.

One command more, ``dags check``, exists only here, because it needs Airflow (:mod:`.dag_check`).

Every start of ``airflow`` imports this module, so everything heavy is imported inside functions: the commands
themselves import the hub's stores and the worker. For the same reason, Airflow's parser does not know the commands. It
passes on all arguments unread, and ``taskhub``'s own parser reads them. So the help, the errors and the exit codes are
those of ``taskhub``. An ``ActionCommand`` of Airflow for each command was rejected: each start of ``airflow`` would
import all commands, and their options would exist twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.cli.cli_config import ActionCommand, Arg, lazy_load_command

if TYPE_CHECKING:
    from airflow_provider_taskhub.settings import Settings

NAME = "airflow taskhub"
HELP = "Start, show and control orchestrations of a task hub, its partitions and its workers"
_HUB = "Name of the hub. Default: the hub of the connection."
_CONN_ID = (
    "Id of the Airflow connection of type taskhub that names the hub. If taskhub_default does not exist: TASKHUB_HUB "
    "and TASKHUB_CONNECTION, else the settings file, else the local SQLite file."
)


class _Unread(Arg):  # type: ignore[misc]  # Airflow is not followed by mypy
    """All arguments of a command, options too, as they are."""

    def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.prefix_chars = ""  # no text begins an option, not even --help: REMAINDER alone would leave --help out
        super().add_to_parser(parser)


def get_commands() -> list[ActionCommand]:
    """Return what this provider adds to the command line ``airflow``. Airflow calls the function at each start."""
    return [
        ActionCommand(
            name="taskhub",
            help=HELP,
            func=lazy_load_command(f"{__name__}.run"),
            args=(_Unread(flags=("arguments",), nargs=argparse.REMAINDER),),
        )
    ]


def run(arguments: argparse.Namespace) -> None:
    """Run a command of ``taskhub``, and end the process with the command's exit code.

    :param arguments: what Airflow's parser has read; only the list ``arguments`` is used.
    """
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from airflow_provider_taskhub import telemetry

    redirect_stdout_log_handlers_to_stderr()  # standard output is for results
    telemetry.configure()
    command()(args=arguments.arguments, prog_name=NAME)


def command() -> Any:
    """Return all commands as one command of Click. Those of ``taskhub`` on a hub have the option ``--conn-id``."""
    from typer.main import get_command

    from airflow_provider_taskhub import dag_check
    from airflow_provider_taskhub.cli.main import app

    root = get_command(app)
    root.help = f"{HELP}."
    root.commands.pop("demo", None)  # type: ignore[attr-defined]  # the demo has an Airflow of its own
    for leaf in _leaves(root):
        for one in leaf.params:
            if one.name == "hub":
                one.help = _HUB
                leaf.params.append(_connection_option())
                break
    root.commands["dags"] = get_command(dag_check.command(settings_of))  # type: ignore[attr-defined]
    return root


def _leaves(group: Any) -> Iterator[Any]:
    for inner in group.commands.values():
        if hasattr(inner, "commands"):
            yield from _leaves(inner)
        else:
            yield inner


def _connection_option() -> Any:
    """Return the option ``--conn-id``. A command that only has this option makes it, because Typer offers no other way.

    The value is not passed to the command. It decides where the command's function ``settings_of`` reads.
    """
    import typer

    from airflow_provider_taskhub.cli.options import source
    from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION

    def choose(ctx: Any, conn_id: str) -> None:  # Typer finds the context by its position
        token = source.set(partial(settings_of, conn_id))
        ctx.call_on_close(lambda: source.reset(token))

    option = typer.Option(DEFAULT_CONNECTION, "--conn-id", help=_CONN_ID, expose_value=False, callback=choose)

    def holder(conn_id: str = option) -> None: ...

    made = typer.Typer(add_completion=False)
    made.command()(holder)
    return next(one for one in typer.main.get_command(made).params if one.name == "conn_id")


def settings_of(conn_id: str, **arguments: object) -> Settings:
    """Return the settings that an Airflow connection describes.

    Airflow's command line may read its database, which a task may not. So this function asks Airflow's secrets backends
    and its database itself.

    :param conn_id: the connection's id.
    :param arguments: values of a command's options, which override the connection; None: the option was not given.
    :raises ConfigurationError: if the connection does not exist, is of another type, or has a wrong field.
    """
    from airflow.models.connection import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    from airflow_provider_taskhub.hooks import taskhub as hooks

    try:
        connection = Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        return hooks.settings_without_connection(conn_id, **arguments)
    return hooks.settings_of(connection, **arguments)
