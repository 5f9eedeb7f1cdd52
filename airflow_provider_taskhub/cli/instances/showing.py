"""``taskhub instances show``: prints everything that the hub knows about one instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.instances.attempts import print_activities, proved_running, waiting_again
from airflow_provider_taskhub.cli.instances.options import InstanceId
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, console, plain, table, time_text, warn
from airflow_provider_taskhub.cli.watching import told
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.children import awaited
from airflow_provider_taskhub.engine.events import HistoryEvent, TimerFired
from airflow_provider_taskhub.engine.failures import chain, place_of
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    InstanceState,
    Member,
    Ownership,
)
from airflow_provider_taskhub.hub.waiting.reasons import AWAITED, is_foreign, unreadable_history
from airflow_provider_taskhub.masking import masked, masked_json

MAX_CHILDREN = 20
"""The largest number of children that ``show`` lists."""


def show(
    instance_id: InstanceId,
    once: Annotated[bool, typer.Option("--once", help="Answer at once. Every listed worker counts as alive.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print one instance: state, input and output, recorded activities, history, and what it waits for.

    A dead worker stays listed for a while. The command therefore waits until every listed worker has renewed its row,
    at most 1.5 renewal intervals. If the instance has ended, the command does not wait. Until then, the state of an
    activity is "running, not proved". After the wait, the last lines say which ones run and which ones were lost.

    If a part of the history cannot be read, the command lists that part (with --json under "unreadable"). The exit
    status is 0. Such an instance cannot continue: terminate it, then purge it.

    Secrets are shown as ***. With --json, everything is printed as it is stored.

    Example: taskhub instances show flights-2013
    """

    async def work(client: Client) -> Any:
        state = await client.get(instance_id)
        if state is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {client.describe()}")
        served = None if state.status.is_final else await client.admin.routes.refresh(instance_id)
        history = await client.instance(instance_id).readable_history()
        if not state.status.is_final:
            await client.admin.workers()  # which workers are listed: attempts of the others are lost
        activities = await client.instance(instance_id).shown_activities(patience=0.0)
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
        if members is not None:
            activities = await client.instance(instance_id).shown_activities(patience=0.0)
            if not json and (running := proved_running(activities)):
                console.print(f"running on a worker that lives: {running}", soft_wrap=True)
        if not json and not state.status.is_final and (lost := waiting_again(activities)):
            console.print(f"lost with its worker, and waits for a free slot: {lost}", soft_wrap=True)
        return state, served, activities, history, waits

    state, served, activities, (history, unreadable), waits = with_client(hub, work)
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
    print_state(state)
    if activities:
        print_activities(activities, state.execution_id)
    table(
        f"history ({len(history)} events)",
        ("event", "id", "time", "what"),
        [(event.event_type.name, event.event_id, time_text(_time_of(event)), _what(event)) for event in history],
    )
    for line in unreadable:
        warn(f"unreadable: {line}")
    if not state.status.is_final:
        _print_children(history)
    for failure in chain(state.failure):
        if failure.stack_trace:
            console.print(f"stack trace of {failure.error_type}", style="table.title", soft_wrap=True)
            typer.echo(masked(failure.stack_trace).rstrip())


def print_state(state: InstanceState) -> None:
    rows: list[tuple[str, object]] = [
        ("orchestrator", state.name + (f" version {state.version}" if state.version else "")),
        ("parent", state.parent),
        ("oldest ancestor", state.root if state.root != state.parent else None),
        ("status", state.status),
        ("created", time_text(state.created)),
        ("ended", time_text(state.ended)),
        ("custom status", _short(state.custom_status)),
        ("tags", masked(", ".join(f"{name}={value}" for name, value in (state.tags or {}).items()))),
        ("input", _short(state.input)),
        # until the instance ends, its output is the reason of its last suspension or resume
        ("output", _short(state.output) if state.status.is_final else None),
        ("failed at", place_of(state.failure)),
    ]
    table(f"instance {state.instance_id}", ("", ""), [row for row in rows if row[1] not in (None, "")])


def _print_served(served: Ownership, members: Sequence[Member] | None) -> None:
    """Print which worker owns the instance's partition, and whether this worker is alive.

    :param served: the partition and its owner.
    :param members: the workers, with ``alive`` proven; None: it is not known which workers are alive.
    """
    if served.owner is None:
        told = f"{served.state}, no worker serves it"
    elif members is None or is_foreign(served):  # workers of .NET are not in the list of members
        told = f"owned by {served.owner}; is it alive? taskhub partitions show {served.partition}"
    else:
        lives = any(member.alive and member.worker == served.owner for member in members)
        told = f"owned by {served.owner}, which is {'alive' if lives else 'not alive'}"
    console.print(f"partition {served.partition}: {told}", soft_wrap=True, highlight=False)


def _print_children(history: Sequence[HistoryEvent]) -> None:
    """Print the children that the instance awaits, with their ids."""
    running = [(event.name, event.instance_id) for event in awaited(history)]
    if running:
        more = f", the first {MAX_CHILDREN}" if len(running) > MAX_CHILDREN else ""
        table(f"awaited children ({len(running)}{more})", ("orchestrator", "id"), running[:MAX_CHILDREN])


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
    """Return a text of user code with secrets masked, and cut after ``limit`` characters; None for None."""
    text = None if text is None else masked_json(text)
    return text if text is None or len(text) <= limit else f"{text[:limit]}… ({len(text)} characters; --json has all)"
