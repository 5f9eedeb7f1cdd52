"""``taskhub partitions``: who serves what, and what administrators have to say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import typer

from airflow_provider_taskhub.cli import hub as hubs
from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of
from airflow_provider_taskhub.cli.output import Exit, as_json, console, fail, plural, run, table, warn
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.contract import Control, ControlKind, Member, OwnerState, PartitionState
from airflow_provider_taskhub.hub.partitions.controls import names
from airflow_provider_taskhub.hub.partitions.steering import Findings, Steering
from airflow_provider_taskhub.hub.snapshots import Waiting

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Look at partitions, and order who may serve them. Exit status 3: the hub has no partition of that number.",
)


def _once(given: list[T] | None) -> list[T] | None:
    """Each once, in whatever case it was repeated."""
    found: dict[str, T] = {}
    for item in given or ():
        found.setdefault(str(item).casefold(), item)
    return list(found.values()) or None


Partitions = Annotated[list[int], typer.Argument(help="Numbers of partitions.", metavar="PARTITION...", callback=_once)]
NODE = "A worker: name@host, name, @host for all on a host, or name@host/incarnation. Case does not count."
Nodes = Annotated[list[str], typer.Option("--node", help=f"{NODE} Repeat it for several.", callback=_once)]
Reason = Annotated[str, typer.Option(help="Why: shown with the order until it is lifted.")]


def _steer(hub: str | None, order: Callable[[Steering], Awaitable[T]], *, nodes: Sequence[str] = ()) -> T:
    """:param nodes: whom it is about. It may be meant for one that is still to come; a typing error looks the same."""
    settings = settings_of(hub=hub)

    async def work() -> tuple[T, tuple[Member, ...]]:
        async with Client.open(settings) as client:
            return await order(client.admin.partition_operations), await client.admin.workers() if nodes else ()

    done, listed = run(work())
    for node in nodes:
        if not any(names(node, member.worker) for member in listed):
            warn(f"no worker is called {node} now: the order waits for one. Listed: {_workers(listed)}")
    return done


def _workers(listed: Sequence[Member]) -> str:
    return ", ".join(sorted({member.worker.rpartition("/")[0] for member in listed})) or "nobody"


def _nothing_lifted(hub: str | None, *kinds: ControlKind) -> None:
    """An order is lifted by the name that it was given with."""
    found = [_order(control) for control in _steer(hub, lambda steering: steering.controls()) if control.kind in kinds]
    warn(f"nothing was lifted. In force: {', '.join(sorted(found))}" if found else "nothing was lifted: none in force")


def _order(control: Control) -> str:
    """An order in a few words."""
    where = "" if control.partition is None else f" from partition {control.partition}"
    match control.kind:
        case ControlKind.CAP:
            return f"cap of {control.node or 'every worker'}: {control.value}"
        case ControlKind.TURN:
            return f"at most {control.value} a scan"
        case _:
            return f"{control.node}{where}"


def _done(json: bool, told: str, **facts: object) -> None:
    if json:
        as_json(facts)
    else:
        console.print(told, soft_wrap=True)


def _listed(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, partitions))}"


@app.command()
def create(
    hub: HubName = None,
    partitions: Annotated[int | None, typer.Option(min=1, max=1024, help="Control queues; fixed for ever.")] = None,
    cap: Annotated[int | None, typer.Option(min=0, help="Partitions that a worker may hold.")] = None,
    json: AsJson = False,
) -> None:
    """Make the hub with its partitions, or complete it: queues and lease rows that are missing are made again.

    Example: taskhub partitions create --partitions 16 --cap 8
    """
    told, facts = hubs.made(hub=hub, partitions=partitions, cap=cap)

    async def complete(steering: Steering) -> None:
        await steering.complete()
        if cap is not None:
            await steering.cap(cap)

    _steer(hub, complete)
    if cap is not None:
        told, facts = f"{told}; every worker holds at most {cap}", {**facts, "cap": cap}
    _done(json, told, **facts)


@app.command()
def show(
    partition: Annotated[int | None, typer.Argument(help="Only this one.")] = None,
    node: Annotated[str | None, typer.Option(help=f"Only those of a worker. {NODE}")] = None,
    by_node: Annotated[bool, typer.Option("--by-node", help="One line a worker.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once: at once, but every owner is `unproven`.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print every partition: owner and state, epoch, handover, load, messages waiting. Exit status 3: no such one.

    Looks until each owner has renewed its lease, at most 1.5 renewal intervals, since a row outlives its owner. States:
    live; silent (the owner did not renew: dead, paused or cut off); kicked, released or new (nobody serves it yet);
    offline (by order; `ordered offline` while an owner still stands in the row); missing (no lease row); unproven.

    Example: taskhub partitions show --by-node
    """
    settings = settings_of(hub=hub)

    async def work() -> tuple[PartitionState, ...]:
        async with Client.open(settings) as client:
            return await client.admin.partitions(prove=not once)

    states = [state for state in run(work()) if partition in (None, state.partition)]
    if partition is not None and not states:
        fail(f"hub {settings.hub} has no partition {partition}", Exit.NOT_FOUND)
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
        _show_partitions(f"partitions of {settings.hub}", states)


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


@app.command()
def kick(
    partition: Annotated[int, typer.Argument(help="Number of the partition.")],
    prohibit: Annotated[
        list[str] | None, typer.Option(help=f"Bar a worker from it, too. {NODE} Repeat it for several.", callback=_once)
    ] = None,
    reason: Reason = "",
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Make the owner hand a partition over: it drains, then whoever may serve it takes it, the same worker included.

    Example: taskhub partitions kick 3 --prohibit etl@node7 --reason "slow disk"
    """
    barred = prohibit or []
    owner = _steer(hub, lambda steering: steering.kick(partition, prohibit=barred, reason=reason), nodes=barred)
    told = f"partition {partition}: {f'{owner} is asked to hand it over' if owner else 'nobody owns it'}"
    told += f"; prohibited to {', '.join(barred)}" if barred else ""
    _done(json, told, partition=partition, kicked=owner, prohibited=barred)


@app.command()
def prohibit(
    partitions: Partitions, node: Nodes, reason: Reason = "", hub: HubName = None, json: AsJson = False
) -> None:
    """Bar workers from partitions until `allow`: they hand them over within one scan and never take them.

    Example: taskhub partitions prohibit 3 4 --node etl@node7 --node @node8
    """
    _steer(hub, lambda steering: steering.prohibit(partitions, node, reason), nodes=node)
    _done(json, f"{_listed(partitions)}: prohibited to {', '.join(node)}", partitions=partitions, prohibited=node)


@app.command()
def allow(
    partitions: Partitions,
    node: Annotated[
        list[str] | None, typer.Option(help="As it was prohibited; else all bars are lifted.", callback=_once)
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Lift what `prohibit` ordered.

    Example: taskhub partitions allow 3 4 --node etl@node7
    """
    lifted = _steer(hub, lambda steering: steering.allow(partitions, node or ()))
    if not lifted:
        _nothing_lifted(hub, ControlKind.PROHIBIT)
    told = f"{_listed(partitions)}: {plural(lifted, 'bar')} lifted"
    _done(json, told, partitions=partitions, lifted=lifted)


@app.command()
def offline(partitions: Partitions, reason: Reason = "", hub: HubName = None, json: AsJson = False) -> None:
    """Let nobody serve partitions until `online`. Their messages wait.

    Example: taskhub partitions offline 3 --reason "history repair"
    """
    _steer(hub, lambda steering: steering.offline(partitions, reason))
    told = f"{_listed(partitions)}: served by nobody after one scan and the episodes that run"
    _done(json, told, partitions=partitions, offline=True)


@app.command()
def online(partitions: Partitions, hub: HubName = None, json: AsJson = False) -> None:
    """Lift what `offline` ordered.

    Example: taskhub partitions online 3
    """
    lifted = _steer(hub, lambda steering: steering.online(partitions))
    if not lifted:
        told = f"{_listed(partitions)}: not offline before"
    else:
        told = f"{_listed(partitions)}: online again"
        told += f" ({lifted} of them offline before)" if lifted < len(partitions) else ""
    _done(json, told, partitions=partitions, lifted=lifted)


@app.command()
def cap(
    value: Annotated[int | None, typer.Argument(help="Partitions; shares are fair without a cap.")] = None,
    node: Annotated[str | None, typer.Option(help=f"For these workers only. {NODE}")] = None,
    per_turn: Annotated[
        int | None, typer.Option("--per-turn", min=0, help="Partitions that a worker takes or asks for in one scan.")
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="Lift the caps instead.")] = False,
    reason: Reason = "",
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Let no worker hold more partitions than this, or take more than so many at a time.

    A cap for some workers is lifted with their --node; --lift without lifts those of every worker.

    Example: taskhub partitions cap 8 --node etl@node7, or cap --per-turn 1, or cap --lift
    """
    limits = {"cap": value, "per_turn": per_turn}
    if lift == any(limit is not None for limit in limits.values()):
        fail("give a number or --per-turn, or else --lift", Exit.USAGE)
    if node is not None and per_turn is not None:
        fail("--per-turn is for every worker: give it without --node", Exit.USAGE)
    if lift:
        _lift_caps(hub, node, json)
        return

    async def order(steering: Steering) -> None:
        if value is not None:
            await steering.cap(value, node=node, reason=reason)
        if per_turn is not None:
            await steering.turn(per_turn, reason=reason)

    _steer(hub, order, nodes=() if node is None else (node,))
    told = [] if value is None else [f"{node or 'every worker'} holds at most {value}"]
    told += [] if per_turn is None else [f"every worker takes at most {per_turn} a scan"]
    _done(json, ", ".join(told), node=node, **limits)


def _lift_caps(hub: str | None, node: str | None, json: bool) -> None:
    async def order(steering: Steering) -> list[str]:
        lifted = [] if not await steering.cap(None, node=node) else [f"cap of {node or 'every worker'}"]
        return lifted + ([] if node is not None or not await steering.turn(None) else ["limit per scan"])

    lifted = _steer(hub, order)
    if not lifted:
        _nothing_lifted(hub, ControlKind.CAP, ControlKind.TURN)
    _done(json, f"lifted: {', '.join(lifted) or 'nothing'}", node=node, lifted=len(lifted))


@app.command()
def drain_node(
    node: Annotated[str, typer.Argument(help=NODE)], reason: Reason = "", hub: HubName = None, json: AsJson = False
) -> None:
    """Let a worker, or all on a host, serve no partitions: it hands them over and takes none until `undrain-node`.

    Activities it goes on to take: to end these too, send it SIGTERM.

    Example: taskhub partitions drain-node @node7 --reason "kernel update"
    """
    _steer(hub, lambda steering: steering.drain_node(node, reason), nodes=(node,))
    _done(json, f"{node}: serves no partitions after one scan and the episodes that run", node=node, drained=True)


@app.command()
def undrain_node(node: Annotated[str, typer.Argument(help=NODE)], hub: HubName = None, json: AsJson = False) -> None:
    """Lift what `drain-node` ordered.

    Example: taskhub partitions undrain-node @node7
    """
    lifted = _steer(hub, lambda steering: steering.undrain_node(node))
    if not lifted:
        _nothing_lifted(hub, ControlKind.DRAIN)
    _done(json, f"{node}: {'back in service' if lifted else 'was not drained'}", node=node, lifted=lifted)


@app.command()
def controls(hub: HubName = None, json: AsJson = False) -> None:
    """List every order in force, with who gave it, when and why.

    Example: taskhub partitions controls --json
    """
    found = _steer(hub, lambda steering: steering.controls())
    if json:
        as_json(found)
    else:
        _show_controls(found)


def _show_controls(found: Sequence[Control]) -> None:
    if not found:
        console.print("no orders in force")
        return
    table(
        "orders in force",
        ("order", "partition", "worker", "value", "by", "at", "reason"),
        [(item.kind, item.partition, item.node or "", item.value, item.by, item.at, item.reason) for item in found],
    )


@app.command()
def detect_stale(
    seconds: Annotated[
        float, typer.Argument(min=0.0, help="1.5 renewal intervals of the slowest owner, or more.")
    ] = 15.0,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Look twice: exit status 1 when a partition shows no sign of life in between, or has no lease row.

    Exit status 2 for seconds within which a live owner need not renew its lease: looking so soon proves nothing.

    Example: taskhub partitions detect-stale 30 || page-somebody
    """
    found = _steer(hub, lambda steering: steering.stale(seconds))
    if json:
        as_json(found)
    elif found:
        table(
            f"no sign of life for {seconds:g} s",
            ("partition", "owner", "row"),
            [(item.partition, item.owner or "nobody", "deleted" if item.deleted else "unchanged") for item in found],
        )
    else:
        console.print(f"every partition that is not offline was renewed within {seconds:g} s")
    if found:
        raise typer.Exit(int(Exit.FAILED))


@app.command()
def check(
    min_nodes: Annotated[int, typer.Option(min=0, help="Live workers that there should be; drained ones are not.")] = 1,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Exit status 1 when a partition has no lease row or nobody alive to serve it, too few workers live, or an instance
    waits for something that somebody must mend.

    Says what instances wait for, with examples. To be mended: no live worker knows the orchestrator or an activity, or
    accepts the version; the worker that owns the partition cannot run it; quarantine; a partition that is offline.
    Instances that are suspended, start later, or await an event, a timer or a child wait as they are meant to. A
    triggerer that is missing now is told, too.

    At most 500 instances of each open status are read, and 100 running ones looked at ("at least" says so).

    Also when workers were given different lease times: partitions of one that renews seldom are taken late by all.

    Looks until every worker and every owner has renewed, at most 1.5 renewal intervals of the slowest: who does
    not by then counts as dead. Ends after two minutes: who renews more seldom than that is not called dead, and
    its partitions are reported as those of one that may live or not. Lists the orders in force, too.

    Example: taskhub partitions check --min-nodes 3 --json
    """
    settings = settings_of(hub=hub)

    async def work() -> tuple[Findings, Waiting]:
        async with Client.open(settings) as client:
            findings = await client.admin.partition_operations.check(floor=min_nodes)
            return findings, await client.admin.waiting_instances(members=findings.members, watching=findings.watching)

    findings, waiting = run(work())
    well = not findings.problems and not waiting.faults
    if json:
        found = {"problems": findings.problems, "live": findings.live, "controls": findings.controls}
        as_json(found | {"waiting": _waiting(waiting), "waiting_complete": waiting.complete})
    else:
        for problem in findings.problems:
            console.print(problem, soft_wrap=True)
        if well:
            console.print(f"all is well: {plural(len(findings.live), 'live worker')}")
        _show_waiting(waiting)
        if findings.controls:
            _show_controls(findings.controls)
    if not well:
        raise typer.Exit(int(Exit.FAILED))


def _waiting(waiting: Waiting) -> list[dict[str, object]]:
    return [
        {"reason": reason, "count": count, "fault": reason.is_fault, "examples": waiting.examples[reason]}
        for reason, count in waiting.counts.items()
    ]


def _show_waiting(waiting: Waiting) -> None:
    """What must be mended comes first."""
    least = "" if waiting.complete else "at least "
    for reason, count in sorted(waiting.counts.items(), key=lambda item: not item[0].is_fault):
        console.print(f"{least}{plural(count, 'instance')} waiting, {reason}:", soft_wrap=True)
        for example in waiting.examples[reason]:
            console.print(f"  {example.instance_id}: {example.text}", soft_wrap=True)
