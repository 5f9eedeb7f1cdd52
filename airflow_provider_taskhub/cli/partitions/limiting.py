"""The commands that order how many partitions a worker may hold, or that a worker serves none."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName
from airflow_provider_taskhub.cli.output import Exit, fail
from airflow_provider_taskhub.cli.partitions.orders import (
    NODE,
    Reason,
    carry_out,
    done,
    nothing_lifted,
)
from airflow_provider_taskhub.hub.model import ControlKind
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations


def cap(
    value: Annotated[int | None, typer.Argument(help="Partitions that a worker may hold.")] = None,
    node: Annotated[str | None, typer.Option(help=f"Only for these workers. {NODE}")] = None,
    per_turn: Annotated[
        int | None, typer.Option("--per-turn", min=0, help="Partitions that a worker may take or ask for in one scan.")
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Lift the caps.")] = False,
    reason: Reason = "",
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Limit how many partitions a worker holds, or takes in one scan of the leases.

    Without a cap, the workers share the partitions equally.

    --lift with --node lifts the cap of the workers that --node names. --lift alone lifts the caps that are for every
    worker.

    Example: taskhub partitions cap 8 --node etl@node7

    Example: taskhub partitions cap --per-turn 1

    Example: taskhub partitions cap --lift
    """
    limits = {"cap": value, "per_turn": per_turn}
    if lift == any(limit is not None for limit in limits.values()):
        fail("give a number or --per-turn, or only --lift", Exit.USAGE)
    if node is not None and per_turn is not None:
        fail("--per-turn is for every worker: omit --node", Exit.USAGE)
    if lift:
        _lift_caps(hub, node, json)
        return

    async def set_limits(operations: PartitionOperations) -> None:
        if value is not None:
            await operations.cap(value, node=node, reason=reason)
        if per_turn is not None:
            await operations.turn(per_turn, reason=reason)

    carry_out(hub, set_limits, nodes=() if node is None else (node,))
    told = [] if value is None else [f"{node or 'every worker'} holds at most {value}"]
    told += [] if per_turn is None else [f"every worker takes at most {per_turn} a scan"]
    done(json, ", ".join(told), node=node, **limits)


def _lift_caps(hub: str | None, node: str | None, json: bool) -> None:
    async def lift_limits(operations: PartitionOperations) -> list[str]:
        lifted = [] if not await operations.cap(None, node=node) else [f"cap of {node or 'every worker'}"]
        return lifted + ([] if node is not None or not await operations.turn(None) else ["limit per scan"])

    lifted = carry_out(hub, lift_limits)
    if not lifted:
        nothing_lifted(hub, ControlKind.CAP, ControlKind.TURN)
    done(json, f"lifted: {', '.join(lifted) or 'nothing'}", node=node, lifted=len(lifted))


def drain_node(
    node: Annotated[str, typer.Argument(help=NODE)], reason: Reason = "", hub: HubName = None, json: AsJson = False
) -> None:
    """Drain a worker, or all on a host: it hands over its partitions and takes none until `undrain-node`.

    A drained worker still runs activities. To stop the whole worker, send SIGTERM to its process.

    Example: taskhub partitions drain-node @node7 --reason "kernel update"
    """
    carry_out(hub, lambda operations: operations.drain_node(node, reason), nodes=(node,))
    done(
        json,
        f"{node}: serves no partitions after one scan and the end of its running episodes",
        node=node,
        drained=True,
    )


def undrain_node(node: Annotated[str, typer.Argument(help=NODE)], hub: HubName = None, json: AsJson = False) -> None:
    """Undo `drain-node`: the worker may take partitions again.

    Example: taskhub partitions undrain-node @node7
    """
    lifted = carry_out(hub, lambda operations: operations.undrain_node(node))
    if not lifted:
        nothing_lifted(hub, ControlKind.DRAIN)
    done(json, f"{node}: {'back in service' if lifted else 'was not drained'}", node=node, lifted=lifted)
