"""``taskhub instances start`` and ``wait``, and the functions with which other commands wait for an instance too.

A command that waited ends with exit status 1 if the instance did not complete.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import typer

from airflow_provider_taskhub.cli.instances.options import (
    InstanceId,
    moment_of,
    tags_of,
    value_of,
)
from airflow_provider_taskhub.cli.instances.showing import print_state
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import Exit, as_json, errors, fail, warn
from airflow_provider_taskhub.cli.watching import waited
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.events import (
    Status,
)
from airflow_provider_taskhub.hub.model import (
    InstanceState,
    StartPolicy,
)
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.intake_limit import WAITS_FOR
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.tags import LIMIT_TAG, OWN, PRIORITY_TAG, is_own


def start(
    orchestrator: Annotated[str, typer.Argument(help="Name that the app of a worker declares.")],
    input: Annotated[
        str | None, typer.Option("--input", help="Input of the instance: one JSON value. Without it: no input.")
    ] = None,
    instance_id: Annotated[
        str | None, typer.Option("--id", help="Id of the instance. Default: a new random id.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag NAME=VALUE. May be repeated.")] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Start not before this time: ISO 8601. Default zone: UTC."),
    ] = None,
    version: Annotated[
        str, typer.Option(help="Version. Only workers whose app is compatible with it run the instance.")
    ] = "",
    limit: Annotated[
        list[str] | None,
        typer.Option(help="NAME=NUMBER: at most NUMBER instances with the limit NAME run at once. The others wait."),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            help="With --limit: take the turn as if started so many hours earlier; below 0: later. Below 0 its "
            "activities also let those of other instances go first."
        ),
    ] = 0,
    policy: Annotated[
        StartPolicy,
        typer.Option(
            help="What to do if the id exists already. refuse: fail. attach: use the instance, whatever its status. "
            "replace_finished: start it again if it has ended, else fail."
        ),
    ] = StartPolicy.REFUSE,
    intake_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="If the hub takes no new start now, and its policy is to wait: wait at most so many seconds. Default: "
            f"{WAITS_FOR.total_seconds():.0f}.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the instance has ended.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Start an instance and print its id.

    Example: taskhub instances start flights_delays --input '{"year": 2013}' --wait

    Example: taskhub instances start flights_delays --version 3
    """

    async def work(client: Client) -> InstanceState:
        state = await client.start(
            orchestrator,
            NO_INPUT if input is None else value_of(input, "--input"),
            instance_id=instance_id,
            version=version,
            tags=_users_tags(tags_of(tag)),
            start_at=moment_of(at, "--at"),
            limit=_limit_of(limit),
            priority=priority,
            policy=policy,
            intake_timeout=None if intake_timeout is None else timedelta(seconds=intake_timeout),
        )
        if state.name != orchestrator:
            warn(f"{state.instance_id} is an instance of orchestrator {state.name!r}, not of {orchestrator!r}")
        await warn_if_nobody(client, state.name)
        if not wait:
            return state
        if not json:
            errors.print(f"instance {state.instance_id}", soft_wrap=True)
        return await watch(client, state.instance_id, None, quiet=json)

    finish(with_client(hub, work), json=json, ended=wait)


def _users_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the user's tags. A tag with one of TaskHub's own names is refused, because TaskHub acts on it."""
    for name in tags:
        if is_own(name):
            instead = {LIMIT_TAG: "give --limit NAME=NUMBER", PRIORITY_TAG: "give --priority NUMBER"}
            way_out = instead.get(name.lower(), "use another name")
            raise typer.BadParameter(f"--tag {name}: names that start with {OWN} are TaskHub's: {way_out}")
    return tags


def _limit_of(texts: list[str] | None) -> InstanceLimit | None:
    if not texts:
        return None
    if len(texts) > 1:
        given = " ".join(f"--limit {text}" for text in texts)
        raise typer.BadParameter(f"{given}: an instance has one limit; give one --limit")
    (text,) = texts
    name, _, number = text.rpartition("=")
    if not name or re.fullmatch("-?[0-9]{1,99}", number) is None:
        raise typer.BadParameter(f"--limit {text!r} is not of the form NAME=NUMBER, such as warehouse=2")
    return InstanceLimit(name=name, instances=int(number))


def wait(
    instance_id: InstanceId,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Wait at most so many seconds. Exit status 6 after that.")
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Wait until an instance has ended, and print what it does. Exit status 1 if the instance did not complete.

    Example: taskhub instances wait flights-2013 --timeout 600
    """

    async def work(client: Client) -> InstanceState:
        return await watch(client, instance_id, timeout, quiet=json)

    finish(with_client(hub, work), json=json, ended=True)


async def warn_if_nobody(client: Client, orchestrator: str) -> None:
    """Print a warning if no worker has the orchestrator, so that the user knows why the instance does not begin."""
    members = [member for member in await client.admin.workers() if "orchestrator" in member.roles]
    if any(orchestrator in member.orchestrators for member in members):
        return
    known = sorted({name for member in members for name in member.orchestrators})
    there = f"workers here have {', '.join(known[:20]) or 'none'}" if members else "no worker is running"
    warn(f"no worker has orchestrator {orchestrator!r} now ({there}): the instance waits for one")


async def watch(client: Client, instance_id: str, timeout: float | None, *, quiet: bool) -> InstanceState:
    limit = timedelta(seconds=timeout) if timeout is not None else None
    return await waited(client, instance_id, timeout=limit, quiet=quiet)


def finish(state: InstanceState, *, json: bool, ended: bool) -> None:
    if json:
        as_json(state)
    elif ended:
        print_state(state)
    else:
        typer.echo(state.instance_id)
    if ended and state.status is not Status.COMPLETED:
        if json:
            raise typer.Exit(int(Exit.FAILED))
        fail(f"{state.instance_id} ended {state.status}", Exit.FAILED)
