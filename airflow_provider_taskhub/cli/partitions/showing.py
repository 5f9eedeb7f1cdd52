"""``taskhub partitions show`` and ``controls``: print the partitions, and the orders of administrators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of, with_client
from airflow_provider_taskhub.cli.output import Exit, as_json, console, fail, table
from airflow_provider_taskhub.cli.partitions.orders import (
    NODE,
    carry_out,
)
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.model import Control, OwnerState, PartitionState
from airflow_provider_taskhub.hub.partitions.orders import names


def show(
    partition: Annotated[int | None, typer.Argument(help="Only this partition.")] = None,
    node: Annotated[str | None, typer.Option(help=f"Only partitions of this worker. {NODE}")] = None,
    by_node: Annotated[bool, typer.Option("--by-node", help="Print one line for each worker.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Answer at once. The state of every owner is `unproven`.")
    ] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print partitions: owner, state, next owner, epoch, load, messages. Exit status 3: no such partition.

    A lease row outlives its owner. The command therefore waits until each owner has renewed its lease, at most 1.5
    renewal intervals. States: live; silent (the owner did not renew: it is dead, paused or cut off); kicked, released
    or new (no worker serves the partition yet); offline (by order; `ordered offline` while the row still has an owner);
    missing (no lease row); unproven (the owner may be alive or not).

    Next owner: the worker to which the owner hands the partition over. Epoch: how many owners the partition has had.

    Example: taskhub partitions show --by-node
    """

    async def work(client: Client) -> tuple[PartitionState, ...]:
        return await client.admin.partitions(prove=not once)

    name = settings_of(hub=hub).hub
    states = [state for state in with_client(hub, work) if partition in (None, state.partition)]
    if partition is not None and not states:
        fail(f"hub {name} has no partition {partition}", Exit.NOT_FOUND)
    if node is not None:
        states = [state for state in states if state.owner is not None and names(node, state.owner)]
    if by_node:
        _show_nodes(states, json)
    elif json:
        as_json(states)
    elif node is not None and not states:
        console.print(
            f"{node} does not own {'any partition' if partition is None else f'partition {partition}'}", soft_wrap=True
        )
    else:
        _show_partitions(f"partitions of {name}", states)


def _show_partitions(title: str, states: Sequence[PartitionState]) -> None:
    table(
        title,
        (
            "partition",
            "owner",
            "state",
            "next owner",
            "draining",
            "epoch",
            "owned since",
            "last poll",
            "load",
            "messages",
            "last kick",
        ),
        [
            (
                state.partition,
                state.owner or "nobody",
                _standing(state),
                state.next_owner,
                "yes" if state.draining else "",
                state.epoch,
                state.owned_since,
                state.polled,
                None if state.load is None else f"{state.load:g}",
                state.messages,
                state.kicked,
            )
            for state in states
        ],
    )


def _standing(state: PartitionState) -> str:
    ordered = state.offline and state.state is not OwnerState.OFFLINE
    return f"{state.state}, ordered offline" if ordered else state.state


def _show_nodes(states: Sequence[PartitionState], json: bool) -> None:
    owned: dict[str, list[PartitionState]] = {}
    for state in states:
        owned.setdefault(state.owner or "nobody", []).append(state)
    found = [
        (
            owner,
            [state.partition for state in mine],
            Counter(state.state.value for state in mine),
            round(sum(state.load or 0.0 for state in mine), 3),
        )
        for owner, mine in sorted(owned.items())
    ]
    if json:
        as_json([dict(zip(("owner", "partitions", "states", "load"), item, strict=True)) for item in found])
        return
    rows = [
        (
            owner,
            len(partitions),
            " ".join(map(str, partitions)),
            ", ".join(f"{count} {state}" for state, count in states.items()),
            f"{load:g}",
        )
        for owner, partitions, states, load in found
    ]
    table("partitions by worker", ("worker", "count", "partitions", "states", "load"), rows)


def controls(hub: HubName = None, json: AsJson = False) -> None:
    """List the orders of administrators that are in force: who gave each order, when and why.

    Example: taskhub partitions controls --json
    """
    found = carry_out(hub, lambda operations: operations.controls())
    if json:
        as_json(found)
    else:
        show_controls(found)


def show_controls(found: Sequence[Control]) -> None:
    if not found:
        console.print("no orders in force")
        return
    table(
        "orders in force",
        ("order", "partition", "worker", "value", "by", "at", "reason"),
        [(item.kind, item.partition, item.node or "", item.value, item.by, item.at, item.reason) for item in found],
    )
