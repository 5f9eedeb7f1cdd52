"""What all commands use that give orders of administrators: arguments, and functions that give and print an order.

An order is a row in the hub, such as "partition 3 is offline". It is in force until it is lifted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from airflow_provider_taskhub.cli.options import with_client
from airflow_provider_taskhub.cli.output import as_json, console, warn
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.model import Control, ControlKind, Member
from airflow_provider_taskhub.hub.partitions.operations import PartitionOperations
from airflow_provider_taskhub.hub.partitions.orders import names

T = TypeVar("T")


def once(given: list[T] | None) -> list[T] | None:
    """Return the values without repetitions, in their order; None if there are none.

    Two values that differ only in upper and lower case are one value.
    """
    found: dict[str, T] = {}
    for item in given or ():
        found.setdefault(str(item).casefold(), item)
    return list(found.values()) or None


Partitions = Annotated[list[int], typer.Argument(help="Numbers of partitions.", metavar="PARTITION...", callback=once)]
NODE = "A worker: name@host, name, @host (all on a host) or name@host/incarnation, in upper or lower case."
Nodes = Annotated[list[str], typer.Option("--node", help=f"{NODE} May be repeated.", callback=once)]
Reason = Annotated[str, typer.Option(help="Reason. It is shown with the order until the order is lifted.")]


def carry_out(hub: str | None, work: Callable[[PartitionOperations], Awaitable[T]], *, nodes: Sequence[str] = ()) -> T:
    """Call an operation on the partitions of a hub, and return its result.

    :param work: calls the operation.
    :param nodes: names of workers that the operation is about. For a name that no worker has now, only a warning is
        printed, because a worker with this name may start later.
    """

    async def call(client: Client) -> tuple[T, tuple[Member, ...]]:
        return await work(client.admin.partition_operations), await client.admin.workers() if nodes else ()

    done, listed = with_client(hub, call)
    for node in nodes:
        if not any(names(node, member.worker) for member in listed):
            warn(f"no worker has the name {node} now: the order waits for one. Listed: {_workers(listed)}")
    return done


def _workers(listed: Sequence[Member]) -> str:
    return ", ".join(sorted({member.worker.rpartition("/")[0] for member in listed})) or "no worker"


def nothing_lifted(hub: str | None, *kinds: ControlKind) -> None:
    """Print a warning that no order was lifted, with the orders that are in force.

    The list helps because an order is lifted only by the same worker name with which it was given.

    :param kinds: list only orders of these kinds.
    """
    found = [
        _order(control) for control in carry_out(hub, lambda operations: operations.controls()) if control.kind in kinds
    ]
    warn(f"nothing was lifted. In force: {', '.join(sorted(found))}" if found else "nothing was lifted: none in force")


def _order(control: Control) -> str:
    """Return an order in a few words."""
    where = "" if control.partition is None else f" from partition {control.partition}"
    match control.kind:
        case ControlKind.CAP:
            return f"cap of {control.node or 'every worker'}: {control.value}"
        case ControlKind.TURN:
            return f"at most {control.value} a scan"
        case _:
            return f"{control.node}{where}"


def done(json: bool, told: str, **facts: object) -> None:
    if json:
        as_json(facts)
    else:
        console.print(told, soft_wrap=True)


def listed(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}"
