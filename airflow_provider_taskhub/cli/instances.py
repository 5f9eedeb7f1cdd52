"""``taskhub instances``: start, watch and steer orchestrations."""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of
from airflow_provider_taskhub.cli.output import Exit, as_json, console, errors, fail, plain, plural, run, table, warn
from airflow_provider_taskhub.cli.watching import progress_of, terminated, told, waited
from airflow_provider_taskhub.client import Client, InstancePage, PurgeResult
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    HistoryEvent,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceCreated,
    SubOrchestrationInstanceFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.failures import chain, place_of
from airflow_provider_taskhub.engine.identity import HALF, generation_of, same_start
from airflow_provider_taskhub.errors import InputError, InstanceNotFound, StorageError, TaskHubError
from airflow_provider_taskhub.hub.contract import (
    ActivityRecord,
    InstanceState,
    Member,
    Ownership,
    StartPolicy,
)
from airflow_provider_taskhub.hub.waiting import AWAITED, is_foreign, unreadable_history
from airflow_provider_taskhub.masking import masked, masked_json

app = typer.Typer(no_args_is_help=True, help="Start, watch and steer orchestrations.")

InstanceId = Annotated[str, typer.Argument(help="Id of the instance.")]
Statuses = Annotated[list[Status] | None, typer.Option("--status", case_sensitive=False, help="Only these; repeats.")]
Prefix = Annotated[str | None, typer.Option(help="Only ids that start so.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only with NAME=VALUE; repeats.")]
CreatedFrom = Annotated[str | None, typer.Option(help="Only from this time on, ISO 8601; UTC without a zone.")]
CreatedTo = Annotated[str | None, typer.Option(help="Only up to this time.")]
Reason = Annotated[str, typer.Option(help="Becomes the instance's output until it ends.")]
MAX_LISTED = 1000
MAX_SORTED = 5000
"""Instances that are read at most to sort them by age: the store returns them by id."""
MAX_CHILDREN = 20
"""Children that `show` lists."""

NEWEST = "newest:"
"""Begins the continuation of a page that shows the newest first."""


class Order(StrEnum):
    """How a list is sorted."""

    NEWEST = "newest"
    ID = "id"


@app.command("list")
def list_(
    status: Statuses = None,
    prefix: Prefix = None,
    tag: Tags = None,
    created_from: CreatedFrom = None,
    created_to: CreatedTo = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED)] = 50,
    order: Annotated[Order | None, typer.Option(help="newest if not given; with --json id.")] = None,
    continuation: Annotated[str | None, typer.Option(help="The next page: from what a page says.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """List instances, the newest first. With --json a page at a time, by id, unless --order newest is given.

    Example: taskhub instances list --status Running --status Failed --json
    """

    by = order or (Order.ID if json else Order.NEWEST)
    if continuation is not None:  # a page goes on in the order of the one before
        by = Order.NEWEST if continuation.startswith(NEWEST) else Order.ID
    where: dict[str, Any] = {
        "statuses": status or (),
        "prefix": prefix,
        "tags": _tags(tag),
        "created_from": _time(created_from, "--created-from"),
        "created_to": _time(created_to, "--created-to"),
    }

    async def work(client: Client) -> Any:
        if by is Order.ID:
            return await client.list(**where, limit=limit, continuation=continuation)
        return await _newest(client, limit, where, continuation)

    page = _with_client(hub, work)
    if json:
        as_json({"instances": page.instances, "continuation": page.continuation})
        return
    table(
        "instances",
        ("id", "orchestrator", "status", "created", "ended", "custom status"),
        [
            (i.instance_id, i.name, i.status, _second(i.created), _second(i.completed), i.custom_status)
            for i in page.instances
        ],
    )
    if page.continuation:
        console.print(f"more: --continuation {shlex.quote(page.continuation)}", soft_wrap=True)


async def _newest(client: Client, limit: int, where: dict[str, Any], after: str | None) -> InstancePage:
    """A page of instances, the newest first. Of a larger hub only the first :data:`MAX_SORTED` by id are sorted.

    :param after: the continuation of the page before. :raises InputError: when it is not one.
    """
    found: list[InstanceState] = []
    continuation: str | None = None
    while len(found) < MAX_SORTED:
        page = await client.list(**where, limit=MAX_LISTED, continuation=continuation)
        found.extend(page.instances)
        continuation = page.continuation
        if continuation is None:
            break
    else:
        warn(f"these are the newest of the first {MAX_SORTED} by id: choose with --prefix, --status or --created-from")
    if after is not None:
        age, _, last = after.removeprefix(NEWEST).partition(":")
        if not age.removeprefix("-").isdigit():
            raise InputError(f"--continuation {after!r}: no page says so")
        found = [state for state in found if _age(state) > (int(age), last)]
    found.sort(key=_age)
    shown = found[:limit]
    rest = f"{NEWEST}{_age(shown[-1])[0]}:{shown[-1].instance_id}" if len(found) > len(shown) else None
    return InstancePage(instances=tuple(shown), continuation=rest)


def _age(state: InstanceState) -> tuple[int, str]:
    return -(state.created.ticks if state.created else 0), state.instance_id


def _second(time: Timestamp | None) -> str:
    """A time for people, to the second."""
    return "" if time is None else f"{time.text()[:19]}Z"


@app.command()
def show(
    instance_id: InstanceId,
    once: Annotated[
        bool, typer.Option("--once", help="Believe that every worker listed lives: answers at once.")
    ] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print one instance: state, input and output, recorded activities, history, and what it waits for.

    Looks until every worker listed has renewed its row, at most 1.5 renewal intervals, unless the instance has ended:
    a worker that has died stays listed for a while.

    What cannot be read of the history is listed (with --json under "unreadable"); the exit status is 0 all the same.
    Such an instance does not go on: terminate it, then purge it.

    Values of secrets are shown as ***; --json prints everything as it is stored.

    Example: taskhub instances show flights-2013
    """

    async def work(client: Client) -> Any:
        state = await client.get(instance_id)
        if state is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {client.describe()}")
        served = None if state.status.is_final else await client.admin.routes.refresh(instance_id)
        activities, history = (
            await client.instance(instance_id).activities(),
            await client.instance(instance_id).readable_history(),
        )
        if not json:
            _show(state, activities, *history)
        members = None if once or served is None else await client.admin.workers(prove=True)
        waits = await client.instance(instance_id).waiting(members=members)
        if history[1] and not state.status.is_final:
            waits = (unreadable_history(instance_id, history[1][0]), *(w for w in waits if w.reason not in AWAITED))
        if not json and served is not None:
            _print_served(served, members)
        if not json and waits:
            console.print(f"waits: {told(waits)}", soft_wrap=True)
        return state, served, activities, history, waits

    state, served, activities, (history, unreadable), waits = _with_client(hub, work)
    if json:
        events = [{"type": event.event_type.name, **plain(event)} for event in history]
        worker = None if served is None else served.owner
        shown = {"instance": state, "worker": worker, "served": served, "activities": activities, "history": events}
        as_json(shown | {"unreadable": unreadable, "waits": waits})


def _show(
    state: InstanceState,
    activities: tuple[ActivityRecord, ...],
    history: tuple[HistoryEvent, ...],
    unreadable: tuple[str, ...],
) -> None:
    _print_state(state)
    if activities:
        _print_activities(activities, state.execution_id)
    table(
        f"history ({len(history)} events)",
        ("event", "id", "time", "what"),
        [(event.event_type.name, event.event_id, _second(_time_of(event)), _what(event)) for event in history],
    )
    for line in unreadable:
        warn(f"unreadable: {line}")
    if not state.status.is_final:
        _print_children(history)
    for failure in chain(state.failure):
        if failure.stack_trace:
            console.print(f"stack trace of {failure.error_type}", style="table.title", soft_wrap=True)
            typer.echo(masked(failure.stack_trace).rstrip())


@app.command()
def start(
    orchestrator: Annotated[str, typer.Argument(help="Name that a worker's app declares.")],
    input: Annotated[str | None, typer.Option("--input", help="One JSON value.")] = None,
    instance_id: Annotated[str | None, typer.Option("--id", help="Instance id; else a new one.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; repeats.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Not before this time, ISO 8601; UTC without a zone.")] = None,
    version: Annotated[str, typer.Option(help="Goes on only on a worker whose app declares it compatible.")] = "",
    policy: Annotated[StartPolicy, typer.Option(help="What to do when the id is taken.")] = StartPolicy.REFUSE,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Start an instance; its id is printed.

    Example: taskhub instances start flights_delays --input '{"year": 2013}' --wait

    Example: taskhub instances start flights_delays --version 3
    """

    async def work(client: Client) -> InstanceState:
        state = await client.start(
            orchestrator,
            _value(input, "--input"),
            instance_id=instance_id,
            version=version,
            tags=_tags(tag),
            start_at=_time(at, "--at"),
            policy=policy,
        )
        if state.name != orchestrator:
            warn(f"{state.instance_id} is an instance of orchestrator {state.name!r}, not of {orchestrator!r}")
        await _warn_if_nobody(client, state.name)
        if not wait:
            return state
        if not json:
            errors.print(f"instance {state.instance_id}", soft_wrap=True)
        return await _watch(client, state.instance_id, None, quiet=json)

    _finish(_with_client(hub, work), json=json, ended=wait)


@app.command()
def wait(
    instance_id: InstanceId,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds; exit status 6 when they are over.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Wait until an instance has ended, showing what it does. Exit status 1 unless it completed.

    Example: taskhub instances wait flights-2013 --timeout 600
    """

    async def work(client: Client) -> InstanceState:
        return await _watch(client, instance_id, timeout, quiet=json)

    _finish(_with_client(hub, work), json=json, ended=True)


@app.command()
def logs(
    instance_id: InstanceId,
    activity: Annotated[str | None, typer.Option(help="Only of activities of this name.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last lines of each attempt.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print what the attempts of an instance's activities wrote. Values of secrets are shown as ***.

    Example: taskhub instances logs flights-2013 --activity monthly_delays --last 50
    """

    async def work(client: Client) -> tuple[str | None, list[dict[str, Any]]]:
        state = await client.get(instance_id, payloads=False)
        if state is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {client.describe()}")
        found = await _logged(client, state)
        if activity and (nameless := sum(not one["activity"] for one in found)):
            warn(f"{plural(nameless, 'log')} of earlier generations left out: their activities' names are not known")
        wanted = [one for one in found if activity in (None, one["activity"])]
        return state.execution_id, [
            one | {"log": masked(await client.instance(state.instance_id).log(one["log"], last=last))} for one in wanted
        ]

    present, found = _with_client(hub, work)
    if json:
        as_json(found)
        return
    several = any(one["execution_id"] != present for one in found)
    for one in found:
        generation = f", generation {one['generation']}" if several else ""
        heading = f"{one['activity'] or 'activity'} #{one['task_id']}, attempt {one['attempt']}{generation}"
        console.print(f"── {heading} ──", soft_wrap=True)
        typer.echo(one["log"])


@app.command()
def terminate(
    instance_id: InstanceId,
    reason: Annotated[str, typer.Option(help="Becomes the instance's output.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing that has a record runs any more.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds of --wait; exit status 6 when they are over.")
    ] = None,
    recurse: Annotated[bool, typer.Option("--recurse/--no-recurse", help="Children that still run end too.")] = True,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """End an instance now, and its children.

    Activities without a record are stopped at their next renewal (1 s; on Azure 10 s).

    Example: taskhub instances terminate flights-2013 --reason "wrong year" --wait
    """

    async def work(client: Client) -> InstanceState:
        if not wait:
            return await client.terminate(instance_id, reason, recurse=recurse)
        limit = None if timeout is None else timedelta(seconds=timeout)
        return await terminated(client, instance_id, reason, recurse=recurse, timeout=limit, quiet=json)

    state = _with_client(hub, work)
    if json:
        as_json(state)
        return
    console.print(f"{instance_id}: {state.status if state.status.is_final else 'asked to end'}", soft_wrap=True)


@app.command()
def suspend(instance_id: InstanceId, reason: Reason = "", hub: HubName = None, json: AsJson = False) -> None:
    """Hold an instance: activities that run go on, but it decides nothing before it is resumed.

    Example: taskhub instances suspend flights-2013 --reason "the cluster is being moved"
    """

    async def work(client: Client) -> InstanceState:
        return await client.suspend(instance_id, reason)

    _steered(_with_client(hub, work), "asked to hold", json=json)


@app.command()
def resume(instance_id: InstanceId, reason: Reason = "", hub: HubName = None, json: AsJson = False) -> None:
    """Let a suspended instance go on, with everything that has come meanwhile.

    Example: taskhub instances resume flights-2013
    """

    async def work(client: Client) -> InstanceState:
        return await client.resume(instance_id, reason)

    _steered(_with_client(hub, work), "asked to go on", json=json)


@app.command()
def rewind(
    instance_id: InstanceId,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended again.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Let a failed instance go on from before its failure; what had completed by then is not done again.

    What it did after the failure, such as cleaning up, is taken back. A failure that it handled stays handled if it
    decided something after that and before the one that it ended with; else what failed is done again too.

    Example: taskhub instances rewind flights-2013 --reason "the table is there now" --wait
    """

    async def work(client: Client) -> InstanceState:
        state = await client.rewind(instance_id, reason)
        return await _watch(client, instance_id, None, quiet=json) if wait else state

    state = _with_client(hub, work)
    if wait:
        _finish(state, json=json, ended=True)
    else:
        _steered(state, "rewound", json=json)


@app.command()
def restart(
    instance_id: InstanceId,
    new_id: Annotated[bool, typer.Option("--new-id", help="Under a new id, whatever the old one does.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Start an instance anew, with the input, version and tags that it had; its id is printed.

    Example: taskhub instances restart flights-2013 --wait
    """

    async def work(client: Client) -> InstanceState:
        state = await client.restart(instance_id, new_id=new_id)
        await _warn_if_nobody(client, state.name)
        return await _watch(client, state.instance_id, None, quiet=json) if wait else state

    _finish(_with_client(hub, work), json=json, ended=wait)


@app.command()
def purge(
    instance_ids: Annotated[list[str] | None, typer.Argument(help="Ids; without them all that match.")] = None,
    status: Statuses = None,
    prefix: Prefix = None,
    tag: Tags = None,
    created_from: CreatedFrom = None,
    created_to: CreatedTo = None,
    every: Annotated[bool, typer.Option("--all", help="All that have ended, without any other option.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="At most so many a second.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds; exit status 6 when some are left.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Remove ended instances with all that is stored of them: history, payloads, records, logs.

    Cut off anywhere, the same command does the rest. Children are instances of their own.

    Example: taskhub instances purge flights-2013

    Example: taskhub instances purge --status Completed --created-to 2026-10-01 --rate 50 --yes
    """
    where: dict[str, Any] = {
        "statuses": status or (),
        "prefix": prefix,
        "tags": _tags(tag),
        "created_from": _time(created_from, "--created-from"),
        "created_to": _time(created_to, "--created-to"),
    }
    chosen = any(value for value in where.values())
    if instance_ids and (chosen or every):
        raise typer.BadParameter("give ids, or options that choose instances, not both")
    if not instance_ids and chosen == every:
        raise typer.BadParameter("say which: ids, or options such as --status and --created-to, or --all alone")
    if instance_ids:
        _purge_these(instance_ids, hub, json=json)
        return
    if not yes and not typer.confirm("Remove all ended instances that match, for ever?"):
        fail("nothing was purged", Exit.FAILED)

    async def work(client: Client) -> PurgeResult:
        until = timedelta(seconds=timeout) if timeout is not None else None
        with _counting(quiet=json) as progress:
            return await client.purge_many(**where, limit=limit, rate=rate, timeout=until, progress=progress)

    result = _with_client(hub, work)
    if json:
        as_json(result)
    else:
        console.print(f"{result.purged} purged" + ("" if result.complete else ", more are left"), soft_wrap=True)
    if result.failed:
        fail("\n".join(f"{one!r} cannot be purged: {error}" for one, error in result.failed.items()), Exit.UNAVAILABLE)
    if not result.complete and limit is None:
        raise typer.Exit(int(Exit.TIMEOUT))


@app.command("raise-event")
def raise_event(
    instance_id: InstanceId,
    name: Annotated[str, typer.Argument(help="Name of the event.")],
    data: Annotated[str | None, typer.Option("--data", help="One JSON value.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Send an external event to an instance.

    Example: taskhub instances raise-event flights-2013 approve --data '{"by": "ann"}'
    """

    async def work(client: Client) -> None:
        await client.raise_event(instance_id, name, _value(data, "--data"))

    _with_client(hub, work)
    if json:
        as_json({"instance_id": instance_id, "event": name, "sent": True})
        return
    console.print(f"{instance_id}: event {name} sent", soft_wrap=True)


# --- parts --------------------------------------------------------------------------------------------------------


def _steered(state: InstanceState, what: str, *, json: bool) -> None:
    if json:
        as_json(state)
    else:
        console.print(f"{state.instance_id}: {what}", soft_wrap=True)


def _purge_these(instance_ids: list[str], hub: str | None, *, json: bool) -> None:
    async def work(client: Client) -> tuple[dict[str, bool], dict[str, TaskHubError]]:
        done: dict[str, bool] = {}
        failed: dict[str, TaskHubError] = {}
        for instance_id in instance_ids:
            try:
                done[instance_id] = done.get(instance_id) or await client.purge(instance_id)
            except (InputError, StorageError) as error:  # one of many that cannot be: the others nevertheless
                failed[instance_id] = error
        return done, failed

    done, failed = _with_client(hub, work)
    if json:
        shown = {instance_id: str(error) for instance_id, error in failed.items()}
        as_json({"purged": sum(done.values()), "complete": all(done.values()) and not failed, "failed": shown})
    for instance_id in () if json else done:
        if done[instance_id]:
            console.print(f"{instance_id}: purged", soft_wrap=True)
    wrong = [f"{instance_id!r} cannot be purged: {error}" for instance_id, error in failed.items()]
    if missing := [instance_id for instance_id, purged in done.items() if not purged]:
        wrong.append(f"no instance {', '.join(map(repr, missing))} in hub {settings_of(hub=hub).hub}")
    if wrong:
        unavailable = any(isinstance(error, StorageError) for error in failed.values())
        code = Exit.UNAVAILABLE if unavailable else Exit.USAGE if failed else Exit.NOT_FOUND
        fail("\n".join(wrong), code)


@contextmanager
def _counting(*, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A line that says how far it has come."""
    if quiet or not errors.is_terminal:
        yield lambda purged: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        line = progress.add_task("0 purged")
        yield lambda purged: progress.update(line, description=f"{purged} purged")


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{option} {text!r} is not a time such as 2026-10-01 or 2026-10-01T12:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _with_client(hub: str | None, work: Callable[[Client], Any]) -> Any:
    settings = settings_of(hub=hub)

    async def opened() -> Any:
        async with Client.open(settings) as client:
            return await work(client)

    return run(opened())


async def _warn_if_nobody(client: Client, orchestrator: str) -> None:
    """The instance waits for a worker that has its orchestrator; say so now and not in ten minutes."""
    members = [member for member in await client.admin.workers() if "orchestrator" in member.roles]
    if any(orchestrator in member.orchestrators for member in members):
        return
    known = sorted({name for member in members for name in member.orchestrators})
    there = f"workers here have {', '.join(known[:20]) or 'none'}" if members else "no worker is running"
    warn(f"nobody has orchestrator {orchestrator!r} now ({there}): the instance waits")


def _value(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option} is not JSON: {error}. Quote texts twice, as in '\"World\"'") from None


def _tags(pairs: list[str] | None) -> dict[str, str]:
    tags = {}
    for pair in pairs or ():
        name, found, value = pair.partition("=")
        if not found or not name:
            raise InputError(f"--tag {pair!r} is not NAME=VALUE")
        tags[name] = value
    return tags


async def _watch(client: Client, instance_id: str, timeout: float | None, *, quiet: bool) -> InstanceState:
    limit = timedelta(seconds=timeout) if timeout is not None else None
    return await waited(client, instance_id, timeout=limit, quiet=quiet)


def _finish(state: InstanceState, *, json: bool, ended: bool) -> None:
    if json:
        as_json(state)
    elif ended:
        _print_state(state)
    else:
        typer.echo(state.instance_id)
    if ended and state.status is not Status.COMPLETED:
        if json:
            raise typer.Exit(int(Exit.FAILED))
        fail(f"{state.instance_id} ended {state.status}", Exit.FAILED)


def _print_state(state: InstanceState) -> None:
    rows: list[tuple[str, object]] = [
        ("orchestrator", state.name + (f" version {state.version}" if state.version else "")),
        ("status", state.status),
        ("created", _second(state.created)),
        ("ended", _second(state.completed)),
        ("custom status", _short(state.custom_status)),
        ("tags", masked(", ".join(f"{name}={value}" for name, value in (state.tags or {}).items()))),
        ("input", _short(state.input)),
        # before the end, the column holds why the instance was suspended or resumed
        ("output", _short(state.output) if state.status.is_final else None),
        ("failed at", place_of(state.failure)),
    ]
    table(f"instance {state.instance_id}", ("", ""), [row for row in rows if row[1] not in (None, "")])


def _print_served(served: Ownership, members: Sequence[Member] | None) -> None:
    """:param members: workers, proven to live or not; None: nothing is proven."""
    if served.owner is None:
        told = f"{served.state}, served by nobody"
    elif members is None or is_foreign(served):  # workers of .NET are no members
        told = f"owned by {served.owner}; whether it lives: taskhub partitions show {served.partition}"
    else:
        lives = any(member.alive and member.worker == served.owner for member in members)
        told = f"owned by {served.owner}, which is {'alive' if lives else 'not alive'}"
    console.print(f"partition {served.partition}: {told}", soft_wrap=True, highlight=False)


def _print_children(history: Sequence[HistoryEvent]) -> None:
    """Children that the instance awaits, with their ids."""
    ended = {
        event.task_scheduled_id
        for event in history
        if isinstance(event, SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed)
    }
    created = [event for event in history if isinstance(event, SubOrchestrationInstanceCreated)]
    running = [(event.name, event.instance_id) for event in created if event.event_id not in ended]
    if running:
        more = f", the first {MAX_CHILDREN}" if len(running) > MAX_CHILDREN else ""
        table(f"awaited children ({len(running)}{more})", ("orchestrator", "id"), running[:MAX_CHILDREN])


async def _logged(client: Client, state: InstanceState) -> list[dict[str, Any]]:
    """Attempts that have a log, with its name as ``log``, in the order of their generations, tasks and attempts.

    The history has only the present generation. In earlier ones the number of an activity without a record may mean
    another activity, so its name is "".
    """
    records = {record.log: record.name for record in await client.instance(state.instance_id).activities()}
    events, _ = await client.instance(state.instance_id).readable_history()
    names = {event.event_id: getattr(event, "name", "") for event in events}
    paths = [(*log.split("/")[-2:], log) for log in await client.instance(state.instance_id).logs()]
    generations = _generations((execution for execution, _, _ in paths), state.execution_id)
    order = [*generations]
    found = []
    for execution, file, log in sorted(paths, key=lambda path: (order.index(path[0]), *path[1:])):
        task_id, attempt = map(int, file.removesuffix(".log").split("-"))
        called = names.get(task_id, "") if execution == state.execution_id else ""
        found.append(
            {
                "activity": records.get(log, called),
                "task_id": task_id,
                "attempt": attempt,
                "execution_id": execution,
                "generation": generations[execution],
                "log": log,
            }
        )
    return found


def _print_activities(records: Sequence[ActivityRecord], execution_id: str | None) -> None:
    """Attempts in the order of their executions, tasks and attempts.

    :param execution_id: of the instance now. Where records of other executions are there, a column names each one's.
    """
    generations = _generations((record.instance.execution_id or "" for record in records), execution_id)
    columns = ("generation",) if len(generations) > 1 else ()
    order = {one: position for position, one in enumerate(generations)}
    told = sorted(records, key=lambda r: (order[r.instance.execution_id or ""], r.task_id, r.attempt))
    table(
        "recorded activities",
        (*columns, "activity", "task", "attempt", "state", "progress", "worker", "claimed", "ended"),
        [
            (
                *(generations[r.instance.execution_id or ""] for _ in columns),
                *(
                    r.name,
                    r.task_id,
                    r.attempt,
                    r.state,
                    progress_of(r),
                    r.worker,
                    _second(r.claimed),
                    _second(r.ended),
                ),
            )
            for r in told
        ],
    )


def _generations(executions: Iterable[str], execution_id: str | None) -> dict[str, str]:
    """How each execution is shown, in order: generations of earlier starts first, then those of the present start.

    A generation has the number of times that its start has continued as new, from 1. One of another start, as after a
    rewind or a start with the same id, has the beginning of its execution id as well.
    """
    order = sorted({*executions}, key=lambda one: (same_start(one, execution_id), one[:HALF], generation_of(one), one))
    return {
        one: f"{generation_of(one) + 1}" + ("" if same_start(one, execution_id) else f" of {one[:8]}") for one in order
    }


def _time_of(event: HistoryEvent) -> Timestamp:
    return event.fired_at if isinstance(event, TimerFired) else event.timestamp


def _what(event: Any) -> str:
    for name in ("name", "task_scheduled_id", "timer_id", "reason"):
        value = getattr(event, name, None)
        if value is not None:
            return f"answers {value}" if name in ("task_scheduled_id", "timer_id") else str(value)
    status = getattr(event, "status", None)
    return str(status) if status else ""


def _short(text: str | None, limit: int = 2000) -> str | None:
    """A text of user code as ``show`` prints it: without the values of secrets, and not longer than the limit."""
    text = None if text is None else masked_json(text)
    return text if text is None or len(text) <= limit else f"{text[:limit]}… ({len(text)} characters; --json has all)"
