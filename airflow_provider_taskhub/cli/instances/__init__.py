"""``taskhub instances``: start, watch and control instances. The help lists the commands in the order below."""

from __future__ import annotations

import typer

from airflow_provider_taskhub.cli.instances import attempts, changing, listing, purging, showing, starting

app = typer.Typer(no_args_is_help=True, help="Start, show and control instances of orchestrators.")
app.command("list")(listing.list_)
app.command()(listing.count)
app.command()(showing.show)
app.command()(starting.start)
app.command()(starting.wait)
app.command()(attempts.logs)
app.command()(changing.terminate)
app.command()(changing.suspend)
app.command()(changing.resume)
app.command()(changing.rewind)
app.command()(changing.restart)
app.command()(purging.purge)
app.command("raise-event")(changing.raise_event)
