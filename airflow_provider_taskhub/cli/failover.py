"""``taskhub failover``: shows which workers were lost, and who has taken their partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of, with_client
from airflow_provider_taskhub.cli.output import as_json, console, table, time_text
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Failover

app = typer.Typer(no_args_is_help=True, help="Show the workers that were lost.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker that was lost.

    :param worker: its full name.
    :param alive: whether it is alive again.
    :param noticed: how the others have noticed it.
    :param partitions: the partitions that were taken from it, and whose owner was not lost again since.
    :param taken_by: full names of the workers that have taken them.
    :param first: when the first one was taken.
    :param last: when the last one was taken.
    :param after: seconds from its last sign of life until the last one was taken.
    """

    worker: str
    alive: bool
    noticed: str
    partitions: list[int]
    taken_by: list[str]
    first: Timestamp
    last: Timestamp
    after: float


@app.callback()
def group() -> None:
    """Keep ``show`` a command of its own: Typer would make the only command of a group the group itself."""


@app.command()
def show(hub: HubName = None, json: AsJson = False) -> None:
    """List the workers that were lost: when, how that was noticed, and who has taken their partitions after how long.

    A partition keeps only its last failover, so older losses of the same partitions are not shown. A handover, a stop
    and a release are no failovers. The newest loss comes first. Times are those of the clock of the worker that has
    taken the partition.

    `after`: seconds from the last sign of life of the lost worker, as the worker that took the partition has seen it,
    until the last of its partitions was taken. A worker whose lease had expired may be alive again: it was cut off from
    the store, or stood still.

    Example: taskhub failover show --json
    """

    async def work(client: Client) -> tuple[dict[tuple[str, bool], list[tuple[int, Failover]]], set[str]]:
        lost = defaultdict[tuple[str, bool], list[tuple[int, Failover]]](list)
        for state in await client.admin.partitions():
            if state.failover is not None:
                lost[state.failover.lost, state.failover.proven].append((state.partition, state.failover))
        if all(proven for _, proven in lost):
            return lost, set()
        return lost, {member.worker for member in await client.admin.workers(prove=True) if member.alive}

    name = settings_of(hub=hub).hub
    lost, alive = with_client(hub, work)
    losses = (_loss(worker, proven, taken, alive=worker in alive) for (worker, proven), taken in lost.items())
    found = sorted(losses, key=lambda one: one.last, reverse=True)
    if json:
        as_json(found)
    elif not found:
        console.print(f"no failover in hub {name}: nobody has taken a partition from a worker that was lost")
    else:
        rows = [
            (
                one.worker,
                f"{one.noticed}, alive again" if one.alive else one.noticed,
                " ".join(map(str, one.partitions)),
                ", ".join(one.taken_by),
                time_text(one.first),
                f"{one.after:g} s",
            )
            for one in found
        ]
        table(f"workers of {name} that were lost", ("worker", "noticed", "partitions", "taken by", "at", "after"), rows)


def _loss(worker: str, proven: bool, taken: Sequence[tuple[int, Failover]], *, alive: bool) -> Loss:
    return Loss(
        worker=worker,
        alive=alive,
        noticed="proven dead" if proven else "lease expired",
        partitions=[partition for partition, _ in taken],
        taken_by=sorted({one.taken_by for _, one in taken}),
        first=min(one.at for _, one in taken),
        last=max(one.at for _, one in taken),
        after=max(one.silent for _, one in taken),
    )
