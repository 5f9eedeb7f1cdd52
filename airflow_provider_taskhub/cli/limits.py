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
from airflow_provider_taskhub.intake_limit import IntakeLimit, IntakePolicy

_RECENT = timedelta(days=1)
"""For how long people are told that a start has given another number."""
_INTAKE = "intake"
"""How the intake limit is named among the kinds of limits."""

app = typer.Typer(no_args_is_help=True, help="Show how many activities or instances may run at once, and change it.")


@app.command("list")
def listing(hub: HubName = None, json: AsJson = False) -> None:
    """List the limits: how many activities or instances run in the whole hub, which, and about how many wait.

    An activity gets a limit in its code: `@app.activity(limit=2)`, or `rate="10/m"` for how many begin in a time. An
    instance gets a limit when it is started: with `taskhub instances start --limit NAME=2`, or with
    `max_active_instances=2` of the operator. The hub gets an intake limit with `taskhub limits intake`.

    Example: taskhub limits list --json
    """

    async def work(client: Client) -> tuple[tuple[LimitState, ...], tuple[Member, ...], IntakeLimit | None]:
        return await client.admin.limits(), await client.admin.workers(), await client.admin.intake()

    found, members, intake = with_client(hub, work)
    for line in different(members, found, SYSTEM_CLOCK.utc_now()):
        warn(line)
    if json:
        as_json([_shown(state) for state in found] + ([] if intake is None else [shown_intake(intake)]))
        return
    rows: list[tuple[object, ...]] = [
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
    if intake is not None:
        rows.append((_INTAKE, "", f"{intake.messages}, {intake.policy} by {intake.by}", "", intake.waiting, "", ""))
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


@app.command()
def intake(
    messages: Annotated[
        int | None, typer.Argument(help="How many messages may wait for a worker before the hub takes no new start.")
    ] = None,
    policy: Annotated[
        IntakePolicy,
        typer.Option(help="What a new start then does. refuse: fail at once. wait: wait for room, then fail."),
    ] = IntakePolicy.REFUSE,
    lift: Annotated[bool, typer.Option("--lift", help="Lift the limit.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Let the hub take no new start while many messages wait for a worker. What waits goes on.

    Starts that orchestrators make, and starts for later, are always taken. Clients that are open already know the limit
    within ten seconds.

    Example: taskhub limits intake 5000 --policy wait

    Example: taskhub limits intake --lift
    """
    if (messages is None) != lift:
        raise typer.BadParameter("give a number, or --lift to lift the limit")

    async def work(client: Client) -> IntakeLimit | None:
        return await client.admin.set_intake(messages, policy=policy)

    limit = with_client(hub, work)
    if json:
        as_json(None if limit is None else shown_intake(limit))
        return
    typer.echo("every start is taken from now on" if limit is None else intake_line(limit))


def intake_line(limit: IntakeLimit) -> str:
    """Return one line about the intake limit."""
    does = "are refused" if limit.policy is IntakePolicy.REFUSE else "wait"
    return f"new starts {does} while {limit.messages} or more messages wait for a worker (now: about {limit.waiting})"


def shown_intake(limit: IntakeLimit) -> dict[str, object]:
    """Return what ``--json`` prints of the intake limit."""
    return {
        "kind": _INTAKE,
        "limit": limit.messages,
        "policy": limit.policy,
        "ordered_by": limit.by,
        "waiting": limit.waiting,
    }


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
