"""The messages between a worker's host and its executors, and their encoding as bytes. This module does no I/O.

Each message is one frame: the length of the header, the length of the body, a JSON header, and a raw body. Inputs,
results and log output travel as bodies, because escaping and parsing megabytes as JSON is slow.
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
from airflow_provider_taskhub.lineage import NO_LINEAGE, Lineage

_LENGTHS = struct.Struct("!II")
MAX_HEADER = 4 * 1024 * 1024
"""Largest size of a frame's header, in bytes."""
MAX_BODY = 256 * 1024 * 1024
"""Largest size of a frame's body, in bytes."""
LARGE = 64 * 1024
"""Size in bytes from which a body is written by its own system call. To copy it behind the header would cost more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMessage:
    """Base of all messages between host and executor.

    :param body: raw bytes after the header. Each kind of message says what its body means.
    """

    body: bytes = b""


# host → executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(ExecutorMessage):
    """The first message to an executor: its configuration.

    :param name: name of the executor, for people.
    :param apps: the apps to load, each written as ``module:attribute``.
    :param spark: whether to start Spark before the executor is ready.
    :param master: the Spark master. The address of a Spark Connect server may contain a token, so ``repr`` omits it.
    :param conf: Spark's configuration. It may contain keys of storage accounts, so ``repr`` omits it.
    :param lock_fd: descriptor of the worker's lock file, which Spark's JVM must keep open too; None: the worker has no
        lock file.
    :param max_result: largest size of one result, in bytes.
    :param max_log: largest size of one attempt's log, in bytes.
    :param kept_results: the folder for results that are too large.
    """

    name: str
    apps: tuple[str, ...]
    spark: bool
    master: str = dataclasses.field(repr=False)
    conf: Mapping[str, str] = dataclasses.field(repr=False)
    lock_fd: int | None
    max_result: int
    max_log: int
    kept_results: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(ExecutorMessage):
    """Asks the executor to run one attempt of an activity. The body is the input: a JSON array of one argument.

    :param number: identifies this attempt in all other messages between the host and this executor.
    :param name: name of the activity.
    :param instance_id: id of the instance that called the activity.
    :param execution_id: execution id of that instance, a new one after each ``continue_as_new``; None: unknown.
    :param task_id: number of the call in the history of the instance.
    :param action_id: identity of the call; it is the idempotency key that the activity sees.
    :param attempt: 1 for the first attempt of the call, 2 for the second, and so on.
    :param tags: tags of the call.
    :param job_group: Spark's job group for the jobs of the attempt, or the tag of its operations with Spark Connect;
        "" for an activity without Spark.
    :param has_input: False if the call has no input; the body is empty then.
    :param spark_conf: configuration for the attempt's Spark session, beside the executor's own.
    :param spark_session: name of the attempt's Spark Connect session; None without Spark Connect.
    :param trace_parent: W3C ``traceparent`` of the attempt; None: the attempt is not traced.
    :param trace_state: W3C ``tracestate`` of the attempt; None: there is no such value.
    :param begin_by: monotonic time of the machine, in seconds, after which the attempt must not begin; None: no limit.
    :param saved: the state that an earlier attempt of the call has saved, as JSON text; None: there is none.
    :param clean_up: True: the attempt is asked to stop from the beginning, and its function is called all the same.
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
    spark_conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    spark_session: str | None = None
    trace_parent: str | None = None
    trace_state: str | None = None
    begin_by: float | None = None
    saved: str | None = None
    clean_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(ExecutorMessage):
    """The answer to :class:`Save`: the state is in the activity record.

    :param save: number of the state among those of the attempt.
    """

    number: int
    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(ExecutorMessage):
    """Ask an attempt to stop. The executor ignores a number that it does not know: that attempt has just ended.

    :param lost: True: the next attempt goes on with what this one has begun.
    """

    number: int
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(ExecutorMessage):
    """Ask the executor for a sign of life. It sends the newest progress of all its attempts, then a ``Pong``."""


# executor → host


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(ExecutorMessage):
    """The executor is ready: the apps are loaded, and Spark runs if the host has asked for it.

    :param activities: the activities that the apps declare: for each name, whether it needs the worker's own Spark
        application.
    :param application_id: Spark's application id; None without Spark.
    :param spark_ui: URL of Spark's UI; None without a UI.
    """

    activities: Mapping[str, bool]
    application_id: str | None = None
    spark_ui: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(ExecutorMessage):
    """The executor did not become ready, and ends.

    :param reason: the reason, for people.
    :param stack_trace: stack trace of the failed import, or of Spark's failed start.
    :param see_output: whether the last raw output of the process (most often of Java) explains the reason.
    """

    reason: str
    stack_trace: str
    see_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dying(ExecutorMessage):
    """The executor ends now, because Spark's JVM or its Spark Connect server has ended, and the executor needs it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(ExecutorMessage):
    """Output of an attempt. The body has the bytes that the attempt wrote."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(ExecutorMessage):
    """An attempt has reported progress.

    :param fraction: finished part of the work, from 0 to 1; None: the earlier value stays.
    :param message: one line for people; None: the earlier line stays.
    :param observed: True: the executor has seen it in Spark. False: the activity has reported it.
    """

    number: int
    fraction: float | None
    message: str | None
    observed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(ExecutorMessage):
    """An attempt wants to keep a state for the attempts after it, and waits for the answer. The body is JSON text.

    :param save: number of the state among those of the attempt, from 1.
    """

    number: int
    save: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(ExecutorMessage):
    """An attempt has succeeded. The body is its result as JSON text.

    :param lineage: the data that the attempt has declared.
    """

    number: int
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(ExecutorMessage):
    """An attempt has failed.

    :param failure: the error.
    :param cancelled: True if the host had asked the attempt to stop.
    :param too_late: True if the attempt has not begun, because the time of :attr:`Run.begin_by` was over.
    """

    number: int
    failure: FailureDetails
    cancelled: bool = False
    too_late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(ExecutorMessage):
    """The answer to a ``Ping``."""


_KINDS: dict[str, type[ExecutorMessage]] = {
    kind.__name__: kind
    for kind in (
        *(Configure, Run, Cancel, Ping, Saved),
        *(Ready, StartFailed, Dying, Log, Progress, Save, Done, Failed, Pong),
    )
}
_HEADERS = {
    kind: tuple(field.name for field in dataclasses.fields(kind) if field.name != "body") for kind in _KINDS.values()
}
"""For each kind of message: the names of the fields that are written into the header of a frame."""


def encode(message: ExecutorMessage) -> tuple[bytes, ...]:
    """Return the bytes of a message's frame, in one piece or two. A large body is a separate piece and is not copied.

    :raises InputError: if the header or the body is larger than a frame allows.
    """
    kind = type(message)
    values = [kind.__name__, {name: getattr(message, name) for name in _HEADERS[kind]}]
    try:
        header = to_json(values)
    except ValueError:  # a text has a character that UTF-8 cannot express; dumps escapes the character
        header = dumps(values, what=kind.__name__).encode()
    if len(header) > MAX_HEADER or len(message.body) > MAX_BODY:
        raise InputError(
            f"{type(message).__name__} message of {len(header):,} + {len(message.body):,} bytes is too large for an "
            f"executor: at most {MAX_HEADER:,} + {MAX_BODY:,}. Keep large data in files or tables and pass its path."
        )
    head = _LENGTHS.pack(len(header), len(message.body)) + header
    return (head + message.body,) if len(message.body) < LARGE else (head, message.body)


def joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces: small pieces in a row are joined, large pieces stay as they are."""
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
    """Turns the bytes of a stream into messages, and keeps the bytes of an incomplete message.

    The chunks of a large body are collected in a list and joined once, so that they are not copied again and again.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header = b""
        """Header of the message whose large body is still incomplete."""
        self._body: list[bytes] = []
        """Chunks of the large body that have arrived."""
        self._missing = 0
        """Number of bytes of the large body that have not arrived."""

    def feed(self, data: bytes) -> list[ExecutorMessage]:
        """Return the messages that ``data`` completes.

        :raises InputError: if the bytes are not a valid frame. The caller must then read no more from this stream.
        """
        messages: list[ExecutorMessage] = []
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

    def _next(self) -> ExecutorMessage | None:
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


def _message(header: bytes, body: bytes) -> ExecutorMessage:
    value = loads(header.decode("utf-8", "replace"), what="header of a frame between host and executor")
    if not (isinstance(value, list) and len(value) == 2 and value[0] in _KINDS and isinstance(value[1], dict)):
        raise InputError(f"not a message between host and executor: {header[:100]!r}")
    message = decode({**value[1], "body": body}, _KINDS[value[0]], what=f"{value[0]} message")
    assert isinstance(message, ExecutorMessage)
    return message
