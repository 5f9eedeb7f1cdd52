"""Tells why an instance refuses a command: its state, the time of this state, and the commands that it takes."""

from __future__ import annotations

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import grace
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InvalidStateError
from airflow_provider_taskhub.hub.model import InstanceState

_TAKES = {
    Status.PENDING: "terminate, suspend, raise-event",
    Status.RUNNING: "terminate, suspend (unless it cleans up or its parent has cancelled it), raise-event",
    Status.SUSPENDED: "resume, terminate, raise-event",
    Status.FAILED: "rewind, restart, terminate (for what still runs of it), purge",
}
_ENDED = "restart, purge"


def refused(row: InstanceState, what: str) -> InvalidStateError:
    """Return the error for a command that an instance does not take in its state.

    :param row: the instance.
    :param what: what it does not take, as the rest of a sentence: ``it cannot be suspended``.
    """
    takes = _TAKES.get(Status.SUSPENDED if row.is_held else row.status, _ENDED)
    return InvalidStateError(f"instance {row.instance_id!r} is {state_text(row)}: {what}. It takes: {takes}")


def state_text(row: InstanceState) -> str:
    """Return the state of an instance and its time, for example ``Suspended since 2026-01-01 00:00:30 UTC``."""
    since = _since(row)
    # The row does not say when the instance began to run: it may have been suspended or rewound since.
    word = " since" if row.status.is_final or row.status is Status.SUSPENDED else ", created"
    word = ", suspended since" if row.is_held and row.status is Status.PENDING else word
    return f"{row.status}" if since is None else f"{row.status}{word} {since.text()[:19].replace('T', ' ')} UTC"


def _since(row: InstanceState) -> Timestamp | None:
    """Return when the instance ended or was suspended; in other states, when it was created."""
    if row.status.is_final:
        return row.ended
    return row.suspended_at if row.is_held else row.created


def refused_at_its_end(row: InstanceState, request: grace.Request) -> InvalidStateError:
    """Return the error for the suspension of an instance that ends.

    :param request: the request to end the instance.
    """
    why = "it cleans up after a terminate" if request.call is None else "its parent has cancelled it, and it ends"
    what = f"{why}, so it cannot be suspended. It takes: terminate without grace, raise-event"
    return InvalidStateError(f"instance {row.instance_id!r} is {state_text(row)}: {what}")
