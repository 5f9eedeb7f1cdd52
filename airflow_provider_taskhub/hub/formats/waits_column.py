"""Encode and decode the sentinel's column ``TaskHubAwaits``, which says as JSON what the instance waits for.

Every checkpoint writes the sentinel, so the column costs no extra request. The column is not in the instance row,
because a checkpoint without a visible change does not write the instance row: the column would be out of date there.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.pending_waits import LONGEST_NAME, NOTHING, AwaitedEvent, Awaits
from airflow_provider_taskhub.errors import InputError

LONGEST_CAUSE = 500
"""Longest stored text about a history that cannot be read, in characters."""


def encode_awaits(awaits: Awaits) -> str:
    """Encode the column. If the instance waits for nothing, the result is "", because a merge with None would keep the
    old value."""
    if not awaits:
        return ""
    found: dict[str, Any] = {}
    if awaits.activities:
        found["activities"] = [name[:LONGEST_NAME] for name in awaits.activities]
    if awaits.children:
        found["children"] = [name[:LONGEST_NAME] for name in awaits.children]
    if awaits.child_ids:
        found |= {"child_ids": [*awaits.child_ids], "child_count": awaits.child_count}
    if awaits.needed:
        found["needed"] = awaits.needed
    if awaits.events:
        found["events"] = {event.name[:LONGEST_NAME]: event.since.ticks for event in awaits.events}
    if awaits.timer is not None:
        found["timer"] = awaits.timer.ticks
    if not awaits.complete:
        found["complete"] = False
    if awaits.unreadable:
        found["unreadable"] = awaits.unreadable[:LONGEST_CAUSE]
    return json.dumps(found, separators=(",", ":"))


def decode_awaits(text: str | None) -> Awaits:
    """Decode the column. If the column is missing or damaged, the result is :data:`NOTHING`."""
    try:
        found = json.loads(text or "{}")
        timer = found.get("timer")
        return Awaits(
            activities=tuple(map(str, found.get("activities", ()))),
            children=tuple(map(str, found.get("children", ()))),
            child_ids=tuple(map(str, found.get("child_ids", ()))),
            child_count=int(found.get("child_count", 0)),
            needed=tuple((str(child), str(run)) for child, run in found.get("needed", ())),
            events=tuple(
                AwaitedEvent(name=name, since=Timestamp(int(since))) for name, since in found.get("events", {}).items()
            ),
            timer=None if timer is None else Timestamp(int(timer)),
            complete=found.get("complete") is not False,
            unreadable=str(found.get("unreadable", "")),
        )
    except (ValueError, TypeError, AttributeError, RecursionError, InputError):
        return NOTHING
