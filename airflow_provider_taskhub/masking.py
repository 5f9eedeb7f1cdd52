"""Masks secrets in texts: logs of workers and commands, and failures of user code before they are stored."""

from __future__ import annotations

import json
import re
from typing import Any

SECRET_WORDS = (
    "accountkey",
    "account_key",
    "accesskey",
    "sharedaccesssignature",
    "sig=",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "authorization",
    "connection_string",
    "sharedkey",
    "bearer",
    "://",
)
"""Without one of these no text is searched for secrets: a burst of instances is a burst of lines."""
_NAME = (
    r"\w*(?:account_?key|access_?key|shared_?access_?signature|password|passwd|passphrase|client_?secret|secret|api_?key"
    r"|private_?key)\w*"
)
_SHORT_NAME = r"(?:\w*_)?(?:token|pwd)"
_IS_NAME = re.compile(rf"(?i)(?:{_NAME}|{_SHORT_NAME}|authorization)\Z")
_QUOTED = r"\\+\"(?:(?!\\+\").)*\\+\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
"""With backslashes: JSON within JSON."""
_NAMED = re.compile(
    rf"(?i)(\b(?:{_NAME}\\*[\"']?\s*(?:=|:(?!:))|{_SHORT_NAME}(?:\\*[\"']\s*[=:]|\s*=))\s*)"
    rf"({_QUOTED}|[^\s;&,\"')}}\]\[{{\\]+)"
)
"""``token:`` without quotes is left alone: parsers speak so of what they did not expect."""
_CONNECTION = re.compile(rf"(?i)(\bconnection_string[\"']?\s*[=:]\s*)({_QUOTED}|\S+)")
_SIGNATURE = re.compile(r"(?i)(\bsig=)[^&\s\"';]+")
_SCHEME = re.compile(
    r"(?i)\b(SharedKey(?:Lite)?\s+[\w-]+:|Bearer\s+|Authorization\\*[\"']?\s*[:=]\s*\\*[\"']?Basic\s+)[\w+/=.~-]+"
)
_IN_URL = re.compile(r"(://[^:/@\s]*:)[^/\s\"']+(@)")
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


def masked_json(text: str) -> str:
    """As :func:`masked`, for a text that may be JSON: what stands under the name of a secret is masked as a whole."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return masked(text)
    if not isinstance(value, dict | list):
        return masked(text)
    shown = _masked_value(value)
    return text if shown == value else json.dumps(shown, ensure_ascii=False)


def _masked_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if _IS_NAME.match(name) and item not in (None, "") else _masked_value(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_masked_value(item) for item in value]
    return masked_json(value) if isinstance(value, str) else value


def _tells(text: str) -> bool:
    for word in SECRET_WORDS:  # noqa: SIM110  # any() makes a generator for each value of each line
        if word in text:
            return True
    return False
