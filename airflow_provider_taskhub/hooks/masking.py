"""Masks secrets in texts of the hub before the page or a task's log shows them.

It uses both Airflow's masker and the masker of this package.
"""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_taskhub import masking

_DEEPEST = 20


def masked(text: str | None) -> str:
    """Return a text with ``***`` in place of secrets that Airflow knows, and of values under names like ``password``.

    :param text: a JSON object or list, in which each value is masked, or any other text, which is masked as a whole.
        None gives an empty text.
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
