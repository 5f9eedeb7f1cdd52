"""``taskhub``: the command line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import typer
from typer.core import TyperGroup

from airflow_provider_taskhub import __version__, telemetry
from airflow_provider_taskhub.cli import failover, hub, instances, limits, partitions, quarantine
from airflow_provider_taskhub.cli.worker import worker


class _Commands(TyperGroup):
    """All commands. Some versions of Typer put words of pydantic before the text about a wrong value: not ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Durable orchestration of Spark pipelines. Without TASKHUB_CONNECTION, the hub is a local SQLite file.",
)
app.add_typer(hub.app, name="hub")
app.add_typer(instances.app, name="instances")
app.add_typer(partitions.app, name="partitions")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(failover.app, name="failover")
app.add_typer(limits.app, name="limits")
app.command()(worker)


def _reflow(group: typer.Typer) -> None:
    """Remove the line breaks inside the paragraphs of the help, so that the help fits a terminal of any width.

    Typer itself does so only for the first paragraph of a docstring.
    """
    for command in group.registered_commands:
        text = inspect.getdoc(command.callback) if command.callback is not None else None
        if command.help is None and text:
            command.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _reflow(inner.typer_instance)


DEMO = "airflow_provider_taskhub.demo"
"""The package of ``taskhub demo``. A checkout has this package, an installed wheel does not. It is imported by name,
because it imports the package ``cli`` itself."""
if importlib.util.find_spec(DEMO) is not None:
    app.command()(importlib.import_module(f"{DEMO}.command").demo)
_reflow(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def taskhub(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Durable orchestration of Spark pipelines."""


def main() -> None:
    """Run the command line ``taskhub``. Logs go to standard error, because standard output is for results."""
    telemetry.configure()
    app()
