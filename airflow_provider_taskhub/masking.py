"""Masks secrets in texts: logs of workers and commands, and failures of user code before they are stored."""

from __future__ import annotations

import re

SECRET_WORDS = (
    "accountkey",
    "account_key",
    "accesskey",
    "sharedaccesssignature",
    "sig=",
    "password",
    "passwd",
    "secret",
    "connection_string",
    "sharedkey",
    "bearer",
    "://",
)
"""Without one of these no text is searched for secrets: a burst of instances is a burst of lines."""
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
_NAMED = re.compile(
    r"(?i)(\b\w*(?:account_?key|access_?key|shared_?access_?signature|password|passwd|client_?secret|secret)\w*"
    rf"[\"']?\s*(?:=|:(?!:))\s*)({_QUOTED}|[^\s;&,\"')}}\]]+)"
)
_CONNECTION = re.compile(rf"(?i)(\bconnection_string[\"']?\s*[=:]\s*)({_QUOTED}|\S+)")
_SIGNATURE = re.compile(r"(?i)(\bsig=)[^&\s\"';]+")
_SCHEME = re.compile(r"(?i)\b((?:SharedKey(?:Lite)?\s+[\w-]+:)|(?:Bearer\s+))[\w+/=.~-]+")
_IN_URL = re.compile(r"(://[^:/@\s]*:)[^@/\s]+(@)")
MASK = "***"


def masked(text: str) -> str:
    """The text with the values of secrets replaced by ``***``. Only the values are replaced.

    Texts that Airflow shows go through ``hooks.masking``, which also knows Airflow's own secrets.

    Known are values that have a name (``AccountKey=``, ``password: "…"``), signatures, tokens in headers, and passwords
    in addresses.
    """
    if not _tells(text.lower()):
        return text
    text = _CONNECTION.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    text = _SIGNATURE.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1{MASK}", text)
    return _IN_URL.sub(rf"\1{MASK}\2", text)


def _tells(text: str) -> bool:
    for word in SECRET_WORDS:  # noqa: SIM110  # any() makes a generator for each value of each line
        if word in text:
            return True
    return False
