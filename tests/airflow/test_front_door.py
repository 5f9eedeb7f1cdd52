"""What requests of the page find, show and cost: the task's own instance, one execution at a time, one list of hubs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.hooks.identity import TaskIdentity, TaskIds
from airflow_provider_taskhub.hub.model import RecordState
from airflow_provider_taskhub.links.taskhub import TaskHubInstanceLink, TaskHubPageLink, page_in_dag
from airflow_provider_taskhub.plugins import client_cache as caches
from airflow_provider_taskhub.plugins import task_instances
from airflow_provider_taskhub.plugins.client_cache import FRESH, MAX_FRESH, ClientCache, size_of
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.virtual_time import run
from tests.airflow.fake import NOW, FakeHub, record
from tests.airflow.test_page import ask, at

__all__ = ["ask"]  # the fixture

RUN = "manual__2026-11-21T10:00:00+00:00"
TASK = TaskIds(dag_id="flights", run_id=RUN, task_id="hub", map_index=-1)
TASK_7 = TaskIds(dag_id="flights", run_id=RUN, task_id="hub", map_index=7).instance_id(1)
TAB = "/api/task?dag_id=flights&run_id=manual__2026-11-21T10:00:00%2B00:00&task_id=hub&map_index={MAP_INDEX}"


def put(
    hub: FakeHub, generation: int, status: Status = Status.COMPLETED, *, index: int = -1, try_number: int = 1
) -> str:
    task = TaskIdentity(
        dag_id="flights",
        run_id=RUN,
        task_id="hub",
        map_index=index,
        try_number=try_number,
        max_tries=0,
        owner="o",
    )
    instance_id = task.instance_id(generation)
    hub.put(instance_id, status, tags=task.tags(generation), created=NOW)
    return instance_id


# the task's own instance


def test_the_tab_lists_the_tasks_own_instances_and_what_they_are(ask: Any, hub: FakeHub) -> None:
    first, second = put(hub, 1), put(hub, 2, Status.RUNNING, try_number=3)
    put(hub, 1, index=7)
    parent = hub.instances[second]
    for name in ("child", f"{second}:child"):  # children have their parent's tags
        hub.put(name, Status.RUNNING, tags=dict(parent.tags or {}), name="quality_gate", created=at(60))
    status, answer = ask(TAB)
    assert status == 200
    assert [(one["id"], one["generation"], one["try"], one["status"], one["name"]) for one in answer["instances"]] == [
        (second, "2", "3", "Running", "flights_delays"),
        (first, "1", "1", "Completed", "flights_delays"),
    ]
    assert ask(TAB.replace("{MAP_INDEX}", "7"))[1]["instances"][0]["id"] == TASK_7
    assert ask(TAB.replace("{MAP_INDEX}", "8"))[1] == {"instances": []}


def test_a_hub_that_cannot_be_used_does_not_hide_an_instance_in_another(
    ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", '{"conn_type": "taskhub", "extra": {}}')
    monkeypatch.setenv("AIRFLOW__TASKHUB__PAGE_CONNECTIONS", "broken, taskhub_default")
    assert ask(TAB) == (409, {"detail": "connection 'broken' has no hub: fill in the field 'Hub'"})
    put(hub, 1)
    assert ask(TAB)[1]["conn"] == "taskhub_default"


def test_what_the_tab_costs_does_not_grow_with_the_hub(ask: Any, hub: FakeHub) -> None:
    for number in range(20_000):
        hub.put(f"other-{number}", Status.COMPLETED, tags={"airflow.dag_id": "flights"})
    put(hub, 1)
    assert len(ask(TAB)[1]["instances"]) == 1
    assert dict(hub.requests) == {"get": 2 * task_instances.AT_ONCE}


def test_generations_that_were_purged_do_not_hide_later_ones(hub: FakeHub) -> None:
    async def scenario() -> None:
        async with hub.open(None) as client:
            assert await task_instances.of_task(client, TASK) == ()  # type: ignore[arg-type]
            for generation in (12, 3, 2):
                put(hub, generation)
            found = await task_instances.of_task(client, TASK)  # type: ignore[arg-type]
            assert [one.instance_id[-3:] for one in found] == ["g12", ":g3", ":g2"]
            del hub.instances[TASK.instance_id(2)], hub.instances[TASK.instance_id(3)]
            for number in range(5):
                put(hub, 12)
                hub.put(
                    TASK.instance_id(12) + f":part-{number}",
                    Status.RUNNING,
                    tags=hub.instances[TASK.instance_id(12)].tags,
                )
            hub.requests.clear()
            found = await task_instances.of_task(client, TASK)  # type: ignore[arg-type]
            assert [one.instance_id for one in found] == [TASK.instance_id(12)]
            assert dict(hub.requests) == {"get": task_instances.AT_ONCE, "list": 1}

    asyncio.run(scenario())


def test_a_task_cleared_very_often_costs_a_bounded_number_of_reads(hub: FakeHub) -> None:
    async def scenario() -> None:
        for generation in range(1, 2 * task_instances.MOST):
            put(hub, generation)
        async with hub.open(None) as client:
            found = await task_instances.of_task(client, TASK)  # type: ignore[arg-type]
        assert len(found) == hub.requests["get"] == task_instances.MOST

    asyncio.run(scenario())


def test_the_link_names_an_instance_of_the_authors_choice() -> None:
    from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

    def link(**more: Any) -> str:
        operator = TaskHubOperator(task_id="hub", orchestrator="o", **more)
        return TaskHubInstanceLink().get_link(operator, ti_key=TASK)  # type: ignore[arg-type]

    assert link().endswith("/page/instance?dag_id=flights&run_id=manual__2026-11-21T10%3A00%3A00%2B00%3A00"
                           "&task_id=hub&map_index=-1&conn=taskhub_default")  # fmt: skip
    assert link(instance_id="mine").endswith("&conn=taskhub_default&id=mine")
    assert "id=%7B" not in link(instance_id="of-{{ run_id }}")


def stored(kind: str, expand: Any = None, **more: Any) -> Any:
    """A task in the stored DAG, as the API server and the triggerer have it."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
    from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

    class Own(TaskHubOperator):
        pass

    made = {"operator": TaskHubOperator, "sensor": TaskHubSensor, "own": Own}[kind]
    given = {"task_id": "hub"} | ({"instance_id": "i"} if kind == "sensor" else {"orchestrator": "o"}) | more
    with DAG("flights", schedule=None) as dag:
        if expand is None:
            made(**given)
        elif isinstance(expand, list):
            made.partial(**given).expand_kwargs(expand)
        else:
            made.partial(**given).expand(**expand)
    return DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("hub")


@pytest.mark.parametrize(
    ("task", "end"),
    [
        (("operator",), "&map_index=-1&conn=taskhub_default"),
        (("operator", None, {"taskhub_conn_id": "q", "instance_id": "x"}), "&map_index=-1&conn=q&id=x"),
        (("sensor",), "&map_index=-1&conn=taskhub_default&id=i"),
        (("operator", {"input": [1, 2]}, {"taskhub_conn_id": "q"}), "&map_index=1&conn=q"),
        (("operator", [{"instance_id": "a"}, {"instance_id": "b"}]), "&map_index=1&conn=taskhub_default&id=b"),
        (("operator", None, {"instance_id": "{{ run_id }}"}), None),
        (("operator", None, {"taskhub_conn_id": "{% if 1 %}a{% endif %}"}), None),
        (("operator", [{"instance_id": "a"}, {"instance_id": "{{ run_id }}"}]), None),
        (("own",), None),
    ],
)
def test_the_api_server_makes_the_link_from_the_stored_dag_or_finds_the_pushed_one(
    monkeypatch: pytest.MonkeyPatch, task: Any, end: str | None
) -> None:
    from airflow.serialization.definitions.operatorlink import XComOperatorLink

    read: list[str] = []

    def pushed(link: Any, operator: Any, *, ti_key: Any) -> str:
        read.append(link.xcom_key)
        return "the pushed one"

    monkeypatch.setattr(XComOperatorLink, "get_link", pushed)
    kind, expand, more = (*task, None, {})[:3] if len(task) == 1 else (*task, {})[:3]
    operator = stored(kind, expand, **more)
    index = 1 if expand is not None else -1
    key = TaskIds(dag_id="flights", run_id="r", task_id="hub", map_index=index)
    address = TaskHubPageLink().get_link(operator, ti_key=key)  # type: ignore[arg-type]
    if end is None:
        assert (address, read) == ("the pushed one", ["_link_TaskHubInstanceLink"])
        assert page_in_dag(operator, key) is None  # type: ignore[arg-type]
    else:
        assert address == f"/plugin/taskhub/taskhub/page/instance?dag_id=flights&run_id=r&task_id=hub{end}"
        assert read == []


def test_a_task_that_is_mapped_over_another_tasks_result_pushes_its_link() -> None:
    from airflow.sdk import DAG, task
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

    @task
    def ids() -> list[str]:
        return ["a"]

    with DAG("flights", schedule=None) as dag:
        TaskHubOperator.partial(task_id="hub", orchestrator="o").expand(instance_id=ids())
    operator = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("hub")
    assert page_in_dag(operator, TaskIds(dag_id="flights", run_id="r", task_id="hub", map_index=0)) is None  # type: ignore[arg-type]


def test_airflow_has_the_plugins_link_for_the_operator_and_the_sensor() -> None:
    from airflow_provider_taskhub.plugins.taskhub import TaskHubPlugin

    (link,) = TaskHubPlugin.operator_extra_links
    assert [one.__name__ for one in link.operators] == ["TaskHubOperator", "TaskHubSensor"]
    assert link.name == TaskHubInstanceLink.name, "or a task has two links"


# one execution at a time


@pytest.fixture
def two_executions(hub: FakeHub) -> FakeHub:
    hub.put("i", Status.RUNNING, execution_id="second", tags={"airflow.dag_id": "flights"}, created=NOW)
    hub.records["i"] = (
        record(RecordState.FAILED, execution="first", log="log of the first", ended=at(1)),
        record(RecordState.FAILED, execution="first", task_id=9, ended=at(1)),
        record(RecordState.RUNNING, execution="second", log="log of the second", message="password=hunter2"),
    )
    hub.logs |= {"log of the first": "first", "log of the second": "second"}
    return hub


def test_attempts_of_another_execution_are_in_no_lane_and_in_no_count(ask: Any, two_executions: FakeHub) -> None:
    _, answer = ask("/api/instance?id=i")
    assert [(one["execution"], one["task"]) for one in answer["activities"]] == [("second", 0)]
    assert [(one["execution"], one["task"]) for one in answer["earlier"]] == [("first", 0), ("first", 9)]
    assert [len(lane["bars"]) for lane in answer["timeline"]["lanes"]] == [1]
    assert answer["tally"] == {"running": 1, "retried": 0, "all": 1}
    assert ask("/api/instances?window=all")[1]["rows"][0]["activities"] == answer["tally"]


def test_a_log_link_opens_the_log_of_its_execution(ask: Any, two_executions: FakeHub) -> None:
    log = "/api/log?id=i&task=0&attempt=1"
    assert ask(f"{log}&execution=first")[1]["text"] == "first"
    assert ask(f"{log}&execution=second")[1]["text"] == "second"
    assert ask(log)[1]["text"] == "second", "the current one, where none is named"
    assert ask(f"{log}&execution=third")[0] == 404


# connections


def test_a_connection_that_is_not_offered_is_refused_whatever_it_is(
    ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown, of another type, or a hub that the page does not offer: one answer, and Airflow is not asked."""
    monkeypatch.setenv("AIRFLOW_CONN_A_DATABASE", '{"conn_type": "postgres", "password": "p"}')
    monkeypatch.setenv("AIRFLOW_CONN_ANOTHER_HUB", '{"conn_type": "taskhub", "extra": {"hub": "Another"}}')
    for path in ("instances?", "instance?id=i&", "log?id=i&task=0&attempt=1&", "task?dag_id=d&run_id=r&task_id=t&"):
        answers = [ask(f"/api/{path}conn={name}") for name in ("unknown", "a_database", "another_hub")]
        assert [code for code, _ in answers] == [404, 404, 404], path
        names = [
            answer["detail"].replace(name, "…")
            for (_, answer), name in zip(answers, ("unknown", "a_database", "another_hub"), strict=True)
        ]
        assert len(set(names)) == 1
        assert "page_connections" in names[0]
    assert hub.opened == 0
    monkeypatch.setenv("AIRFLOW__TASKHUB__PAGE_CONNECTIONS", "taskhub_default, another_hub")
    assert ask("/api/instances?conn=another_hub")[0] == 200


# secrets


def test_messages_and_flat_statuses_pass_the_masker_and_need_the_right(ask: Any, two_executions: FakeHub) -> None:
    hub = two_executions
    secret = '{"password":"hunter2","months":8}'
    hub.put(
        "i",
        Status.RUNNING,
        execution_id="second",
        custom_status=secret,
        created=NOW,
        tags={"airflow.dag_id": "flights", "api_key": "hunter2"},
    )
    hub.records["i"] = (record(RecordState.RUNNING, execution="second", message=secret),)
    for path in ("/api/instances?window=all", "/api/instance?id=i"):
        _, answer = ask(path, "vera", dags=("flights",))
        assert "hunter2" not in str(answer), path
        assert "password *** · months 8" in str(answer), path
        _, answer = ask(path, "vera", dags=("flights",), without=("TASK_INSTANCE",))
        assert "months" not in str(answer), path


# what a request costs


def test_a_request_costs_a_bounded_number_of_the_hubs(ask: Any, two_executions: FakeHub) -> None:
    """However many instances and executions there are, and however many attempts they have."""
    hub = two_executions
    hub.records["i"] += tuple(record(RecordState.FAILED, execution=f"{number}") for number in range(300))
    ask("/api/instance?id=i")
    looks = ("get", "history", "activities", "members", "partitions", "waiting_of")
    assert dict(hub.requests) == dict.fromkeys(looks, 1)
    hub.requests.clear()
    ask("/api/log?id=i&task=0&attempt=1")
    assert dict(hub.requests) == {"get": 1, "activities": 1, "log": 1}
    for number in range(500):
        hub.put(f"other-{number}", Status.RUNNING, created=NOW)
    hub.requests.clear()
    assert len(ask("/api/instances?window=all")[1]["rows"]) == 25
    assert dict(hub.requests) == {"list": 1, "get": 25, "members": 1, "activities": 25, "waiting_of": 1}


# an instance that cannot be read whole


def test_a_damaged_instance_is_shown_as_far_as_it_can_be_read(ask: Any, two_executions: FakeHub) -> None:
    hub = two_executions
    hub.unreadable["i"] = ("row 3 is damaged",)
    hub.damaged_payloads["i"] = "blob 'x' holds no text"
    status, answer = ask("/api/instance?id=i")
    assert (status, answer["instance"]["status"]) == (200, "Running")
    assert answer["unreadable"] == ["blob 'x' holds no text", "row 3 is damaged"]


# memory


def test_answers_leave_the_memory_when_they_are_no_longer_fresh(hub: FakeHub) -> None:
    async def scenario() -> None:
        cache = ClientCache(load_settings())
        for number in range(50):
            await cache.once(("log", number), lambda client: told("x" * 1000))
        assert 50_000 < cache.kept < 60_000
        await asyncio.sleep(FRESH + 0.1)
        assert cache.kept == 0

    run(scenario())


@pytest.mark.parametrize(("took", "scans"), [(0.0, 30), (1.0, 20), (10.0, 3), (100.0, 1)])
def test_a_slow_scan_is_repeated_more_seldom(hub: FakeHub, took: float, scans: int) -> None:
    """Three open pages ask for a minute, each 2 s after its last answer: half of the time nothing is scanned."""
    asked = 0

    async def scan(client: Any) -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(took)
        return "instances"

    async def page(cache: ClientCache) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 59
        while loop.time() < end:
            assert await cache.once("scan", scan) == "instances"
            await asyncio.sleep(2)

    async def scenario() -> None:
        cache = ClientCache(load_settings())
        await asyncio.gather(*(page(cache) for _ in range(3)))

    run(scenario())
    assert asked == scans


def test_a_very_slow_scan_serves_for_half_a_minute(hub: FakeHub) -> None:
    async def slow(client: Any) -> str:
        await asyncio.sleep(100)
        return "instances"

    async def scenario() -> None:
        cache = ClientCache(load_settings())
        await cache.once("scan", slow)
        await asyncio.sleep(MAX_FRESH - 0.1)
        assert cache.kept > 0
        await asyncio.sleep(0.2)
        assert cache.kept == 0

    run(scenario())


def test_answers_in_memory_are_bounded_in_bytes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "MOST_BYTES", 10_000)

    async def scenario() -> None:
        cache = ClientCache(load_settings())
        for number in range(20):
            await cache.once(("log", number), lambda client: told("x" * 3000))
            assert cache.kept <= 10_000
        assert cache.kept > 6_000, "the newest are kept"
        assert len(await cache.once("large", lambda client: told("x" * 20_000))) == 20_000
        assert cache.kept <= 10_000

    run(scenario())


def test_counts_of_ended_instances_are_asked_for_once_and_bounded(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "MOST_TALLIES", 3)
    states = [hub.put(f"i{number}", Status.COMPLETED) for number in range(4)]

    async def scenario() -> None:
        cache = ClientCache(load_settings())
        for index, asked in ((0, 1), (1, 2), (2, 3), (0, 3), (3, 4), (0, 4), (1, 5)):
            await cache.tally(states[index])
            assert hub.requests["activities"] == asked
            await asyncio.sleep(2 * FRESH)

    run(scenario())


async def told(answer: str) -> str:
    return answer


def test_the_size_of_an_answer_counts_its_texts() -> None:
    one = record(RecordState.COMPLETED, result="r" * 1000)
    assert 1000 < size_of(one) < 4000
    assert size_of((one, one)) > 2 * size_of(one)
    assert size_of(({"k" * 500: "v" * 500}, None)) > 1000
