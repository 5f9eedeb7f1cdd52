"""Read the logs of activities. Each attempt of an activity has its own blob, in the folder of the instance."""

from __future__ import annotations

from airflow_provider_taskhub.hub.formats.keys import history_folder
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Store


async def names_of(store: Store, names: HubNames, instance_id: str) -> tuple[str, ...]:
    """Return the names of the logs of all activity attempts of an instance."""
    blobs = await store.list_blobs(names.logs, f"{history_folder(instance_id)}/")
    return tuple(blob.name for blob in blobs)


async def read_part(store: Store, names: HubNames, name: str, *, offset: int, length: int) -> bytes | None:
    """Read a part of a log.

    :param name: name of the log.
    :param offset: number of the first byte, from 0.
    :param length: most bytes to read.
    :returns: the bytes, fewer if the log ends earlier; None if there is no such log.
    """
    return await store.get_blob_range(names.logs, name, offset=offset, length=length)


async def read(store: Store, names: HubNames, name: str, *, last: int | None = None) -> str:
    """Read a log.

    :param name: name of the log, as :func:`names_of` returns it.
    :param last: return only this number of lines from the end; None: the whole log.
    :returns: the text; "" if there is no such log.
    """
    blob = await store.get_blob(names.logs, name)
    text = blob.data.decode(errors="replace") if blob else ""
    return text if last is None else "\n".join(text.splitlines()[-last:])
