"""Masks texts of the hub that the page or a task's log shows, with Airflow's masker.

Logs of workers and commands, where Airflow may be absent, go through ``telemetry.masked``.
"""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 20


def masked(text: str | None) -> str:
    """A text with secrets replaced by ``***``: secrets that Airflow knows, and values under names like ``password``.

    :param text: JSON is masked value by value, any other text as a whole. None gives an empty text.
    """
    from airflow.sdk.log import redact

    if not text:
        return ""
    try:
        value: Any = json.loads(text)
    except ValueError:
        return str(redact(text))
    if not isinstance(value, (dict, list)):
        return str(redact(text))
    shown = redact(value, max_depth=_DEEPEST)
    return str(redact(text)) if shown == value else json.dumps(shown, ensure_ascii=False)
