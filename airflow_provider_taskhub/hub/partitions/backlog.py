"""The column of a worker's row that says which instances the worker has held for long."""

from __future__ import annotations

import json

from airflow_provider_taskhub.hub.model import NO_BACKLOG, Backlog, HeldInstance

MOST = 10
"""Most instances in the column. A row must stay small, because each worker writes its row at each renewal."""
_LONGEST_CAUSE = 300


def encode_backlog(backlog: Backlog) -> str:
    """Return the text of the column; "" if there is no such instance."""
    if backlog == NO_BACKLOG:
        return ""
    held = [[one.instance_id, round(one.seconds), one.cause[:_LONGEST_CAUSE]] for one in backlog.held[:MOST]]
    return json.dumps({"held": held, "queued": backlog.queued, "longest": round(backlog.longest)})


def decode_backlog(text: object) -> Backlog:
    """Read the text of the column. If it is missing or damaged, the result has no instances."""
    if not isinstance(text, str) or not text:
        return NO_BACKLOG
    try:
        found = json.loads(text)
        return Backlog(
            held=tuple(
                HeldInstance(instance_id=str(one), seconds=float(seconds), cause=str(cause))
                for one, seconds, cause in found["held"]
            ),
            queued=int(found["queued"]),
            longest=float(found["longest"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return NO_BACKLOG
