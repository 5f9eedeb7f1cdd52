"""Prints the attempts of an instance's activities: as a table, or with their logs (``taskhub instances logs``).

A generation is the part of a run between two calls of ``continue_as_new``. Each generation has its own execution id,
and its activities are numbered anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.instances.options import InstanceId
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, console, plural, table, time_text, warn
from airflow_provider_taskhub.cli.watching import progress_of
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.identity import HALF, generation_of, same_start
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.hub.formats.keys import parts_of_log
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    InstanceState,
    RecordState,
)
from airflow_provider_taskhub.hub.partitions.capabilities import listed
from airflow_provider_taskhub.masking import masked

MOST_LOST = 10
"""Most lost attempts that ``show`` names."""


def logs(
    instance_id: InstanceId,
    activity: Annotated[str | None, typer.Option(help="Only attempts of activities of this name.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Print only the last lines of each attempt.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print the output of an instance's activities, attempt by attempt. Secrets are shown as ***.

    Example: taskhub instances logs flights-2013 --activity monthly_delays --last 50
    """

    async def work(client: Client) -> tuple[str | None, list[dict[str, Any]]]:
        state = await client.get(instance_id, payloads=False)
        if state is None:
            raise InstanceNotFound(f"no instance {instance_id!r} in hub {client.describe()}")
        found = await _logged(client, state)
        if activity and (nameless := sum(not one["activity"] for one in found)):
            warn(f"{plural(nameless, 'log')} of earlier generations not shown: their activities have no known names")
        wanted = [one for one in found if activity in (None, one["activity"])]
        return state.execution_id, [
            one | {"log": masked(await client.instance(state.instance_id).log(one["log"], last=last))} for one in wanted
        ]

    present, found = with_client(hub, work)
    if json:
        as_json(found)
        return
    several = any(one["execution_id"] != present for one in found)
    for one in found:
        generation = f", generation {one['generation']}" if several else ""
        heading = f"{one['activity'] or 'activity'} #{one['task_id']}, attempt {one['attempt']}{generation}"
        console.print(f"── {heading} ──", soft_wrap=True)
        typer.echo(one["log"])


async def _logged(client: Client, state: InstanceState) -> list[dict[str, Any]]:
    """Return the attempts that have a log, in the order of their generations, task ids and attempts.

    ``log`` is the name of the log. ``activity`` is "" for an activity without an activity record in an earlier
    generation: the name would have to come from the history, which has only the current generation.
    """
    records = {record.log: record.name for record in await client.instance(state.instance_id).activities()}
    events, _ = await client.instance(state.instance_id).readable_history()
    names = {event.event_id: getattr(event, "name", "") for event in events}
    paths = [(*parts_of_log(log), log) for log in await client.instance(state.instance_id).logs()]
    generations = generations_of((execution for execution, *_ in paths), state.execution_id)
    order = [*generations]
    found = []
    for execution, task_id, attempt, log in sorted(paths, key=lambda path: (order.index(path[0]), *path[1:])):
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


def print_activities(records: Sequence[ActivityRecord], execution_id: str | None) -> None:
    """Print a table of attempts in the order of their generations, task ids and attempts.

    If the attempts are from several generations, a column names the generation of each attempt. The state of an attempt
    that runs as its record says is "running, not proved", because its worker can be dead.

    :param execution_id: the execution id of the instance's current generation.
    """
    generations = generations_of((record.instance.execution_id or "" for record in records), execution_id)
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
                    f"{r.state}, not proved" if r.runs else r.state,
                    progress_of(r),
                    r.worker,
                    time_text(r.claimed),
                    time_text(r.ended),
                ),
            )
            for r in told
        ],
    )


def waiting_again(records: Sequence[ActivityRecord]) -> str:
    """Return the activities whose last attempt was lost with its worker, for example ``nap #1, nap #2``."""
    return _last(records, lambda record: record.state is RecordState.LOST)


def proved_running(records: Sequence[ActivityRecord]) -> str:
    """Return the activities whose last attempt runs, for example ``nap #1, nap #2``.

    :param records: the records, after it was proved which workers live. Attempts of dead workers are lost.
    """
    return _last(records, lambda record: record.runs)


def _last(records: Sequence[ActivityRecord], wanted: Callable[[ActivityRecord], bool]) -> str:
    last = {
        (record.instance.execution_id, record.task_id): record for record in sorted(records, key=lambda r: r.attempt)
    }
    return listed([f"{one.name} #{one.task_id}" for one in last.values() if wanted(one)], MOST_LOST)


def generations_of(executions: Iterable[str], execution_id: str | None) -> dict[str, str]:
    """Return how the generation of each execution id is shown, for example ``2`` or ``2 of 1f0c9a3e``.

    Generations of earlier runs come before those of the current run. The generations of a run count from 1. If another
    run of the same instance id, for example before a rewind or a restart, had the generation, the text ends with the
    first eight characters of the execution id.

    :param executions: execution ids, in any order and with repetitions.
    :param execution_id: the execution id of the instance's current generation; None: not known.
    """
    order = sorted({*executions}, key=lambda one: (same_start(one, execution_id), one[:HALF], generation_of(one), one))
    return {
        one: f"{generation_of(one) + 1}" + ("" if same_start(one, execution_id) else f" of {one[:8]}") for one in order
    }
