"""``airflow taskhub dags check``: compares what DAG files give with what the live workers have, for CI.

Only names and inputs that are written in the DAG files can be checked. A template or an output of a task is known when
the task runs. A worker publishes the names of its functions and not their types, which may be too large for its row. So
inputs are compared with apps that the command imports, which CI has beside the DAG files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

import typer
from airflow.sdk import XComArg

from airflow_provider_taskhub.app import App, load_app
from airflow_provider_taskhub.cli.options import AsJson
from airflow_provider_taskhub.cli.output import Exit, as_json, console, fail, plural, run
from airflow_provider_taskhub.client import Client, Member
from airflow_provider_taskhub.codec import dumps, loads
from airflow_provider_taskhub.engine.inputs import input_arguments
from airflow_provider_taskhub.errors import ConfigurationError, HubError, InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.hooks.at_parse import is_template
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION
from airflow_provider_taskhub.hub.model import ORCHESTRATOR, Need
from airflow_provider_taskhub.hub.partitions.capabilities import able, described, listed
from airflow_provider_taskhub.hub.waiting.reasons import START_WORKER, way_out
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.settings import Settings
from airflow_provider_taskhub.triggers.arguments import started_name

_NAMED = ("orchestrator", "taskhub_conn_id", "version")
_MOST_NAMES = 10
_MOST_ROWS = 10_000
"""The largest number of rows of a mapped stub whose inputs are compared."""
_STUB = "python_callable"
"""The attribute of a decorated task in which Airflow keeps the decorated function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a task starts.

    :param where: the DAG and the task, for people.
    :param need: the orchestrator, and the version that the task asks for.
    :param conn_id: the Airflow connection that names the hub.
    :param inputs: the inputs that are written in the DAG file: one, or one for each row of a mapped task. ``NO_INPUT``:
        the task gives none.
    """

    where: str
    need: Need
    conn_id: str
    inputs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What DAGs start.

    :param starts: the tasks whose names are written in the DAG file.
    :param unknown: the tasks whose orchestrator, version or connection is known only when they run.
    """

    starts: tuple[Start, ...]
    unknown: tuple[str, ...]


def starts_of(dags: Iterable[Any]) -> Found:
    """Return what the tasks of DAGs start. Tasks that start nothing in a hub are left out.

    :param dags: the DAGs, as their files have made them.
    :raises InputError: a mapped task gives a function that no app has declared.
    """
    starts: list[Start] = []
    unknown: list[str] = []
    for dag in dags:
        for task in dag.tasks:
            if not {*_NAMED} <= {*task.template_fields}:
                continue
            where = f"task {task.task_id!r} of DAG {dag.dag_id!r}"
            names = _names(task, where)
            if names is None or is_template([*names.values()]):
                unknown.append(where)
                continue
            need = Need(ORCHESTRATOR, names["orchestrator"], names["version"])
            starts.append(Start(where=where, need=need, conn_id=names["taskhub_conn_id"], inputs=_inputs(task)))
    return Found(starts=tuple(starts), unknown=tuple(unknown))


def _names(task: Any, where: str) -> Mapping[str, Any] | None:
    """Return the names that a task gives. None: a mapped task gives one of them for each row."""
    if (given := getattr(task, "partial_kwargs", None)) is None:
        return {name: getattr(task, name) or "" for name in _NAMED}
    names = given.get("orchestrator"), given.get("activity")
    if names == (None, None):
        if not hasattr(task, _STUB):
            return None
        names = task.python_callable.__name__, None
    mapped = getattr(task.expand_input, "value", None)
    if not isinstance(mapped, Mapping) or {*_NAMED, "activity"} & {*mapped}:
        return None
    return {
        "orchestrator": started_name(where, *names),
        "taskhub_conn_id": given.get("taskhub_conn_id", DEFAULT_CONNECTION),
        "version": given.get("version") or "",
    }


def _inputs(task: Any) -> tuple[Any, ...]:
    """Return the inputs of a task, or of its rows, as far as they are written in the DAG file."""
    if (given := getattr(task, "partial_kwargs", None)) is None:
        found: Sequence[Any] = [task.input]
    elif hasattr(task, _STUB):
        found = [*_stub_inputs(task)]
    else:
        rows = task.expand_input.value.get("input", [given["input"]] if "input" in given else [])
        found = rows if isinstance(rows, list | tuple) else []
    return tuple(one for one in found if not is_template(one))


def _stub_inputs(task: Any) -> Iterator[Any]:
    """Yield the inputs of the rows of a mapped stub, as far as they are written in the DAG file."""
    given, rows = task.partial_kwargs, task.op_kwargs_expand_input.value
    if isinstance(rows, Mapping):  # a row is one combination of the items of all arguments
        columns = [[(name, one) for one in items] for name, items in rows.items() if isinstance(items, list | tuple)]
        rows = map(dict, product(*columns)) if len(columns) == len(rows) else ()
    for row in islice(rows, _MOST_ROWS) if not isinstance(rows, XComArg) else ():
        if isinstance(row, Mapping):
            yield task.operator_class.input_of(task.python_callable, {**given.get("op_kwargs", {}), **row})


def input_problems(start: Start, apps: Iterable[App]) -> Iterator[str]:
    """Yield an error text for each input of a task that the function does not take.

    :param apps: apps. A function that none of them declares is not compared.
    """
    name = start.need.name
    for app in apps:
        definition = app.activities.get(name) or app.orchestrators.get(name)  # an activity that is started by itself
        if name not in app.orchestrators or definition is None or definition.parameter is None:
            continue
        for given in start.inputs:
            what = f"{start.where}: input of {name!r}"
            try:
                plain = given if given is NO_INPUT else loads(dumps(given, what=what))
                parameter, annotation = definition.parameter, definition.input_annotation
                input_arguments(definition.function, parameter, annotation, plain, what=what)
            except InputError as error:
                yield f"{error}. Correct the input in the DAG file"


def problem(start: Start, members: Sequence[Member]) -> str | None:
    """Return why the live workers of a hub cannot run what a task starts, and the way out. None: a worker can run it.

    :param members: the workers of the hub.
    """
    if able(members, start.need):
        return None
    live = [member for member in members if member.alive and ORCHESTRATOR in member.roles]
    head = f"{start.where}: no live worker has {start.need}"
    if not live:
        return f"{head}: no worker that runs orchestrators is alive. {START_WORKER}"
    alive = listed(map(described, live), _MOST_NAMES)
    if able(live, Need(ORCHESTRATOR, start.need.name)):
        return f"{head}. Alive: {alive}. Start a worker whose app has that version, or declares it compatible"
    names = sorted({name for member in live for name in member.orchestrators})
    return f"{head}. Alive: {alive}; they know: {listed(names, _MOST_NAMES)}. {way_out([start.need.name], names)}"


def command(settings_of: Callable[[str], Settings]) -> typer.Typer:
    """Return the commands ``dags …``. :param settings_of: returns the settings that an Airflow connection describes."""
    app = typer.Typer(no_args_is_help=True, help="Check DAG files against the workers.")

    @app.callback()
    def dags() -> None:
        """Check DAG files against the workers."""

    @app.command()
    def check(
        folder: Annotated[
            Path | None, typer.Argument(help="A DAG file or a folder. Default: the folder of Airflow's DAGs.")
        ] = None,
        app: Annotated[
            list[str] | None,
            typer.Option("--app", help="Compare inputs with this app: MODULE:ATTRIBUTE. May be repeated."),
        ] = None,
        json: AsJson = False,
    ) -> None:
        """Check that live workers have what DAGs name: orchestrators and standalone activities. Exit status 1: not all.

        Each task is compared with the workers of the hub that its connection names. A DAG file that cannot be imported
        is a problem too. With --app, inputs are compared with what the functions of the app take. Templates are not
        checked.

        Example: airflow taskhub dags check dags/ --app flights_app:app
        """
        apps = _loaded(app or ())
        dags, problems = _parsed(folder)
        found = starts_of(dags)
        problems += [text for start in found.starts for text in input_problems(start, apps)]
        for conn_id in sorted({start.conn_id for start in found.starts}):
            starts = [start for start in found.starts if start.conn_id == conn_id]
            try:
                members = run(_workers(settings_of(conn_id)))
            except ConfigurationError as error:
                members = error
            if isinstance(members, ConfigurationError):
                named = "" if f"connection {conn_id!r}" in str(members) else f"connection {conn_id!r}: "
                problems += [f"{start.where}: {named}{members}" for start in starts]
                continue
            wrong = (problem(start, members) for start in starts)
            problems += [text for text in wrong if text is not None]
        _report(found, problems, json=json)

    return app


def _loaded(paths: Iterable[str]) -> list[App]:
    """Import apps. A path that names no app ends the command."""
    try:
        with redirect_stdout(sys.stderr):
            return [load_app(path) for path in paths]
    except ConfigurationError as error:
        fail(str(error), Exit.USAGE)


def _parsed(folder: Path | None) -> tuple[Sequence[Any], list[str]]:
    """Return the DAGs of a file or folder, and an error text for each file that cannot be imported.

    A path without any DAG ends the command: a check that finds nothing to check would pass for ever.
    """
    from airflow.dag_processing.dagbag import DagBag

    if folder is not None and not folder.exists():
        fail(f"there is no file or folder {folder}: give a DAG file or a folder with DAG files", Exit.USAGE)
    with redirect_stdout(sys.stderr):  # standard output is for results; Airflow and DAG files print to it too
        bag = DagBag(dag_folder=folder)
    errors = [f"{file} cannot be imported: {text.strip().splitlines()[-1]}" for file, text in bag.import_errors.items()]
    if folder is not None and not bag.dags and not errors:
        fail(
            f"Airflow finds no DAG in {folder}: give a DAG file or a folder with DAG files, and look into its "
            ".airflowignore",
            Exit.USAGE,
        )
    return [*bag.dags.values()], errors


async def _workers(settings: Settings) -> tuple[Member, ...] | ConfigurationError:
    """Return the workers of a hub; or the error if there is no such hub, so that the other hubs are checked too."""
    try:
        async with Client.open(settings) as client:
            return await client.admin.workers(prove=True)
    except HubError as error:
        return error


def _report(found: Found, problems: Sequence[str], *, json: bool) -> None:
    if json:
        as_json({"checked": len(found.starts), "not_checked": found.unknown, "problems": problems})
    else:
        for text in problems:
            console.print(text, soft_wrap=True)
        left = f"; not checked, because their names are known only when they run: {', '.join(found.unknown)}"
        console.print(
            f"{plural(len(found.starts), 'task')} checked, {plural(len(problems), 'problem')}"
            f"{left if found.unknown else ''}",
            soft_wrap=True,
        )
    if problems:
        raise typer.Exit(int(Exit.FAILED))
