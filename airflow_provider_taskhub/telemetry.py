"""Logs as events with fields: one readable line per thing that matters, or JSON for machines (STYLE 17)."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

SECRET_WORDS = ("accountkey", "sharedaccesssignature", "sig=", "password", "connection_string")


def _mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Secrets never reach a log, whatever a library put into an error's text."""
    for key, value in event.items():
        if isinstance(value, str) and any(word in value.lower() for word in SECRET_WORDS):
            event[key] = "***"
    return event


def configure(*, as_json: bool = False, verbose: bool = False) -> None:
    """Set up logging of a worker or command; called once, by the outermost edge only.

    :param as_json: one JSON object a line instead of a readable one. :param verbose: debug lines too.
    """
    level = logging.DEBUG if verbose else logging.INFO
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if not as_json else "iso", utc=as_json),
            structlog.processors.format_exc_info,
            _mask,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
