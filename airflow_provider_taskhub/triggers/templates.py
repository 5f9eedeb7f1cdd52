"""Tells which Jinja templates the triggerer renders with the same result as a worker.

The triggerer makes a context of its own for a task that it starts. It knows the run and the stored DAG, and it cannot
ask Airflow for more while it renders. So a template may use only the names below, and Jinja's own filters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.nodes import Node

_INTERVAL = ("data_interval_start", "data_interval_end")
_TEXTS = ("ds", "ds_nodash", "run_id", "ts", "ts_nodash", "ts_nodash_with_tz")
_WHOLE = frozenset((*_TEXTS, *_INTERVAL, "logical_date", "macros", "params"))
"""The names of Airflow's context that are the same in a triggerer and in a worker."""
_OF_TASK = frozenset(("dag_id", "run_id", "task_id"))
_PARTS: Mapping[str, frozenset[str]] = {
    "dag": frozenset(("dag_id",)),
    "dag_run": frozenset(("conf", "dag_id", "logical_date", "run_after", "run_id", *_INTERVAL)),
    "task": frozenset(("task_id",)),
    "task_instance": _OF_TASK,
    "ti": _OF_TASK,
}
"""Of other names, the attributes that are the same."""
_MARKS = ("{{", "{%", "{#")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What a template takes from outside.

    :param names: the names, each with its first attribute if it has one: ``params.year``.
    :param filters: the names of filters and tests.
    :param files: True: it includes, imports or extends another template.
    """

    names: tuple[str, ...]
    filters: tuple[str, ...]
    files: bool


def is_template(text: str) -> bool:
    """Return whether a text needs to be rendered."""
    return any(mark in text for mark in _MARKS)


def why_not_in_triggerer(template: str, dag: Any) -> str | None:
    """Return why the triggerer cannot render a template as a worker does; None: it can.

    :param template: the template.
    :param dag: the DAG of the task, as its file has made it.
    :returns: a part of a sentence, for example ``"it does not have var.value"``.
    """
    from jinja2 import TemplateSyntaxError

    try:
        uses = _uses(template)
    except TemplateSyntaxError as error:  # a worker reports it
        return str(error)
    if uses.files:
        return "it does not have the DAG's folder"
    known = _environment()
    own_macros, own_filters = dag.user_defined_macros or {}, dag.user_defined_filters or {}
    filters = (name for name in uses.filters if name in own_filters or name not in {**known.filters, **known.tests})
    names = (name for name in uses.names if name.partition(".")[0] in own_macros or not _is_known(name, known))
    unknown = next(chain(filters, names), None)
    return None if unknown is None else f"it does not have {unknown}"


def _is_known(name: str, environment: Environment) -> bool:
    first, _, attribute = name.partition(".")
    return first in _WHOLE or first in environment.globals or attribute in _PARTS.get(first, ())


@lru_cache(maxsize=1024)
def _uses(template: str) -> Uses:
    """Return what a template takes from outside. :raises TemplateSyntaxError: if its syntax is wrong."""
    from jinja2 import meta, nodes

    environment = _environment()
    tree = environment.parse(template)
    filters = {node.name for node in tree.find_all((nodes.Filter, nodes.Test))}
    # Jinja finds no names where it does not know a filter
    known = filters <= {*environment.filters, *environment.tests}
    outside = meta.find_undeclared_variables(tree) if known else ()
    return Uses(
        names=tuple(name for name in _names(tree) if name.partition(".")[0] in outside),
        filters=tuple(sorted(filters)),
        files=any(tree.find(kind) for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)),
    )


def _names(node: Node) -> Iterator[str]:
    """Yield each name that a part of a template reads, with its first attribute if it has one."""
    from jinja2 import nodes

    if isinstance(node, nodes.Name):
        yield node.name
        return
    if isinstance(node, nodes.Getattr | nodes.Getitem) and isinstance(node.node, nodes.Name):
        attribute = node.attr if isinstance(node, nodes.Getattr) else getattr(node.arg, "value", None)
        if isinstance(attribute, str):
            yield f"{node.node.name}.{attribute}"
            return
    for child in node.iter_child_nodes():
        yield from _names(child)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return an environment as Airflow gives it to a trigger, which has no DAG file."""
    from airflow.sdk.definitions._internal.templater import SandboxedEnvironment

    environment: Environment = SandboxedEnvironment(cache_size=0)
    return environment
