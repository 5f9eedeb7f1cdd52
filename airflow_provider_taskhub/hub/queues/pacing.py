"""Decide how many messages a reader of a queue may receive now, and how long it waits between two polls of the queue.

The module does no I/O and reads no clock.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE

LOAD_SPAN = 60.0
"""Seconds over which the load of a partition is smoothed."""
LONGEST_BATCHING_DELAY = 0.25
"""The longest pause, in seconds, that a reader makes to receive more messages together."""
FIRST_POLL = 0.05
"""Seconds between the first empty receive and the next receive."""


def admit(*, buffered: int, buffered_bytes: int, limit: int, limit_bytes: int) -> int:
    """Return how many messages may be received now.

    Each receive costs about the same, however many messages it brings. Therefore the result is 0 until there is room
    for half of a full receive. Otherwise each message that leaves the buffer would cost one receive.

    :param buffered: number of messages in the buffer.
    :param buffered_bytes: bytes of these messages.
    :param limit: the most messages that the buffer may hold.
    :param limit_bytes: the buffer takes no more messages from this number of bytes on.
    """
    room = limit - buffered
    return room if buffered_bytes < limit_bytes and room >= max(1, min(MAX_RECEIVE, limit) // 2) else 0


def batching_delay(took: float) -> float:
    """Return the pause, in seconds, after a receive that emptied the queue.

    A slow store gets a longer pause, because fewer and larger receives are better for it.

    :param took: seconds that this receive took.
    """
    return min(LONGEST_BATCHING_DELAY, 2 * took)


@dataclass(slots=True)
class Load:
    """The load of a partition: messages in a second, smoothed over about a minute.

    :param began: monotonic time at which counting began.
    :param count: messages since the rate was last computed.
    :param rate: the smoothed rate.
    :param since: monotonic time at which the rate was last computed.
    """

    began: float
    count: int = 0
    rate: float = 0.0
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.began

    def __call__(self, now: float) -> float | None:
        """Return the smoothed rate. None: less than a minute has passed since counting began.

        The last minute counts for about two thirds of the rate, all minutes before it for one third.
        """
        passed = now - self.since
        if passed > 0:
            fading = math.exp(-passed / LOAD_SPAN)
            self.rate = self.rate * fading + self.count / passed * (1 - fading)
            self.since, self.count = now, 0
        return round(self.rate, 3) if now - self.began >= LOAD_SPAN else None


@dataclass(slots=True)
class PollingBackoff:
    """How long a reader waits between polls of an empty queue: 50 ms, then twice as long each time with ±20 % jitter.

    :param ceiling: the longest wait in seconds (MaxQueuePollingInterval).
    :param empty: number of empty receives in a row.
    :param shifted: True if the next wait of the full length is made shorter. See :meth:`shift`.
    """

    ceiling: float
    empty: int = 0
    shifted: bool = False

    def shift(self) -> None:
        """Make one of the next waits shorter, because the received messages are for another worker.

        All workers poll at the same interval. Without this change the same worker would always poll first.
        """
        self.shifted = True

    def received(self) -> None:
        """Begin again with the shortest wait: a message was received, or a wake-up came."""
        self.empty = 0

    def hasten(self, pace: float) -> None:
        """Shorten the next waits to about ``pace`` seconds if they would be longer."""
        level = 0 if pace <= FIRST_POLL else 1 + math.ceil(math.log2(max(1.0, pace / FIRST_POLL - 1)))
        self.empty = min(self.empty, level)

    def next(self, draw: random.Random) -> float:
        """Return the seconds to wait after one more empty receive.

        :param draw: source of the jitter.
        """
        self.empty += 1
        if self.empty == 1:
            return min(FIRST_POLL, self.ceiling)
        doubled = FIRST_POLL * 2.0 ** min(self.empty - 2, 20)
        if self.shifted and doubled >= self.ceiling:
            self.shifted = False
            return self.ceiling * draw.uniform(0.8, 1.0)
        return min(self.ceiling, FIRST_POLL + draw.uniform(0.8, 1.2) * doubled)
