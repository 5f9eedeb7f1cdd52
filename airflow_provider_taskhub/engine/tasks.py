"""Tasks, which an orchestrator awaits, and groups of tasks (``when_all``, ``when_any``).

Only the engine settles a task (completes it or fails it), in the order of the history. A settled task notifies its
groups. Groups do not search their tasks, so a fan-out of n tasks costs n steps and not n².
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from inspect import iscoroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from airflow_provider_taskhub.engine.signatures import T, T_co
from airflow_provider_taskhub.engine.wait_changes import NO_PLACE, WaitRecorder
from airflow_provider_taskhub.errors import TaskCancelledError

_PRUNE = 16
"""A task lists the groups (``when_all``, ``when_any``) that wait for it. When the list has this length, or 2, 4, 8 …
times this length, the task removes the groups that have a result or an error already."""

NAME = "__taskhub_name__"
"""Attribute of a declared function. It holds the name under which the function was declared."""
STANDALONE = "__taskhub_standalone__"
"""The attribute of the function of an activity that can be started by itself. It holds the name of the parameter that
takes the input; "": the function takes no input."""


_VALUES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, Decimal, date, timedelta)
"""Types of values that a task is never equal to."""


class Task(Generic[T_co]):
    """Work that will have a result or will fail. Use ``await task``, or ``yield task`` in a generator function.

    Awaiting a failed task raises its error: :class:`TaskFailedError` for an activity, its subclass
    :class:`SubOrchestrationFailedError` for a child orchestration.
    """

    __slots__ = ("_decode", "_done", "_error", "_groups", "_place", "_result", "_seen", "_taken", "_tested", "_used")

    claims = False
    """Whether :meth:`claim` can complete the task: True for a wait for an external event, and for a group with one."""
    runs = False
    """Whether the task is a branch: its code runs on, whether or not other code awaits the task."""

    combines = False
    """Whether the task is ``when_all`` or ``when_any``: a group that user code has made."""

    def __init__(self) -> None:
        self._done = False
        self._result: Any = None
        self._decode: Callable[[Any], Any] | None = None
        self._error: BaseException | None = None
        self._groups: list[Group[Any]] | None = None
        self._used = False  # whether the code has awaited the task, given it to a group, or asked it for anything
        self._seen = False  # whether the code has looked at the result or error
        self._taken = False  # whether the code knows that the task is complete
        self._tested = False  # whether the code has asked for the truth of the task itself
        self._place: int | None = None  # the hash

    @property
    def is_complete(self) -> bool:
        """Whether the task has a result or has failed."""
        self.use()
        if self.claims and not self._done:
            self.claim(joins=False)
        if self._done:
            self.take()
        elif isinstance(owner := self.owner, WaitRecorder):
            owner.polled("is_complete", lambda: f"await {self.named()}")
        return self._done

    @property
    def is_failed(self) -> bool:
        """Whether the task has failed. A result of another type than the declared one counts as a failure."""
        if not self.is_complete:
            return False
        self.look()
        return self._error is not None

    def get_result(self) -> T_co:
        """Return the result of a completed task.

        :raises TaskFailedError: if the task has failed.
        :raises InputError: if the result, or the data of an event, does not fit its declared type.
        :raises ValueError: if the task is not complete yet.
        """
        if not self.is_complete:
            raise ValueError("the task is not complete: await it first")
        self.look()
        if self._error is not None:
            raise self._error
        result: T_co = self._result
        return result

    def get_exception(self) -> BaseException | None:
        """Return the error of a failed task; None if the task has a result.

        :raises ValueError: if the task is not complete yet.
        """
        if not self.is_complete:
            raise ValueError("the task is not complete: await it first")
        self.look()
        return self._error

    def __await__(self) -> Generator[Any, Any, T_co]:
        # A complete task yields too, so that the driver can count awaits and stop an endless loop over complete tasks.
        result: T_co = yield self
        return result

    def complete(self, result: Any, decode: Callable[[Any], Any] | None = None) -> None:
        """For the engine: complete the task. Do nothing if the task already has a result or an error.

        :param result: result of the task.
        :param decode: makes the final result. It is called when the code looks at the result for the first time. So a
            result that does not fit its type has no effect on code that never looks at it, for example in a replay of
            a history of an earlier version. None: ``result`` is the final result.
        """
        if not self._done:
            self._done = True
            self._result = result
            self._decode = decode
            self._notify_groups()

    def fail(self, error: BaseException) -> None:
        """For the engine: fail the task. Do nothing if the task already has a result or an error.

        :param error: the error that an await of the task raises.
        """
        if not self._done:
            self._done = True
            self._error = error
            self._notify_groups()

    def join(self, group: Group[Any]) -> None:
        """For the engine: notify a group as soon as this task has a result or an error. That can be at once.

        :param group: the group that depends on this task, such as ``when_all``.
        """
        if not group.combines:
            self.use()
        if self.claims and not self._done:
            self.claim(joins=True)
        if self._done:
            group.settled(self)
        elif self._groups is None:
            self._groups = [group]
        else:
            if len(self._groups) >= _PRUNE and (len(self._groups) & (len(self._groups) - 1)) == 0:
                # Code can call when_any with the same task in a loop. The complete groups would then fill the memory.
                self._groups = [other for other in self._groups if not other._done]
            self._groups.append(group)

    def leave(self, group: Group[Any]) -> None:
        """For the engine: notify a group no more, because its code was interrupted while it waited for this task.

        :param group: the group, to which :meth:`join` was called.
        """
        if self._groups is not None and group in self._groups:
            self._groups.remove(group)

    def claim(self, *, joins: bool) -> None:
        """For the engine: the code comes back to this task. Take what came while the task was left behind.

        :param joins: whether the code awaits the task, or gives it to a group; False: it only asks it.
        """

    def use(self) -> None:
        """For the engine: note that the code has awaited the task, or has asked it for something."""
        self._used = True

    @property
    def owner(self) -> object | None:
        """For the engine: what stands for the generation that has made the task; None: any code can await the task."""
        return None

    def named(self) -> str:
        """For the engine: return what the task is, and the line that has made it, if it is known. The text has no
        address, so it is the same on each replay."""
        return "a task"

    def __repr__(self) -> str:
        return f"<{self.named()}>"

    @property
    def __taskhub_refused__(self) -> str:
        """Why the task cannot be written as JSON, as the rest of a sentence."""
        return f"is {self.named()}, which was not awaited: write `await` before it"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{name!r}: {self._not_awaited()}")

    def _not_awaited(self) -> str:
        return f"{self.named()} was not awaited: write `await` before it, and use what that gives"

    def _refuse(self, *_: object) -> Any:
        raise TypeError(self._not_awaited())

    def __str__(self) -> str:
        raise TypeError(self._not_awaited())

    def __bool__(self) -> bool:
        self._tested = True
        return True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _VALUES):
            self._refuse()
        return self is other

    def __hash__(self) -> int:
        # In a set, tasks have the same order in each replay. The address of a task differs. Tasks without an owner,
        # such as an empty when_all, share one hash: a set keeps them in the order in which they were added.
        if self._place is None:
            owner = self.owner
            self._place = owner.next_place() if isinstance(owner, WaitRecorder) else NO_PLACE
        return self._place

    if not TYPE_CHECKING:  # a type checker refuses such code by itself
        __iter__ = __next__ = __reversed__ = __aiter__ = __anext__ = _refuse
        __enter__ = __exit__ = __aenter__ = __aexit__ = __call__ = _refuse
        __contains__ = __getitem__ = __setitem__ = __delitem__ = __len__ = _refuse
        __lt__ = __le__ = __gt__ = __ge__ = __format__ = _refuse
        __int__ = __float__ = __complex__ = __index__ = __bytes__ = __fspath__ = _refuse
        __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refuse
        __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = _refuse
        __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = _refuse
        __rpow__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _refuse
        __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _refuse

    @property
    def parts(self) -> Sequence[Task[Any]]:
        """For the engine: the tasks of ``when_all`` or ``when_any``; empty for other tasks."""
        return ()

    @property
    def trace(self) -> TracebackType | None:
        """For the engine: where the code of a failed branch has raised its error; None for other tasks."""
        return None

    def take(self) -> None:
        """For the engine: the code learns that the task is complete, for example because it has won a ``when_any``."""
        self._taken = True

    def look(self) -> None:
        """For the engine: the code looks at the result or error of this task. Decode the result."""
        self._seen = True
        decode, self._decode = self._decode, None
        if decode is not None:
            try:
                self._result = decode(self._result)
            except BaseException as error:  # a pydantic validator of the user can raise any error
                self._error = error

    @property
    def is_forgotten(self) -> bool:
        """For the engine: whether the code has never awaited the task, given it to a group or asked it for anything."""
        return not self._used

    @property
    def is_tested(self) -> bool:
        """For the engine: whether the code has asked for the truth of the task itself, and never for its result."""
        return self._tested and not self._used

    @property
    def unseen_error(self) -> BaseException | None:
        """For the engine: the error of the task if the code has not looked at it; else None."""
        return None if self._seen else self._error

    def is_left_behind(self, *, with_branch: bool = False) -> bool:
        """For the engine: return whether the code has gone on without this task.

        That is so if the task was awaited or given to groups (``when_any``, ``when_all``), and the code waits for it
        and for the groups no more: a limit of ``ctx.timeout`` has interrupted the await, or each group has a result or
        an error, or was left behind itself. A task that was never awaited and given to no group is not left behind,
        because the code can still await it.

        :param with_branch: whether a task for which a branch waits is left behind if the branch itself is.
        """
        reached: list[Task[Any]] = [self]
        while reached:
            task = reached.pop()
            if task._groups is None or (task.runs and task is not self and not with_branch):
                return False
            reached += [group for group in task._groups if not group._done]
        return True

    @property
    def is_awaited(self) -> bool:
        """For the engine: whether the code, or a branch of it, awaits this task or a group with it."""
        reached: list[Task[Any]] = [self]
        while reached:
            task = reached.pop()
            if task.runs:
                return True
            reached += [group for group in task._groups or () if not group._done]
        return False

    def is_needed_by(self, main: Task[Any]) -> bool:
        """For the engine: return whether the code can go on only after this task: it awaits this task, or a group or
        branch that needs the results of all its tasks (``when_all``), and this task is one of them.

        :param main: the orchestrator function itself.
        """
        reached: list[Task[Any]] = [self]
        while reached:
            task = reached.pop()
            if task is main:
                return True
            reached += [group for group in task._groups or () if group.needs_all and not group._done]
        return False

    def _notify_groups(self) -> None:
        groups, self._groups = self._groups, None
        for group in groups or ():
            group.settled(self)


class Revocable(Task[T_co]):
    """A task whose end can be taken back while the code knows nothing of it. A subclass has the slot ``_told``."""

    __slots__ = ()

    _told: list[Group[Any]]
    """The groups that know of the end."""

    def _notify_groups(self) -> None:
        self._told = self._groups or []  # type: ignore[misc]  # a slot of the subclasses
        super()._notify_groups()

    def join(self, group: Group[Any]) -> None:
        super().join(group)
        if self._done:
            self._told.append(group)

    @property
    def is_told_in_vain(self) -> bool:
        """For the engine: whether the code learns nothing of the end by the groups that know of it."""
        return bool(self._told) and all(group.left_unfinished(self) for group in self._told)

    @property
    def is_unused(self) -> bool:
        """For the engine: whether the code does not know of the end: before it, the code has only made the task, asked
        it, or given it to groups of which the same is true."""
        return not (self._seen or self._taken) and all(group.is_unused for group in self._told)

    def wait_again(self) -> None:
        """For the engine: take the end back. The groups that know of it wait for the task again."""
        self._done, self._result, self._decode, self._error = False, None, None, None
        told, self._told = self._told, []  # type: ignore[misc]  # a slot of the subclasses
        self._groups = told or None
        for group in told:
            group.unsettled(self)


class Group(Task[T_co]):
    """A task that depends on other tasks, such as ``when_all``."""

    __slots__ = ()

    needs_all = False
    """Whether the group has a result only after all its tasks have one."""
    is_limit = False
    """True for a limit of ``ctx.timeout``. The task of this group is the timer of the limit."""

    def settled(self, child: Task[Any]) -> None:
        """React to the end of one of the group's tasks.

        :param child: the task, which has a result or an error now.
        """
        raise NotImplementedError

    def left_unfinished(self, child: Task[Any]) -> bool:
        """Return whether the code has left the group behind, and learns nothing of the task's end by it.

        :param child: one of the group's tasks, which has a result.
        """
        return False

    def unsettled(self, child: Task[Any]) -> None:
        """Forget the end of one of the group's tasks. :param child: the task, which waits again."""

    @property
    def is_unused(self) -> bool:
        """Whether the ends of the group's tasks can be taken back, because the code does not know of them."""
        return False


class _Combined(Group[T_co]):
    """A group that user code has made of several tasks."""

    __slots__ = ("_children", "_claiming", "_owner")

    combines = True

    def __init__(self, children: Sequence[Task[Any]]) -> None:
        super().__init__()
        self._children = children
        self._claiming = [child for child in children if child.claims]
        owners = {id(owner): owner for child in children if (owner := child.owner) is not None}
        self._owner = object() if len(owners) > 1 else next(iter(owners.values()), None)

    @property
    def owner(self) -> object | None:
        """The owner of all tasks of the group. It is the owner of nothing if they have several."""
        return self._owner

    def use(self) -> None:
        if not self._used:
            self._used = True
            for child in self._children:
                child.use()

    @property
    def claims(self) -> bool:  # type: ignore[override]  # a constant of the other classes
        return bool(self._claiming)

    @property
    def parts(self) -> Sequence[Task[Any]]:
        return self._children

    def take(self) -> None:
        super().take()
        for child in self._children:
            if child._done:
                child.take()

    def claim(self, *, joins: bool) -> None:
        for child in self._claiming:
            if not child._done:
                child.claim(joins=joins)


class WhenAll(_Combined[list[Any]]):
    """The task of ``when_all``: it gives the results of all tasks in their order, or fails with the first failure."""

    __slots__ = ("_failed", "_open")

    needs_all = True

    def named(self) -> str:
        return f"when_all of {len(self._children)} tasks"

    def __init__(self, children: Sequence[Task[Any]]) -> None:
        super().__init__(children)
        self._failed: Task[Any] | None = None
        self._open = len(children)
        if not children:
            self.complete([])
        for child in children:
            child.join(self)

    def settled(self, child: Task[Any]) -> None:
        self._open -= 1
        if child._error is not None:
            self._failed = child if self._failed is None else self._failed
            self.fail(child._error)
        elif self._open == 0 and not self._done:
            self.complete(self._children, lambda children: [child.get_result() for child in children])

    def left_unfinished(self, child: Task[Any]) -> bool:
        if self._done:
            return self._failed is not None and self._failed is not child  # it has failed without this task
        return self.is_left_behind()

    def unsettled(self, child: Task[Any]) -> None:
        self._open += 1

    def take(self) -> None:  # of a group that has failed, the code learns only which task has failed
        if self._failed is None:
            super().take()
            return
        self._taken = True
        self._failed.take()

    def look(self) -> None:
        super().look()
        if self._failed is not None:
            self._failed.look()

    @property
    def trace(self) -> TracebackType | None:
        return None if self._failed is None else self._failed.trace


class WhenAny(Revocable[Task[Any]], _Combined[Task[Any]]):
    """The task of ``when_any``: it gives the first task with a result or an error, and does not fail with that task."""

    __slots__ = ("_told",)

    def named(self) -> str:
        return f"when_any of {len(self._children)} tasks"

    def __init__(self, children: Sequence[Task[Any]]) -> None:
        super().__init__(children)
        self._told = []
        for child in children:
            child.join(self)

    def settled(self, child: Task[Any]) -> None:
        self.complete(child)

    def left_unfinished(self, child: Task[Any]) -> bool:
        if self._result is not child:  # the code learns of another task
            return True
        return not self._taken and self.is_told_in_vain

    def unsettled(self, child: Task[Any]) -> None:
        if self._result is not child:
            return
        self._result = next((other for other in self._children if other._done), None)
        if self._result is not None:
            return
        for other in self._children:
            if self not in (other._groups or ()):
                other._groups = [*(other._groups or ()), self]
        self.wait_again()

    def take(self) -> None:  # a task that has lost is not taken, although it may be complete
        self._taken = True
        winner: Task[Any] = self._result
        winner.take()

    def look(self) -> None:
        super().look()
        self.take()


class CancellableTask(Task[T_co]):
    """A task that the orchestrator can cancel: an activity, a timer, a wait for an external event, or a branch."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel the task: it fails with :class:`TaskCancelledError`.

        A cancelled timer has no effect when it fires. A later external event goes to the next wait for its name.
        """
        self.use()
        self._seen = self._seen or not self._done or self._error is not None
        self.fail(TaskCancelledError("the task was cancelled by the orchestrator"))


def when_all(tasks: Iterable[Task[T]]) -> Task[list[T]]:
    """Return a task that gives the results of all tasks, in their order. It fails as soon as one of the tasks fails.

    :param tasks: tasks that the context made. If there are no tasks, the returned task is complete at once.
    :raises TypeError: an element is not a task.
    """
    return WhenAll(_checked(tasks, "when_all"))


def when_any(tasks: Iterable[Task[T]]) -> Task[Task[T]]:
    """Return a task that gives the first task which completes or fails.

    Awaiting the returned task never raises the error of the first task. Call ``get_result()`` of the first task for its
    result or error.

    :param tasks: tasks that the context made; at least one.
    :raises TypeError: an element is not a task.
    :raises ValueError: there are no tasks, so the returned task could never complete.
    """
    children = _checked(tasks, "when_any")
    if not children:
        raise ValueError("when_any of no tasks would never complete: give it at least one")
    return WhenAny(children)


def described(given: object) -> str:
    """Return a text for an error about a value of user code. It has no address, so it is the same on each replay."""
    name = getattr(given, "__name__", None)
    if name is None and isinstance(given, Task):
        return given.named()
    return f"{type(given).__name__} {given!r:.100}" if name is None else f"the {type(given).__name__} {name!r}"


def _checked(tasks: Iterable[Task[Any]], what: str) -> list[Task[Any]]:
    if isinstance(tasks, Task):
        raise TypeError(f"{what} takes a list of tasks, not {tasks.named()}: write {what}([task])")
    children = list(tasks)
    for child in children:
        if not isinstance(child, Task):
            for one in children:
                if iscoroutine(one):
                    one.close()  # else Python warns that it was never awaited
            raise TypeError(
                f"{what} takes tasks made by the context, not {described(child)}; "
                f"start a coroutine of several steps with ctx.branch(...) and give {what} what ctx.branch returns"
            )
    return children
