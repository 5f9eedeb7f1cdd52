"""Find out which workers can run a function, and how the apps of two workers differ. Pure: no I/O, no clock."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_taskhub.hub.model import ACTIVITY, ORCHESTRATOR, FunctionKind, Member, Need
from airflow_provider_taskhub.memory import memory_text

__all__ = [
    "Difference",
    "Need",
    "able",
    "agree",
    "can_run",
    "described",
    "difference",
    "different_limits",
    "lack_of_memory",
    "listed",
    "refusal",
    "too_small",
]

_NO_LIMIT = "no limit"
SHOWN = 20
"""The most names that a text for people lists. It gives only the number of the other names."""


def can_run(member: Member, need: Need) -> bool:
    """Return whether a worker has a function, and can continue with it an instance of the needed version."""
    if need.kind not in member.roles or need.name not in member.functions(need.kind):
        return False
    if need.kind == ACTIVITY and (member.pool(need.name) not in member.pools or member.is_too_small_for(need.name)):
        return False
    accepted = member.accepts.get(need.name)
    return not need.version or accepted is None or need.version in accepted


def able(members: Iterable[Member], need: Need) -> tuple[Member, ...]:
    """Return the live workers that can run the needed function."""
    return tuple(member for member in members if member.alive and can_run(member, need))


def too_small(members: Iterable[Member], activity: str) -> tuple[Member, ...]:
    """Return the live workers that could run an activity if they had more memory, the largest first."""
    found = [
        member
        for member in members
        if member.alive
        and ACTIVITY in member.roles
        and activity in member.activities
        and member.pool(activity) in member.pools
        and member.is_too_small_for(activity)
    ]
    return tuple(sorted(found, key=lambda member: member.memory or 0, reverse=True))


def lack_of_memory(largest: Member, activity: str) -> tuple[str, str]:
    """Return a text that says that no live worker has the memory that an activity needs, and what a person can do.

    :param largest: the live worker with most memory.
    """
    need, most = memory_text(largest.memory_of[activity], at_least=True), memory_text(largest.memory or 0)
    text = f"activity {activity!r} needs {need} of memory; the live worker with most has {most}"
    return text, f"start a worker with --memory {need} on a larger machine, or lower memory="


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the apps of another worker differ from this worker's own.

    :param worker: full name of the other worker.
    :param lacks: functions that only this worker has.
    :param more: functions that only the other worker has.
    :param versions: for each app of another version: its name, this worker's version, the other worker's version.
    :param pools: for each activity of another pool: its name, its pool here, its pool there.
    :param limits: for each limit of activities that both have, and one has otherwise: its kind and name, its number
        here, its number there. "no limit": the code does not declare it.
    """

    worker: str
    lacks: tuple[Need, ...] = ()
    more: tuple[Need, ...] = ()
    versions: tuple[tuple[str, str, str], ...] = ()
    pools: tuple[tuple[str, str, str], ...] = ()
    limits: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        parts = [f"app {app!r} has version {its!r} there and {ours!r} here" for app, ours, its in self.versions]
        parts += [
            f"activity {name!r} belongs to the pool {its!r} there and {ours!r} here"
            for name, ours, its in self.pools[:SHOWN]
        ]
        parts += [f"{limit} is {its!r} there and {ours!r} here" for limit, ours, its in self.limits[:SHOWN]]
        if self.lacks:
            parts.append(f"it lacks {listed(self.lacks)}")
        if self.more:
            parts.append(f"this worker lacks {listed(self.more)}")
        return f"worker {self.worker}: {'; '.join(parts)}"


def difference(mine: Member, other: Member) -> Difference | None:
    """Return how the apps of ``other`` differ from those of ``mine``, in the roles that both have. None: they do not
    differ.
    """
    lacks: list[Need] = []
    more: list[Need] = []
    for kind in (ORCHESTRATOR, ACTIVITY):
        ours, theirs = mine.functions(kind), other.functions(kind)
        if kind in mine.roles and kind in other.roles and ours != theirs:
            lacks += [Need(kind, name) for name in sorted(set(ours) - set(theirs))]
            more += [Need(kind, name) for name in sorted(set(theirs) - set(ours))]
    versions = tuple(
        (app, version, other.apps[app])
        for app, version in sorted(mine.apps.items())
        if other.apps.get(app, version) != version
    )
    pools = tuple(
        (name, mine.pool(name), other.pool(name))
        for name in sorted({*mine.pool_of, *other.pool_of} & {*mine.activities} & {*other.activities})
        if mine.pool(name) != other.pool(name)
    )
    limits = tuple(_unlike_limits(mine, other)) if ACTIVITY in mine.roles and ACTIVITY in other.roles else ()
    if not (lacks or more or versions or pools or limits):
        return None
    return Difference(
        worker=other.worker, lacks=tuple(lacks), more=tuple(more), versions=versions, pools=pools, limits=limits
    )


def _unlike_limits(mine: Member, other: Member) -> Iterator[tuple[str, str, str]]:
    """Find the limits that two workers declare otherwise, or that one of them does not declare for an activity of both:
    the limit, its number in ``mine``, its number in ``other``."""
    for limit in sorted({*mine.limits, *other.limits}):
        ours, its = mine.limits.get(limit), other.limits.get(limit)
        having, lacking = (mine, other) if its is None else (other, mine)
        shared = None not in (ours, its) or having.sharing(limit.partition(" ")[2]) & {*lacking.activities}
        if ours != its and shared:
            what, name = limit.split(" ", 1)
            yield f"{'rate' if what == 'rate' else 'limit'} {name!r}", ours or _NO_LIMIT, its or _NO_LIMIT


def agree(members: Iterable[Member], kind: FunctionKind) -> bool:
    """Return whether the live workers that run functions of a kind have the same apps. False: there is no such worker.

    While a new version of an app is rolled out, old and new workers do not agree.
    """
    workers = [member for member in members if member.alive and kind in member.roles]
    return bool(workers) and all(one.apps and difference(workers[0], one) is None for one in workers)


def refusal(mine: Member, others: Iterable[Member]) -> str | None:
    """Return why a worker with ``--strict`` must not start beside the live workers. None: their apps are the same."""
    found = [
        str(unlike)
        for other in others
        if other.alive and other.apps and (unlike := difference(mine, other)) is not None
    ]
    if not found:
        return None
    more = f"; and {len(found) - SHOWN} more workers" if len(found) > SHOWN else ""
    return (
        f"the apps of this worker differ from those of live workers of the hub: {'; '.join(found[:SHOWN])}{more}. Give "
        "all workers the same apps, or start this one without --strict: work that only one worker can run then waits "
        "for that worker"
    )


def listed(things: Iterable[object], most: int = SHOWN) -> str:
    """Return a text with the names of the first ``most`` things, and the number of the other things."""
    names = [str(thing) for thing in things]
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def described(member: Member) -> str:
    """Return the full name of a worker with its apps and their versions."""
    apps = ", ".join(f"{name} {version}".strip() for name, version in sorted(member.apps.items()))
    return f"{member.worker} ({apps or 'no app'})"


def different_limits(
    members: Iterable[Member],
    counts: Mapping[str, str],
    *,
    activities: Mapping[str, Collection[str]] | None = None,
    ordered: Collection[str] = (),
) -> list[str]:
    """Return a line about each limit of activities that does not hold on all live workers, and about each for which
    their code declares different numbers.

    :param members: the workers of the hub.
    :param counts: the limits of the hub, and the number that counts: by kind and name, as in
        :attr:`.model.Member.limits`.
    :param activities: the activities that share each of these limits.
    :param ordered: the limits for which an administrator has ordered a number.
    """
    live, lines = [one for one in members if one.alive and ACTIVITY in one.roles], []
    for limit in sorted({*counts}.union(*(one.limits for one in live))):
        declared = defaultdict[str, list[Member]](list)
        for member in live:
            if limit in member.limits:
                declared[member.limits[limit]].append(member)
        kind, _, name = limit.partition(" ")
        what, more = ("rate", "begin") if kind == "rate" else ("limit", "run at once")
        told = "; ".join(f"{its} on {listed(map(described, who), 5)}" for its, who in sorted(declared.items()))
        if limit in counts:
            its_activities = (activities or {}).get(limit, ())
        else:  # the code of the newest worker does not declare it any more
            its_activities = {activity for who in declared.values() for one in who for activity in one.sharing(name)}
        without = [
            member
            for member in live
            if limit not in member.limits and any(can_run(member, Need(ACTIVITY, one)) for one in its_activities)
        ]
        if without:
            lines.append(
                f"more can {more} than the {what} {name!r} allows: the code of some live workers does not declare it, "
                f"and they run its activities without it until they end: {listed(map(described, without), 5)}. "
                f"Declared: {told or 'by no live worker'}. Replace the workers without it, or remove the {what} from "
                "the code of all"
            )
        if len({number.partition(" for each ")[2] for number in declared}) > 1:
            lines.append(
                f"more can {more} than the {what} {name!r} allows: live workers divide it by different tags, and each "
                f"counts only what runs on workers that divide it alike: {told}. Replace those with the older code"
            )
        elif len(declared) > 1 and limit in counts and limit not in ordered:
            lines.append(
                f"live workers declare different numbers for the {what} {name!r}: {told}. {counts[limit]} counts, "
                "because the worker that has started last declares it. Give all workers the same number, or order one: "
                f"taskhub limits set {shlex.quote(name)} NUMBER --of {kind}"
            )
    return lines
