"""``taskhub limits``: shows the limits of activities and of instances, and changes them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, table, time_text, warn
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState
from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.partitions.capabilities import different_limits

_RECENT = timedelta(days=1)
"""For how long people are told that a start has given another number."""

app = typer.Typer(no_args_is_help=True, help="Show how many activities or instances may run at once, and change it.")


@app.command("list")
def listing(hub: HubName = None, json: AsJson = False) -> None:
    """List the limits: how many activities or instances run in the whole hub, which, and about how many wait.

    An activity gets a limit in its code: `@app.activity(limit=2)`, or `rate="10/m"` for how many begin in a time. An
    instance gets a limit when it is started: with `taskhub instances start --limit NAME=2`, or with
    `max_active_instances=2` of the operator.

    Example: taskhub limits list --json
    """

    async def work(client: Client) -> tuple[tuple[LimitState, ...], tuple[Member, ...]]:
        return await client.admin.limits(), await client.admin.workers()

    found, members = with_client(hub, work)
    for line in different(members, found, SYSTEM_CLOCK.utc_now()):
        warn(line)
    if json:
        as_json([_shown(state) for state in found])
        return
    rows = [
        (
            one.kind,
            one.name,
            _number(one),
            len(one.holders),
            one.waiting,
            time_text(one.oldest),
            ", ".join(_holders(one)),
        )
        for one in found
    ]
    table("limits", ("of", "name", "limit", "running", "waiting", "oldest", "who"), rows)


@app.command("set")
def change(
    name: Annotated[str, typer.Argument(help="Name of an activity with a limit, or of a limit.")],
    number: Annotated[int | None, typer.Argument(help="How many may run at once, or begin in the time.")] = None,
    declared: Annotated[
        bool, typer.Option("--declared", help="Lift the order: the number in the code or of the newest start counts.")
    ] = False,
    kind: Annotated[
        LimitKind | None, typer.Option("--of", help="Needed only if several limits have this name.")
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Change how many may run at once, in place of the number in the code or of the starts. What runs goes on.

    Example: taskhub limits set load_warehouse 4

    Example: taskhub limits set load_warehouse --declared
    """
    if (number is None) != declared:
        raise typer.BadParameter("give a number, or --declared to lift the order")

    async def work(client: Client) -> LimitState:
        return await client.admin.set_limit(name, number, kind=kind or "")

    state = with_client(hub, work)
    if json:
        as_json(_shown(state))
        return
    if state.kind is LimitKind.RATE:
        typer.echo(f"at most {state.shown} of {name} begin from now on")
        return
    each = f" for each {state.key_tag}" if state.key_tag else ""
    what = f"the {state.kind} {name}" if state.kind is LimitKind.ACTIVITY else f"the instances with the limit {name}"
    typer.echo(f"at most {state.limit} of {what} run at once{each} from now on; {len(state.holders)} run now")


def different(members: Iterable[Member], found: Iterable[LimitState], now: Timestamp) -> list[str]:
    """Return a line about each limit that does not hold on all live workers, or for which their code gives different
    numbers, or the starts of the last day.

    :param members: the workers of the hub.
    :param found: the limits of the hub.
    :param now: the time.
    """
    states = {f"{one.kind} {one.name}": one for one in found}
    return different_limits(
        members,
        {limit: one.shown for limit, one in states.items()},
        activities={limit: one.activities for limit, one in states.items()},
        ordered={limit for limit, one in states.items() if one.ordered is not None},
    ) + [
        f"starts have changed the number of the limit {one.name!r} twice within a day, the last time at "
        f"{time_text(one.changes[-1][1])}: {', '.join(str(number) for number, _ in one.changes)}. That of the newest "
        "start counts. Give all starts the same number, or order one: "
        f"taskhub limits set {shlex.quote(one.name)} NUMBER --of {one.kind}"
        for one in states.values()
        if one.ordered is None and (within := one.changed_twice_within) is not None
        if within < _RECENT and now - one.changes[-1][1] < _RECENT
    ]


def _number(state: LimitState) -> str:
    return state.shown if state.ordered is None else f"{state.shown} by {state.by}"


def _holders(state: LimitState) -> list[str]:
    number = "" if state.kind is LimitKind.INSTANCES else " #{}"
    return [place.instance.instance_id + number.format(place.task_id) for place in state.holders]


def _shown(state: LimitState) -> dict[str, object]:
    holders = [
        {"instance_id": one.instance.instance_id, "task_id": one.task_id, "attempt": one.attempt, "worker": one.worker}
        for one in state.holders
    ]
    return {
        "kind": state.kind,
        "name": state.name,
        "limit": state.limit,
        "seconds": state.seconds or None,
        "activities": state.activities,
        "declared": state.declared,
        "ordered_by": state.by or None,
        "running": len(state.holders),
        "waiting": state.waiting,
        "oldest": state.oldest,
        "holders": holders,
    }
