"""Admission to a partition's buffer, and the pace of polling: pure decisions."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from airflow_provider_taskhub.storage.primitives import MAX_RECEIVE

LOAD_SPAN = 60.0
"""Seconds over which the load of a partition is smoothed."""
LONGEST_BREATHER = 0.25
"""Seconds for which a reader lets messages gather, at most."""
FIRST_POLL = 0.05
"""Seconds after the first empty receive."""


def admit(*, buffered: int, buffered_bytes: int, limit: int, limit_bytes: int) -> int:
    """How many messages there is room for; 0 until a receive can be a large one again.

    Every receive costs about as much as its largest: asking for the one message that was just taken would cost one for
    each message.
    """
    room = limit - buffered
    return room if buffered_bytes < limit_bytes and room >= max(1, min(MAX_RECEIVE, limit) // 2) else 0


def batching_delay(took: float) -> float:
    """Seconds until the queue is looked at again after it gave all that it had.

    :param took: seconds of that receive. A store that is quick to answer has little to do; one that is slow is better
        asked for many messages at once than for one after another.
    """
    return min(LONGEST_BREATHER, 2 * took)


@dataclass(slots=True)
class Load:
    """Messages a second, smoothed over about a minute.

    :param began: when counting began. :param since: when it was last asked for.
    """

    began: float
    count: int = 0
    rate: float = 0.0
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.began

    def __call__(self, now: float) -> float | None:
        """The rate by now; a new minute counts as much as all those before it. None: before the first is over."""
        passed = now - self.since
        if passed > 0:
            fading = math.exp(-passed / LOAD_SPAN)
            self.rate = self.rate * fading + self.count / passed * (1 - fading)
            self.since, self.count = now, 0
        return round(self.rate, 3) if now - self.began >= LOAD_SPAN else None


@dataclass(slots=True)
class PollingBackoff:
    """Polling back-off: 0, 50 ms, then doubling with ±20 % jitter up to a ceiling.

    :param ceiling: seconds (MaxQueuePollingInterval).
    """

    ceiling: float
    empty: int = 0
    shifted: bool = False

    def shift(self) -> None:
        """What came was for another worker: a shorter wait follows once, or this one would look first each time."""
        self.shifted = True

    def received(self) -> None:
        """A message came, or a local send woke the reader."""
        self.empty = 0

    def hasten(self, pace: float) -> None:
        """Go back to waits of about ``pace`` seconds if they are longer by now."""
        level = 0 if pace <= FIRST_POLL else 1 + math.ceil(math.log2(max(1.0, pace / FIRST_POLL - 1)))
        self.empty = min(self.empty, level)

    def next(self, draw: random.Random) -> float:
        """Seconds to wait after one more empty receive."""
        self.empty += 1
        if self.empty == 1:
            return min(FIRST_POLL, self.ceiling)
        doubled = FIRST_POLL * 2.0 ** min(self.empty - 2, 20)
        if self.shifted and doubled >= self.ceiling:
            self.shifted = False
            return self.ceiling * draw.uniform(0.8, 1.0)
        return min(self.ceiling, FIRST_POLL + draw.uniform(0.8, 1.2) * doubled)
