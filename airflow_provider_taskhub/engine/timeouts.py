"""The limit of ``ctx.timeout``: a block of code whose waits end at a time.

The limit is a durable timer. When the timer fires before the block has ended, the await at which the block waits raises
``asyncio.CancelledError``, and the end of the block turns this error into ``TimeoutError``. ``asyncio.timeout``
does the same. Raising ``TimeoutError`` at the await itself was rejected: code inside the block that handles the
``TimeoutError`` of an inner limit would also catch the error of the outer limit, and the outer limit would have no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import cancel_scope
from airflow_provider_taskhub.engine.actions import CallSite
from airflow_provider_taskhub.engine.awaitables import Engine, Timer
from airflow_provider_taskhub.engine.driver import Branch
from airflow_provider_taskhub.engine.no_event_loop import CancelledError
from airflow_provider_taskhub.engine.tasks import Group, Task
from airflow_provider_taskhub.errors import OrchestrationError


class Expiry(Group[None]):
    """What the timer of a limit notifies.

    :param expire: function that is called when the timer fires.
    """

    __slots__ = ("_expire",)

    is_limit = True

    def __init__(self, expire: Callable[[], None]) -> None:
        super().__init__()
        self._expire = expire

    def settled(self, child: Task[Any]) -> None:
        if child._error is None:  # else the block has ended, and has cancelled its timer
            self._expire()

    def enter(self) -> None:
        self._used = self._done = True


class Timeout:
    """A limit for the waits of a block. Use it with ``async with``, or with ``with`` in a generator function.

    :param engine: the generation.
    :param current: function that returns the branch whose code runs.
    :param fire_at: when the limit is over; None: never.
    :param shown: the limit as the code gave it, for errors.
    :param where: line of user code that makes the limit.
    """

    def __init__(
        self,
        engine: Engine,
        current: Callable[[], Branch[Any]],
        fire_at: Timestamp | None,
        shown: str,
        where: CallSite,
    ) -> None:
        self.expiry = Expiry(self._expire)
        self._engine = engine
        self._current = current
        self._fire_at = fire_at
        self._text = f"the limit of ctx.timeout({shown}) at {where} is over"
        self._where = where
        self._timer: Timer | None = None
        self._branch: Branch[Any] | None = None
        self._entered_with = 0
        self._expired = False

    def expired(self) -> bool:
        """Return whether the limit was over before the block had ended."""
        return self._expired

    def __enter__(self) -> Self:
        if self._branch is not None:
            raise OrchestrationError(
                f"the limit of ctx.timeout at {self._where} was entered before: call ctx.timeout again for each block",
                retryable=False,
            )
        self._branch = self._current()
        self._entered_with = self._branch.interruptions
        self.expiry.enter()
        if self._fire_at is not None:
            self._branch.limits += 1
            self._timer = Timer(self._engine, self._fire_at, self._where)
            cancel_scope.left_out(self._timer)
            self._timer.join(self.expiry)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        branch = self._branch
        if branch is not None and self._timer is not None:
            branch.limits -= 1
            self._timer.cancel()
        if branch is None or not self._expired:
            return
        branch.interruptions -= 1
        # Another interruption, that of an outer limit or of `cancel`, goes on through the outer blocks.
        if isinstance(error, CancelledError) and branch.interruptions <= self._entered_with:
            raise TimeoutError(self._text) from error

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _expire(self) -> None:
        if self._branch is not None:
            self._expired = True
            self._branch.interrupt(self._text)
