"""A recorded moment loaded into a hub of ours: what was visible then; what was invisible is not in it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

from airflow_provider_taskhub.codec import compress
from airflow_provider_taskhub.hub.hub import Hub
from airflow_provider_taskhub.storage.primitives import Entity, PutBlob, PutMessage, RowOperation, RowVerb, Transact
from tests.golden import Recording
from tests.hub.formats.rows import from_state

ACCOUNT = "http://127.0.0.1:11000/devstoreaccount1"
"""Where the recordings' blobs were: addresses in rows are moved to the store's own."""


async def load_moment(hub: Hub, recording: Recording, moment: str) -> None:
    """Fill a hub that is named as the recording's, and has 4 partitions."""
    assert hub.names.hub == recording.hub
    state = recording.states[moment]
    there, here = f"{ACCOUNT}/{hub.names.large_messages}", hub.container_url
    for table in (hub.names.instances, hub.names.history):
        for row in recording.rows(moment, table.removeprefix(recording.hub)):
            entity = _moved(from_state(row), there, here)
            write = RowOperation(verb=RowVerb.UPSERT_REPLACE, entity=entity)
            await hub.store.execute(Transact(table=table, rows=(write,)))
    for name, blob in state["blobs"].get(hub.names.large_messages, {"items": {}})["items"].items():
        assert blob["gzip"]
        await hub.store.execute(PutBlob(container=hub.names.large_messages, name=name, data=compress(blob["text"])))
    for queue, found in state["queues"].items():
        for text in found["visible"]:
            await hub.store.execute(PutMessage(queue=queue, text=text))


def _moved(entity: Entity, there: str, here: str) -> Entity:
    columns = {
        name: value.replace(there, here) if isinstance(value, str) else value
        for name, value in entity.properties.items()
    }
    return replace(entity, properties=columns)


def message_json(text: str) -> Any:
    """A queue's text as JSON, Base64 or not."""
    return json.loads(text if text.startswith("{") else base64.b64decode(text))
