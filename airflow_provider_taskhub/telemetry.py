"""Sets up logging: each log line is a named event with fields, as a readable line or as JSON."""

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
"""Least number of seconds between two log lines about one outage."""


class Outage:
    """Logs an outage (one action fails again and again) in few lines: the first failure, one line a minute, the end.

    Each loop or task that may fail again and again has its own ``Outage``.

    :param log: a structlog logger; its bound fields are in every line.
    :param event: name of the log event about a failure.
    :param monotonic: returns seconds that never fall.
    :ivar failures: number of failures in a row; 0: there is no outage.
    :ivar last_error: text of the last failure.
    """

    def __init__(self, log: Any, event: str, monotonic: Callable[[], float]) -> None:
        self._log, self._event, self._monotonic = log, event, monotonic
        self._began = self._logged = 0.0
        self.failures = 0
        self.last_error = ""

    def failed(self, error: BaseException, **fields: Any) -> None:
        """Count a failure, and log it unless a line about this outage was logged less than a minute ago.

        :param fields: further fields of the log line.
        """
        now = self._monotonic()
        self.failures += 1
        self.last_error = str(error) or type(error).__name__
        if self.failures == 1:
            self._began = now
        elif now - self._logged < OUTAGE_EVERY:
            return
        self._logged = now
        more = {"failures": self.failures, "seconds": round(now - self._began)} if self.failures > 1 else {}
        self._log.warning(self._event, error=self.last_error, **more, **fields)

    def over(self, **fields: Any) -> None:
        """Note a success. If the action has failed more than once since its last success, log ``works_again``.

        :param fields: further fields of the log line.
        """
        if self.failures > 1:
            seconds = round(self._monotonic() - self._began)
            self._log.info("works_again", after=self._event, failures=self.failures, seconds=seconds, **fields)
        self.failures = 0


class Outages:
    """Keeps one :class:`Outage` for each pair of a log event and a thing that may fail.

    :param log: a structlog logger.
    :param monotonic: returns seconds that never fall.
    """

    def __init__(self, log: Any, monotonic: Callable[[], float]) -> None:
        self._log, self._monotonic = log, monotonic
        self._all: dict[tuple[str, object], Outage] = {}

    def of(self, event: str, thing: object = None) -> Outage:
        """Return the :class:`Outage` for a log event and what fails. The first call for this pair makes the object.

        :param event: name of the log event about a failure.
        :param thing: what fails, for example a partition number; None if the event can concern only one
            thing. Objects are never removed, so use few different values (partitions, but not instances).
        """
        return self._all.setdefault((event, thing), Outage(self._log, event, self._monotonic))


def _mask(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask secrets in all fields of a log line, because a library's error text may contain a secret."""
    for key, value in event.items():
        if isinstance(value, str):
            named = key != "event" and _SECRET_FIELD.search(key)
            event[key] = MASK if named else masked(value)
    return event


_SECRET_FIELD = re.compile(r"(?i)account_?key|access_?key|password|secret|connection_string")


def _dumps(event: Any, **options: Any) -> str:
    """Return a log event as JSON. Python's ``json`` takes three times as long, and a busy worker logs many lines."""
    try:
        return to_json(event, ensure_ascii=True).decode()
    except ValueError:
        return json.dumps(event, **options)


def configure(*, as_json: bool = False, verbose: bool = False) -> None:
    """Set up the logging of a worker or a command. Only the main program calls it, once.

    :param as_json: True: each line is a JSON object. False: lines are for people.
    :param verbose: True: log debug lines too.
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
    # `force`, because Airflow sets up the root logger when it is imported.
    form = "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=form, force=True)
