"""Logs of activities' attempts: a blob for each attempt, in a folder of its instance."""

from __future__ import annotations

from airflow_provider_taskhub.hub.formats.keys import history_folder
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Store


async def names_of(store: Store, names: HubNames, instance_id: str) -> tuple[str, ...]:
    """Names of the logs of all attempts of an instance's activities."""
    blobs = await store.list_blobs(names.logs, f"{history_folder(instance_id)}/")
    return tuple(blob.name for blob in blobs)


async def read(store: Store, names: HubNames, name: str, *, last: int | None = None) -> str:
    """The text of a log; "" if there is none. :param last: only so many lines, from the end."""
    blob = await store.get_blob(names.logs, name)
    text = blob.data.decode(errors="replace") if blob else ""
    return text if last is None else "\n".join(text.splitlines()[-last:])
