"""Decide which worker should serve a partition, by the orchestrators that the instances of the partition need.

This matters only if workers have different apps. The owner of a partition publishes in its member row which
orchestrators ran there in the last minute, and which missing orchestrators messages wait for. All workers draw the same
conclusion from this (:func:`unfit`). A worker that has what is needed (a fit worker) asks for the partition as it asks
for any other. A worker that has every needed orchestrator gets the partition and keeps it. If no worker has all of
them, workers take turns: each serves the partition for at least a minimum time. Then the partition goes to a worker
that can run what has waited longest. Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_taskhub.hub.model import Member, Need, Service
from airflow_provider_taskhub.hub.partitions.capabilities import can_run
from airflow_provider_taskhub.storage.primitives import Property

RECENT = 60.0
"""When a worker takes a partition, the orchestrators that the former owner published as needed there count as needed
for this many seconds more."""
LEAST_DWELL = 5.0
"""The minimum time, in seconds, that a partition stays with a worker if no worker has every needed orchestrator."""
DWELL_SCANS = 3
"""The same minimum time as a number of scans, because a handover takes about that long. The longer of the two times
counts."""
MOST = 50
"""The most needs (needed orchestrators) of one partition that a worker publishes."""
_LONGEST = 30_000
"""The most characters in the text of :func:`encode_wanted`. Azure's limit for a column is 32,768."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the instances of a partition need, as its owner publishes it.

    :param runs: the orchestrators that ran in the partition lately, and those for which the owner took the partition.
    :param lacks: the orchestrators that messages wait for and the owner does not have. The one for which messages have
        waited longest is first.
    :param ripe: True if the owner has served the partition for the minimum time, so that the partition may go although
        something runs there.
    """

    runs: tuple[Need, ...] = ()
    lacks: tuple[Need, ...] = ()
    ripe: bool = True


def unfit(wanted: Wanted, members: Collection[Member]) -> frozenset[str]:
    """Return the members that should not serve a partition, because others can run what is needed there.

    :param members: all members that could take the partition.
    :returns: full names of these members; never those of all members. Empty: no member is better than the others.
    """

    def having(needs: Iterable[Need]) -> frozenset[str]:
        asked = tuple(needs)
        return frozenset(member.worker for member in members if all(can_run(member, need) for need in asked))

    lacks = [need for need in wanted.lacks if having([need])]
    fit = having([*wanted.runs, *lacks])
    if not fit and lacks and (wanted.ripe or not wanted.runs):
        fit = having(lacks[:1])
    fit = fit or having(wanted.runs)
    return frozenset(member.worker for member in members) - fit if fit else frozenset()


class Placement:
    """Knows which orchestrators the partitions of one worker need, and what the worker publishes about it.

    :param scan: seconds between two scans.
    """

    def __init__(self, scan: float) -> None:
        self._dwell = max(LEAST_DWELL, DWELL_SCANS * scan)
        self._asked: dict[int, Wanted] = {}
        self._taken: dict[int, tuple[float, tuple[Need, ...]]] = {}

    def ask(self, partition: int, wanted: Wanted | None) -> None:
        """Remember that this worker asks for a partition.

        :param wanted: what the owner publishes about the partition. None: the owner publishes nothing about it.
        """
        if wanted is None:
            self._asked.pop(partition, None)
        else:
            self._asked[partition] = wanted

    def take(self, partition: int, now: float) -> None:
        """Remember that this worker has taken a partition.

        The orchestrators that the former owner published as needed count as needed for :data:`RECENT` seconds more.

        :param now: monotonic time.
        """
        wanted = self._asked.pop(partition, None)
        self._taken[partition] = now, (*wanted.runs, *wanted.lacks) if wanted else ()

    def say(
        self,
        held: Iterable[int],
        services: Mapping[int, Service],
        me: Member,
        live: Iterable[Member],
        now: float,
    ) -> dict[int, Wanted]:
        """Return what to publish about the needs of this worker's partitions, by partition number.

        The result is empty if all workers have the same apps and no message waits for a missing orchestrator.

        :param held: numbers of the partitions.
        :param services: the state of the partitions.
        :param me: the member row of this worker.
        :param live: the other workers, as last read.
        :param now: monotonic time.
        """
        differ = any(_differs(me, other) for other in live)
        said: dict[int, Wanted] = {}
        kept = {}
        for partition in held:
            began, inherited = self._taken.get(partition, (float("-inf"), ()))
            kept[partition] = began, inherited
            service = services.get(partition)
            lacks = service.lacks[:MOST] if service else ()
            runs: tuple[Need, ...] = ()
            if differ:
                known = [need for need in inherited if now - began < RECENT and can_run(me, need)]
                runs = tuple(sorted({*known, *(service.runs if service else ())}))[:MOST]
            if runs or lacks:
                said[partition] = Wanted(runs=runs, lacks=lacks, ripe=now - began >= self._dwell)
        self._taken = kept
        return said


def _differs(me: Member, other: Member) -> bool:
    if "orchestrator" not in other.roles:
        return False
    if me.accepts != other.accepts:
        return True
    return me.orchestrators != other.orchestrators and set(me.orchestrators) != set(other.orchestrators)


def encode_wanted(said: Mapping[int, Wanted]) -> str:
    """Return the needs of all partitions as one text; "" if there are none.

    If the text is too long, it leaves out what ran lately. If it is still too long, the result is "".
    """
    for with_runs in (True, False):
        needs: dict[Need, int] = {}
        partitions: dict[str, object] = {}
        for number, wanted in said.items():
            runs, lacks = (
                [needs.setdefault(need, len(needs)) for need in found]
                for found in (wanted.runs if with_runs else (), wanted.lacks)
            )
            partitions[str(number)] = [int(wanted.ripe), runs, lacks]
        text = json.dumps([[[need.name, need.version] for need in needs], partitions], separators=(",", ":"))
        if len(text) <= _LONGEST:
            return text if partitions else ""
    return ""


def decode_wanted(value: Property | None) -> dict[int, Wanted]:
    """Return the needs in a text of :func:`encode_wanted`, by partition number.

    If there is no text, the result is empty. Of a damaged text it has only the partitions before the damage.
    """
    said: dict[int, Wanted] = {}
    with suppress(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        if isinstance(value, str) and value:
            table, partitions = json.loads(value)
            needs = [Need("orchestrator", str(name), str(version)) for name, version in table]
            for number, (ripe, runs, lacks) in partitions.items():
                said[int(number)] = Wanted(
                    runs=tuple(needs[index] for index in runs),
                    lacks=tuple(needs[index] for index in lacks),
                    ripe=bool(ripe),
                )
    return said
