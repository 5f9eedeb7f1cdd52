"""The trigger of asset watchers: which ends it delivers, how often, and what it remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk.execution_time.context import AssetStateStoreAccessor, AssetStateStoreAccessors
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_taskhub.client.ends import End
from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError, StorageError
from airflow_provider_taskhub.triggers.ends_stream import MOST_REMEMBERED, OVERLAP, SETTLED_WITHIN, Delivered
from airflow_provider_taskhub.triggers.events import FINAL_STATUSES, MEMORY_KEY, REMEMBER_EVERY, TaskHubEventTrigger
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.airflow.fake import NOW, FakeHub


class Memory:
    """Airflow's ``asset_state_store``. :param refuses: it does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[str, Any] = {}
        self.refuses = False
        self.writes = 0
        memory = self

        async def aget(accessor: Any, key: str, default: Any = None) -> Any:
            assert key == MEMORY_KEY
            return memory.values.get(accessor._name, default)

        async def aset(accessor: Any, key: str, value: Any) -> None:
            if memory.refuses:
                raise ConnectionError("no answer")
            memory.writes += 1
            memory.values[accessor._name] = value

        monkeypatch.setattr(AssetStateStoreAccessor, "aget", aget)
        monkeypatch.setattr(AssetStateStoreAccessor, "aset", aset)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


def trigger(*assets: str, **arguments: Any) -> TaskHubEventTrigger:
    """Build a trigger as Airflow does: from what it has stored. :param assets: the assets that it watches."""
    _, kwargs = TaskHubEventTrigger(**arguments).serialize()
    made = TaskHubEventTrigger(**kwargs)
    made.asset_state_store = AssetStateStoreAccessors(inlets=[Asset(name) for name in assets or ("a",)])
    return made


def ends(hub: FakeHub, *names: str, **more: Any) -> None:
    """Instances end now, by the clock of the store."""
    for name in names:
        hub.store_time = hub.store_time + timedelta(milliseconds=10)
        fields: dict[str, Any] = {"instance_id": name, "execution_id": "e", "name": "sums", "status": Status.COMPLETED}
        fields |= {"completed": None, "tags": {}, "written": hub.store_time}
        hub.ended.append(End(**(fields | more)))


class Airflow:
    """The part of Airflow's triggerer that runs the triggers of asset watchers.

    :ivar fired: what each trigger has fired, by its number.
    :ivar stores: False: Airflow's database is down, and no event is stored.
    """

    def __init__(self) -> None:
        self.manager = SharedStreamManager()
        self.fired: dict[int, list[dict[str, Any]]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.stores = True

    def start(self, *triggers: TaskHubEventTrigger) -> None:
        for each in triggers:
            number = len(self.fired)
            self.fired[number] = []
            self.tasks.append(asyncio.create_task(self._run(number, each)))

    async def _run(self, number: int, one: TaskHubEventTrigger) -> None:
        key = one.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=number, trigger=one, key=key)
        async for event in one.filter_shared_stream(stream):
            sequence = self.manager.bind_pending_event(trigger_id=number, key=key)
            assert sequence is not None, "the event waits for Airflow's database"
            self.fired[number].append(event.payload)
            if self.stores:
                asyncio.get_running_loop().call_later(1, self.manager.confirm_persisted, [sequence])

    async def kill(self) -> None:
        """As SIGKILL does: nothing is cleaned up or stored any more."""
        for task in self.tasks:
            task.cancel()
        await self.manager.stop_all()
        self.tasks.clear()

    def ids(self, number: int = 0) -> list[str]:
        return [event["instance_id"] for event in self.fired[number]]


def play(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def timed() -> None:
        monkeypatch.setattr(TaskHubEventTrigger, "clock", VirtualClock(asyncio.get_running_loop()))
        airflow = Airflow()
        await scenario(airflow)
        await airflow.kill()

    run(timed(), limit=timedelta(days=1))


# what a DAG file may give


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"taskhub_conn_id": ""}, "taskhub_conn_id is ''"),
        ({"orchestrators": "sums"}, "orchestrators is 'sums': give a list"),
        ({"dag_ids": [" "]}, "a text in dag_ids is ' '"),
        ({"statuses": ["Running"]}, "'Running': choose from Completed, Failed, Terminated, Canceled"),
        ({"tags": {"a": 1}}, "tags is {'a': 1}: give a dict of texts by name"),
        ({"tags": ["a"]}, "tags is \\['a'\\]"),
        ({"poll_interval": 0.5}, "poll_interval is 0.5: give seconds, at least 1"),
        ({"pol_interval": 5}, "has no argument 'pol_interval'"),
    ],
)
def test_wrong_arguments_are_refused_at_parse(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        TaskHubEventTrigger(**wrong)


def test_the_statuses_are_the_engines() -> None:
    assert set(FINAL_STATUSES) == {status for status in Status if status.is_final}


def test_serialises_to_plain_values_and_back() -> None:
    interval = timedelta(seconds=5)
    made = TaskHubEventTrigger(orchestrators=("sums",), statuses=["failed"], tags={"a": "b"}, poll_interval=interval)
    path, kwargs = made.serialize()
    assert path == "airflow_provider_taskhub.triggers.events.TaskHubEventTrigger"
    again = TaskHubEventTrigger(**kwargs, gone="since 0.1")
    assert again.serialize() == (path, kwargs)
    assert BaseEventTrigger.hash(path, kwargs) == BaseEventTrigger.hash(*again.serialize())
    assert (kwargs["orchestrators"], kwargs["statuses"]) == (["sums"], ["Failed"])


def test_airflow_accepts_it_as_the_trigger_of_a_watcher() -> None:
    asset = Asset("a", watchers=[AssetWatcher(name="hub", trigger=TaskHubEventTrigger())])
    with DAG("d", schedule=[asset]) as dag:
        pass
    from airflow.serialization.serialized_objects import DagSerialization

    assert "TaskHubEventTrigger" in str(DagSerialization.to_dict(dag))


# what it delivers


def test_each_end_gives_one_event(hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(airflow: Airflow) -> None:
        ends(hub, "before the watcher")
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "a", "b", "c", "d", "e")
        await asyncio.sleep(15)
        ends(hub, "f")
        ends(hub, "a", completed=NOW)  # rewound, and ended once more
        await asyncio.sleep(60)
        hub.store_time = hub.store_time + 2 * OVERLAP
        await asyncio.sleep(60)
        assert airflow.ids() == ["a", "b", "c", "d", "e", "f", "a"]

    play(scenario, monkeypatch)


def test_the_event_names_the_instance_and_its_task_and_nothing_else(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {f"airflow.{name}": name for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}

    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "a", status=Status.FAILED, completed=NOW, tags=task | {"mine": "x", "taskhub.owner": "o"})
        ends(hub, "b")
        await asyncio.sleep(15)
        common = {"hub": "TaskHub", "orchestrator": "sums"}
        names = {name: name for name in ("dag_id", "run_id", "task_id", "map_index")}
        first, second = airflow.fired[0]
        assert first == common | names | {"instance_id": "a", "status": "Failed", "completed": NOW.text()}
        assert second == common | {"instance_id": "b", "status": "Completed", "completed": None}

    play(scenario, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"orchestrators": ["month", "other"]}, ["b"]),
        ({"statuses": ["Failed", "terminated"]}, ["c"]),
        ({"tags": {"team": "sales"}}, ["d"]),
        ({"dag_ids": ["flights"]}, ["d"]),
        ({"dag_ids": ["flights"], "statuses": ["Failed"]}, []),
    ],
)
def test_filters(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], wanted: list[str]
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger(**arguments))
        await asyncio.sleep(5)
        ends(hub, "a")
        ends(hub, "b", name="month")
        ends(hub, "c", status=Status.FAILED)
        ends(hub, "d", tags={"team": "sales", "airflow.dag_id": "flights"})
        await asyncio.sleep(15)
        assert airflow.ids() == wanted

    play(scenario, monkeypatch)


@pytest.mark.parametrize("watchers", [1, 20])
def test_the_requests_do_not_grow_with_the_number_of_watchers(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch, watchers: int
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(*[trigger(f"a{number}", dag_ids=[f"d{number}"]) for number in range(watchers)])
        await asyncio.sleep(5)
        hub.requests.clear()
        await asyncio.sleep(60)
        assert {name: hub.requests[name] for name in ("now", "ends")} == {"now": 6, "ends": 6}
        assert hub.requests.total() == 12

    play(scenario, monkeypatch)


def test_an_end_that_another_server_of_the_store_wrote_with_a_slow_clock_is_delivered(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(100)
        slow = hub.store_time + timedelta(seconds=-5)
        await asyncio.sleep(100)
        ends(hub, "a", written=slow)
        await asyncio.sleep(15)
        assert airflow.ids() == ["a"]

    play(scenario, monkeypatch)


def test_a_hub_that_cannot_be_read_is_read_again(hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(5)
        hub.down = StorageError("busy")
        ends(hub, "a")
        await asyncio.sleep(100)
        hub.down = None
        await asyncio.sleep(40)
        assert airflow.ids() == ["a"]

    play(scenario, monkeypatch)


# restarts


def test_what_ends_while_no_triggerer_runs_is_delivered_and_nothing_twice(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "a", "b")
        await asyncio.sleep(25)
        await airflow.kill()
        ends(hub, "c", "d", "e")
        hub.store_time = hub.store_time + timedelta(days=3)
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "f")
        await asyncio.sleep(20)
        assert airflow.ids(0) == ["a", "b"]
        assert airflow.ids(1) == ["c", "d", "e", "f"]

    play(scenario, monkeypatch)


def test_a_watcher_that_was_killed_at_its_start_does_not_begin_anew(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(1)
        await airflow.kill()
        ends(hub, "a")
        airflow.start(trigger())
        await asyncio.sleep(5)
        assert airflow.ids(1) == ["a"]

    play(scenario, monkeypatch)


def test_an_event_that_airflow_has_not_stored_is_delivered_again(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger())
        await asyncio.sleep(5)
        airflow.stores = False
        ends(hub, "a")
        await asyncio.sleep(SETTLED_WITHIN + 60)  # the listings go on
        await airflow.kill()
        airflow.stores = True
        airflow.start(trigger())
        await asyncio.sleep(30)
        assert (airflow.ids(0), airflow.ids(1)) == (["a"], ["a"])

    play(scenario, monkeypatch)


def test_a_progress_that_cannot_be_stored_is_stored_later(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        memory.refuses = True
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "a")
        await asyncio.sleep(30)
        memory.refuses = False
        await asyncio.sleep(20)
        await airflow.kill()
        airflow.start(trigger())
        await asyncio.sleep(30)
        assert (airflow.ids(0), airflow.ids(1)) == (["a"], [])

    play(scenario, monkeypatch)


def test_the_progress_is_stored_seldom_while_nothing_ends(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger(dag_ids=["d"]))
        await asyncio.sleep(5)
        assert memory.writes == 1
        ends(hub, "of no DAG")
        await asyncio.sleep(120)
        assert memory.writes == 1
        hub.store_time = hub.store_time + REMEMBER_EVERY
        await asyncio.sleep(40)
        assert memory.writes == 2

    play(scenario, monkeypatch)


def test_the_progress_of_another_hub_does_not_count(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.values["a"] = Delivered("Other (elsewhere)", NOW + timedelta(days=-9)).stored()

    async def scenario(airflow: Airflow) -> None:
        ends(hub, "before")
        airflow.start(trigger())
        await asyncio.sleep(5)
        ends(hub, "after")
        await asyncio.sleep(15)
        assert airflow.ids() == ["after"]

    play(scenario, monkeypatch)


def test_two_assets_with_equal_watchers_share_one_progress(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        airflow.start(trigger("z", "b"))
        await asyncio.sleep(5)
        assert list(memory.values) == ["b"]

    play(scenario, monkeypatch)


def test_without_airflows_sharing_it_delivers_the_same(
    hub: FakeHub, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(airflow: Airflow) -> None:
        fired: list[str] = []

        async def alone() -> None:
            async for event in trigger().run():
                fired.append(event.payload["instance_id"])

        airflow.tasks.append(asyncio.create_task(alone()))
        await asyncio.sleep(5)
        ends(hub, "a", "b", "c")
        await asyncio.sleep(40)
        assert fired == ["a", "b", "c"]

    play(scenario, monkeypatch)


# what it remembers


def end(number: int, written: Timestamp) -> End:
    return End(
        instance_id=f"i{number}", execution_id="e", name="o", status=Status.COMPLETED, completed=None, tags={},
        written=written,
    )  # fmt: skip


def numbers(found: Iterable[End]) -> list[str]:
    return [each.instance_id for each in found]


def test_only_the_newest_ends_are_stored() -> None:
    delivered = Delivered("h", NOW)
    many = [end(number, NOW + timedelta(seconds=number + 1)) for number in range(MOST_REMEMBERED + 5)]
    delivered.new(many)
    again = Delivered.of(delivered.stored(), "h")
    assert again is not None
    assert numbers(again.new(many)) == [f"i{number}" for number in range(5)]


def test_an_end_is_forgotten_when_no_listing_has_it_any_more() -> None:
    delivered = Delivered("h", NOW)
    delivered.new([end(1, NOW + timedelta(seconds=1)), end(2, NOW + timedelta(seconds=9))])
    delivered.advance(NOW + OVERLAP + timedelta(seconds=5))
    assert len(delivered.stored()["delivered"]) == 1


@pytest.mark.parametrize("stored", [None, {}, "x", {"place": "h"}, {"place": "other"}, {"place": "h", "begin": 1}])
def test_a_progress_that_cannot_be_read_is_as_none(stored: Any) -> None:
    assert Delivered.of(stored, "h") is None
