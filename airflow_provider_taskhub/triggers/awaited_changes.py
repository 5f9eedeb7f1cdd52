"""The waits of a watcher for which workers write change hints: the waits of sensors, for more than an end.

The watcher publishes the ids of their instances in the hub, and each worker then writes a hint when such an instance
changes. So these waits cost one request per interval, however many they are.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from airflow_provider_taskhub.clock import Clock

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client


class AwaitedChanges:
    """Publishes for which instances the sensors of a watcher wait, and reads the change hints for them.

    :param clock: the source of the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: Counter[str] = Counter()
        self._published: frozenset[str] = frozenset()
        self._unsure: deque[tuple[float, frozenset[str]]] = deque()

    def add(self, instance_id: str) -> None:
        """Note that one more sensor waits for an instance."""
        self._waits[instance_id] += 1

    def remove(self, instance_id: str) -> None:
        """Note that one sensor less waits for an instance."""
        self._waits[instance_id] -= 1
        if not self._waits[instance_id]:
            del self._waits[instance_id]

    def forget_published(self) -> None:
        """Publish everything again with the next client: the hub knows a client only while it is open."""
        self._published = frozenset()
        self._unsure.clear()

    async def read(self, client: Client) -> dict[str, str]:
        """Publish new waits, and return the change hints as :meth:`.Watches.changes` does. Without waits: no request.

        A wait that has ended is published with the next new one: until then, a few hints are written in vain.
        """
        wanted = frozenset(self._waits)
        if new := wanted - self._published:
            await client.watches.await_changes(wanted)
            self._published = wanted
            self._unsure.append((self._clock.monotonic() + client.watches.known_after, new))
        return dict(await client.watches.changes()) if wanted else {}

    def unsure(self) -> list[str]:
        """Return the instances to read once more, because a worker may not have known before that a sensor waits.

        Each instance is returned once after it was published, when the workers know it.
        """
        found: list[str] = []
        while self._unsure and self._unsure[0][0] <= self._clock.monotonic():
            found += [instance_id for instance_id in self._unsure.popleft()[1] if instance_id in self._waits]
        return found
