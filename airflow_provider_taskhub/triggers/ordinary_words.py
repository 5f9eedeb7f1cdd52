"""Tells passwords that are ordinary words, such as ``postgres``, from other secrets that Airflow's masker knows.

Inputs contain ordinary words with another meaning, so these must not forbid an input.
"""

from __future__ import annotations

import re

from airflow_provider_taskhub.masking import MASK

LONGEST = 12
"""The largest number of letters of an ordinary word. A password of more letters is taken for a random one."""
_LETTERS = re.compile(r"[^\W\d_]+")


def only_words(text: str) -> bool:
    """Return whether all that Airflow masks in a text are ordinary words, or parts of words."""
    from airflow.sdk.log import redact

    def hidden(found: re.Match[str]) -> str:
        letters = found[0]
        shown = str(redact(letters))
        head, *_, tail = shown.split(MASK) if MASK in shown else (letters, "")
        return shown if _is_word(letters[len(head) : len(letters) - len(tail)]) else letters

    return _LETTERS.sub(hidden, text) == str(redact(text))


def _is_word(letters: str) -> bool:
    return len(letters) <= LONGEST and letters in (letters.lower(), letters.upper(), letters.capitalize())
