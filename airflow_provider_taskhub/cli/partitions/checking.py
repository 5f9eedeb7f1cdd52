"""``taskhub partitions detect-stale`` and ``check``: tell monitors by the exit status whether the hub has faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from airflow_provider_taskhub.cli.limits import different, intake_line, shown_intake
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import Exit, as_json, console, plural, table, time_text, warn
from airflow_provider_taskhub.cli.partitions.orders import (
    carry_out,
)
from airflow_provider_taskhub.cli.partitions.showing import show_controls
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.codec import one_line
from airflow_provider_taskhub.hub.history.places import LimitKind, LimitState
from airflow_provider_taskhub.hub.partitions.capabilities import listed
from airflow_provider_taskhub.hub.partitions.operations import Findings
from airflow_provider_taskhub.hub.waiting.snapshot import WaitingInstances
from airflow_provider_taskhub.intake_limit import IntakeLimit

_MOST_NAMES = 5


@dataclass(frozen=True, slots=True)
class _Waiting:
    """About how many calls wait: for memory, by activity; for slots, by the activities that wait in the same queues."""

    memory: Mapping[str, int]
    slots: Mapping[tuple[str, ...], int]

    def shown(self) -> dict[str, object]:
        """Return what ``--json`` prints."""
        slots = [{"activities": names, "waiting": count} for names, count in self.slots.items()]
        return {"memory": self.memory, "waiting_for_slots": slots}

    def lines(self) -> Iterator[str]:
        """Yield one line for each."""
        for name, count in sorted(self.memory.items()):
            yield f"{plural(count, 'call')} of {name!r} {'waits' if count == 1 else 'wait'} for memory"
        for names, count in self.slots.items():
            what = listed(map(repr, names), _MOST_NAMES)
            yield f"{plural(count, 'call')} of {what} {'waits' if count == 1 else 'wait'} for a slot"


def detect_stale(
    seconds: Annotated[
        float, typer.Argument(min=0.0, help="Seconds between the reads: at least 1.5 renewals of the slowest owner.")
    ] = 15.0,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Read the leases of all partitions twice. Exit status 1 if a lease was not renewed in between, or has no row.

    Exit status 2 if SECONDS is so short that a live owner would not always renew its lease in this time.

    Example: taskhub partitions detect-stale 30 || page-somebody
    """
    found = carry_out(hub, lambda operations: operations.stale(seconds))
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


def check(
    min_nodes: Annotated[int, typer.Option(min=0, help="Minimum of live workers. Drained workers do not count.")] = 1,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Check partitions, workers and waiting instances. Exit status 1 if somebody must fix something.

    Faults of partitions and workers: a partition has no lease row or no live owner; there are fewer live workers than
    --min-nodes; workers have different lease times, so that one slow worker delays failover for all.

    Faults of instances: no live worker knows the orchestrator or an activity, or accepts the version; the worker that
    owns the partition cannot run the instance; the instance is in quarantine; its partition is offline.

    The command also lists instances that wait without a fault: they are suspended, start later, await an event, a timer
    or a child, or belong to an Airflow task while no triggerer watches the hub. It also says about how many calls of
    activities and instances wait for each limit, for memory, and for a slot. It warns if workers or starts give
    different numbers for a limit. If the hub has an intake limit, a line says how many messages wait for a worker.

    The command reads at most 500 instances of each status that is not final, and reads at most 100 running ones in
    detail. If there are more, the counts say "at least".

    A live worker renews its row, and a live owner renews its lease, at regular intervals. The command waits until every
    worker and every owner has renewed, at most 1.5 renewal intervals of the slowest and two minutes in all. A worker
    that has not renewed by then counts as dead. If a worker renews less often than every two minutes, its partitions
    are reported as unknown. The command also lists the orders of administrators that are in force.

    Example: taskhub partitions check --min-nodes 3 --json
    """

    async def work(
        client: Client,
    ) -> tuple[Findings, WaitingInstances, tuple[LimitState, ...], _Waiting, IntakeLimit | None]:
        admin = client.admin
        findings = await admin.partition_operations.check(floor=min_nodes)
        waiting = await admin.waiting_instances(members=findings.members, watching=findings.watching)
        calls = _Waiting(
            memory=await admin.waiting_for_memory(findings.members),
            slots=await admin.waiting_for_slots(findings.members),
        )
        return findings, waiting, await admin.limits(), calls, await admin.intake()

    findings, waiting, limits, calls, intake = with_client(hub, work)
    warnings = different(findings.members, limits, SYSTEM_CLOCK.utc_now())
    limits = tuple(one for one in limits if one.waiting)
    well = not findings.problems and not waiting.faults
    if json:
        found: dict[str, object] = {"problems": findings.problems, "live": findings.live, "controls": findings.controls}
        found |= {"waiting": _waiting(waiting), "waiting_complete": waiting.complete}
        found |= {"limits": [_limit(one) for one in limits], **calls.shown(), "warnings": warnings}
        as_json(found | {"intake": None if intake is None else shown_intake(intake)})
    else:
        for problem in findings.problems:
            console.print(problem, soft_wrap=True)
        if well:
            verdict = "no problem, but a warning" if warnings else "all is well"
            console.print(f"{verdict}: {plural(len(findings.live), 'live worker')}")
        for line in warnings:
            warn(line)
        _show_waiting(waiting)
        of_intake = () if intake is None else (intake_line(intake),)
        for line in (*map(_waits_for, limits), *calls.lines(), *of_intake):
            console.print(one_line(line), soft_wrap=True)
        if findings.controls:
            show_controls(findings.controls)
    if not well:
        raise typer.Exit(int(Exit.FAILED))


def _waiting(waiting: WaitingInstances) -> list[dict[str, object]]:
    return [
        {"reason": reason, "count": count, "fault": reason.is_fault, "examples": waiting.examples[reason]}
        for reason, count in waiting.counts.items()
    ]


def _limit(state: LimitState) -> dict[str, object]:
    return {
        "kind": state.kind,
        "name": state.name,
        "limit": state.shown,
        "running": len(state.holders),
        "waiting": state.waiting,
        "oldest": state.oldest,
    }


def _waits_for(state: LimitState) -> str:
    """Return one line about how many wait for a limit."""
    count, since = state.waiting or 0, f", the first since {time_text(state.oldest)}" if state.oldest else ""
    who = plural(count, "instance" if state.kind is LimitKind.INSTANCES else "call")
    what = "rate" if state.kind is LimitKind.RATE else "limit"
    return f"{who} {'waits' if count == 1 else 'wait'} for the {what} {state.name!r} ({state.shown}){since}"


def _show_waiting(waiting: WaitingInstances) -> None:
    """Print how many instances wait for each reason, with examples. Reasons that are faults come first."""
    least = "" if waiting.complete else "at least "
    for reason, count in sorted(waiting.counts.items(), key=lambda item: not item[0].is_fault):
        console.print(f"{least}{plural(count, 'instance')} waiting, {reason}:", soft_wrap=True)
        for example in waiting.examples[reason]:
            console.print(f"  {example.instance_id}: {example.text}", soft_wrap=True)
        if more := count - len(waiting.examples[reason]):
            console.print(f"  and {least}{more} more")
