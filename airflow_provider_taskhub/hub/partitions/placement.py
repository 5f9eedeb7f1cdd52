"""Which worker should serve a partition, by what the partition's instances need.

It matters only where the apps of workers differ. The owner of a partition publishes in its member row which
orchestrators ran there lately, and which ones messages wait for that it does not have. All workers draw the same
conclusion from it (:func:`unfit`), and one that is fit asks for the partition as it asks for any other. A worker that
has everything gets the partition and keeps it. Where no worker has everything, workers take turns: each serves the
partition for at least a dwell time, then it goes to a worker that can run what has waited longest. Pure: no I/O, no
clock.
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
"""Seconds for which a partition stays with a worker that can run what was needed there."""
LEAST_DWELL = 5.0
"""Seconds that a partition stays with a worker at least, where no worker has everything."""
DWELL_SCANS = 3
"""The same in scans: a handover takes about as many."""
MOST = 50
"""Needs of one partition that a worker publishes at most."""
_LONGEST = 30_000
"""Characters of what a worker publishes; Azure's limit for a column is 32,768."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the instances of a partition need, as its owner publishes it.

    :param runs: what ran there lately, or what the owner took the partition for. :param lacks: what messages wait for
        and the owner does not have; the longest waiting first.
    :param ripe: the owner has had its turn: the partition may go although it runs something there.
    """

    runs: tuple[Need, ...] = ()
    lacks: tuple[Need, ...] = ()
    ripe: bool = True


def unfit(wanted: Wanted, members: Collection[Member]) -> frozenset[str]:
    """The members that should not serve a partition, because others can run what is needed there.

    :param members: all that could take it. :returns: never all of them.
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
    """What one worker publishes about the needs of its partitions.

    :param scan: seconds between two scans.
    """

    def __init__(self, scan: float) -> None:
        self._dwell = max(LEAST_DWELL, DWELL_SCANS * scan)
        self._asked: dict[int, Wanted] = {}
        self._taken: dict[int, tuple[float, tuple[Need, ...]]] = {}

    def ask(self, partition: int, wanted: Wanted | None) -> None:
        """Remember that this worker asks for a partition. :param wanted: what its owner publishes; None: nothing."""
        if wanted is None:
            self._asked.pop(partition, None)
        else:
            self._asked[partition] = wanted

    def take(self, partition: int, now: float) -> None:
        """Remember that this worker has taken a partition: what was needed there is needed until it has looked."""
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
        """What to publish about the partitions held: nothing while all apps are the same and every message can run.

        :param live: the other workers, as last seen. :param now: a monotonic second.
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
    """One text for all partitions, each need written once; "" if there is nothing. What does not fit is left out."""
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
    """Read the column; empty when it is missing or damaged."""
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
