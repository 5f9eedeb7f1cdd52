"""The order of the events of one sender: which event a process sent before another one, and which ones have arrived.

Each event of a client names the number of the event that the same process sent to the same run before it. The events of
one checkpoint to one instance do the same. The receiver takes an event when it has taken the one before. So the order
does not depend on the times at which messages become visible. After a pause, a failed episode, the move of a partition
or the death of a worker, the later event can be the first one to come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MAX_RUNS = 10_000
"""The most runs whose last event a process remembers."""
MAX_SENDERS = 20
"""The most processes whose last event an instance remembers. If there are more, those that sent an event last stay."""


class SentEvents:
    """The number of the last event that this process sent to each run. The runs of the latest events are remembered."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], int] = OrderedDict()

    @contextmanager
    def next(self, run: tuple[str, str], number: int) -> Iterator[int | None]:
        """Return the number of the event before this one, for the time in which this event is sent.

        If this raises an error, the event was not sent, and the next event does not name it.

        :param run: instance id and name of the run.
        :param number: number of this event.
        """
        before = self._last.pop(run, None)
        self._last[run] = number
        if len(self._last) > MAX_RUNS:
            self._last.popitem(last=False)
        try:
            yield before
        except BaseException:
            if self._last.get(run) == number:
                if before is None:
                    del self._last[run]
                else:
                    self._last[run] = before
            raise


def is_missing(after: int | None, process: str, arrived: Mapping[str, int]) -> bool:
    """Return whether the event before an event has not arrived yet.

    :param after: number of the event before; None: there is none.
    :param process: the process that sent both.
    :param arrived: the number of the last event that has arrived from each process. A process that is missing in a full
        mapping may have been forgotten, so its events do not wait.
    """
    if after is None or not process:
        return False
    last = arrived.get(process)
    return len(arrived) < MAX_SENDERS if last is None else last < after


def with_arrived(arrived: Mapping[str, int], process: str, number: int) -> Mapping[str, int]:
    """Return the mapping after the arrival of an event. A process that has sent no event for the longest time leaves a
    full mapping."""
    if not process or arrived.get(process, 0) >= number:
        return arrived
    after = {known: last for known, last in arrived.items() if known != process}
    after[process] = number
    if len(after) > MAX_SENDERS:
        del after[next(iter(after))]
    return after
