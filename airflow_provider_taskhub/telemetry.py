"""Logs as events with fields: one readable line per thing that matters, or JSON for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from pydantic_core import to_json

from airflow_provider_taskhub.masking import MASK, masked

OUTAGE_EVERY = 60.0
"""Seconds between two lines about one outage."""


class Outage:
    """Logs an outage in few lines: its first failure, one line a minute, and its end. One per loop, or per task.

    :param log: a bound logger, with the fields of every line. :param event: name of a line about a failure.
    :param monotonic: seconds that only grow.
    :ivar failures: in a row; 0: it works. :ivar said: the text of the last one.
    """

    def __init__(self, log: Any, event: str, monotonic: Callable[[], float]) -> None:
        self._log, self._event, self._monotonic = log, event, monotonic
        self._began = self._told = 0.0
        self.failures = 0
        self.said = ""

    def failed(self, error: BaseException, **fields: Any) -> None:
        """Something did not work. :param fields: of the line, if there is one."""
        now = self._monotonic()
        self.failures += 1
        self.said = str(error) or type(error).__name__
        if self.failures == 1:
            self._began = now
        elif now - self._told < OUTAGE_EVERY:
            return
        self._told = now
        more = {"failures": self.failures, "seconds": round(now - self._began)} if self.failures > 1 else {}
        self._log.warning(self._event, error=self.said, **more, **fields)

    def over(self, **fields: Any) -> None:
        """It works. Says so if it did not before, more than once. :param fields: of the line, if there is one."""
        if self.failures > 1:
            seconds = round(self._monotonic() - self._began)
            self._log.info("works_again", after=self._event, failures=self.failures, seconds=seconds, **fields)
        self.failures = 0


class Outages:
    """One :class:`Outage` for each sort of failure and each thing that it may happen to.

    :param log: a logger. :param monotonic: seconds that only grow.
    """

    def __init__(self, log: Any, monotonic: Callable[[], float]) -> None:
        self._log, self._monotonic = log, monotonic
        self._all: dict[tuple[str, object], Outage] = {}

    def of(self, event: str, thing: object = None) -> Outage:
        """:param event: name of a line about a failure. :param thing: one of few that fail alone, as a partition."""
        return self._all.setdefault((event, thing), Outage(self._log, event, self._monotonic))


def _mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Secrets never reach a log, whatever a library put into an error's text."""
    for key, value in event.items():
        if isinstance(value, str):
            named = key != "event" and _SECRET_FIELD.search(key)
            event[key] = MASK if named else masked(value)
    return event


_SECRET_FIELD = re.compile(r"(?i)account_?key|access_?key|password|secret|connection_string")


def _dumps(event: Any, **options: Any) -> str:
    """An event as JSON. A burst of instances is a burst of lines: the standard library takes three times as long."""
    try:
        return to_json(event, ensure_ascii=True).decode()
    except ValueError:
        return json.dumps(event, **options)


def configure(*, as_json: bool = False, verbose: bool = False) -> None:
    """Set up logging of a worker or command; called once, by the outermost edge only.

    :param as_json: one JSON object a line instead of a readable one. :param verbose: debug lines too.
    """
    level = logging.DEBUG if verbose else logging.INFO
    renderer: Any = (
        structlog.processors.JSONRenderer(serializer=_dumps)
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
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
