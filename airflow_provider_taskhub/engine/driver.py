"""Runs the coroutines of one orchestrator with ``send`` and ``throw``, without an event loop.

There is one coroutine for the orchestrator function itself, the *main branch*, and one for each branch that the code
has started with ``ctx.branch``. A coroutine can await only tasks of its context. Branches that can go on run one after
the other, in the order in which the history has settled what they await. So a replay runs them in the same order.

The module ``generation`` decides what a result or an error of the main branch means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context, copy_context
from types import CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any

from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.async_generators import AsyncGenerators
from airflow_provider_taskhub.engine.no_event_loop import CancelledError, advice, called_at, note_in, reworded
from airflow_provider_taskhub.engine.signatures import T_co
from airflow_provider_taskhub.engine.tasks import CancellableTask, Group, Task
from airflow_provider_taskhub.engine.wait_changes import WaitRecorder
from airflow_provider_taskhub.errors import OrchestrationError, TaskCancelledError

MAX_STEPS = 1_000_000
"""Maximum number of awaits in one turn, which ends when all branches wait. Code with more awaits is in an endless loop
over completed tasks."""

Body = Coroutine[Any, Any, Any] | Generator[Any, Any, Any]

MOST_CLOSES = 100
"""How often a coroutine is closed that awaits something in its ``finally`` blocks. After that, it counts as code that
goes on whatever is raised in it."""


class Ending(Group[None]):
    """What a branch awaits instead of its task when its instance is asked to end: the end of what was cancelled.

    :param error: the error with which the branch then goes on.
    """

    __slots__ = ("_left", "_then")

    needs_all = True

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._then = error
        self._left = 0

    def await_all(self, tasks: Sequence[Task[Any]]) -> None:
        """Fail with the error when the last of some tasks has ended; at once if there are none.

        :param tasks: the tasks that were cancelled.
        """
        self._left = len(tasks)
        if not tasks:
            self.fail(self._then)
        for task in tasks:
            task.join(self)

    def settled(self, child: Task[Any]) -> None:
        self._left -= 1
        if not self._left:
            self.fail(self._then)


class Branch(CancellableTask[T_co], Group[T_co]):
    """The task of a coroutine: it gives what the coroutine returns, or fails with what the coroutine raises.

    A branch is also the group that a task notifies while the branch awaits the task.

    :param driver: the driver that runs the branch.
    :ivar interruptions: number of interruptions, by :meth:`cancel` or by a limit of ``ctx.timeout``, that no limit has
        turned into a ``TimeoutError``.
    :ivar limits: number of limits of ``ctx.timeout`` whose blocks the code is in.
    """

    __slots__ = (
        "_awaited",
        "_body",
        "_context",
        "_driver",
        "_is_cancelled",
        "_is_running",
        "_pending",
        "_trace",
        "interruptions",
        "limits",
    )

    runs = True

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.interruptions = self.limits = 0
        self._driver = driver
        self._body: Body | None = None
        self._awaited: Task[Any] | None = None
        self._pending: str | None = None
        self._is_cancelled = False
        self._is_running = False
        self._trace: TracebackType | None = None

    @property
    def owner(self) -> object | None:
        return self._driver.owner

    def named(self) -> str:
        return "a branch" if self._body is None else f"the branch that waits at {self.line()}"

    @property
    def trace(self) -> TracebackType | None:
        return self._trace

    @property
    def needs_all(self) -> bool:  # type: ignore[override]  # a constant of the other groups
        """Whether the code goes on only after the task that it awaits. A limit lets it go on before."""
        return not self.limits

    @property
    def is_main(self) -> bool:
        """Whether this is the orchestrator function itself."""
        return self is self._driver.main

    def begin(self, body: Body) -> None:
        """Run a coroutine until it waits or ends.

        :param body: the coroutine, which has not begun.
        """
        self._body = body
        # Context variables are those of the code that starts the branch; the orchestrator function itself begins with
        # none. So they are the same before and after each await, in each replay, and those of no other instance.
        driver = self._driver
        if self.is_main:
            self._context = driver.context
        else:  # no code runs if the end of the orchestrator function closes an async generator
            self._context = copy_context() if driver.current._is_running else driver.context.copy()
        self.step()

    def settled(self, child: Task[Any]) -> None:
        if child is self._awaited:
            self._driver.wake(self)

    def step(self) -> None:
        """Run the coroutine until it waits or ends. Do nothing if it runs already, waits or has ended."""
        driver = self._driver
        if self._is_running or driver.is_closed:
            return
        before, driver.current = driver.current, self
        self._is_running = True
        try:
            while (body := self._body) is not None and self._can_go_on():
                self._advance(body)
        finally:
            self._is_running = False
            driver.current = before
            if self._done:
                driver.ended(self)

    def interrupt(self, why: str) -> None:
        """Raise ``asyncio.CancelledError`` in the coroutine, at the await at which it waits, when it runs next.

        :param why: text of the error.
        """
        if not self._done:
            self.interruptions += 1
            if isinstance(self._awaited, Ending):  # it gets the error of the end of its instance
                return
            self._pending = why
            self._driver.wake(self)

    def hold(self, ending: Ending) -> None:
        """Wait for the end of what is cancelled, instead of what the code awaits, because the instance is to end."""
        task, self._awaited = self._awaited, ending
        if task is not None:
            task.leave(self)
        self._pending = None
        self.interruptions += 1
        self._is_cancelled = not self.is_main
        ending.join(self)

    def cancel(self) -> None:
        """Cancel the branch: the await at which its code waits raises ``asyncio.CancelledError``.

        The code can clean up in an ``except`` or ``finally`` block, also with awaits. When the code ends, the task
        fails with :class:`TaskCancelledError`. If the code goes on in spite of the cancellation, its result counts.
        """
        self.use()
        self._is_cancelled = True
        self.interrupt("the branch was cancelled by the orchestrator")
        self.step()

    def close(self) -> None:
        """Close the coroutine: its ``finally`` blocks run now. An error that they raise is ignored."""
        body, self._body = self._body, None
        self._awaited = None
        if body is None:
            return
        for _ in range(MOST_CLOSES):
            try:
                self._context.run(body.close)
                return
            except RuntimeError:  # a `finally` block awaits something: it is left at this await, and so is the next one
                continue
            except BaseException:  # the code is not needed any more: an error of its `finally` is ignored
                return

    def line(self) -> CallSite | str:
        """Return the line of user code at which the coroutine waits; a text if the line is unknown."""
        return called_at(_waiting(self._body))[0] or "an unknown line"

    def doing(self) -> str:
        """Return a text for errors that says whether the coroutine had ended, or at which line it waited."""
        return "had ended" if self._body is None else f"waited at {self.line()}"

    def _can_go_on(self) -> bool:
        return self._pending is not None or self._awaited is None or self._awaited._done

    def _advance(self, body: Body) -> None:
        """Run the coroutine up to its next await."""
        try:
            self._driver.count(self)
            yielded = self._resumed(body)
        except StopIteration as stop:
            self._body = None
            self.complete(stop.value)
        except BaseException as error:  # also SystemExit: an orchestrator must not end its worker
            self._failed(error)
        else:
            self._await(yielded)

    def _resumed(self, body: Body) -> Any:
        if self._pending is not None:
            why, self._pending = self._pending, None
            self._leave()
            return self._context.run(body.throw, CancelledError(why))
        task = self._awaited
        if task is None:
            return self._context.run(body.send, None)
        error = task.get_exception()  # this also decodes the result, which can fail
        if error is None:
            return self._context.run(body.send, task.get_result())
        # Several awaits can raise the same error object. Without `with_traceback` its traceback would grow each time.
        return self._context.run(body.throw, error.with_traceback(task.trace))

    def _await(self, yielded: Any) -> None:
        if not isinstance(yielded, Task):
            where, called = self._called(yielded)
            self._failed(
                self._driver.error(
                    f"awaited {called or type(yielded).__name__} at {where}: only tasks of its context can be awaited. "
                    f"{advice(called)}"
                )
            )
            return
        owner = yielded.owner
        if owner is not None and owner is not self._driver.owner:
            self._failed(
                self._driver.error(
                    f"awaited {yielded.named()} at {self.line()}, which another run of an orchestrator has made: await "
                    "only what this run's own ctx has made, and keep no task or ctx in a global variable"
                )
            )
            return
        self._awaited = yielded
        if self._pending is not None:  # it is interrupted at this await, so it must take no event here
            return
        if yielded.claims:
            yielded.claim(joins=True)
        if not yielded._done:
            yielded.join(self)

    def _failed(self, error: BaseException) -> None:
        self.close()
        error = reworded(error)
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
            error = error.with_traceback(error.__cause__.__traceback__)  # Python's own error has no line of the code
        if self._is_cancelled and isinstance(error, CancelledError):
            self._seen = True
            self.fail(TaskCancelledError("the task was cancelled by the orchestrator"))
            return
        self._trace = error.__traceback__
        self.fail(error)

    def _leave(self) -> None:
        """Stop waiting for the awaited task, and cancel the branches for which nobody waits any more."""
        task, self._awaited = self._awaited, None
        if task is not None and not task._done:
            task.leave(self)
            for part in _parts(task):
                if isinstance(part, Branch) and part.is_left_behind():
                    part.cancel()

    def _called(self, yielded: object) -> tuple[CallSite | str, str]:
        """Return the line that awaits an object of another library, and the function of asyncio that made the object.

        :returns: "" for the function if it is unknown.
        """
        frames = [*_waiting(self._body)]
        if isinstance(yielded, CoroutineType) and yielded.cr_frame is not None:  # a generator function has yielded it
            frames.append(yielded.cr_frame)
            yielded.close()
        where, called = called_at(frames)
        return where or "an unknown line", called


class Driver:
    """Runs the branches of one orchestrator.

    :param name: name of the orchestrator, for errors.
    :param owner: what stands for the generation (``Task.owner``).
    :ivar main: the orchestrator function itself.
    :ivar current: the branch whose code runs; the main branch if no code runs.
    :ivar context: the context variables of the orchestrator function.
    :ivar refused: errors that have refused a call. The code has perhaps caught them.
    :ivar is_closed: whether no code runs any more, because the driver was closed.
    :ivar cleanup_error: the first error of the clean-up of an async generator that was left early; else None.
    """

    __slots__ = (
        "_branches",
        "_cleanups",
        "_generators",
        "_held",
        "_name",
        "_ready",
        "_steps",
        "cleanup_error",
        "context",
        "current",
        "is_closed",
        "main",
        "owner",
        "refused",
    )

    def __init__(self, name: str, owner: WaitRecorder) -> None:
        self._name = name
        self.owner = owner
        self._ready: deque[Branch[Any]] = deque()
        self._branches: dict[int, Branch[Any]] = {}
        self._held: list[tuple[Branch[Any], Ending]] = []
        self._cleanups: set[int] = set()
        self._steps = 0
        self.cleanup_error: BaseException | None = None
        self.refused: list[OrchestrationError] = []
        self.context = Context()
        self.context.run(note_in, self.refused)
        self.is_closed = False
        self.main = self.current = Branch[Any](self)
        self._generators = AsyncGenerators(self._clean_up, lambda: self.current._is_running, lambda: self.is_closed)

    @property
    def is_over(self) -> bool:
        """Whether the orchestrator function and the clean-up of its async generators have ended."""
        return self.main._done and not self._cleanups

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the orchestrator function.

        :returns: a coroutine, a generator, or the result of a plain function.
        """
        return self.context.run(function, *arguments)

    def start(self, made: Any) -> None:
        """Run the orchestrator function for the first time, until it and its branches wait.

        :param made: what the call of the function gave: a coroutine, a generator, or the result of a plain function.
        """
        if isinstance(made, CoroutineType | GeneratorType):
            self._generators.watch()
            self.main.begin(made)
            self.turn()
        else:
            self.main.complete(made)

    def branch(self, body: Body) -> Branch[Any]:
        """Start a branch: its code runs at once, until it waits or ends.

        :param body: the coroutine, which has not begun.
        """
        branch = Branch[Any](self)
        if self.is_closed:
            body.close()
            return branch
        self._branches[id(branch)] = branch
        branch.begin(body)
        return branch

    def turn(self) -> None:
        """Run all branches that can go on, until each waits or the orchestrator is over."""
        self._generators.watch()
        while self._ready and not self.is_over:
            self._ready.popleft().step()
        self._steps = 0

    def ended(self, branch: Branch[Any]) -> None:
        """Forget a branch, because its code has ended. The end of the main branch closes the async generators."""
        self._branches.pop(id(branch), None)
        if id(branch) in self._cleanups:
            self._cleanups.remove(id(branch))
            self.cleanup_error = self.cleanup_error or branch._error
        if branch.is_main:
            for generator in self._generators.take_open():
                self._clean_up(generator)

    def wake(self, branch: Branch[Any]) -> None:
        """Let a branch run in this turn, because it can go on."""
        self._ready.append(branch)

    def lines(self) -> list[CallSite | str]:
        """Return the lines of user code at which the orchestrator function and its branches wait."""
        waiting = [branch for branch in (self.main, *self._branches.values()) if not branch._done]
        return [*dict.fromkeys(branch.line() for branch in waiting)]

    def count(self, branch: Branch[Any]) -> None:
        """Count a step of a branch.

        :raises OrchestrationError: there were more than :data:`MAX_STEPS` steps in this turn.
        """
        self._steps += 1
        self.owner.awaited()
        if self._steps > MAX_STEPS:
            raise self.error(
                f"awaited completed tasks {MAX_STEPS} times in one turn at {branch.line()}: "
                "this loop never waits. Await a task that is not complete"
            )

    def error(self, text: str) -> OrchestrationError:
        return OrchestrationError(f"orchestrator {self._name!r} {text}", retryable=False)

    def hold(self, error: Callable[[], BaseException]) -> None:
        """Let no branch go on before :meth:`end`, because the instance is to end.

        :param error: makes the error with which a branch then goes on.
        """
        if self.main._done:  # only the clean-up of async generators is left
            return
        branches = [one for one in self._branches.values() if id(one) not in self._cleanups]
        self._held = [(one, Ending(error())) for one in (*branches, self.main)]
        for branch, ending in self._held:
            branch.hold(ending)

    def awaited_by_cleanups(self) -> set[int]:
        """Return the ids of the tasks that the clean-up of async generators awaits."""
        awaited = [task for one in self._cleanups if (task := self._branches[one]._awaited) is not None]
        return {id(part) for task in awaited for part in _parts(task)}

    @property
    def is_held(self) -> bool:
        """Whether the branches wait for :meth:`end`."""
        return bool(self._held)

    @property
    def has_not_begun_to_end(self) -> bool:
        """Whether no clean-up has begun, because all code still waits for the end of what was cancelled."""
        branches = (self.main, *self._branches.values())
        return all(isinstance(one._awaited, Ending) for one in branches if not one._done)

    def end(self, cancelled: Sequence[Task[Any]]) -> None:
        """Let the branches go on when what was cancelled has ended, and the orchestrator function after its branches.

        :param cancelled: the tasks that were cancelled.
        """
        held, self._held = self._held, []
        for branch, ending in held:
            branches = [one for one, _ in held if not one.is_main] if branch.is_main else []
            ending.await_all([*cancelled, *branches])

    def close(self) -> None:
        """Close all branches, the newest first: their ``finally`` blocks run now, and no code runs after that."""
        self.is_closed = True
        for branch in reversed([self.main, *self._branches.values()]):
            branch.close()
        self._branches.clear()
        self._ready.clear()

    def _clean_up(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator in a branch, for which the end of the orchestrator waits."""
        branch = Branch[Any](self)
        self._branches[id(branch)] = branch
        self._cleanups.add(id(branch))
        branch.begin(_closing(generator))


async def _closing(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _parts(task: Task[Any]) -> Iterator[Task[Any]]:
    """Yield a task and, for a group, the open tasks in the group, also those of the groups in it."""
    yield task
    for part in task.parts:
        if not part._done:
            yield from _parts(part)


def _waiting(body: Any) -> Iterator[FrameType]:
    """Yield the frames that wait, the outermost first. It looks through nested coroutines and ``yield from``."""
    while body is not None:
        frame = getattr(body, "cr_frame", None) or getattr(body, "gi_frame", None)
        if frame is None or frame.f_code is Task.__await__.__code__:
            return
        yield frame
        body = getattr(body, "cr_await", None) or getattr(body, "gi_yieldfrom", None)
