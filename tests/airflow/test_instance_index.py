"""The index of a hub's instances: it is filled once, follows changes, forgets what was purged, and is bounded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import FailureDetails, Status
from airflow_provider_taskhub.errors import Unavailable
from airflow_provider_taskhub.plugins import client_cache, index
from airflow_provider_taskhub.plugins.client_cache import IDLE, LATER, PATIENCE, ClientCache
from airflow_provider_taskhub.plugins.index import OVERLAP, InstanceIndex, row_of
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.virtual_time import run
from tests.airflow.fake import NOW, FakeClient, FakeHub
from tests.airflow.test_page import ask
from tests.airflow.test_page_actions import TAGS, Page, audit_log, entries, page

__all__ = ["ask", "audit_log", "entries", "page"]  # the fixtures


class Held(FakeClient):
    """A client whose next answers wait until the test lets them go. :ivar lists: what ``list`` was asked for."""

    def __init__(self, hub: FakeHub) -> None:
        super().__init__(hub)
        self.open = asyncio.Event()
        self.open.set()
        self.lists: list[dict[str, Any]] = []
        self.after = 0

    async def list(self, **asked: Any) -> SimpleNamespace:
        """Answer what is there now, but only when the test lets it go. :attr:`after` answers come at once."""
        self.lists.append(asked)
        found = await super().list(**asked)
        if self.after > 0:
            self.after -= 1
        else:
            await self.open.wait()
        return found


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SLICE", 2)


def put(hub: FakeHub, *names: str, status: Status = Status.RUNNING, **more: Any) -> None:
    for name in names:
        hub.put(name, status, **({"created": NOW, "etag": f"{name}-{hub.clock}"} | more))


def known(one: InstanceIndex) -> dict[str, str]:
    return {row.instance_id: str(row.status) for row in sorted(one.rows(), key=lambda row: row.instance_id)}


async def filled(hub: FakeHub) -> tuple[InstanceIndex, Held]:
    one, client = InstanceIndex(), Held(hub)
    await one.follow(client)  # type: ignore[arg-type]
    hub.requests.clear()
    client.lists.clear()
    return one, client


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


# filling


async def test_it_is_filled_page_by_page_and_shows_what_it_has_read(hub: FakeHub) -> None:
    put(hub, *"abcde")
    one, client = InstanceIndex(), Held(hub)
    client.after = 1
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    await asyncio.wait_for(one.begun.wait(), 5)
    await turns()
    assert (one.filled, one.reads, list(known(one))) == (False, 2, ["a", "b"])
    client.open.set()
    await work
    assert (one.filled, one.reads, list(known(one))) == (True, 5, list("abcde"))
    assert hub.requests == {"list": 3}
    assert all(asked["payloads"] is False for asked in client.lists)


async def test_after_an_error_it_goes_on_where_it_was(hub: FakeHub) -> None:
    put(hub, *"abcde")
    one, client = InstanceIndex(), Held(hub)
    client.after = 1
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    await turns()
    hub.down = Unavailable("no answer")
    client.open.set()
    with pytest.raises(Unavailable):
        await work
    assert one.reads == 4
    hub.down = None
    hub.requests.clear()
    await one.follow(client)  # type: ignore[arg-type]
    assert (one.filled, list(known(one)), hub.requests) == (True, list("abcde"), {"list": 1})


async def test_what_changes_while_it_is_filled_is_found(hub: FakeHub) -> None:
    """The last page has a row that is newer than the change by far more than the overlap."""
    put(hub, *"abc")
    one, client = InstanceIndex(), Held(hub)
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    await turns()  # the store has answered the first page
    put(hub, "a", status=Status.COMPLETED)
    hub.clock += 1000
    put(hub, "d")
    client.open.set()
    await work
    assert known(one) == {"a": "Running", "b": "Running", "c": "Running", "d": "Running"}
    await one.follow(client)  # type: ignore[arg-type]
    assert (known(one)["a"], hub.requests["get"]) == ("Completed", 0), "found among the changes, not mended later"


@pytest.fixture
def forty(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """An embedded hub of 40 instances, whose ids say nothing about their age: "00" is the oldest and was written last.

    A page has 4 of them. The first answer gets 2 of each status.
    """
    monkeypatch.setattr(index, "SLICE", 4)
    monkeypatch.setattr(index, "FIRST", 2)
    monkeypatch.setattr(index, "PAUSE", 0.0)
    hub.lists_by_time = True
    for number in reversed(range(40)):
        status = {0: Status.RUNNING, 5: Status.FAILED, 6: Status.FAILED, 7: Status.FAILED}.get(number, Status.COMPLETED)
        put(hub, f"{number:02}", status=status, created=NOW + timedelta(seconds=number))
    return hub


def test_an_embedded_hub_is_read_from_what_the_list_shows_first(
    forty: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "PAUSE", 1.0)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        cache = ClientCache(load_settings())
        first = await cache.instances()
        assert list(known(first)) == ["00", "06", "07", "38", "39"]
        assert (loop.time(), first.reading, forty.requests["list"]) == (0.0, 5, 6)
        await asyncio.sleep(0.9)
        assert forty.requests["list"] == 6, "nothing delays the answer"
        await asyncio.sleep(0.2)
        assert (len(known(first)), first.reading) == (40, None)

    run(scenario())


async def test_the_statuses_that_come_first_and_then_the_newest_are_read_before_the_others(
    forty: FakeHub,
) -> None:
    one, client = InstanceIndex(), Held(forty)
    await one.follow(client)  # type: ignore[arg-type]
    after = client.lists[6:]
    assert [asked.get("statuses") for asked in after[:4]] == [(status,) for status in index.SHOWN_FIRST]
    assert [asked["limit"] for asked in client.lists] == [1, *[2] * 5, *[4] * 14]
    assert {asked["order"] for asked in client.lists[1:]} == {"created"}
    assert [asked["continuation"] and asked["continuation"][1] for asked in after[4:]] == [
        None, "36", "32", "28", "24", "20", "16", "12", "08", "04",
    ]  # fmt: skip


async def test_the_first_changes_of_an_embedded_hub_are_those_since_it_was_read(forty: FakeHub) -> None:
    """The newest instance was written first. If the changes since then were asked for, all would be read again."""
    one, client = InstanceIndex(), Held(forty)
    client.after = 10
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    for _ in range(4):
        await turns()
    assert len(client.lists) == 11, "the newest instances were read for the last time"
    put(forty, "39", status=Status.FAILED, created=forty.instances["39"].created)
    client.open.set()
    await work
    assert known(one)["39"] == "Completed"
    client.lists.clear()
    forty.clock += 1000
    await one.follow(client)  # type: ignore[arg-type]
    assert known(one)["39"] == "Failed"
    asked = client.lists[0]
    assert (asked["order"], asked["changed_since"]) == (
        "changed",
        forty.stamps["00"][1] + timedelta(seconds=-OVERLAP),
    )


async def test_a_small_embedded_hub_is_read_whole_before_the_first_answer(hub: FakeHub) -> None:
    hub.lists_by_time = True
    put(hub, "a", "b")
    one, client = InstanceIndex(), Held(hub)
    await one.follow(client)  # type: ignore[arg-type]
    assert (one.filled, list(known(one)), hub.requests["list"]) == (True, ["a", "b"], 3)


# changes


async def test_a_question_costs_two_requests_and_not_a_scan(hub: FakeHub) -> None:
    put(hub, *"abcdefgh")
    one, client = await filled(hub)
    put(hub, "c", status=Status.FAILED)
    put(hub, "new", status=Status.PENDING)
    await one.follow(client)  # type: ignore[arg-type]
    assert (known(one)["c"], known(one)["new"]) == ("Failed", "Pending")
    # one page of ETags; the changes since the newest row of the first page, less the overlap
    assert hub.requests["etags"] == 1
    hub.requests.clear()
    await one.follow(client)  # type: ignore[arg-type]
    assert hub.requests["etags"] == 1


async def test_what_changes_during_a_question_is_found_by_the_next_one(hub: FakeHub) -> None:
    """The question has a newer row on its second page, newer by far more than the overlap."""
    put(hub, *"abcd")
    one, client = await filled(hub)
    hub.clock += 1000
    put(hub, *"abcd", status=Status.SUSPENDED)
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    await turns()  # the store has answered the first page
    put(hub, "a", status=Status.COMPLETED)
    hub.clock += 1000
    put(hub, "d", status=Status.FAILED)
    client.open.set()
    await work
    assert known(one) == {"a": "Suspended", "b": "Suspended", "c": "Suspended", "d": "Failed"}
    await one.follow(client)  # type: ignore[arg-type]
    assert (known(one)["a"], hub.requests["get"]) == ("Completed", 0), "found among the changes, not mended later"


def test_a_server_with_a_late_clock_loses_no_change_and_an_idle_hub_is_not_read_again(hub: FakeHub) -> None:
    async def scenario() -> None:
        put(hub, "a", "b")
        one, client = await filled(hub)
        newest = max(hub.stamp(state) for state in hub.instances.values())
        late = replace(hub.instances["a"], status=Status.COMPLETED, etag="late")
        hub.instances["a"] = late
        hub.stamps["a"] = late, newest + timedelta(seconds=-OVERLAP / 2)
        await one.follow(client)  # type: ignore[arg-type]
        assert known(one)["a"] == "Completed"
        assert client.lists[-1]["changed_since"] == newest + timedelta(seconds=-OVERLAP)
        await asyncio.sleep(OVERLAP)
        await one.follow(client)  # type: ignore[arg-type]
        assert client.lists[-1]["changed_since"] == newest, "no server can be so late any more"
        assert hub.requests["get"] == 0

    run(scenario())


async def test_a_change_that_was_not_found_is_read_by_its_id_and_only_so_many_at_once(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST_REPAIRS", 1)
    put(hub, "a", "b")
    one, client = await filled(hub)
    for name in "ab":
        lost = replace(hub.instances[name], status=Status.COMPLETED, etag="another")
        hub.instances[name], hub.stamps[name] = lost, (lost, NOW + timedelta(days=-1))
    await one.follow(client)  # type: ignore[arg-type]
    assert (known(one), hub.requests["get"]) == ({"a": "Completed", "b": "Running"}, 1)
    await one.follow(client)  # type: ignore[arg-type]
    assert (known(one), hub.requests["get"]) == ({"a": "Completed", "b": "Completed"}, 2)
    await one.follow(client)  # type: ignore[arg-type]
    assert hub.requests["get"] == 2


# purged instances


async def test_a_purged_instance_is_forgotten_within_two_rounds(hub: FakeHub) -> None:
    put(hub, *"abcdef")  # a round has three questions
    one, client = await filled(hub)
    for name in "abcdef":
        hub.stamps[name] = hub.instances[name], NOW + timedelta(days=-1)  # so that they are no changes
    del hub.instances["f"]
    await one.follow(client)  # type: ignore[arg-type]
    del hub.instances["a"]  # just seen
    gone = []
    for question in range(2, 7):
        await one.follow(client)  # type: ignore[arg-type]
        gone.append((question, "a" in known(one), "f" in known(one)))
    assert gone == [(2, True, True), (3, True, False), (4, True, False), (5, False, False), (6, False, False)]


async def test_an_order_of_this_page_takes_effect_at_once_and_a_question_under_way_does_not_undo_it(
    hub: FakeHub,
) -> None:
    put(hub, "a", "b")
    one, client = await filled(hub)
    put(hub, "a", status=Status.COMPLETED)
    client.open.clear()
    work = asyncio.ensure_future(one.follow(client))  # type: ignore[arg-type]
    await turns()
    del hub.instances["a"]
    one.drop("a")
    client.open.set()
    await work
    assert list(known(one)) == ["b"]
    put(hub, "a")  # started again
    await one.follow(client)  # type: ignore[arg-type]
    assert list(known(one)) == ["a", "b"]


# bounds


async def test_only_the_newest_are_kept_and_the_page_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST", 3)
    for number, name in enumerate("daecb"):
        put(hub, name, created=NOW + timedelta(seconds=number))
    one, client = await filled(hub)
    assert ([row.instance_id for row in one.rows()], one.capped) == (["b", "c", "e"], True)
    for _ in range(6):
        await one.follow(client)  # type: ignore[arg-type]
        assert ([row.instance_id for row in one.rows()], one.capped) == (["b", "c", "e"], True)
    assert hub.requests["get"] == 0, "those without room are not read again and again"
    for name in "bc":
        del hub.instances[name]
        one.drop(name)
    for _ in range(4):  # to the end of a round, and the filling
        await one.follow(client)  # type: ignore[arg-type]
    assert (list(known(one)), one.capped, one.filled) == (["a", "d", "e"], False, True), "there is room for all again"


async def test_it_does_not_grow_while_it_is_filled(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST", 20)
    for number in range(200):
        put(hub, f"{number:03}", created=NOW + timedelta(seconds=number))
    most = 0
    real = InstanceIndex.put

    def watched(self: InstanceIndex, rows: Any) -> None:
        nonlocal most
        real(self, rows)
        most = max(most, len(self._rows))

    monkeypatch.setattr(InstanceIndex, "put", watched)
    one, _ = await filled(hub)
    assert (len(one.rows()), most) == (20, 22)
    assert one.rows()[0].instance_id == "199"


def test_an_error_is_kept_masked_and_short() -> None:
    failure = FailureDetails(error_type="E", error_message='{"password": "hunter2"} ' + "x" * 1000)
    row = row_of(replace(_state(), failure=failure, output="E"))
    assert len(row.error) == index.MOST_ERROR
    secret = row_of(replace(_state(), output='{"password": "hunter2"}'))
    assert "hunter2" not in secret.error


def _state() -> Any:
    return FakeHub().put("a", Status.FAILED)


# the cache that owns the index


def test_the_index_is_kept_when_its_client_is_closed_and_only_changes_are_read_later(hub: FakeHub) -> None:
    async def scenario() -> None:
        put(hub, *"abc")
        cache = ClientCache(load_settings())
        first = await cache.instances()
        assert list(known(first)) == ["a", "b", "c"]
        await asyncio.sleep(3 * IDLE)
        assert hub.open_now == 0
        put(hub, "d")
        hub.requests.clear()
        assert (await cache.instances()) is first
        assert (list(known(first)), hub.requests) == (["a", "b", "c", "d"], {"list": 1, "etags": 1})
        await asyncio.sleep(IDLE + client_cache.KEPT - 1)
        assert (await cache.instances()) is first, "each visit begins the time anew"
        await asyncio.sleep(IDLE + client_cache.KEPT - 1)
        assert (await cache.instances()) is first
        await asyncio.sleep(2 * IDLE + client_cache.KEPT)
        assert (await cache.instances()) is not first
        assert list(known(cache.index)) == ["a", "b", "c", "d"]

    run(scenario())


def test_an_index_that_was_not_filled_is_filled_by_the_next_visit(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(self: FakeClient, **asked: Any) -> Any:
        await asyncio.sleep(IDLE)
        return await real(self, **asked)

    async def scenario() -> None:
        put(hub, *"abcdef")
        cache = ClientCache(load_settings())
        first = await cache.instances()
        await asyncio.sleep(4 * IDLE)
        assert (hub.open_now, first.filled) == (0, False)
        read = first.reads
        for _ in range(5):
            await cache.instances()
            await cache.client()  # as each request of the page does
            await asyncio.sleep(IDLE / 2)
        assert (list(known(first)), first.filled) == (list("abcdef"), True)
        assert (read, first.reads) == (2, 6), "it goes on where it was"

    real = FakeClient.list
    monkeypatch.setattr(FakeClient, "list", slow)
    run(scenario())


def test_many_pages_cost_one_question(hub: FakeHub) -> None:
    async def scenario() -> None:
        put(hub, "a", "b")
        cache = ClientCache(load_settings())
        await asyncio.gather(*(cache.instances() for _ in range(20)))
        assert hub.requests == {"list": 1}
        await asyncio.sleep(2)
        await asyncio.gather(*(cache.instances() for _ in range(20)))
        assert hub.requests == {"list": 2, "etags": 1}

    run(scenario())


def test_the_list_does_not_wait_for_slow_changes(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    took = 5.0

    async def slow(self: FakeClient, **asked: Any) -> Any:
        await asyncio.sleep(took)
        return await real(self, **asked)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        put(hub, "a", "b")
        cache = ClientCache(load_settings())
        await cache.instances()
        monkeypatch.setattr(FakeClient, "list", slow)
        await asyncio.sleep(2)
        put(hub, "a", status=Status.COMPLETED)
        begun = loop.time()
        assert known(await cache.instances())["a"] == "Running"
        assert loop.time() - begun == pytest.approx(PATIENCE)
        await asyncio.sleep(took)
        assert known(cache.index)["a"] == "Completed"
        await asyncio.sleep(2 * took)
        put(hub, "b", status=Status.FAILED)
        begun, asked = loop.time(), hub.requests["etags"]
        assert known(await cache.instances())["b"] == "Running"
        assert (loop.time(), hub.requests["etags"]) == (begun, asked), "the changes take long: it asks after the answer"
        await asyncio.sleep(LATER + took + 0.1)
        assert known(cache.index)["b"] == "Failed"

    real = FakeClient.list
    run(scenario())


def test_the_first_answer_does_not_wait_for_the_whole_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(self: FakeClient, **asked: Any) -> Any:
        await asyncio.sleep(10)
        return await real(self, **asked)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        put(hub, *"abcdef")
        cache = ClientCache(load_settings())
        found = await cache.instances()
        assert (list(known(found)), found.filled, loop.time()) == (["a", "b"], False, 10)
        await asyncio.sleep(25)
        assert (list(known(found)), found.filled) == (list("abcdef"), True)

    real = FakeClient.list
    monkeypatch.setattr(FakeClient, "list", slow)
    run(scenario())


# what the page's application answers


@pytest.fixture
def told(hub: FakeHub) -> FakeHub:
    mine, theirs = {"airflow.dag_id": "flights"}, {"airflow.dag_id": "other", "team": "x"}
    failure = FailureDetails(error_type="E", error_message="41 rows rejected")
    put(hub, "failed", status=Status.FAILED, tags=mine, failure=failure, name="load")
    put(hub, "hidden", status=Status.FAILED, tags=theirs, failure=failure)
    put(hub, "child", status=Status.COMPLETED, tags={"airflow.dag_id": "third"}, parent="old", root="old")
    put(hub, "old", status=Status.COMPLETED, tags=mine, created=Timestamp.parse("2020-01-01T00:00:00Z"))
    return hub


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("window=all", {"failed", "hidden", "old", "child"}),
        ("window=all&roots=true", {"failed", "hidden", "old"}),
        ("window=all&roots=1&dag=third", set()),
        ("window=all&dag=flights", {"failed", "old"}),
        ("window=all&name=load", {"failed"}),
        ("window=all&tag=team%3Dx", {"hidden"}),
        ("window=all&error=REJECTED", {"failed", "hidden"}),
        ("to=2020-06-01T00:00:00Z", {"old"}),
        ("from=2020-06-01T00:00:00", {"failed", "hidden", "child"}),
        ("from=2019-01-01T00:00:00Z&to=2020-06-01T00:00:00%2B02:00&dag=flights", {"old"}),
        ("window=hour&text=old", {"old"}),
    ],
)
def test_the_list_and_the_targets_of_an_order_take_the_same_filters(
    ask: Any, told: FakeHub, query: str, ids: set[str]
) -> None:
    for path in (f"/api/instances?{query}", f"/api/targets?action=restart&{query}"):
        status, answer = ask(path)
        assert status == 200, answer
        assert {row["id"] for row in answer.get("rows", answer.get("targets"))} == ids, path


def test_an_answer_says_how_many_the_time_and_the_parents_leave_out(ask: Any, told: FakeHub) -> None:
    _, answer = ask("/api/instances?from=2020-06-01T00:00:00Z&roots=true")
    assert (answer["total"], answer["children"], answer["elsewhen"]) == (2, 1, 1)


@pytest.mark.parametrize("query", ["from=yesterday", "to=2020-99-01", "window=year", "status=Lost", "dag=" + "x" * 301])
def test_a_filter_that_cannot_be_right_is_refused(ask: Any, told: FakeHub, query: str) -> None:
    for path in ("/api/instances?", "/api/targets?action=purge&"):
        status, answer = ask(path + query)
        assert status == 422
        if "from" in query:
            assert answer["detail"] == (
                "from or to: not an ISO 8601 time: 'yesterday'; write a time as 2026-11-21T10:00:00Z"
            )


def test_a_user_finds_no_instance_by_an_error_that_the_user_may_not_read(ask: Any, told: FakeHub) -> None:
    def ids(**rights: Any) -> tuple[set[str], int]:
        _, answer = ask("/api/instances?window=all&error=rejected", "vera", **rights)
        return {row["id"] for row in answer["rows"]}, sum(answer["counts"].values())

    assert ids(dags=("flights", "other")) == ({"failed", "hidden"}, 2)
    assert ids(dags=("flights",)) == ({"failed"}, 1)
    assert ids(dags=("flights", "other"), without=("TASK_INSTANCE",)) == (set(), 0)


def test_a_user_is_offered_only_what_the_user_may_see(ask: Any, told: FakeHub) -> None:
    _, answer = ask("/api/filters")
    assert (answer["dags"], answer["names"]) == (["flights", "other", "third"], ["flights_delays", "load"])
    _, answer = ask("/api/filters", "vera", dags=("other",))
    assert (answer["dags"], answer["names"]) == (["other"], ["flights_delays"])


def test_a_whole_id_is_found_before_the_index_has_it(ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    put(hub, *"abcdef", tags={"airflow.dag_id": "flights"}, created=Timestamp.parse("2020-01-01T00:00:00Z"))
    monkeypatch.setattr(InstanceIndex, "_fill", _only_first_page)
    _, answer = ask("/api/instances?text=f")
    assert ([row["id"] for row in answer["rows"]], answer["reading"]) == (["f"], 2)
    assert hub.requests["get"] == 1, "the read that finds it also shows it"
    assert ask("/api/targets?action=suspend&text=f")[1]["targets"] == [
        {"id": "f", "execution": "e", "status": "Running"}
    ]
    assert ask("/api/instances?text=f", "vera", dags=("other",))[1]["rows"] == []
    assert ask("/api/instances?text=nothing")[1]["rows"] == []


def test_an_answer_without_all_instances_says_so_though_they_were_read_meanwhile(
    ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(self: ClientCache, instance_id: str) -> Any:
        self.index.filled = True
        return await real(self, instance_id)

    put(hub, *"abcdef")
    real = ClientCache.row
    monkeypatch.setattr(InstanceIndex, "_fill", _only_first_page)
    monkeypatch.setattr(ClientCache, "row", late)
    assert ask("/api/instances?window=all&text=f")[1]["reading"] == 2
    assert ask("/api/targets?action=suspend&window=all&text=f")[1]["reading"] == 2


async def _only_first_page(self: InstanceIndex, client: Any) -> None:
    page = await client.list(limit=2)
    self.reads = len(page.instances)
    await self._take(page)
    self.begun.set()


def test_a_whole_id_is_found_though_there_is_no_room_for_it(
    ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MOST", 3)
    for number, name in enumerate("abcdef"):
        put(hub, name, name="x", created=NOW + timedelta(seconds=number))
    _, answer = ask("/api/instances?window=all")
    assert ([row["id"] for row in answer["rows"]], answer["capped"], answer["most"]) == (["f", "e", "d"], True, 250_000)
    assert [row["id"] for row in ask("/api/instances?window=all&text=a")[1]["rows"]] == ["a"]


def test_the_rows_on_the_page_are_read_by_their_ids(ask: Any, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the index knows: an instance that has ended is no more among the running ones."""
    put(hub, *"abcd")

    async def before(self: InstanceIndex, client: Any) -> None:
        await real(self, client)
        put(hub, "a", status=Status.COMPLETED)
        hub.instances.pop("b", None)

    real = InstanceIndex._fill
    monkeypatch.setattr(InstanceIndex, "_fill", before)
    _, answer = ask("/api/instances?window=all&status=running&limit=3")
    assert ([row["id"] for row in answer["rows"]], answer["total"]) == (["d", "c"], 2)
    assert answer["counts"] == {"Running": 2, "Completed": 1}


def test_what_an_order_has_purged_leaves_the_list_at_once(
    page: Page, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstanceIndex, "follow", _filled_only)
    for number, name in enumerate("abc"):
        hub.put(name, Status.COMPLETED, tags=TAGS, created=NOW + timedelta(seconds=number))
    with page.as_("user") as client:
        assert client.get("/api/instances?window=all&limit=1").json()["total"] == 3
        assert client.post("/api/instance/purge", json={"id": "a"}).status_code == 200
        targets = [{"id": "b", "execution": "e", "status": "Completed"}]
        assert client.post("/api/instances/purge", json={"targets": targets}).status_code == 200
        assert client.get("/api/instances?window=all&limit=1").json()["total"] == 1


async def _filled_only(self: InstanceIndex, client: Any) -> None:
    """Read all instances once, and no changes."""
    if not self.filled:
        await self._fill(client)


def test_a_purged_instance_that_is_looked_at_is_not_counted_any_more(hub: FakeHub) -> None:
    async def scenario() -> None:
        put(hub, "a", "b", status=Status.COMPLETED)
        cache = ClientCache(load_settings())
        await cache.instances()
        del hub.instances["a"]
        assert await cache.row("a") is None
        assert list(known(cache.index)) == ["b"]

    run(scenario())


def test_the_patience_is_shorter_than_the_pause_between_requests() -> None:
    assert PATIENCE < LATER < client_cache.FRESH
