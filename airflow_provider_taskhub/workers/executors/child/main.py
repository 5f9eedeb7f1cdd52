"""The program of an executor process, which runs the user's activities: ``python -m …child.main SOCKET_FD``.

The main thread loads the apps, starts Spark if this is a Spark executor, and then runs the event loop of ``async``
activities. Each plain function runs in a thread. One more thread reads the socket to the host. When the socket closes,
the host has ended; then this process kills itself and all processes that it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from airflow_provider_taskhub import activity, tracing
from airflow_provider_taskhub.app import load_app
from airflow_provider_taskhub.clock import SYSTEM_CLOCK
from airflow_provider_taskhub.engine.events import FailureDetails
from airflow_provider_taskhub.engine.failures import failure_of
from airflow_provider_taskhub.engine.registry import ActivityDefinition, Registry
from airflow_provider_taskhub.errors import InputError, TaskHubError
from airflow_provider_taskhub.lineage import DeclaredLineage
from airflow_provider_taskhub.spark_conf import application_conf, session_conf
from airflow_provider_taskhub.workers.executors import process_session
from airflow_provider_taskhub.workers.executors.child import capture, invocation
from airflow_provider_taskhub.workers.executors.child.kept_results import keep
from airflow_provider_taskhub.workers.executors.child.spark import (
    LaunchError,
    Spark,
    SparkAttempt,
    SparkStart,
    start_spark,
)
from airflow_provider_taskhub.workers.executors.child.spark_work import SparkWork
from airflow_provider_taskhub.workers.executors.child.threads import Threads
from airflow_provider_taskhub.workers.executors.protocol import (
    Cancel,
    Configure,
    Decoder,
    Done,
    Dying,
    ExecutorMessage,
    Failed,
    Log,
    Ping,
    Pong,
    Progress,
    Ready,
    Run,
    Save,
    Saved,
    StartFailed,
    encode,
    joined,
)

_PROGRESS_EVERY = 0.25
"""Shortest time between two progress messages of one attempt, in seconds.

A report that comes earlier is sent with the attempt's next report, or when the host pings."""


_LOOK = 1.0
"""Seconds between two looks whether an activity that waits for the record was asked to stop."""
_SPARK_EVERY = 1.0
"""Seconds between two looks at the progress of Spark's jobs."""
_NO_RECORD = "this activity has no record that could keep the URI: declare it with @app.activity(record=True)"


class Link:
    """The socket to the host. Any thread may send messages; only one thread may receive them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._connection.set_inheritable(False)
        self._decoder = Decoder()
        self._lock = threading.Lock()
        self._waiting: deque[tuple[bytes, ...]] = deque()
        self._owner = os.getpid()

    def send(self, message: ExecutorMessage) -> None:
        """Send a message to the host. Kill this process if the host has ended.

        The call blocks while the host does not read. So output of activities cannot fill the memory.
        """
        if os.getpid() != self._owner:
            return  # this is a process that user code has forked; two writers would mix their bytes in the stream
        self._waiting.append(encode(message))
        try:
            with self._lock:  # the thread that has the lock also sends the messages that other threads add meanwhile
                pieces: list[bytes] = []
                while self._waiting:
                    pieces.extend(self._waiting.popleft())
                for piece in joined(pieces):
                    self._connection.sendall(piece)
        except OSError:
            end()

    def receive(self) -> Iterator[ExecutorMessage]:
        """Yield messages of the host until the host closes the socket."""
        while data := self._read():
            yield from self._decoder.feed(data)

    def _read(self) -> bytes:
        try:
            return self._connection.recv(256 * 1024)
        except OSError:
            return b""


def end() -> NoReturn:
    """Kill this process and all processes in its session, now."""
    # If another process leads the session, a person has started this module in a shell. Do not kill that shell.
    if os.getsid(0) == os.getpid():
        process_session.kill(os.getpid())
    os._exit(1)


class _TooLate(Exception):
    """The attempt has not begun, because it was too late (:attr:`Run.begin_by`). The host asks whether it may begin."""


class RunningActivity:
    """One attempt of an activity that this executor runs.

    :param run: the host's request.
    :param definition: the declared activity.
    :param spark: the Spark of this executor; None for an activity without Spark.
    """

    def __init__(
        self, run: Run, definition: ActivityDefinition, link: Link, configure: Configure, spark: Spark | None
    ) -> None:
        self.run = run
        self.definition = definition
        self.spark = spark
        self._task: asyncio.Task[Any] | None = None
        self.output = capture.AttemptLog(lambda data: link.send(Log(number=run.number, body=data)), configure.max_log)
        self._max_result, self._kept_results = configure.max_result, Path(configure.kept_results)
        self._link = link
        self._lock = threading.Lock()
        self._pending: tuple[float | None, str | None] | None = None
        self._reported = -_PROGRESS_EVERY
        self._tells_itself = False
        self._seen: SparkWork | None = None
        self._saves: dict[int, threading.Event] = {}
        self.public = activity.Attempt(
            info=activity.ActivityInfo(
                name=run.name,
                instance_id=run.instance_id,
                execution_id=run.execution_id,
                task_id=run.task_id,
                attempt=run.attempt,
                idempotency_key=run.action_id,
                tags=dict(run.tags),
                trace_parent=run.trace_parent,
                trace_state=run.trace_state,
            ),
            report=self._report,
            lineage=DeclaredLineage(None if definition.record else _NO_RECORD),
            recorded=definition.record,
            saved=run.saved,
            save=self._save,
        )
        if run.clean_up:
            self.public.cancelled.set()

    async def awaited(self, value: Awaitable[Any]) -> Any:
        """Await what an ``async`` function has returned. :meth:`cancel_task` cancels the present task."""
        self._task = asyncio.current_task()
        if self._task is not None and self.public.cancelled.is_set() and not self._must_clean_up:
            self._task.cancel()
        return await value

    @property
    def _must_clean_up(self) -> bool:
        """Whether the function is called though it was asked to stop before: it may have to end what is left."""
        left = self.definition.clean_up and self.run.saved is not None
        return left and not self.public.lost

    def cancel_task(self) -> None:
        """Cancel the task of an ``async`` function, from any thread. Call it after ``public.cancelled`` was set."""
        if (task := self._task) is not None:
            with contextlib.suppress(RuntimeError):  # the function has ended, and its event loop too
                task.get_loop().call_soon_threadsafe(task.cancel)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make this attempt the current one in the ``with`` block: for output, ``activity_info()`` and trace spans."""
        trace = tracing.joined(self.run.trace_parent, self.run.trace_state)
        with capture.captured(self.output), activity.entered(self.public), trace:
            yield

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments for the activity's function, without a Spark session.

        :raises ActivityCancelled: if the host has asked to stop the attempt before the function was called.
        :raises _TooLate: if the attempt must not begin any more.
        """
        self.check_stop()
        only_stops = self.public.cancelled.is_set()
        if self.run.begin_by is not None and not only_stops and SYSTEM_CLOCK.monotonic() > self.run.begin_by:
            raise _TooLate("the worker could not begin the activity in time")
        return invocation.arguments(self.definition, self.run.body.decode() if self.run.has_input else None)

    def check_stop(self) -> None:
        """Raise ``ActivityCancelled`` if the host has asked to stop the attempt before the function was called."""
        if self.public.cancelled.is_set() and not self._must_clean_up:
            raise activity.ActivityCancelled("the activity was asked to stop before it began")

    def result(self, value: Any) -> ExecutorMessage:
        try:
            text = invocation.result_text(self.definition, value, self._max_result)
        except invocation.ResultTooLarge as error:
            kept = keep(
                error.text,
                self._kept_results,
                instance_id=self.run.instance_id,
                task_id=self.run.task_id,
                machine=socket.gethostname(),
            )
            raise InputError(f"{error}. {kept}") from None
        return Done(number=self.run.number, lineage=self.public.lineage.declared(), body=text)

    def failure(self, error: BaseException) -> ExecutorMessage:
        return Failed(
            number=self.run.number,
            failure=failure_of(error),
            cancelled=self.public.cancelled.is_set(),
            too_late=isinstance(error, _TooLate),
        )

    def flush(self) -> None:
        """Send the newest progress if it was not sent yet."""
        with self._lock:
            pending, self._pending = self._pending, None
            self._reported = SYSTEM_CLOCK.monotonic()
        if pending is not None:
            self._link.send(Progress(number=self.run.number, fraction=pending[0], message=pending[1], observed=False))

    def _save(self, state: str) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise TaskHubError(
                "save_state() waits for the store and would hold up all async activities of this process: write "
                "await asyncio.to_thread(save_state, value)"
            )
        number, written = len(self._saves) + 1, threading.Event()
        self._saves[number] = written
        self._link.send(Save(number=self.run.number, save=number, body=state.encode()))
        while not written.wait(_LOOK):
            activity.check_cancelled()

    def saved(self, number: int) -> None:
        """Let the activity go on, because its state is in the record. :param number: number of the state."""
        self._saves[number].set()

    def look_at_spark(self) -> None:
        """Send the progress of the attempt's Spark job, unless the activity reports its progress itself."""
        if self.spark is None or self._tells_itself:
            return
        with contextlib.suppress(Exception):  # progress helps people: the next look may work
            work = self.spark.work(self.run.job_group)
            if work is None or work == self._seen or self._tells_itself:
                return
            self._seen = work
            text = work.text()
            self._link.send(Progress(number=self.run.number, fraction=work.fraction, message=text, observed=True))

    def _report(self, fraction: float | None, message: str | None) -> None:
        self._tells_itself = True
        with self._lock:
            before = self._pending or (None, None)
            self._pending = (
                before[0] if fraction is None else fraction,
                before[1] if message is None else message,
            )
            due = SYSTEM_CLOCK.monotonic() - self._reported >= _PROGRESS_EVERY
        if due:
            self.flush()


class ChildExecutor:
    """The executor inside its process: the activities that it has loaded, and the attempts that it runs."""

    def __init__(self, link: Link, configure: Configure) -> None:
        self._link = link
        self._configure = configure
        self._loop = asyncio.new_event_loop()
        self._attempts: dict[int, RunningActivity] = {}
        self._threads = Threads()
        self._registry = Registry.of(())
        self._spark: Spark | None = None

    def serve(self, messages: Iterator[ExecutorMessage]) -> NoReturn:
        """Load the apps, report that the executor is ready, then run activities until the host has ended.

        Call it in the main thread.
        """
        threading.Thread(target=self._read, args=(messages,), name="taskhub-link", daemon=True).start()
        try:
            ready = self._prepare()
        except BaseException as error:  # a user's module may raise any exception, also SystemExit
            reason = str(error) if isinstance(error, TaskHubError) else f"{type(error).__name__}: {error}"
            self._link.send(
                StartFailed(
                    reason=reason[:32_768],
                    stack_trace=traceback.format_exc()[-32_768:],
                    see_output=isinstance(error, LaunchError),
                )
            )
            end()
        self._link.send(ready)
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                end()
            except (SystemExit, KeyboardInterrupt):
                # An asyncio task that an activity has started raised this exception. If the activity awaits that task,
                # the activity gets the exception too. The event loop must go on for the other activities.
                continue

    def _prepare(self) -> Ready:
        self._registry = Registry.of([load_app(name) for name in self._configure.apps])
        if self._configure.spark:
            self._spark = start_spark(
                SparkStart(
                    master=self._configure.master,
                    conf=self._configure.conf,
                    lock_fd=self._configure.lock_fd,
                    gone=self._die,
                )
            )
            threading.Thread(target=self._look_at_spark, name="taskhub-progress", daemon=True).start()
        place = self._spark.place if self._spark else None
        return Ready(
            activities={
                name: definition.spark and not application_conf(definition.spark_conf)
                for name, definition in self._registry.activities.items()
            },
            application_id=place.application_id if place else None,
            spark_ui=place.ui if place else None,
        )

    def _look_at_spark(self) -> NoReturn:
        while True:
            time.sleep(_SPARK_EVERY)
            for attempt in tuple(self._attempts.values()):
                attempt.look_at_spark()

    def _die(self, reason: str) -> None:
        """Send the host the reason, then kill this process."""
        self._link.send(Dying(reason=reason))
        end()

    def _read(self, messages: Iterator[ExecutorMessage]) -> None:
        try:
            for message in messages:
                self._handle(message)
        except BaseException:  # without this thread the executor gets no messages: write the error, then end
            os.write(2, traceback.format_exc().encode())
        end()

    def _handle(self, message: ExecutorMessage) -> None:
        match message:
            case Run():
                self._begin(message)
            case Cancel(number=number, lost=lost):
                self._cancel(number, lost)
            case Saved(number=number, save=save):
                if (attempt := self._attempts.get(number)) is not None:
                    attempt.saved(save)
            case Ping():
                for attempt in tuple(self._attempts.values()):
                    attempt.flush()
                self._link.send(Pong())
            case _:
                raise InputError(f"a host must not send a {type(message).__name__} message to an executor")

    def _begin(self, run: Run) -> None:
        definition = self._registry.activities.get(run.name)
        if definition is None:
            known = ", ".join(sorted(self._registry.activities)) or "none"
            text = f"no loaded app declares an activity {run.name!r}; declared are: {known}"
            self._link.send(
                Failed(number=run.number, failure=FailureDetails(error_type="UnknownActivity", error_message=text))
            )
            return
        attempt = RunningActivity(
            run, definition, self._link, self._configure, self._spark if definition.spark else None
        )
        self._attempts[run.number] = attempt
        if inspect.iscoroutinefunction(definition.function) and not definition.spark:
            asyncio.run_coroutine_threadsafe(self._run_async(attempt), self._loop)
        elif definition.spark:
            # A new thread for each attempt: py4j binds each Python thread to one JVM thread, and Spark keeps the job
            # group and other properties for each JVM thread. Spark Connect keeps the active session for each thread.
            threading.Thread(target=self._run, args=(attempt,), name=f"activity-{run.name}", daemon=True).start()
        else:
            self._threads.run(f"activity-{run.name}", partial(self._run, attempt))

    def _cancel(self, number: int, lost: bool) -> None:
        attempt = self._attempts.get(number)
        if attempt is None:
            return
        attempt.public.lost = lost and not attempt.run.clean_up
        attempt.public.cancelled.set()
        attempt.cancel_task()
        if attempt.spark is not None:
            # In a separate thread: a slow JVM or server must not stop the reading thread from answering pings.
            threading.Thread(target=attempt.spark.cancel, args=(attempt.run.job_group,), daemon=True).start()

    def _run(self, attempt: RunningActivity) -> None:
        try:
            with attempt.entered():
                answer = self._call(attempt)
        except BaseException as error:  # any exception of user code, also SystemExit, is a failure of the attempt
            answer = attempt.failure(error)
        self._finish(attempt, answer)

    def _call(self, attempt: RunningActivity) -> ExecutorMessage:
        """Call the activity's function in this thread, and return the message with its result or its failure.

        Exceptions are turned into a message here, where the output still goes to the attempt's log.
        """
        try:
            arguments = attempt.arguments()
            function: Any = attempt.definition.function
            if attempt.spark is None:
                return attempt.result(function(*arguments))
            with attempt.spark.session(
                SparkAttempt(
                    job_group=attempt.run.job_group,
                    description=f"{attempt.run.name} of {attempt.run.instance_id}",
                    conf={**session_conf(attempt.definition.spark_conf), **attempt.run.spark_conf},
                    session=attempt.run.spark_session,
                )
            ) as spark:
                attempt.check_stop()  # a cancel that came before Spark knew the attempt has ended nothing
                value = function(spark, *invocation.opened_arguments(attempt.definition, arguments, spark))
                return attempt.result(asyncio.run(attempt.awaited(value)) if inspect.iscoroutine(value) else value)
        except BaseException as error:
            return attempt.failure(error)

    async def _run_async(self, attempt: RunningActivity) -> None:
        with attempt.entered():
            try:
                function: Any = attempt.definition.function
                answer = attempt.result(await attempt.awaited(function(*attempt.arguments())))
            except BaseException as error:  # also SystemExit, which would stop the event loop of all activities
                answer = attempt.failure(error)
        self._finish(attempt, answer)

    def _finish(self, attempt: RunningActivity, answer: ExecutorMessage) -> None:
        self._attempts.pop(attempt.run.number, None)
        attempt.flush()
        try:
            self._link.send(answer)
        except InputError as error:
            self._link.send(attempt.failure(error))


def main() -> NoReturn:
    """Run the executor. ``sys.argv[1]`` is the descriptor of the socket to the host."""
    if len(sys.argv) != 2:
        sys.exit("this module is started by a TaskHub worker, with a socket; run `taskhub worker` instead")
    faulthandler.enable()
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    messages = link.receive()
    configure = next(messages, None)
    if not isinstance(configure, Configure):
        end()
    capture.install()
    ChildExecutor(link, configure).serve(messages)


if __name__ == "__main__":
    main()
