"""Rows of the hub's table of controls that keep a message until its turn comes: for an instance, or a call of an
activity."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.model import HubNames
from airflow_provider_taskhub.storage.primitives import Entity, Filter, Property, Store

MOST_COUNTED = 1000
"""How many rows are counted at most: one request on Azure."""
_CHARACTERS = 30_000
"""Characters in one column. Azure allows 32,768, and a message can have about twice as many."""


def columns_of(instance: OrchestrationInstance, text: str) -> dict[str, Property | None]:
    """Return the columns that keep a message.

    :param instance: the instance that the message is about.
    :param text: the message, as it stands in a queue.
    """
    parts = [text[at : at + _CHARACTERS] for at in range(0, len(text), _CHARACTERS)]
    return {
        "InstanceId": instance.instance_id,
        "ExecutionId": instance.execution_id or "",
        **{f"Message{number}": part for number, part in enumerate(parts)},
    }


def instance_of(columns: Mapping[str, object]) -> OrchestrationInstance:
    """Return the instance of a row."""
    texts = _texts(columns)
    return OrchestrationInstance(instance_id=texts.get("InstanceId", ""), execution_id=texts.get("ExecutionId") or None)


def text_of(columns: Mapping[str, object]) -> str:
    """Return the message of a row; "" if the query has not read the columns of the message."""
    texts = _texts(columns)
    return "".join(texts.get(f"Message{number}", "") for number in range(len(texts)))


def _texts(columns: Mapping[str, object]) -> dict[str, str]:
    return {name: text for name, text in columns.items() if isinstance(text, str)}


async def first(store: Store, names: HubNames, where: Filter, most: int, *columns: str) -> list[Entity]:
    """Read the rows that come first, at most so many.

    :param columns: what to read; none: all columns.
    """
    found, continuation = list[Entity](), None
    while len(found) < most:
        page = await store.query(
            names.controls, where, select=columns or None, limit=most - len(found), continuation=continuation
        )
        found += page.entities
        if (continuation := page.continuation) is None:
            break
    return found
