"""Masks texts of the hub that the page or a task's log shows, with Airflow's masker and the package's own."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_taskhub import masking

_DEEPEST = 20


def masked(text: str | None) -> str:
    """A text with secrets replaced by ``***``: secrets that Airflow knows, and values under names like ``password``.

    :param text: objects and lists of JSON are masked value by value, any other text as a whole. None gives an empty
        text.
    """
    from airflow.sdk.log import redact

    if not text:
        return ""
    text = masking.masked_json(text)
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return str(redact(text))
    if not isinstance(value, dict | list):
        return str(redact(text))
    shown = redact(value, max_depth=_DEEPEST)
    return str(redact(text)) if shown == value else json.dumps(shown, ensure_ascii=False)
