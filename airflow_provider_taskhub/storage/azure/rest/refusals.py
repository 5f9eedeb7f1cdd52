"""Log that a storage account refuses the credentials: at the first refusal, then once a minute, and at the end.

A refusal is an answer with status 401 or 403, or a token that cannot be fetched. Each caller retries by its own rules.
If each caller logged the refusal, there might be a hundred log lines a second. So this module logs the refusal once for
all stores of a process on one account.

A refusal at the start of a worker or command ends the process, which prints the error. So a process whose requests were
never accepted logs a refusal only if the refusals last for :data:`START` seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from airflow_provider_taskhub.errors import AccessDenied

log = structlog.get_logger("taskhub.storage")

EVERY = 60.0
"""Seconds between two log lines. A kind of request that was not refused for this time counts as accepted."""

AGAIN = 5.0
"""Seconds. Used instead of :data:`EVERY` once a kind of request that was refused is accepted again. The credentials are
then good, so the other kinds count as accepted after this shorter time without a refusal. The time is not zero, because
refusals of earlier requests may still arrive."""

START = 10.0
"""Seconds at the start of a process in which refusals are not logged. The caller gets the error and usually ends."""


class Refusals:
    """Records refused requests by kind. With a wrong key all kinds are refused, with a missing role only some kinds.

    :param monotonic: function that returns the time of a monotonic clock, in seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._refused: dict[str, float] = {}
        # True if the account has accepted, since the last refusal, a kind of request that it had refused before. The
        # other kinds then count as accepted after AGAIN seconds instead of EVERY.
        self._again = False
        self._account = ""
        self._was_accepted = False  # True if any request of this process was ever accepted
        self._began = 0.0
        self._logged_at: float | None = None  # time of the last log line; None: the current refusals are not logged yet
        self._count = 0

    def refused(self, kind: str, error: AccessDenied, *, account: str) -> None:
        """Record that a request was refused, and log the refusal if a log line is due.

        :param kind: kind of the request, as in ``Store.requests``.
        :param account: address of the service that refused the request.
        """
        with self._lock:
            now = self._monotonic()
            first = not self._refused
            if first:
                self._began, self._count, self._logged_at = now, 0, None
            self._refused[kind] = now
            self._again = False
            self._count += 1
            if self._logged_at is None and not self._was_accepted and now - self._began < START:
                return
            if self._logged_at is not None and now - self._logged_at < EVERY:
                return
            self._logged_at, self._account = now, account
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
        """Record that a request was not refused: it succeeded, or failed with another error than ``AccessDenied``."""
        self._was_accepted = True
        if not self._refused:
            return
        with self._lock:
            now = self._monotonic()
            self._again = self._again or kind in self._refused
            believed = AGAIN if self._again else EVERY
            left = {name: at for name, at in self._refused.items() if name != kind and now - at < believed}
            over = bool(self._refused) and not left
            self._refused = left
            if over and self._logged_at is not None:
                log.info(
                    "store_accepts_again",
                    account=self._account,
                    refused=self._count,
                    seconds=round(now - self._began),
                )


_ALL: dict[str, Refusals] = {}
_ALL_LOCK = threading.Lock()


def refusals_of(account: str) -> Refusals:
    """Return the :class:`Refusals` of an account. All stores of this process on this account share it."""
    with _ALL_LOCK:
        return _ALL.setdefault(account, Refusals())
