"""``taskhub instances list`` and ``count``: print a page of instances, or how many there are in each status."""

from __future__ import annotations

import shlex
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.instances.options import (
    CreatedFrom,
    CreatedTo,
    FailedSince,
    Orchestrator,
    Prefix,
    Roots,
    Statuses,
    Tags,
    moment_of,
    where_of,
)
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, console, table, time_text, warn
from airflow_provider_taskhub.client import Client, InstancePage
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.model import (
    InstanceState,
)

MAX_LISTED = 1000
MAX_SORTED = 5000
"""The largest number of instances of a hub on Azure that are read to sort them by age. Azure returns instances in the
order of their ids, so all of them must be read before they can be sorted."""
NEWEST = "newest:"
"""How a ``--continuation`` begins that continues a list with the newest instances first."""


class Order(StrEnum):
    """The order of the list of instances."""

    NEWEST = "newest"
    ID = "id"


def list_(
    status: Statuses = None,
    prefix: Prefix = None,
    tag: Tags = None,
    orchestrator: Orchestrator = None,
    created_from: CreatedFrom = None,
    created_to: CreatedTo = None,
    failed_since: FailedSince = None,
    roots: Roots = False,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="List at most so many instances.")] = 50,
    order: Annotated[Order | None, typer.Option(help="Order of the list. Default: newest; with --json: id.")] = None,
    continuation: Annotated[
        str | None, typer.Option(help="Show the next page: give the text that the last page printed.")
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """List instances, the newest first. With --json, they are ordered by id unless --order newest is given.

    Example: taskhub instances list --status Running --status Failed --json
    """

    by = order or (Order.ID if json else Order.NEWEST)
    if continuation is not None:  # the next page has the same order as the page before
        by = Order.NEWEST if continuation.startswith(NEWEST) else Order.ID
    where = where_of(
        status=status,
        prefix=prefix,
        tag=tag,
        orchestrator=orchestrator,
        created_from=created_from,
        created_to=created_to,
    ) | {"roots": roots, "failed_since": moment_of(failed_since, "--failed-since")}

    async def work(client: Client) -> InstancePage:
        if by is Order.ID:
            return await client.list(**where, limit=limit, continuation=continuation)
        return await _newest(client, limit, where, continuation)

    page = with_client(hub, work)
    if json:
        as_json({"instances": page.instances, "continuation": page.continuation})
        return
    table(
        "instances",
        ("id", "orchestrator", "status", "created", "ended", "custom status"),
        [
            (i.instance_id, i.name, i.status, time_text(i.created), time_text(i.ended), i.custom_status)
            for i in page.instances
        ],
    )
    if page.continuation:
        console.print(f"more: --continuation {shlex.quote(page.continuation)}", soft_wrap=True)


def count(
    status: Statuses = None,
    prefix: Prefix = None,
    tag: Tags = None,
    orchestrator: Orchestrator = None,
    created_from: CreatedFrom = None,
    created_to: CreatedTo = None,
    failed_since: FailedSince = None,
    roots: Roots = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Count the instances that match the options, by status.

    Example: taskhub instances count --failed-since 2026-10-01
    """
    where = where_of(
        status=status,
        prefix=prefix,
        tag=tag,
        orchestrator=orchestrator,
        created_from=created_from,
        created_to=created_to,
    ) | {"roots": roots, "failed_since": moment_of(failed_since, "--failed-since")}
    counts = with_client(hub, lambda client: client.count(**where))
    total = sum(counts.values())
    if json:
        as_json({"total": total, "statuses": {str(one): number for one, number in counts.items()}})
        return
    table("instances", ("status", "number"), [*counts.items(), ("all", total)])


async def _newest(client: Client, limit: int, where: dict[str, Any], after: str | None) -> InstancePage:
    """Return a page of instances, the newest first.

    An embedded hub returns them in this order. On Azure, all that match are read. If more than :data:`MAX_SORTED`
    match, only the first of them in the order of their ids are sorted and returned, and a warning says so.

    :param where: the filters of ``Client.list``.
    :param after: the continuation that the page before printed; None: return the first page.
    :raises InputError: if ``after`` is no such continuation.
    """
    rest: str | None
    if client.lists_by_time:
        begun = None if after is None else after.removeprefix(NEWEST)
        page = await client.list(**where, limit=limit, continuation=begun, order="created")
        rest = None if page.continuation is None else NEWEST + page.continuation
        return replace(page, continuation=rest)
    found: list[InstanceState] = []
    continuation: str | None = None
    while len(found) < MAX_SORTED:
        page = await client.list(**where, limit=MAX_LISTED, continuation=continuation)
        found.extend(page.instances)
        continuation = page.continuation
        if continuation is None:
            break
    else:
        warn(f"only the first {MAX_SORTED} instances by id were sorted: use --prefix, --status or --created-from")
    if after is not None:
        age, _, last = after.removeprefix(NEWEST).partition(":")
        if not age.removeprefix("-").isdigit():
            raise InputError(f"--continuation {after!r} is not known: give the text that the last page printed")
        found = [state for state in found if _age(state) > (int(age), last)]
    found.sort(key=_age)
    shown = found[:limit]
    rest = f"{NEWEST}{_age(shown[-1])[0]}:{shown[-1].instance_id}" if len(found) > len(shown) else None
    return InstancePage(instances=tuple(shown), continuation=rest)


def _age(state: InstanceState) -> tuple[int, str]:
    return -(state.created.ticks if state.created else 0), state.instance_id
