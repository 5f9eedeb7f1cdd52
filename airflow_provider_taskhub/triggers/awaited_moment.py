"""Decides whether an instance has reached the moment for which a trigger waits: a status, a custom status, an event."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow_provider_taskhub.engine.pending_waits import LONGEST_NAME
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.outputs import plain
from airflow_provider_taskhub.triggers.predicate import compiled

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.model import InstanceState
    from airflow_provider_taskhub.hub.waiting.reasons import Why
    from airflow_provider_taskhub.triggers.watcher import WatchedInstance, Watcher

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 30.0
"""Seconds for which a condition on the custom status may take. After that the wait ends with an error."""


class _ThreadsOfTheirOwn(Executor):
    """Runs each call in a new thread, which does not prevent the end of the process.

    The threads of the event loop also serve the kills, XComs and sweeps of all triggers of the process. A few user
    functions that block would occupy all these threads.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # a cancel then leaves the future to the thread

        def work() -> None:
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # the caller awaits the future and gets the error
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="condition on a custom status", daemon=True).start()
        return future


_THREADS = _ThreadsOfTheirOwn()


def wanted_statuses(names: Sequence[str]) -> list[str]:
    """Return the statuses with these names, as the hub writes them. :raises InputError: if one does not exist."""
    from airflow_provider_taskhub.engine.events import Status

    statuses = {status.lower(): str(status) for status in Status}
    unknown = [name for name in names if str(name).lower() not in statuses]
    if unknown:
        raise InputError(f"statuses {unknown} do not exist: choose from {', '.join(Status)}")
    return [statuses[str(name).lower()] for name in names]


class AwaitedMoment:
    """The moment for which one trigger or sensor waits. Without any condition, it is the end of the instance.

    :param statuses: names of statuses.
    :param custom_status: a condition on the custom status, from :mod:`.predicate`; None: no such condition.
    :param event: the name of an event that the instance must await; None: no such condition.
    :raises InputError: if the function of the condition cannot be imported.
    """

    def __init__(self, statuses: Sequence[str], custom_status: str | None, event: str | None) -> None:
        self._statuses = statuses
        self._condition = custom_status
        self._event = event
        self._predicate: Callable[[Any], bool] | None = compiled(custom_status) if custom_status is not None else None
        self._last: tuple[str | None, bool] = (None, False)

    async def met(self, seen: WatchedInstance) -> bool:
        """Return whether what the watcher has read shows the moment. :raises InputError: if the condition raises."""
        return seen.state is not None and await self.shown_by(seen.state, seen.whys)

    async def shown_by(self, state: InstanceState, whys: Sequence[Why]) -> bool:
        """Return whether an instance has reached the moment.

        :param state: the instance's state.
        :param whys: why the instance makes no progress.
        :raises InputError: if the condition on the custom status raises an error.
        """
        if state.status in self._statuses:
            return True
        if self._event is not None and any(self._event[:LONGEST_NAME] in why.events for why in whys):
            return True
        return self._predicate is not None and await self._holds(state.custom_status)

    def succeeds(self, state: InstanceState | None, *, met: bool) -> bool:
        """Return whether the wait has ended as its user wants."""
        from airflow_provider_taskhub.engine.events import Status

        conditions = self._statuses or self._condition or self._event
        return met or (not conditions and state is not None and state.status is Status.COMPLETED)

    async def last(self, watcher: Watcher, state: InstanceState | None) -> InstanceState | None:
        """Return the state whose output becomes the task's result: only an instance that has completed has one."""
        from airflow_provider_taskhub.engine.events import Status

        if state is None:
            return None
        if state.status is Status.COMPLETED:
            ended = await watcher.ended(state.instance_id)  # another client may have started it again meanwhile
            return ended if ended is not None and ended.status is Status.COMPLETED else None
        return replace(state, output=None)

    async def _holds(self, text: str | None) -> bool:
        """Evaluate the condition in a thread, because it may be the user's function. Once for each custom status."""
        if text is None or self._predicate is None:
            return False
        if text != self._last[0]:
            answer = asyncio.get_running_loop().run_in_executor(_THREADS, self._predicate, plain(text))
            try:
                if not (await asyncio.wait([answer], timeout=LONGEST))[0]:
                    raise TimeoutError(f"it has not returned within {LONGEST:g} s, and it must return at once")
                self._last = text, await answer
            except Exception as error:  # an error of the user's condition: a repeat would raise it again
                raise InputError(
                    f"custom_status is {self._condition!r}, which raised {type(error).__name__}: {error}; "
                    f"the custom status is {text[:200]}"
                ) from error
            finally:
                answer.cancel()  # does nothing if the answer is there; else nobody reads it
        return self._last[1]
