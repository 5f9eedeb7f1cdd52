"""Which worker could run what, and how the apps of two workers differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.registry import Registry
from airflow_provider_taskhub.hub.model import Member
from airflow_provider_taskhub.hub.partitions.capabilities import (
    Need,
    able,
    can_run,
    difference,
    different_limits,
    lack_of_memory,
    too_small,
)
from airflow_provider_taskhub.virtual_time import START

BOTH = ("orchestrator", "activity")


def worker(name: str, **changes: object) -> Member:
    values: dict[str, object] = {
        "worker": f"{name}@host/1",
        "started": START,
        "roles": BOTH,
        "apps": {"orders": "3"},
        "orchestrators": ("pipeline",),
        "activities": ("clean",),
        **changes,
    }
    limits = [limit.partition(" ")[2] for limit in changes.get("limits", ())]  # type: ignore[attr-defined]
    values.setdefault("limit_names", {limit: limit for limit in limits})
    return Member(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("need", "found"),
    [
        (Need("orchestrator", "pipeline"), True),
        (Need("orchestrator", "other"), False),
        (Need("orchestrator", "clean"), False),
        (Need("activity", "clean"), True),
        (Need("activity", "pipeline"), False),
        (Need("orchestrator", "pipeline", "1"), False),
        (Need("orchestrator", "pipeline", "2"), True),
        (Need("orchestrator", "pipeline", "3"), True),
    ],
    ids=str,
)
def test_a_worker_can_run_what_its_apps_declare_in_a_version_they_accept(need: Need, found: bool) -> None:
    assert can_run(worker("one", accepts={"pipeline": ("2", "3")}), need) is found


def test_a_worker_that_lists_no_versions_accepts_every_version() -> None:
    assert can_run(worker("one"), Need("orchestrator", "pipeline", "17"))


@pytest.mark.parametrize("kind", BOTH)
def test_a_worker_without_the_role_can_run_nothing_of_its_kind(kind: str) -> None:
    other = [role for role in BOTH if role != kind]
    name = "pipeline" if kind == "orchestrator" else "clean"
    assert not can_run(worker("one", roles=tuple(other)), Need(kind, name))  # type: ignore[arg-type]


def test_only_live_workers_are_able() -> None:
    members = [worker("one"), worker("dead", alive=False), worker("other", orchestrators=())]
    assert [member.worker for member in able(members, Need("orchestrator", "pipeline"))] == ["one@host/1"]


def test_what_differs_between_two_workers_is_named() -> None:
    mine = worker("one", activities=("clean", "publish"))
    other = worker("two", apps={"orders": "4", "extra": ""}, orchestrators=("pipeline", "report"))
    found = difference(mine, other)
    assert found is not None
    assert found.lacks == (Need("activity", "publish"),)
    assert found.more == (Need("orchestrator", "report"),)
    assert found.versions == (("orders", "3", "4"),)
    assert str(found) == (
        "worker two@host/1: app 'orders' has version '4' there and '3' here; it lacks activity 'publish'; "
        "this worker lacks orchestrator 'report'"
    )


def test_same_apps_and_other_roles_are_no_difference() -> None:
    mine = worker("one")
    assert difference(mine, worker("two", orchestrators=tuple(reversed(mine.orchestrators)))) is None
    assert difference(mine, worker("two", roles=("activity",), orchestrators=())) is None


def test_a_text_of_many_names_is_short() -> None:
    mine = worker("one", activities=tuple(f"a{number:03d}" for number in range(500)))
    found = difference(mine, worker("two", activities=()))
    assert found is not None
    assert len(found.lacks) == 500
    assert str(found).endswith("activity 'a019' and 480 more")


def test_a_registry_lists_the_versions_that_its_orchestrators_accept() -> None:
    strict, open_ = App("strict", version="3", compatible=["2"]), App("open", version="1")

    @strict.orchestrator
    async def pipeline(ctx: OrchestrationContext) -> None: ...

    @open_.orchestrator
    async def report(ctx: OrchestrationContext) -> None: ...

    assert Registry.of([strict, open_]).accepts == {"pipeline": ("2", "3")}


def test_a_worker_runs_only_activities_of_its_pools() -> None:
    pools = {"pool_of": {"clean": "heavy"}}
    for serves, can in ((("default",), False), (("heavy",), True), (("default", "heavy"), True)):
        assert can_run(worker("one", pools=serves, **pools), Need("activity", "clean")) is can
    assert not can_run(worker("one", pools=("heavy",)), Need("activity", "clean"))
    assert can_run(worker("one", pools=("heavy",)), Need("orchestrator", "pipeline")), "pools divide activities"


@pytest.mark.parametrize(("memory", "can"), [(3, False), (4, True), (5, True), (None, True)])
def test_a_worker_runs_no_activity_that_needs_more_memory_than_it_has(memory: int | None, can: bool) -> None:
    one = worker("one", memory=memory, memory_of={"clean": 4})
    assert can_run(one, Need("activity", "clean")) is can
    assert can_run(one, Need("orchestrator", "pipeline")), "memory is for activities"
    assert too_small([one], "clean") == (() if can else (one,))


def test_the_largest_of_the_workers_that_are_too_small_is_named() -> None:
    g, needs = 1024**3, {"clean": 64 * 1024**3}
    members = [worker(name, memory=size * g, memory_of=needs) for name, size in (("a", 8), ("b", 16), ("c", 4))]
    members += [
        worker("dead", memory=32 * g, memory_of=needs, alive=False),
        worker("elsewhere", memory=32 * g, memory_of=needs, pool_of={"clean": "heavy"}),
        worker("orchestrating", memory=32 * g, memory_of=needs, roles=("orchestrator",)),
        worker("without", memory=32 * g, activities=()),
    ]
    assert [one.worker for one in too_small(members, "clean")] == ["b@host/1", "a@host/1", "c@host/1"]
    text, _ = lack_of_memory(too_small(members, "clean")[0], "clean")
    assert text == "activity 'clean' needs 64g of memory; the live worker with most has 16g"


def test_another_pool_of_an_activity_is_a_difference_and_another_pool_of_the_worker_is_none() -> None:
    mine = worker("one", pool_of={"clean": "heavy"})
    found = difference(mine, worker("two", pool_of={"clean": "huge"}))
    assert str(found) == "worker two@host/1: activity 'clean' belongs to the pool 'huge' there and 'heavy' here"
    assert "'default' there and 'heavy' here" in str(difference(mine, worker("two")))
    assert difference(mine, worker("two", pool_of={"clean": "heavy"}, pools=("heavy",))) is None


def test_a_limit_with_different_numbers_names_them_and_the_workers() -> None:
    members = [
        worker("one", limits={"activity load": "2", "rate load": "10/m"}),
        worker("two", apps={"orders": "4"}, limits={"activity load": "3", "rate load": "10/m"}),
        worker("three"),
        worker("dead", limits={"rate load": "9/m"}, alive=False),
    ]
    counts = {"activity load": "3", "rate load": "10/m"}
    assert different_limits(members, counts) == [
        "live workers declare different numbers for the limit 'load': 2 on one@host/1 (orders 3); 3 on two@host/1 "
        "(orders 4). 3 counts, because the worker that has started last declares it. Give all workers the same number, "
        "or order one: taskhub limits set load NUMBER --of activity"
    ]
    assert different_limits(members[:1] + members[2:], counts) == []
    assert different_limits(members, counts, ordered={"activity load"}) == []


WITHOUT = (
    "more can run at once than the limit {!r} allows: the code of some live workers does not declare it, and they run "
    "its activities without it until they end: {}. Declared: {}. Replace the workers without it, or remove the limit "
    "from the code of all"
)


def test_workers_that_run_the_activities_of_a_limit_without_it_are_named() -> None:
    old, new = worker("old"), worker("new", limits={"activity clean": "1"})
    idle = [
        worker("other", activities=("count",)),
        worker("dead", alive=False),
        worker("orchestrating", roles=("orchestrator",)),
        worker("elsewhere", pool_of={"clean": "heavy"}),
    ]
    known = {"activity clean": ("clean",), "instances nightly": ()}
    counts = {"activity clean": "1", "instances nightly": "2"}

    def told(members: list[Member], *ordered: str) -> list[str]:
        return different_limits([*idle, *members], counts, activities=known, ordered=ordered)

    said = WITHOUT.format("clean", "old@host/1 (orders 3)", "1 on new@host/1 (orders 3)")
    assert told([old, new]) == [said]
    assert told([old, new], "activity clean") == [said], "an order does not bind them either"
    assert told([old]) == [WITHOUT.format("clean", "old@host/1 (orders 3)", "by no live worker")]
    assert told([new]) == []


@pytest.mark.parametrize("name", ["clean", "database"])
def test_a_limit_that_only_older_workers_have_still_is_told(name: str) -> None:
    shared = {"clean": name}
    old, new = worker("old", limits={f"activity {name}": "1"}, limit_names=shared), worker("new")
    said = WITHOUT.format(name, "new@host/1 (orders 3)", "1 on old@host/1 (orders 3)")
    assert different_limits([old, new], {}) == [said]
    assert different_limits([old, worker("other", activities=("count",))], {}) == []
    both = replace(old, activities=(*old.activities, "count"))
    assert different_limits([both, worker("other", activities=("count",))], {}) == [], "another one of its activities"
    free = replace(both, activities=("clean", name), limit_names={"clean": name})
    assert name == "clean" or different_limits([free, worker("new", activities=(name,))], {}) == [], "it has no limit"


def test_another_limit_of_an_activity_of_both_is_a_difference() -> None:
    mine = worker("one", limits={"activity clean": "2", "rate clean": "10/m"})
    found = difference(mine, worker("two", limits={"activity clean": "3"}))
    assert str(found) == (
        "worker two@host/1: limit 'clean' is '3' there and '2' here; rate 'clean' is 'no limit' there and '10/m' here"
    )
    assert difference(mine, replace(mine, worker="two@host/1")) is None
    assert difference(mine, worker("two", roles=("orchestrator",))) is None


def test_workers_that_divide_a_limit_by_different_tags_are_named() -> None:
    members = [
        worker("one", limits={"activity clean": "1"}),
        worker("two", limits={"activity clean": "1 for each tenant"}),
    ]
    said = (
        "more can run at once than the limit 'clean' allows: live workers divide it by different tags, and each counts "
        "only what runs on workers that divide it alike: 1 on one@host/1 (orders 3); 1 for each tenant on two@host/1 "
        "(orders 3). Replace those with the older code"
    )
    for ordered in ((), ("activity clean",)):
        assert different_limits(members, {"activity clean": "1 for each tenant"}, ordered=ordered) == [said]


def test_a_worker_is_named_for_the_limits_of_its_own_activities_only() -> None:
    names = {"clean": "database", "count": "licence"}
    old = worker(
        "old",
        activities=("clean", "count"),
        limits={"activity database": "1", "activity licence": "2"},
        limit_names=names,
    )
    new = worker("new", activities=("count",))
    assert different_limits([old, new], {}) == [
        WITHOUT.format("licence", "new@host/1 (orders 3)", "2 on old@host/1 (orders 3)")
    ]
