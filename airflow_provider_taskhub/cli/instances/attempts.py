"""Attempts of an instance's activities: their table, and ``taskhub instances logs``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.instances.options import (
    InstanceId,
    with_client,
)
from airflow_provider_taskhub.cli.options import AsJson, HubName
from airflow_provider_taskhub.cli.output import as_json, console, plural, table, time_text, warn
from airflow_provider_taskhub.cli.watching import progress_of
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.engine.identity import HALF, generation_of, same_start
from airflow_provider_taskhub.errors import InstanceNotFound
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    InstanceState,
)
from airflow_provider_taskhub.masking import masked


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
    """Attempts that have a log, with its name as ``log``, in the order of their generations, tasks and attempts.

    The history has only the present generation. In earlier ones the number of an activity without a record may mean
    another activity, so its name is "".
    """
    records = {record.log: record.name for record in await client.instance(state.instance_id).activities()}
    events, _ = await client.instance(state.instance_id).readable_history()
    names = {event.event_id: getattr(event, "name", "") for event in events}
    paths = [(*log.split("/")[-2:], log) for log in await client.instance(state.instance_id).logs()]
    generations = generations_of((execution for execution, _, _ in paths), state.execution_id)
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


def print_activities(records: Sequence[ActivityRecord], execution_id: str | None) -> None:
    """Attempts in the order of their executions, tasks and attempts.

    :param execution_id: of the instance now. Where records of other executions are there, a column names each one's.
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
                    r.state,
                    progress_of(r),
                    r.worker,
                    time_text(r.claimed),
                    time_text(r.ended),
                ),
            )
            for r in told
        ],
    )


def generations_of(executions: Iterable[str], execution_id: str | None) -> dict[str, str]:
    """How each execution is shown, in order: generations of earlier starts first, then those of the present start.

    A generation has the number of times that its start has continued as new, from 1. One of another start, as after a
    rewind or a start with the same id, has the beginning of its execution id as well.
    """
    order = sorted({*executions}, key=lambda one: (same_start(one, execution_id), one[:HALF], generation_of(one), one))
    return {
        one: f"{generation_of(one) + 1}" + ("" if same_start(one, execution_id) else f" of {one[:8]}") for one in order
    }
