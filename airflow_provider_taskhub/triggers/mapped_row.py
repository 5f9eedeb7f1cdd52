"""The arguments of one row of a mapped task, where the triggerer starts the row.

Airflow gives the triggerer the stored DAG with the task, and the index of the row. A worker resolves the same values in
``MappedOperator.render_template_fields`` of Airflow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_taskhub.errors import InputError

_OF_A_TASK = "{{ mapped }}"
"""Stands for a value that another task returns."""


def row_of(expand_input: Any, index: int) -> dict[str, Any]:
    """Return the values that a row of a mapped task has.

    :param expand_input: what was given to ``expand()`` or ``expand_kwargs()``, as Airflow's stored DAG has it.
    :param index: the map index of the row.
    :raises InputError: if a value is not in the DAG, because it is the result of another task.
    """
    given = literals(expand_input)
    if given is None:
        raise InputError("the task is mapped over the result of another task")
    if isinstance(given, Sequence):
        return dict(given[index])
    places: dict[str, int] = {}
    for name in reversed([*given]):  # the last argument of expand() varies fastest
        index, places[name] = divmod(index, len(given[name]))
    return {name: _items(values)[places[name]] for name, values in given.items()}


def rows(given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each name with each value that some row has. :param given: the result of :func:`literals`."""
    if isinstance(given, Sequence):
        yield from ((name, value) for row in given for name, value in row.items())
    else:
        yield from ((name, value) for name, values in given.items() for value in _items(values))


def samples(expand_input: Any, templates: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield rows that have, together, each value that is in the DAG file. The values of other tasks are templates.

    :param expand_input: what was given to ``expand()`` or ``expand_kwargs()``.
    :param templates: the names of the arguments that may be templates. If another one comes from a task, no row is
        known.
    """
    given = expand_input.value
    if not isinstance(given, Mapping):
        yield from (dict(row) for row in (given if isinstance(given, Sequence) else ()) if isinstance(row, Mapping))
        return
    known = {name: _items(values) for name, values in given.items() if isinstance(values, Sequence | Mapping)}
    if not all(known.values()) or not given.keys() - known.keys() <= {*templates}:
        return
    first = {name: known[name][0] if name in known else _OF_A_TASK for name in given}
    yield first
    for name, values in sorted(known.items(), key=lambda one: len(one[1])):
        yield from ({**first, name: value} for value in values[1:])


def literals(expand_input: Any) -> Mapping[str, Any] | Sequence[Mapping[str, Any]] | None:
    """Return what was given to ``expand()`` (lists or dicts by name) or to ``expand_kwargs()`` (a list of dicts).

    :returns: None: a part of it is not in the DAG file.
    """
    given = expand_input.value
    if isinstance(given, Mapping):
        known = all(isinstance(values, Sequence | Mapping) for values in given.values())
    else:
        known = isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given)
    return given if known else None


def _items(values: Any) -> Sequence[Any]:
    """Return the items over which a task is mapped: those of a list, or the keys of a dict with their values."""
    return [list(item) for item in values.items()] if isinstance(values, Mapping) else values
