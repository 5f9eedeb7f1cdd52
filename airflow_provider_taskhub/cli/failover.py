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
from airflow_provider_taskhub.hub.model import MOST_LEFT, Failover, Member

app = typer.Typer(no_args_is_help=True, help="Show the workers that were lost.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A worker that was lost.

    :param worker: its full name.
    :param alive: whether it is alive again.
    :param noticed: how the others have noticed it.
    :param partitions: the partitions that were taken from it, and whose owner was not lost again since.
    :param taken_by: full names of the workers that took the partitions; if no partition was taken, the attempts.
    :param first: when the first one was taken; None: none was taken.
    :param last: when the last one was taken; None: none was taken.
    :param after: the longest time, in seconds, from the last renewal of a lease by the lost worker until the partition
        was taken, by the clock of the store; None: none was taken, or the time is not known.
    :param messages: how many messages were due in the queues of these partitions then, as their new owners have
        counted; None: no owner has counted.
    :param instances: how many instances these messages are for; None: no owner has counted.
    :param more: whether the count of a partition has reached its maximum, so that there may have been more messages.
    :param attempts: how many of its attempts of activities were taken over, as far as that is known.
    """

    worker: str
    alive: bool
    noticed: str
    partitions: list[int]
    taken_by: list[str]
    first: Timestamp | None
    last: Timestamp | None
    after: float | None
    messages: int | None
    instances: int | None
    more: bool
    attempts: int


@app.callback()
def group() -> None:
    """Make ``show`` a subcommand. Without this callback, Typer would run it as ``taskhub failover`` itself."""


@app.command()
def show(hub: HubName = None, json: AsJson = False) -> None:
    """List the workers that were lost: when, how that was noticed, who has taken their partitions after how long, and
    how many messages, instances and attempts this concerned.

    A partition keeps only its last failover, so older losses of the same partitions are not shown. A handover, a stop
    and a release are no failovers. The newest loss comes first, and losses without a time come last. Times are those of
    the clock of the worker that has taken the partition.

    `after`: seconds from the last time that the lost worker renewed its lease until the partition was taken, both by
    the clock of the store; of several partitions the longest. It is not known if the leases are in blobs, or if another
    worker had just asked for the partition. A worker whose lease had expired may be alive again: it was cut off from
    the store, or stood still.

    `messages` and `instances`: what was due in the queues of these partitions when they were taken, and for how many
    instances. The owner counts a message when it receives it, so the numbers grow at first: for some seconds on SQLite,
    for up to a minute on Azure. At most 10,000 messages are counted in a partition: `10000+` says that there were
    perhaps more. Instances that only wait, for example for an activity, do not count.

    `attempts`: attempts of activities with a record that were taken over, so that the next attempt began. If the
    worker that took the attempts also took a partition, their number is kept with the partition. Otherwise the number
    is known only while that worker runs. A lost worker has no time if only attempts were taken from it: it owned no
    partition, or its partitions were lost again since.

    Example: taskhub failover show --json
    """

    async def work(client: Client) -> list[Loss]:
        lost = defaultdict[str, list[tuple[int, Failover]]](list)
        for state in await client.admin.partitions():
            if state.failover is not None:
                lost[state.failover.lost].append((state.partition, state.failover))
        # Only a worker whose lease has expired may be alive again. To find that out takes some seconds.
        expired = any(not any(one.proven for _, one in taken) for taken in lost.values())
        members = await client.admin.workers(prove=expired)
        without = {worker for member in members if member.alive for worker in member.taken_over} - {*lost}
        return [_loss(worker, members, lost.get(worker, ())) for worker in [*lost, *sorted(without)]]

    name = settings_of(hub=hub).hub
    found = sorted(with_client(hub, work), key=lambda one: (one.last is not None, one.last), reverse=True)
    if json:
        as_json(found)
    elif not found:
        console.print(f"no failover in hub {name}: nobody has taken anything over from a worker that was lost")
    else:
        rows = [
            (
                one.worker,
                f"{one.noticed}, alive again" if one.alive else one.noticed,
                " ".join(map(str, one.partitions)) or "-",
                ", ".join(one.taken_by),
                _times(one),
                "-" if one.after is None else f"{one.after:g} s",
                _counted(one),
                str(one.attempts),
            )
            for one in found
        ]
        heads = ("worker", "noticed", "partitions", "taken by", "at", "after", "messages", "attempts")
        table(f"workers of {name} that were lost", heads, rows)


def _times(one: Loss) -> str:
    first, last = time_text(one.first), time_text(one.last)
    return first if first == last else f"{first} to {last}"


def _counted(one: Loss) -> str:
    if one.messages is None:
        return "-"
    return f"{one.messages}{'+' if one.more else ''} of {one.instances} instance{'' if one.instances == 1 else 's'}"


def _noticed(proven: Sequence[bool]) -> str:
    if not proven:
        return "attempts taken over"
    return "lease expired" if not any(proven) else "proven dead" if all(proven) else "lease expired, and proven dead"


def _loss(worker: str, members: Sequence[Member], taken: Sequence[tuple[int, Failover]]) -> Loss:
    """Return what is known of a lost worker.

    :param members: the workers of the hub.
    :param taken: the partitions that were taken from it, and how; empty: only attempts of it were taken over.
    """
    failovers = [one for _, one in taken]
    proven = any(one.proven for one in failovers)
    takers = [member for member in members if member.alive and worker in member.taken_over]
    counted = [(one.messages, one.instances or 0) for one in failovers if one.messages is not None]
    attempts = {member.worker: member.taken_over[worker] for member in takers}
    for one in failovers:
        attempts[one.taken_by] = max(attempts.get(one.taken_by, 0), one.attempts or 0)
    return Loss(
        worker=worker,
        alive=not proven and any(member.worker == worker and member.alive for member in members),
        noticed=_noticed([one.proven for one in failovers]),
        partitions=[partition for partition, _ in taken],
        taken_by=sorted({one.taken_by for one in failovers} or {member.worker for member in takers}),
        first=min((one.at for one in failovers), default=None),
        last=max((one.at for one in failovers), default=None),
        after=max((one.silent for one in failovers if one.silent is not None), default=None),
        messages=sum(messages for messages, _ in counted) if counted else None,
        instances=sum(instances for _, instances in counted) if counted else None,
        more=any(messages >= MOST_LEFT for messages, _ in counted),
        attempts=sum(attempts.values()),
    )
