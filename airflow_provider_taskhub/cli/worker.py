"""``taskhub worker``: serves a hub until a signal stops the worker."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from airflow_provider_taskhub import telemetry
from airflow_provider_taskhub.cli.options import HubName, settings_of
from airflow_provider_taskhub.cli.output import Exit, fail, run
from airflow_provider_taskhub.cli.program import fix_hash_seed
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.spark_connection import with_spark_of_connection

if TYPE_CHECKING:
    from airflow_provider_taskhub.workers.host import Host

log = structlog.get_logger(__name__)

_DEFAULTS = Settings.model_fields


def worker(
    app: Annotated[list[str], typer.Option(help="An app: MODULE:ATTRIBUTE. May be repeated.")],
    name: Annotated[str, typer.Option(help="Name in lists and logs. Default: the host's name.")] = "",
    role: Annotated[list[str] | None, typer.Option(help="orchestrator or activity. Default: both.")] = None,
    activities: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Activities without Spark that run at a time. "
            "Default: the setting activities, or one for each core, at least 4.",
        ),
    ] = None,
    spark_activities: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Spark activities that run at a time, beside the others. "
            "Default: the setting spark_activities, or the given number of the others, or one for each core, at least "
            "4, but at most one for each 2 GiB of memory.",
        ),
    ] = None,
    pools: Annotated[
        str | None,
        typer.Option(
            help="Pools of workers to which it belongs, separated by commas: it runs only their activities. "
            f"Default: the setting pools ({_DEFAULTS['pools'].default})."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory for activities that say what they need, such as 16g. "
            "Default: the setting memory, or what the machine or its container gives."
        ),
    ] = None,
    drain_timeout: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds that a stopping worker waits for its activities. "
            f"Default: the setting drain_timeout ({_DEFAULTS['drain_timeout'].default.total_seconds():g}).",
        ),
    ] = None,
    health_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of /live, /ready, /metrics.")] = None,
    health_host: Annotated[
        str, typer.Option(help="Address of the health port, such as 0.0.0.0. Default: this machine only.")
    ] = "",
    warm: Annotated[bool, typer.Option(help="Start Spark with the worker if an activity needs Spark.")] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to start if live workers have other apps or versions.")
    ] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object a line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also log debug lines.")] = False,
    hub: HubName = None,
) -> None:
    """Run orchestrators and activities of a hub until SIGTERM or Ctrl-C. Then finish what runs, and stop.

    Activities run in child processes. The worker creates the hub if it is missing. Give all workers of a hub the same
    apps and the same TASKHUB_LEASE__ settings. If apps differ, workers log a warning, and each instance runs on a
    worker that has its code.

    Example: taskhub worker --app flights_app:app
    """
    from airflow_provider_taskhub.workers.host import Host, Options  # no other command needs what runs workers

    roles = tuple(dict.fromkeys(role or (ORCHESTRATOR, ACTIVITY)))
    for wanted in roles:
        if wanted not in (ORCHESTRATOR, ACTIVITY):
            raise typer.BadParameter(f"{wanted!r} is not a role: use {ORCHESTRATOR} or {ACTIVITY}", param_hint="--role")
    if health_host and health_port is None:
        raise typer.BadParameter("give a port too, such as --health-port 8080", param_hint="--health-host")
    settings = settings_of(
        hub=hub,
        activities=activities,
        spark_activities=spark_activities,
        pools=pools,
        memory=memory,
        drain_timeout=drain_timeout,
    )
    try:
        if ACTIVITY in roles:
            settings = with_spark_of_connection(settings)
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)
    telemetry.configure(as_json=log_json, verbose=verbose)  # after Airflow, which sets up logging when it is imported
    options = Options(
        apps=tuple(app),
        name=name,
        roles=roles,
        health_port=health_port,
        health_host=health_host,
        warm=warm,
        strict=strict,
    )
    fix_hash_seed()  # here too, because `airflow taskhub worker` does not begin in the module `program`
    run(_serve(Host(settings, options)))


async def _serve(host: Host) -> None:
    _tune_interpreter()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, host.stop)
    await host.run()


def _tune_interpreter() -> None:
    """Set up Python for a process with one busy event loop, and threads on which this loop waits.

    Shorter switch interval: a thread asks for the GIL only after it has waited for a whole switch interval. The event
    loop releases the GIL in every turn, but takes it again sooner than that. With the default interval, the thread that
    writes to the store would not run while the loop is busy.

    Less garbage collection: imported objects live as long as the process, so the collector does not look at them again.
    """
    sys.setswitchinterval(0.0005)
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
