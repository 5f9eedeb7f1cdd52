"""Replaces secrets in texts by ``***``: in logs of workers and commands, and in errors of user code that are stored."""

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
    "-signature=",
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
"""A text that has none of these words is not searched for secrets. This saves time, because a busy worker logs many
lines."""
_LONG_NAME = (
    r"\w*(?:account_?key|access_?key|shared_?access_?signature|password|passwd|passphrase|client_?secret|secret|api_?key"
    r"|private_?key)\w*"
)
_SHORT_NAME = r"(?:\w*_)?(?:token|pwd)"
_SECRET_NAME = re.compile(rf"(?i)(?:{_LONG_NAME}|{_SHORT_NAME}|authorization)\Z")
_QUOTED = r"\\+\"(?:(?!\\+\").)*\\+\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'"
"""A quoted text. The quotes may have backslashes before them, as in JSON inside of a JSON string."""
_NAMED = re.compile(
    rf"(?i)(\b(?:{_LONG_NAME}\\*[\"']?\s*(?:=|:(?!:))|{_SHORT_NAME}(?:\\*[\"']\s*[=:]|\s*=))\s*)"
    rf"({_QUOTED}|[^\s;&,\"')}}\]\[{{\\]+)"
)
"""A secret name with its value. ``token:`` without quotes does not match: parsers write ``unexpected token: x``."""
_CONNECTION = re.compile(rf"(?i)(\bconnection_string[\"']?\s*[=:]\s*)({_QUOTED}|\S+)")
_SIGNATURE = re.compile(r"(?i)(\b(?:sig|x-(?:amz|goog)-signature)=)[^&\s\"';]+")
_SCHEME = re.compile(
    r"(?i)\b(SharedKey(?:Lite)?\s+[\w-]+:|Bearer\s+|Authorization\\*[\"']?\s*[:=]\s*\\*[\"']?Basic\s+)[\w+/=.~-]+"
)
_IN_URL = re.compile(r"(://[^:/@\s]*:)[^/\s\"']+(@)")
MASK = "***"


def masked(text: str) -> str:
    """Return the text with ``***`` in place of each secret value. The names of the values stay.

    The function finds values after a secret name (``AccountKey=``, ``password: "…"``), signatures, tokens in headers,
    and passwords in addresses. Texts that Airflow shows go through ``hooks.masking``, which also knows the secrets that
    Airflow has registered.
    """
    if not _may_have_secret(text.lower()):
        return text
    text = _CONNECTION.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    text = _SIGNATURE.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(rf"\1{MASK}", text)
    return _IN_URL.sub(rf"\1{MASK}\2", text)


def masked_json(text: str) -> str:
    """Mask a text that may be JSON. In JSON, the whole value of a key with a secret name is replaced by ``***``.

    A text that is no JSON object or array is masked by :func:`masked`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return masked(text)
    if not isinstance(value, dict | list):
        return masked(text)
    shown = _masked_value(value)
    return text if shown == value else json.dumps(shown, ensure_ascii=False)


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is a secret, for example ``db_password`` or ``api_key``."""
    return _SECRET_NAME.match(name) is not None


def _masked_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: MASK if is_secret_name(name) and item not in (None, "") else _masked_value(item)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_masked_value(item) for item in value]
    return masked_json(value) if isinstance(value, str) else value


def _may_have_secret(text: str) -> bool:
    for word in SECRET_WORDS:  # noqa: SIM110  # any() would make a generator for each value of each line
        if word in text:
            return True
    return False
