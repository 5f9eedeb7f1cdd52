"""``taskhub failover``: shows which workers were lost, and who has taken their partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of, with_client
from airflow_provider_taskhub.cli.output import as_json, console, table
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.hub.model import Failover, PartitionState

app = typer.Typer(no_args_is_help=True, help="Show the workers that were lost.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker that was lost.

    :param worker: its full name.
    :param noticed: how the others have noticed it.
    :param partitions: the partitions that were taken from it, and whose owner was not lost again since.
    :param taken_by: full names of the workers that have taken them.
    :param first: when the first one was taken.
    :param last: when the last one was taken.
    :param after: seconds from its last sign of life until the last one was taken.
    """

    worker: str
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

    A partition keeps its last failover. A handover, a stop and a release are none. The newest loss comes first. Times
    are those of the clock of the worker that has taken the partition.

    `after`: seconds from the last sign of life of the lost worker until the last of its partitions was taken.

    Example: taskhub failover show --json
    """

    async def work(client: Client) -> tuple[PartitionState, ...]:
        return await client.admin.partitions()

    name, lost = settings_of(hub=hub).hub, defaultdict[tuple[str, bool], list[tuple[int, Failover]]](list)
    for state in with_client(hub, work):
        if state.failover is not None:
            lost[state.failover.lost, state.failover.proven].append((state.partition, state.failover))
    found = sorted((_loss(*key, taken) for key, taken in lost.items()), key=lambda one: one.last, reverse=True)
    if json:
        as_json(found)
    elif not found:
        console.print(f"no worker of hub {name} was lost while it had a partition that another one has taken")
    else:
        rows = [
            (
                one.worker,
                one.noticed,
                " ".join(map(str, one.partitions)),
                ", ".join(one.taken_by),
                one.first,
                f"{one.after:g} s",
            )
            for one in found
        ]
        table(f"lost workers of {name}", ("worker", "noticed", "partitions", "taken by", "at", "after"), rows)


def _loss(worker: str, proven: bool, taken: Sequence[tuple[int, Failover]]) -> Loss:
    return Loss(
        worker=worker,
        noticed="proven dead" if proven else "lease expired",
        partitions=[partition for partition, _ in taken],
        taken_by=sorted({one.taken_by for _, one in taken}),
        first=min(one.at for _, one in taken),
        last=max(one.at for _, one in taken),
        after=max(one.silent for _, one in taken),
    )
