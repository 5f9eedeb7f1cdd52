"""The commands that create partitions, make an owner hand one over, prohibit them to workers, or take them offline."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_taskhub.cli import hub as hubs
from airflow_provider_taskhub.cli.options import AsJson, HubName
from airflow_provider_taskhub.cli.output import plural
from airflow_provider_taskhub.cli.partitions.orders import (
    NODE,
    Nodes,
    Partitions,
    Reason,
    carry_out,
    done,
    listed,
    nothing_lifted,
    once,
)
from airflow_provider_taskhub.hub.model import ControlKind
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations


def create(
    hub: HubName = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of partitions. It stays fixed.")
    ] = None,
    cap: Annotated[int | None, typer.Option(min=0, help="Partitions that a worker may hold.")] = None,
    json: AsJson = False,
) -> None:
    """Create the hub with its partitions, or complete it: missing queues and lease rows are created.

    Example: taskhub partitions create --partitions 16 --cap 8
    """
    told, facts = hubs.made(hub=hub, partitions=partitions, cap=cap)

    async def complete(operations: PartitionOperations) -> None:
        await operations.complete()
        if cap is not None:
            await operations.cap(cap)

    carry_out(hub, complete)
    if cap is not None:
        told, facts = f"{told}; every worker holds at most {cap}", {**facts, "cap": cap}
    done(json, told, **facts)


def kick(
    partition: Annotated[int, typer.Argument(help="Number of the partition.")],
    prohibit: Annotated[
        list[str] | None, typer.Option(help=f"Also prohibit it to this worker. {NODE} May be repeated.", callback=once)
    ] = None,
    reason: Reason = "",
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Make the owner hand a partition over. A worker that may serve the partition then takes it, perhaps the same one.

    Example: taskhub partitions kick 3 --prohibit etl@node7 --reason "slow disk"
    """
    barred = prohibit or []
    owner = carry_out(hub, lambda operations: operations.kick(partition, prohibit=barred, reason=reason), nodes=barred)
    told = f"partition {partition}: {f'{owner} is asked to hand it over' if owner else 'no worker owns it'}"
    told += f"; prohibited to {', '.join(barred)}" if barred else ""
    done(json, told, partition=partition, kicked=owner, prohibited=barred)


def prohibit(
    partitions: Partitions, node: Nodes, reason: Reason = "", hub: HubName = None, json: AsJson = False
) -> None:
    """Prohibit partitions to workers until `allow`. The workers hand them over at their next scan of the leases.

    Example: taskhub partitions prohibit 3 4 --node etl@node7 --node @node8
    """
    carry_out(hub, lambda operations: operations.prohibit(partitions, node, reason), nodes=node)
    done(json, f"{listed(partitions)}: prohibited to {', '.join(node)}", partitions=partitions, prohibited=node)


def allow(
    partitions: Partitions,
    node: Annotated[
        list[str] | None,
        typer.Option(help="The name that `prohibit` was given. Default: lift all prohibitions.", callback=once),
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Undo `prohibit`: the workers may serve the partitions again.

    Example: taskhub partitions allow 3 4 --node etl@node7
    """
    lifted = carry_out(hub, lambda operations: operations.allow(partitions, node or ()))
    if not lifted:
        nothing_lifted(hub, ControlKind.PROHIBIT)
    told = f"{listed(partitions)}: {plural(lifted, 'prohibition')} lifted"
    done(json, told, partitions=partitions, lifted=lifted)


def offline(partitions: Partitions, reason: Reason = "", hub: HubName = None, json: AsJson = False) -> None:
    """Take partitions offline until `online`. Then no worker serves them, and their messages wait.

    A worker that serves one of them sees the order at its next scan of the leases. It lets the running episodes end,
    for at most 30 seconds, and gives the partition up.

    Example: taskhub partitions offline 3 --reason "history repair"
    """
    carry_out(hub, lambda operations: operations.offline(partitions, reason))
    told = f"{listed(partitions)}: offline after one scan and the end of running episodes"
    done(json, told, partitions=partitions, offline=True)


def online(partitions: Partitions, hub: HubName = None, json: AsJson = False) -> None:
    """Undo `offline`: workers serve the partitions again.

    Example: taskhub partitions online 3
    """
    lifted = carry_out(hub, lambda operations: operations.online(partitions))
    if not lifted:
        told = f"{listed(partitions)}: not offline"
    else:
        told = f"{listed(partitions)}: online again"
        told += f" ({lifted} of them had been offline)" if lifted < len(partitions) else ""
    done(json, told, partitions=partitions, lifted=lifted)
