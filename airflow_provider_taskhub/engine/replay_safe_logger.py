"""The logger of orchestrators, which writes nothing on replay, and the lines that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_taskhub.codec import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line that an orchestrator logs. A replay does not log the line again.

    :param level: number of the level, as in Python's module ``logging``.
    :param message: text of the line.
    :param instance_id: instance id of the orchestrator's instance.
    :param orchestrator: name of the orchestrator.
    :param time: the orchestrator's time.
    """

    level: int
    message: str
    instance_id: str
    orchestrator: str
    time: Timestamp


Log = Callable[[LogLine], None]
"""A function that takes log lines. The worker gives it to the engine."""


class LevelLogger(Protocol):
    """The part of ``logging.Logger`` that a replay-safe logger uses."""

    def log(self, level: int, msg: object, /, *args: object, **kwargs: Any) -> None: ...


class ReplaySafeLogger:
    """A logger for orchestrators. It writes nothing while the orchestrator is replayed."""

    __slots__ = ("_is_replaying", "_log")

    def __init__(self, is_replaying: Callable[[], bool], log: Callable[..., None]) -> None:
        self._is_replaying = is_replaying
        self._log = log

    def log(self, level: int, message: object, *args: object, **kwargs: Any) -> None:
        if not self._is_replaying():
            self._log(level, message, *args, **kwargs)

    def debug(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(10, message, *args, **kwargs)

    def info(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(20, message, *args, **kwargs)

    def warning(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(30, message, *args, **kwargs)

    warn = warning

    def error(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(40, message, *args, **kwargs)

    def exception(self, message: object, *args: object, **kwargs: Any) -> None:
        """Log an error with the stack trace of the exception that is being handled."""
        self.log(40, message, *args, **{"exc_info": True, **kwargs})

    def critical(self, message: object, *args: object, **kwargs: Any) -> None:
        self.log(50, message, *args, **kwargs)
