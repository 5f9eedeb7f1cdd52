"""The filter and the order of the list of instances: what a user may choose, and how the page's addresses name it.

No ``from __future__ import annotations`` here: FastAPI could not resolve the annotations of a dependency.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.plugins.windows import WINDOWS, since


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which instances the list shows. A text that is empty, or None, leaves out no instance.

    :param status: the status.
    :param text: a part of the id or of the orchestrator's name, or ``tag=value``. A whole id is found at any time.
    :param created_from: the earliest start, inclusive.
    :param created_to: the latest start, inclusive.
    :param dag: the DAG of the Airflow task that started the instance.
    :param name: the orchestrator.
    :param tag: ``tag=value``, or the name of a tag that the instance has.
    :param roots: True: only instances without a parent.
    :param error: a part of the error of a failed instance or of the reason of a terminated one.
    """

    status: Status | None = None
    text: str = ""
    created_from: Timestamp | None = None
    created_to: Timestamp | None = None
    dag: str = ""
    name: str = ""
    tag: str = ""
    error: str = ""
    roots: bool = False


COLUMNS = ("status", "id", "name", "started", "ended", "duration")
"""The columns by which the list can be ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """By which column the list is ordered.

    :param column: one of :data:`COLUMNS`.
    :param descending: True: the largest value, or the newest start, comes first.
    """

    column: str
    descending: bool


def order_of(sort: str) -> Order | None:
    """Return the order that an address names, for example ``name`` or ``-duration``; None: the address names none.

    :param sort: the column, with a minus sign for the descending order.
    :raises HTTPException: with status 422, if the column does not exist.
    """
    from fastapi import HTTPException

    if not sort:
        return None
    column = sort.removeprefix("-")
    if column not in COLUMNS:
        raise HTTPException(
            422, f"sort {sort!r} does not exist: choose from {', '.join(COLUMNS)}, also with '-' before it"
        )
    return Order(column=column, descending=sort.startswith("-"))


def wanted() -> Any:
    """Create the dependency that reads the filter from the address of a request."""
    from fastapi import HTTPException, Query

    Text = Annotated[str, Query(max_length=300)]
    Time = Annotated[str, Query(max_length=40)]

    def read(
        status: Annotated[str, Query(max_length=30)] = "",
        text: Text = "",
        window: Annotated[str, Query(max_length=10)] = "",
        begin: Annotated[str, Query(alias="from", max_length=40)] = "",
        to: Time = "",
        dag: Text = "",
        name: Text = "",
        tag: Text = "",
        error: Text = "",
        roots: bool = False,
    ) -> Wanted:
        """Without a time, the window is the last day. With ``from`` or ``to`` and no window, it is all time."""
        one = next((one for one in Status if one.casefold() == status.casefold()), None)
        window = window or ("all" if begin or to else "day")
        if window not in WINDOWS or (status and one is None):
            raise HTTPException(422, f"window {window!r} or status {status!r} does not exist")
        try:
            earliest, latest = ([Timestamp.parse(time)] if time else [] for time in (begin, to))
        except InputError as wrong:
            raise HTTPException(422, f"from or to: {wrong}; write a time as 2026-11-21T10:00:00Z") from None
        if (opening := since(window)) is not None:
            earliest.append(Timestamp.from_datetime(opening))
        return Wanted(
            status=one,
            text=text.strip(),
            created_from=max(earliest, default=None),
            created_to=max(latest, default=None),
            dag=dag.strip(),
            name=name.strip(),
            tag=tag.strip(),
            error=error.strip(),
            roots=roots,
        )

    return read
