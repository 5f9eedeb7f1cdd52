"""The messages between a worker's host and its executors. No I/O here.

A message is a frame: the lengths of a JSON header and of a raw body, the header, the body. Inputs, results and log
bytes travel as bodies, so that megabytes are neither escaped nor parsed on their way.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable, Iterator, Mapping

from pydantic_core import to_json

from airflow_provider_taskhub.codec import decode, dumps, loads
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass

_LENGTHS = struct.Struct("!II")
MAX_HEADER = 4 * 1024 * 1024
MAX_BODY = 256 * 1024 * 1024
LARGE = 64 * 1024
"""Bytes of a body from which a copy costs more than a system call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """:param body: raw bytes beside the header; what they are is the message's own business."""

    body: bytes = b""


# host → executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Message):
    """First message: what this executor is.

    :param name: of the executor, for people. :param apps: ``module:attribute`` each.
    :param spark: whether to start Spark before getting ready. :param lock_fd: the incarnation's lock, to hand on to the
        JVM.
    :param max_result, max_log: bytes of one result and of one attempt's log.
    """

    name: str
    apps: tuple[str, ...]
    spark: bool
    master: str
    conf: Mapping[str, str]
    lock_fd: int | None
    max_result: int
    max_log: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Message):
    """Run an activity. The body is its input (a JSON array of one argument); ``has_input`` False: there is none.

    :param number: names this attempt in every other message.
    """

    number: int
    name: str
    instance_id: str
    execution_id: str | None
    task_id: int
    action_id: str
    attempt: int
    tags: Mapping[str, str]
    job_group: str
    has_input: bool
    trace_parent: str | None = None
    trace_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Message):
    """Ask an attempt to stop; unknown numbers have just ended and are ignored."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message):
    """Answered by ``Pong``, with the newest progress of everything that runs before it."""


# executor → host


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message):
    """Apps are loaded, Spark (if asked for) is up.

    :param activities: name → whether it is a Spark activity.
    """

    activities: Mapping[str, bool]
    application_id: str | None = None
    spark_ui: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(Message):
    """The executor cannot work and ends.

    :param reason: one text for people. :param stack_trace: of the import or of Spark's start.
    :param see_output: whether what the process wrote last, Java's words above all, explains it.
    """

    reason: str
    stack_trace: str
    see_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dying(Message):
    """Something that the executor cannot live without is gone (Spark's JVM); it ends now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Message):
    """The body is output of an attempt, as written."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    number: int
    fraction: float | None
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Message):
    """The body is the result, one JSON text."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Message):
    """:param cancelled: the attempt ended because it was asked to."""

    number: int
    failure: FailureDetails
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Message):
    pass


_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Configure, Run, Cancel, Ping, Ready, StartFailed, Dying, Log, Progress, Done, Failed, Pong)
}
_HEADERS = {
    kind: tuple(field.name for field in dataclasses.fields(kind) if field.name != "body") for kind in _KINDS.values()
}
"""What stands in a frame's header."""


def encode(message: Message) -> tuple[bytes, ...]:
    """One frame, in one piece or two: a large body is a piece of its own, so that it is not copied.

    :raises InputError: for a message above the frame's limits, naming it.
    """
    kind = type(message)
    values = [kind.__name__, {name: getattr(message, name) for name in _HEADERS[kind]}]
    try:
        header = to_json(values)
    except ValueError:  # a text that no UTF-8 can hold; this one escapes it
        header = dumps(values, what=kind.__name__).encode()
    if len(header) > MAX_HEADER or len(message.body) > MAX_BODY:
        raise InputError(
            f"{type(message).__name__} message of {len(header):,} + {len(message.body):,} bytes is too large for an "
            f"executor: at most {MAX_HEADER:,} + {MAX_BODY:,}. Keep large data in files or tables and pass its path."
        )
    head = _LENGTHS.pack(len(header), len(message.body)) + header
    return (head + message.body,) if len(message.body) < LARGE else (head, message.body)


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces: neighbours are joined, large pieces stay as they are."""
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < LARGE:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)


class Decoder:
    """Bytes in, messages out; keeps what is incomplete.

    The chunks of a large body are kept as they come, and joined once.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header = b""
        """Of the large body that is on its way."""
        self._body: list[bytes] = []
        self._missing = 0
        """Bytes of the large body that have not come."""

    def feed(self, data: bytes) -> list[Message]:
        """Messages completed by ``data``.

        :raises InputError: for bytes that are no frame; the stream cannot be trusted after that.
        """
        messages: list[Message] = []
        if self._missing:
            part = data[: self._missing]
            data = data[len(part) :]
            self._body.append(part)
            self._missing -= len(part)
            if self._missing:
                return messages
            messages.append(_message(self._header, b"".join(self._body)))
            self._body = []
        self._buffer += data
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        header, body = _LENGTHS.unpack_from(self._buffer)
        if header > MAX_HEADER or body > MAX_BODY:
            raise InputError(f"not a frame between host and executor: {bytes(self._buffer[:40])!r}")
        start, end = _LENGTHS.size + header, _LENGTHS.size + header + body
        if len(self._buffer) >= end:
            message = _message(bytes(self._buffer[_LENGTHS.size : start]), bytes(self._buffer[start:end]))
            del self._buffer[:end]
            return message
        if body >= LARGE and len(self._buffer) >= start:
            self._header, self._body = bytes(self._buffer[_LENGTHS.size : start]), [bytes(self._buffer[start:])]
            self._missing = end - len(self._buffer)
            self._buffer.clear()
        return None


def _message(header: bytes, body: bytes) -> Message:
    value = loads(header.decode("utf-8", "replace"), what="header of a frame between host and executor")
    if not (isinstance(value, list) and len(value) == 2 and value[0] in _KINDS and isinstance(value[1], dict)):
        raise InputError(f"not a message between host and executor: {header[:100]!r}")
    message = decode({**value[1], "body": body}, _KINDS[value[0]], what=f"{value[0]} message")
    assert isinstance(message, Message)
    return message
