"""``taskhub partitions``: shows which workers serve which partitions, and gives orders about this.

An order of an administrator, such as "partition 3 is offline", stays in force until somebody lifts it. The help lists
the commands in the order below.
"""

from __future__ import annotations

import typer

from airflow_provider_taskhub.cli.partitions import checking, limiting, serving, showing

app = typer.Typer(
    no_args_is_help=True,
    help="Show partitions, and control which workers serve them. Exit status 3: the hub has no such partition.",
)
app.command()(serving.create)
app.command()(showing.show)
app.command()(serving.kick)
app.command()(serving.prohibit)
app.command()(serving.allow)
app.command()(serving.offline)
app.command()(serving.online)
app.command()(limiting.cap)
app.command()(limiting.drain_node)
app.command()(limiting.undrain_node)
app.command()(showing.controls)
app.command()(checking.detect_stale)
app.command()(checking.check)
