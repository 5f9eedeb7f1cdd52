"""``taskhub instances purge``: deletes ended instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from airflow_provider_taskhub.cli.instances.options import (
    CreatedFrom,
    CreatedTo,
    Orchestrator,
    Prefix,
    Statuses,
    Tags,
    where_of,
)
from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of, with_client
from airflow_provider_taskhub.cli.output import Exit, as_json, console, errors, fail
from airflow_provider_taskhub.client import Client, PurgeResult
from airflow_provider_taskhub.errors import InputError, StorageError, TaskHubError


def purge(
    instance_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of instances. Without ids: all instances that match the options.")
    ] = None,
    status: Statuses = None,
    prefix: Prefix = None,
    tag: Tags = None,
    orchestrator: Orchestrator = None,
    created_from: CreatedFrom = None,
    created_to: CreatedTo = None,
    every: Annotated[
        bool, typer.Option("--all", help="All instances that have ended. Give no other selection with it.")
    ] = False,
    recurse: Annotated[
        bool, typer.Option("--recurse", help="Delete also the children of the given ids, their children, and so on.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Purge at most so many instances.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Purge at most so many instances a second.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop after so many seconds. Exit status 6 if instances are left.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Delete instances that have ended, with all their data: history, payloads, activity records, logs.

    If the command is interrupted, run it again to delete the rest. Children are separate instances: give --recurse to
    delete them too. If one of them has not ended, nothing of its family is deleted.

    An instance whose result an Airflow task may still read is deleted only if you give its id, or --recurse and the id
    of an ancestor, or a week after its end.

    Example: taskhub instances purge flights-2013

    Example: taskhub instances purge daily-0 --recurse

    Example: taskhub instances purge --status Completed --created-to 2026-10-01 --rate 50 --yes
    """
    where = where_of(
        status=status,
        prefix=prefix,
        tag=tag,
        orchestrator=orchestrator,
        created_from=created_from,
        created_to=created_to,
    )
    chosen = any(value for value in where.values())
    if instance_ids and (chosen or every):
        raise typer.BadParameter("give ids or options that select instances, not both")
    if not instance_ids and chosen == every:
        raise typer.BadParameter(
            "say which instances: give ids, or options such as --status and --created-to, or only --all"
        )
    if recurse and not instance_ids:
        raise typer.BadParameter("--recurse needs ids: give the ids of the instances whose children you want to delete")
    if instance_ids:
        _purge_these(instance_ids, hub, recurse=recurse, json=json)
        return
    if not yes and not typer.confirm("Delete all ended instances that match? This cannot be undone."):
        fail("nothing was purged", Exit.FAILED)

    async def work(client: Client) -> PurgeResult:
        until = timedelta(seconds=timeout) if timeout is not None else None
        with _counting(quiet=json) as progress:
            return await client.purge_many(**where, limit=limit, rate=rate, timeout=until, progress=progress)

    result = with_client(hub, work)
    if json:
        as_json(result)
    else:
        console.print(f"{result.purged} purged{_left(result)}", soft_wrap=True)
    if result.failed:
        fail("\n".join(f"{one!r} cannot be purged: {error}" for one, error in result.failed.items()), Exit.UNAVAILABLE)
    if not result.complete and limit is None and timeout is not None:
        raise typer.Exit(int(Exit.TIMEOUT))


def _left(result: PurgeResult) -> str:
    if result.watched:
        them = "it" if len(result.watched) == 1 else "them"
        return f", {len(result.watched)} left: an Airflow task may still read {them}"
    return "" if result.complete else ", more are left"


def _purge_these(instance_ids: list[str], hub: str | None, *, recurse: bool, json: bool) -> None:
    async def work(client: Client) -> tuple[dict[str, bool], dict[str, TaskHubError]]:
        done: dict[str, bool] = {}
        failed: dict[str, TaskHubError] = {}
        for instance_id in instance_ids:
            try:
                done[instance_id] = done.get(instance_id) or await client.purge(instance_id, recurse=recurse)
            except (InputError, StorageError) as error:  # the other instances are purged nevertheless
                failed[instance_id] = error
        return done, failed

    done, failed = with_client(hub, work)
    if json:
        shown = {instance_id: str(error) for instance_id, error in failed.items()}
        as_json({"purged": sum(done.values()), "complete": all(done.values()) and not failed, "failed": shown})
    for instance_id in () if json else done:
        if done[instance_id]:
            console.print(f"{instance_id}: purged{' with its descendants' if recurse else ''}", soft_wrap=True)
    wrong = [f"{instance_id!r} cannot be purged: {error}" for instance_id, error in failed.items()]
    if missing := [instance_id for instance_id, purged in done.items() if not purged]:
        wrong.append(f"no instance {', '.join(map(repr, missing))} in hub {settings_of(hub=hub).hub}")
    if wrong:
        unavailable = any(isinstance(error, StorageError) for error in failed.values())
        code = Exit.UNAVAILABLE if unavailable else Exit.USAGE if failed else Exit.NOT_FOUND
        fail("\n".join(wrong), code)


@contextmanager
def _counting(*, quiet: bool) -> Iterator[Callable[[int], None]]:
    """While the ``with`` block runs, show on a terminal how many instances have been purged.

    Yields a function that the block calls with the number of purged instances.

    :param quiet: True: show nothing.
    """
    if quiet or not errors.is_terminal:
        yield lambda purged: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        line = progress.add_task("0 purged")
        yield lambda purged: progress.update(line, description=f"{purged} purged")
