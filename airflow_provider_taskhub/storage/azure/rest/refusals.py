"""Logs that an account refuses requests: at once, then once a minute, and when it accepts them again.

A refusal (401, 403, no token) is an outage like any other: each caller tries again by its own rules. Together they
would log it a hundred times a second, so it is logged here, once for all stores of a process on one account.

A refusal at the start ends workers and commands, and they print it as their error. So a process that was never accepted
logs it only if it is still refused :data:`START` seconds later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from airflow_provider_taskhub.errors import AccessDenied

log = structlog.get_logger("taskhub.storage")

EVERY = 60.0
"""Seconds between two lines. A kind of request that was not refused for so long counts as accepted."""

AGAIN = 5.0
"""The same, once another kind that was refused is accepted again: then the credentials are good, and a kind that is
seldom asked for need not be waited for. Not zero: refusals of requests that were under way may still come."""

START = 10.0
"""Seconds of refusals at the start of a process that are not logged: the caller gets the error and usually ends."""


class Refusals:
    """Counts refused requests by kind: a wrong key refuses all kinds, a missing role only some.

    :param monotonic: seconds that only grow.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._refused: dict[str, float] = {}
        self._again = False  # whether a kind that was refused was accepted since the last refusal
        self._account = ""
        self._known = False  # whether a request was ever accepted
        self._began = 0.0
        self._told: float | None = None  # None: not in this outage
        self._count = 0

    def refused(self, kind: str, error: AccessDenied, *, account: str) -> None:
        """A request was refused.

        :param account: the address of the service that refused it.
        """
        with self._lock:
            now = self._monotonic()
            first = not self._refused
            if first:
                self._began, self._count, self._told = now, 0, None
            self._refused[kind] = now
            self._again = False
            self._count += 1
            if self._told is None and not self._known and now - self._began < START:
                return
            if self._told is not None and now - self._told < EVERY:
                return
            self._told, self._account = now, account
            log.error(
                "store_refused",
                account=account,
                error=str(error),
                requests=", ".join(sorted(self._refused)),
                refused=self._count,
                seconds=round(now - self._began),
                consequence="nothing is lost: work goes on when the account accepts requests again",
            )

    def accepted(self, kind: str) -> None:
        """A request was answered, with a success or with an error of another sort."""
        self._known = True
        if not self._refused:
            return
        with self._lock:
            now = self._monotonic()
            self._again = self._again or kind in self._refused
            believed = AGAIN if self._again else EVERY
            left = {name: at for name, at in self._refused.items() if name != kind and now - at < believed}
            over = bool(self._refused) and not left
            self._refused = left
            if over and self._told is not None:
                log.info(
                    "store_accepts_again",
                    account=self._account,
                    refused=self._count,
                    seconds=round(now - self._began),
                )


_ALL: dict[str, Refusals] = {}
_ALL_LOCK = threading.Lock()


def refusals_of(account: str) -> Refusals:
    """The shared instance of an account: a worker opens several stores, which are refused together."""
    with _ALL_LOCK:
        return _ALL.setdefault(account, Refusals())
