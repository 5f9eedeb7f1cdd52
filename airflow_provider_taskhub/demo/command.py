"""``taskhub demo``: Airflow starts a Spark pipeline in a task hub, a worker is killed, and the result is still right.

The demo writes files only into the folder ``.demo`` of the checkout, and uses only this machine's loopback network.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from airflow_provider_taskhub.cli.output import WIDE, writer
from airflow_provider_taskhub.demo.environment import DemoError, Environment, Outcome
from airflow_provider_taskhub.demo.processes import Processes
from airflow_provider_taskhub.demo.screen import Screen, answer_tables, attempts_table, stages_table
from airflow_provider_taskhub.demo.spark_servers import KINDS
from airflow_provider_taskhub.errors import ConfigurationError, TaskHubError

STORAGES = ("sqlite", "azurite")
INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the demo runs.

    :param storages: the storages to use, one after the other.
    :param spark: where the pipeline's Spark jobs run: ``local``, ``standalone`` or ``connect``.
    :param months: the months of 2013 that the pipeline reads.
    :param runs: the number of runs of the pipeline on each storage.
    :param keep: True: leave everything running after the runs until Ctrl-C.
    :param checkout: the checkout of the project, with the folder ``dags_examples``.
    :param folder: the folder into which the demo writes all files.
    """

    storages: tuple[str, ...]
    spark: str
    months: tuple[int, ...]
    runs: int
    keep: bool
    checkout: Path
    folder: Path


def demo(
    storage: Annotated[list[str] | None, typer.Option(help="sqlite or azurite; repeat it for both.")] = None,
    spark: Annotated[str, typer.Option(help="Where the Spark jobs run: local, standalone or connect.")] = "local",
    months: Annotated[str, typer.Option(help="Months of 2013, e.g. 1,2 or 1-12.")] = "1-12",
    runs: Annotated[int, typer.Option(min=1, max=1000, help="How often; the numbers must be the same each time.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where to write; default: .demo in the checkout.")] = None,
) -> None:
    """Airflow, two workers and Spark on this machine: a pipeline runs, a worker is killed, the pipeline ends."""
    console = writer(width=None if sys.stdout.isatty() else WIDE)
    try:
        checkout = _checkout()
        plan = Plan(
            storages=_storages(storage or ["sqlite"]),
            spark=_spark(spark),
            months=_months(months),
            runs=runs,
            keep=keep,
            checkout=checkout,
            folder=(folder or checkout / ".demo").absolute(),
        )
        status = _play(plan, console)
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running", style="yellow")
        status = INTERRUPTED
    except ConfigurationError as error:
        console.print(str(error), style="red")
        status = 2
    raise typer.Exit(status)


def _play(plan: Plan, console: Console) -> int:
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler)
    for name in [name for name in os.environ if name.startswith(("TASKHUB_", "AIRFLOW_", "AIRFLOW__"))]:
        del os.environ[name]  # settings of the user's environment must not change the demo
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with this variable, Airflow's start takes twice as long
    plan.folder.mkdir(parents=True, exist_ok=True)
    with _alone(plan.folder), Processes(plan.folder / "logs") as processes:
        _clear(plan.folder)
        try:
            return asyncio.run(_show(plan, processes, console))
        except ConfigurationError:
            raise
        except TaskHubError as error:
            console.print(Text.assemble(("the demo failed:", "red"), f" {error}"), soft_wrap=True)
            console.print(f"All logs: {plan.folder / 'logs'}", soft_wrap=True)
            return 1


async def _show(plan: Plan, processes: Processes, console: Console) -> int:
    outcomes: list[Outcome] = []
    with Screen(console) as screen:
        for storage in plan.storages:
            async with Environment(
                processes,
                screen,
                storage=storage,
                spark=plan.spark,
                folder=plan.folder,
                examples=plan.checkout / "dags_examples",
                azurite=plan.checkout / ".azurite",
            ) as environment:
                for number in range(1, plan.runs + 1):
                    outcome = await environment.run(f"{storage}-{number:03d}-{int(time.time())}", plan.months)
                    outcomes.append(outcome)
                    _compare(outcomes)
                    screen.say((f"run {number} of {plan.runs} on {storage}", "green"), f": {_line(outcome)}")
                _write(plan.folder / "result.json", outcomes)
                if plan.runs == 1:
                    screen.now("done")
                    _print(outcomes[-1], console)
                if plan.keep:
                    await _keep(environment, screen)
    if len(outcomes) > 1:
        console.print(f"{len(outcomes)} runs, {len(outcomes)} kills, the same numbers every time", style="green")
    return 0


async def _keep(environment: Environment, screen: Screen) -> None:
    screen.say("everything keeps running until Ctrl-C")
    try:
        await environment.keep()
    except asyncio.CancelledError:  # Ctrl-C: the user has ended the demo
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()


def _compare(outcomes: Sequence[Outcome]) -> None:
    """Compare the last run with the first.

    :raises DemoError: if the numbers of the two runs differ, or if the last run did not count every row.
    """
    first, last = numbers(outcomes[0]), numbers(outcomes[-1])
    rows, answer = outcomes[-1].answer["rows"]["flights"], outcomes[-1].answer
    counted = answer["totals"]["flights"] + sum(answer["rejected"].values())
    if counted != rows:
        raise DemoError(f"run {outcomes[-1].run_id} counted {counted} rows of {rows}")
    if first != last:
        different = [key for key in first if first[key] != last[key]]
        raise DemoError(f"run {outcomes[-1].run_id} differs from {outcomes[0].run_id} in {different}: {last}")


def numbers(outcome: Outcome) -> dict[str, Any]:
    """Return the part of a run's result that must be the same in every run: the result without times and paths."""
    return {key: outcome.answer[key] for key in ("totals", "rejected", "carriers", "worst_routes", "rows")}


def _line(outcome: Outcome) -> str:
    again = ", ".join(outcome.repeated) or "nothing"
    return (
        f"{outcome.answer['totals']['flights']:,} flights in {outcome.seconds:.1f} s; {outcome.victim} killed in month "
        f"{outcome.month:02d}, run again: {again}"
    )


def _print(outcome: Outcome, console: Console) -> None:
    console.print()
    for table in answer_tables(outcome.answer):
        console.print(table)
        console.print()
    console.print(stages_table(outcome.answer["stages"]))
    console.print()
    console.print(attempts_table(outcome.attempts))
    report = outcome.answer["report"]
    console.print(f"\nReport   {Path(report['html']).as_uri()}", soft_wrap=True)
    console.print(f"Parquet  {report['parquet']}", soft_wrap=True)
    console.print(f"Airflow  {outcome.url}", soft_wrap=True)


def _write(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of all runs as JSON, for other programs."""
    path.write_text(json.dumps([_plain(outcome) for outcome in outcomes], indent=1), encoding="utf-8")


def _plain(outcome: Outcome) -> Mapping[str, Any]:
    return {
        "run_id": outcome.run_id,
        "instance_id": outcome.instance_id,
        "seconds": round(outcome.seconds, 2),
        "victim": outcome.victim,
        "month": outcome.month,
        "answer": outcome.answer,
        "url": outcome.url,
        "attempts": [
            {"activity": label, "attempt": r.attempt, "worker": r.worker, "state": str(r.state)}
            for label, r in outcome.attempts
        ],
    }


def _checkout() -> Path:
    """Return the folder of the checkout. :raises ConfigurationError: if there is no checkout with the example."""
    for folder in (Path.cwd(), Path(__file__).parents[2]):
        if (folder / "dags_examples" / "flights_app.py").is_file():
            return folder
    raise ConfigurationError("the demo's DAG is not here: run `make demo` in a checkout of the project")


def _storages(values: Sequence[str]) -> tuple[str, ...]:
    for value in values:
        if value not in STORAGES:
            raise ConfigurationError(f"storage {value!r} is not known: use sqlite or azurite")
    return tuple(values)


def _spark(value: str) -> str:
    if value not in KINDS:
        raise ConfigurationError(f"spark {value!r} is not known: use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return value


def _months(text: str) -> tuple[int, ...]:
    """Return the months of an option such as ``1,2`` or ``1-12``.

    :raises ConfigurationError: if the text has another form, or a number is not a month.
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigurationError(f"months {text!r}: give numbers and ranges of 1 to 12, such as 1,2 or 1-12")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or len(set(found)) != len(found) or not set(found) <= set(range(1, 13)):
        raise ConfigurationError(f"months {text!r}: give each of 1 to 12 at most once, and at least one")
    return tuple(sorted(found))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder while the block runs. :raises ConfigurationError: if another demo uses this folder."""
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another demo runs in {folder}: end it first, or give --folder") from None
        yield


def _clear(folder: Path) -> None:
    """Delete the data of an earlier demo. Otherwise its hub would continue with the interrupted instances."""
    for name in STORAGES:
        shutil.rmtree(folder / name, ignore_errors=True)
    for log in (folder / "logs").glob("*.log"):
        log.unlink()
