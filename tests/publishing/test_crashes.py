"""An attempt dies, or stands still, at each of its steps. What readers see is the old data or the new data, once."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from airflow_provider_taskhub.errors import PublishSuperseded
from airflow_provider_taskhub.publishing.layout import PublishMode
from tests.publishing.world import Died, DiskFiles, MemoryFiles, Rows, Target, Watched

MODES: tuple[PublishMode, ...] = ("overwrite", "append", "overwrite_partitions")
OLD: Rows = {"m=1": [1, 2], "m=2": [3, 4]}
NEW: Rows = {"m=2": [5, 6, 7], "m=3": [8, 9]}
EXPECTED: dict[PublishMode, Rows] = {
    "overwrite": NEW,
    "append": {"m=1": [1, 2], "m=2": [3, 4, 5, 6, 7], "m=3": [8, 9]},
    "overwrite_partitions": {"m=1": [1, 2], "m=2": [5, 6, 7], "m=3": [8, 9]},
}
STEPS = 40
"""More than an attempt has; a test stops at the last one."""


class World:
    """A new target for each case, with three earlier commits, so that a clean-up has work.

    :param folder: where targets are on the disk; None: in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def target(self, *, keep: int = 2, old: bool = True) -> Target:
        files = DiskFiles(self._folder / str(next(self._numbers))) if self._folder else MemoryFiles()
        target = Target(files=files, keep=keep)
        if old:
            target.publish("first", 1, {"m=1": [0]}, "overwrite")
            target.publish("second", 1, {"m=1": [0], "m=2": [3, 4]}, "overwrite")
            target.publish("third", 1, {"m=1": [1, 2]}, "overwrite_partitions")
        return target


@pytest.fixture(params=["memory"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path if request.param == "disk" else None)


def expected(mode: PublishMode, old: bool) -> Rows:
    return EXPECTED[mode] if old else NEW


def steps(world: World, mode: PublishMode, *, old: bool = True, keep: int = 2) -> int:
    """The number of steps of an attempt that nothing disturbs."""
    target = world.target(old=old, keep=keep)
    watched = Watched(target.files)
    target.publish("k", 1, NEW, mode, watched)
    return len(watched.steps)


@pytest.mark.parametrize(
    ("world", "mode", "old"),
    [
        *(("memory", mode, old) for mode in MODES for old in (True, False)),
        pytest.param("disk", "overwrite_partitions", True, marks=pytest.mark.long),
    ],
    indirect=["world"],
)
def test_an_attempt_that_dies_at_any_step_is_repeated_without_a_trace(
    world: World, mode: PublishMode, old: bool
) -> None:
    """Doubled 0, lost 0, orphans 0; a reader between all steps sees the data of before or of after, whole."""
    total, died = steps(world, mode, old=old), 0
    assert total < STEPS
    for moment in ("before", "after", "in the middle of a deletion"):
        for at in range(total):
            target = world.target(old=old)
            seen: list[Rows] = []

            def strike(number: int, what: str, at: int = at, moment: str = moment, target: Target = target) -> None:
                if number == at:
                    if moment.startswith("in") and what.startswith("delete"):
                        target.files.delete_one(what.removeprefix("delete "))
                    raise Died(what)

            def look(number: int, what: str, target: Target = target, seen: list[Rows] = seen) -> None:
                seen.append(target.read())

            dying = Watched(target.files)
            dying.before, dying.after = (look, strike) if moment == "after" else (strike, look)
            with pytest.raises(Died):
                target.publish("k", 1, NEW, mode, dying)
            died += 1
            target.publish("k", 2, NEW, mode, Watched(target.files, before=look, after=look))
            where = f"{moment} step {at}: {dying.steps[-1]}"
            assert target.read() == expected(mode, old), where
            assert all(rows in (OLD if old else {}, expected(mode, old)) for rows in seen), where
            assert target.orphans() == [], where
    assert died == 3 * total


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_that_dies_while_it_repeats_another_one_is_repeated_too(world: World, mode: PublishMode) -> None:
    target = world.target()

    def dead_writer(target: Target) -> None:
        def strike(number: int, what: str) -> None:
            if what.startswith("write") and what.endswith("m=3/part-1"):
                raise Died

        with pytest.raises(Died):
            target.publish("k", 1, NEW, mode, Watched(target.files, after=strike))

    dead_writer(target)
    watched = Watched(target.files)
    target.publish("k", 2, NEW, mode, watched)
    assert any(step.startswith("delete _taskhub/data/taskhub_commit=k-1") for step in watched.steps)
    for at in range(len(watched.steps)):
        target = world.target()
        dead_writer(target)

        def strike(number: int, what: str, at: int = at) -> None:
            if number == at:
                raise Died

        with pytest.raises(Died):
            target.publish("k", 2, NEW, mode, Watched(target.files, before=strike))
        target.publish("k", 3, NEW, mode)
        assert target.read() == EXPECTED[mode], watched.steps[at]
        assert target.orphans() == [], watched.steps[at]


@pytest.mark.parametrize("mode", MODES)
def test_an_attempt_that_its_worker_has_lost_cannot_publish_beside_its_successor(
    world: World, mode: PublishMode
) -> None:
    """The first attempt stands still before each of its steps. The second one runs from begin to end. Then the first
    one goes on: it publishes nothing, or it has published and the second one has not."""
    refused = 0
    total = steps(world, mode)
    for at in range(total):
        target = world.target()
        outcome: list[bool] = []
        watched = Watched(target.files)

        def successor(number: int, what: str, at: int = at, target: Target = target, outcome=outcome) -> None:
            if number == at:
                outcome.append(target.publish("k", 2, NEW, mode))

        watched.before = successor
        try:
            outcome.append(target.publish("k", 1, NEW, mode, watched))
        except PublishSuperseded:
            refused += 1
        except Exception as error:
            raise AssertionError(f"step {at}: {watched.steps[at]}: {error!r}") from error
        assert outcome.count(True) == 1, f"one of both has published, at step {at}: {watched.steps[at]}"
        assert target.read() == EXPECTED[mode], watched.steps[at]
        target.publish("next", 1, {"m=9": [99]}, "append")
        assert target.orphans() == [], f"the next publication finds nothing, at step {at}: {watched.steps[at]}"


@pytest.mark.parametrize("mode", MODES)
def test_a_successor_that_only_has_begun_shuts_out_the_attempt_before_it(world: World, mode: PublishMode) -> None:
    """It has begun and has removed the other one's data. The other one must not publish what is left of them."""
    total = steps(world, mode)
    refused = 0
    for at in range(total):
        target = world.target()
        watched = Watched(target.files)

        def successor(number: int, what: str, at: int = at, target: Target = target) -> None:
            if number == at:

                def die(number: int, what: str) -> None:
                    if what.startswith("write"):
                        raise Died

                with pytest.raises(Died):
                    target.publish("k", 2, NEW, mode, Watched(target.files, before=die))

        watched.before = successor
        try:
            target.publish("k", 1, NEW, mode, watched)
        except PublishSuperseded:
            refused += 1
            assert target.read() == OLD
        else:
            assert target.read() == EXPECTED[mode], watched.steps[at]
        target.publish("k", 3, NEW, mode)
        assert target.read() == EXPECTED[mode], watched.steps[at]
    assert refused > 5


def test_activities_that_publish_at_the_same_time_both_count(world: World) -> None:
    """At each step of one, another one appends, and another call fails and is repeated."""
    for at in range(steps(world, "append")):
        target = world.target()

        def other(number: int, what: str, at: int = at, target: Target = target) -> None:
            if number == at:
                target.publish("other", 1, {"m=7": [70, 71]}, "append")

        target.publish("k", 1, NEW, "append", Watched(target.files, before=other))
        assert target.read() == EXPECTED["append"] | {"m=7": [70, 71]}
        assert target.orphans() == []


def test_a_commit_far_behind_the_newest_one_does_not_count_and_is_repeated(world: World) -> None:
    """The attempt read commit 3 and stands still. Others commit until the file of number 4 was made and deleted. Then
    the attempt creates number 4 again. It must notice, and its data must survive the others' clean-up."""
    for at in range(steps(world, "append", keep=1)):
        target = world.target(keep=1)

        def others(number: int, what: str, at: int = at, target: Target = target) -> None:
            if number == at:
                for count in range(5):
                    target.publish(f"other{count}", 1, {"m=7": [count]}, "append")

        watched = Watched(target.files, before=others)
        assert target.publish("k", 1, NEW, "append", watched), watched.steps[at]
        assert target.read() == EXPECTED["append"] | {"m=7": [0, 1, 2, 3, 4]}, watched.steps[at]
        target.publish("last", 1, {"m=8": [0]}, "append")
        assert target.orphans() == [], watched.steps[at]


def test_an_answer_that_was_lost_is_read_back_and_an_error_that_stays_is_raised(world: World) -> None:
    target = world.target()
    losses = iter([True, False, True])

    def lose(number: int, what: str) -> None:
        if what.startswith("create") and next(losses, False):
            raise OSError("the connection was closed")

    target.publish("k", 1, NEW, "append", Watched(target.files, after=lose))
    assert target.read() == EXPECTED["append"]

    def refuse(number: int, what: str) -> None:
        if what.startswith("create"):
            raise OSError("the disk is full")

    watched = Watched(target.files, before=refuse)
    with pytest.raises(OSError, match="the disk is full"):
        target.publish("k2", 1, NEW, "append", watched)
    assert sum(step.startswith("create") for step in watched.steps) == 3


@pytest.mark.parametrize(("attempt", "count"), [(1, 17), (2, 24)])
def test_the_operations_of_a_publication_are_counted(world: World, attempt: int, count: int) -> None:
    """Two partitions; two earlier commits stay, and one is removed with its data."""
    target = world.target()
    watched = Watched(target.files)
    target.publish("k", attempt, NEW, "append", watched)
    requests = [step for step in watched.steps if not step.startswith("write")]
    assert len(requests) == count, "\n".join(requests)


def test_a_clean_up_that_meets_a_commit_that_does_not_count_leaves_its_data(world: World) -> None:
    """Others commit until the attempt's number is free again. The attempt creates that file, and right then another one
    cleans up. The attempt commits again, so its data must be there."""
    target = world.target(keep=1)
    created: list[str] = []

    def others(number: int, what: str) -> None:
        if what.startswith("create") and not created:
            for count in range(5):
                target.publish(f"other{count}", 1, {"m=7": [count]}, "append")

    def late(number: int, what: str) -> None:
        if what.startswith("create"):
            created.append(what)
            target.publish(f"late{len(created)}", 1, {"m=8": [len(created)]}, "append")

    assert target.publish("k", 1, NEW, "append", Watched(target.files, before=others, after=late))
    assert len(created) == 2, "the first file did not count"
    assert target.read() == EXPECTED["append"] | {"m=7": [0, 1, 2, 3, 4], "m=8": [1, 2]}
