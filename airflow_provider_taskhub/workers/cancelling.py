"""Asking the holders of running attempts to end them (DESIGN §9)."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_taskhub.engine.lifecycle import ActivityHappening, ActivityReaction, ActivityState, react_activity
from airflow_provider_taskhub.errors import Conflict, NotFound
from airflow_provider_taskhub.hub.contract import ActivityRecord, RecordState
from airflow_provider_taskhub.hub.history import activities as records
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.storage.primitives import Entity

CANCEL_TRIES = 6
"""Tries to ask the holder of an attempt to end it, against its heartbeats."""


async def cancel_activities(hub: Hub, instance_id: str) -> None:
    """Ask it of every attempt of an instance that still runs."""
    for found in await records.of_instance(hub.store, hub.names, instance_id):
        await _ask(hub, found)


async def _ask(hub: Hub, found: tuple[ActivityRecord, Entity] | None) -> None:
    for _ in range(CANCEL_TRIES):
        if found is None:
            return
        record, entity = found
        move = react_activity(ActivityState(record.state), ActivityHappening.CANCEL)
        if move.reaction is not ActivityReaction.ASK:
            return
        asked = replace(record, state=RecordState.CANCELLING)
        try:
            await hub.store.execute(records.update(hub.names, asked, entity.etag))
            return
        except (Conflict, NotFound):  # a heartbeat came between: once more, from what it wrote
            found = await records.newest(hub.store, hub.names, record)
