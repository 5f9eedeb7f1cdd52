"""``taskhub hub``: create, show and delete a hub."""

from __future__ import annotations

from typing import Annotated

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, settings_of
from airflow_provider_taskhub.cli.output import Exit, as_json, console, fail, plain, run
from airflow_provider_taskhub.client.admin import ensure_hub
from airflow_provider_taskhub.hub.model import HubInfo, HubNames
from airflow_provider_taskhub.hub.partitions import administration
from airflow_provider_taskhub.hub.partitions.incarnation import dead_workers
from airflow_provider_taskhub.storage.connect import open_store

app = typer.Typer(no_args_is_help=True, help="Create, show and delete a hub.")


@app.command()
def create(
    hub: HubName = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of partitions. It stays fixed.")
    ] = None,
    lease_store: Annotated[
        str | None, typer.Option(help="Store of the leases: table (default) or blob. It stays fixed.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Create the hub, or complete it if its creation was interrupted. A complete hub is not changed.

    Example: taskhub hub create --hub Flights --partitions 8
    """
    told, facts = made(hub=hub, partitions=partitions, lease_store=lease_store)
    if json:
        as_json(facts)
    else:
        console.print(told, soft_wrap=True)


def made(
    *, hub: str | None, partitions: int | None, lease_store: str | None = None, cap: int | None = None
) -> tuple[str, dict[str, object]]:
    """Create a hub or complete it, as the command ``create`` does.

    :param cap: the cap that the caller then orders for every worker; here it is only checked. None: no cap.
    :returns: a sentence about the hub for people, and its properties for ``--json``.
    """
    settings = settings_of(hub=hub, partitions=partitions, lease_store=lease_store)

    async def work() -> tuple[HubInfo, str]:
        async with open_store(settings) as store:
            return await ensure_hub(store, settings, cap=cap), store.describe()

    info, place = run(work())
    told = f"hub {settings.hub} at {place}: ready, {info.partitions} partitions"
    return told, {"hub": settings.hub, "place": place, **plain(info)}


@app.command()
def show(hub: HubName = None, json: AsJson = False) -> None:
    """Print where the hub is stored, its partitions and its format. Exit status 2 if the hub is missing or not ready.

    Example: taskhub hub show --json
    """
    settings = settings_of(hub=hub)

    async def work() -> tuple[HubInfo, str]:
        async with open_store(settings, create=False) as store:
            return await administration.read_hub(store, HubNames(settings.hub)), store.describe()

    info, place = run(work())
    if json:
        as_json({"hub": settings.hub, "place": place, **plain(info)})
    else:
        console.print(
            f"hub {settings.hub} at {place}: ready, {info.partitions} partitions, {info.lease_store} leases, "
            f"format {info.format_version}",
            soft_wrap=True,
        )


@app.command()
def delete(
    hub: HubName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: AsJson = False,
) -> None:
    """Delete the hub with everything in it: instances, histories, logs. Exit status 2 if workers serve it.

    Example: taskhub hub delete --hub Flights --yes
    """
    settings = settings_of(hub=hub)

    async def work() -> str:
        async with open_store(settings, create=False) as store:
            place = store.describe()
            if not yes and not typer.confirm(f"Delete hub {settings.hub} at {place} with all its instances?"):
                fail("nothing was deleted", Exit.FAILED)
            await administration.delete_hub(store, HubNames(settings.hub), dead=dead_workers)
            return place

    place = run(work())
    if json:
        as_json({"hub": settings.hub, "place": place, "deleted": True})
    else:
        console.print(f"hub {settings.hub} at {place}: deleted", soft_wrap=True)
