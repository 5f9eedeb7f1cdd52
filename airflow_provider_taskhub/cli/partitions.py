"""``taskhub partitions``: who serves what."""

from __future__ import annotations

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of
from airflow_provider_taskhub.cli.output import as_json, run, table
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.contract import PartitionState

app = typer.Typer(no_args_is_help=True, help="Look at partitions.")


@app.callback()
def partitions() -> None:
    """Look at partitions."""


@app.command()
def show(hub: HubName = None, json: AsJson = False) -> None:
    """Print every partition: owner, epoch, state of a handover, messages waiting.

    Example: taskhub partitions show --json
    """
    settings = settings_of(hub=hub)

    async def work() -> tuple[PartitionState, ...]:
        async with Client.open(settings) as client:
            return await client.partitions()

    states = run(work())
    if json:
        as_json(states)
        return
    table(
        f"partitions of {settings.hub}",
        ("partition", "owner", "next owner", "draining", "epoch", "owned since", "messages"),
        [
            (
                state.partition,
                state.owner or "nobody",
                state.next_owner,
                "yes" if state.draining else "",
                state.epoch,
                state.owned_since,
                state.messages,
            )
            for state in states
        ],
    )
