"""Units: ordered steps, references between them, the check, and what an error leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from airflow_provider_taskhub.errors import Conflict, InputError, LeaseLost, NotFound
from airflow_provider_taskhub.storage.primitives import (
    DeleteMessage,
    Entity,
    EtagOf,
    Operation,
    Property,
    PutBlob,
    PutMessage,
    Receipt,
    RowOperation,
    RowVerb,
    Step,
    Store,
    Transact,
    Unit,
    UpdateMessage,
)
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from tests.storage.contract.conftest import ManualClock

LONG = timedelta(minutes=5)


def rows(table: str, verb: RowVerb, key: str, etag: str | EtagOf | None = None, **columns: Property) -> Transact:
    entity = Entity(partition_key="p", row_key=key, properties=columns)
    return Transact(table=table, rows=(RowOperation(verb=verb, entity=entity, etag=etag),))


def step(name: str, *operations: Operation) -> Step:
    return Step(name=name, operations=operations)


@dataclass
class Place:
    """One name for a queue, a table and a container."""

    store: Store
    name: str

    async def keys(self) -> list[str]:
        return [entity.row_key async for entity in self.store.rows(self.name)]

    async def texts(self) -> list[str]:
        return sorted(message.text for message in await self.store.peek(self.name))


@pytest.fixture
async def place(store: Store, fresh: str) -> Place:
    return await furnish(store, fresh)


async def furnish(store: Store, name: str) -> Place:
    await store.create_queue(name)
    await store.create_table(name)
    await store.create_container(name)
    return Place(store, name)


async def test_all_steps_are_carried_out(store: Store, place: Place) -> None:
    name = place.name
    claimed = await store.execute(PutMessage(queue=name, text="in", visibility=LONG))
    assert isinstance(claimed, Receipt)
    results = await store.commit(
        Unit(
            steps=(
                step("blobs", PutBlob(container=name, name="x", data=b"large")),
                step("messages", PutMessage(queue=name, text="a"), PutMessage(queue=name, text="b")),
                step("nothing"),
                step("history", rows(name, RowVerb.INSERT, "1", A=1)),
                step("instance", rows(name, RowVerb.MERGE, "1", EtagOf(step=3), B=2)),
                step("delete", DeleteMessage(queue=name, message=claimed)),
            )
        )
    )
    entity = await store.get(name, "p", "1")
    assert entity is not None
    assert entity.properties == {"A": 1, "B": 2}
    assert [len(part) for part in results] == [1, 2, 0, 1, 1, 1]
    assert isinstance(results[0][0], str)
    assert isinstance(results[1][1], Receipt)
    assert results[4] == ((entity.etag,),)
    assert results[3] != results[4]
    assert results[5] == (claimed.message_id,)
    assert await place.texts() == ["a", "b"]
    assert await store.count(name) == 2


async def test_references_choose_operation_and_row(store: Store, place: Place) -> None:
    name = place.name
    first = Transact(
        table=name,
        rows=tuple(
            RowOperation(verb=RowVerb.INSERT, entity=Entity(partition_key="p", row_key=key)) for key in ("a", "b")
        ),
    )
    await store.commit(
        Unit(
            steps=(
                step("one", rows(name, RowVerb.INSERT, "c"), first),
                step("two", rows(name, RowVerb.MERGE, "b", EtagOf(step=0, operation=1, row=1), B=1)),
                step("three", rows(name, RowVerb.DELETE, "c", EtagOf(step=0))),
            )
        )
    )
    assert await place.keys() == ["a", "b"]
    with pytest.raises(Conflict):
        await store.commit(
            Unit(
                steps=(
                    step("one", rows(name, RowVerb.UPSERT_MERGE, "a", A=1)),
                    step("two", rows(name, RowVerb.MERGE, "b", EtagOf(step=0), B=2)),
                )
            )
        )


async def test_a_message_names_the_etag_of_a_row_written_before_it(store: Store, place: Place) -> None:
    """Where its text has the mark for the first time, as JSON escapes it."""
    name = place.name
    put = PutMessage(queue=name, text='{"etag":"MARK","input":"MARK"}', naming=("MARK", EtagOf(step=0)))
    results = await store.commit(Unit(steps=(step("row", rows(name, RowVerb.INSERT, "a")), step("put", put))))
    etags = results[0][0]
    assert isinstance(etags, tuple)
    (text,) = await place.texts()
    assert json.loads(text) == {"etag": etags[0], "input": "MARK"}
    with pytest.raises(InputError, match="EtagOf is allowed only inside a unit"):
        await store.execute(put)
    with pytest.raises(InputError, match="does not refer to a row that an earlier step writes"):
        await store.commit(Unit(steps=(step("put", put), step("row", rows(name, RowVerb.INSERT, "b")))))
    assert await place.keys() == ["a"]


async def test_receipts_are_asked_for_when_sent(store: Store, place: Place) -> None:
    @dataclass
    class Holder:
        receipt: Receipt
        changing: asyncio.Lock = field(default_factory=asyncio.Lock)

        def deletion_answered(self, *, deleted: bool) -> None:
            assert deleted

    receipt = await store.execute(PutMessage(queue=place.name, text="x", visibility=LONG))
    assert isinstance(receipt, Receipt)
    holder = Holder(receipt)
    unit = Unit(steps=(step("delete", DeleteMessage(queue=place.name, message=holder)),))
    renewed = await store.execute(UpdateMessage(queue=place.name, message=receipt, visibility=LONG))
    assert isinstance(renewed, Receipt)
    holder.receipt = renewed
    await store.commit(unit)
    assert await store.count(place.name) == 0


@pytest.mark.rows("T21")
async def test_a_refusing_check_writes_nothing(store: Store, place: Place) -> None:
    def refuse() -> None:
        raise LeaseLost("too old")

    unit = Unit(steps=(step("one", PutMessage(queue=place.name, text="x")),), check=refuse)
    with pytest.raises(LeaseLost, match="too old"):
        await store.commit(unit)
    assert await store.count(place.name) == 0


async def test_the_check_is_called_before_the_first_write(store: Store, place: Place) -> None:
    calls: list[str] = []
    steps = (step("one", PutMessage(queue=place.name, text="x")), step("two", rows(place.name, RowVerb.INSERT, "1")))
    await store.commit(Unit(steps=steps, check=lambda: calls.append("called")))
    assert len(calls) == (1 if store.local else 2)


async def test_an_error_names_its_step_and_stops_there(store: Store, place: Place) -> None:
    name = place.name
    await store.execute(rows(name, RowVerb.INSERT, "taken"))
    unit = Unit(
        steps=(
            step("messages", PutMessage(queue=name, text="first")),
            step("history", rows(name, RowVerb.INSERT, "taken")),
            step("after", PutMessage(queue=name, text="second")),
        )
    )
    with pytest.raises(Conflict) as caught:
        await store.commit(unit)
    assert "step: history" in caught.value.__notes__
    assert await place.texts() == ([] if store.local else ["first"])  # SQLite commits all or nothing


async def test_an_absent_message_is_not_found(store: Store, place: Place) -> None:
    receipt = await store.execute(PutMessage(queue=place.name, text="x"))
    assert isinstance(receipt, Receipt)
    delete = DeleteMessage(queue=place.name, message=receipt)
    quiet = DeleteMessage(queue=place.name, message=receipt, quiet=True)
    await store.execute(delete)
    with pytest.raises(NotFound):
        await store.commit(Unit(steps=(step("delete", delete),)))
    assert await store.commit(Unit(steps=(step("delete", quiet),))) == ((None,),)


@pytest.mark.parametrize(
    ("reference", "at"),
    [
        (EtagOf(step=1), 1),
        (EtagOf(step=2), 1),
        (EtagOf(step=0, operation=1), 1),
        (EtagOf(step=0, row=1), 1),
        (EtagOf(step=-1), 1),
    ],
)
async def test_references_point_backwards_at_rows(store: Store, place: Place, reference: EtagOf, at: int) -> None:
    steps = (
        step("zero", rows(place.name, RowVerb.INSERT, "0")),
        step("one", rows(place.name, RowVerb.MERGE, "0", reference)),
    )
    with pytest.raises(InputError, match=f"step '{steps[at].name}'"):
        await store.commit(Unit(steps=steps))
    assert await place.keys() == []


async def test_a_value_that_azure_refuses_refuses_the_unit(store: Store, place: Place) -> None:
    steps = (step("one", PutMessage(queue=place.name, text="x")), step("two", rows(place.name, RowVerb.INSERT, "a/b")))
    with pytest.raises(InputError, match="RowKey"):
        await store.commit(Unit(steps=steps))
    assert await store.count(place.name) == 0


async def test_operations_of_units_are_counted(store: Store, place: Place) -> None:
    store.requests.clear()
    steps = (
        step("one", PutMessage(queue=place.name, text="x"), PutMessage(queue=place.name, text="y")),
        step("two", rows(place.name, RowVerb.INSERT, "1")),
    )
    await store.commit(Unit(steps=steps))
    assert dict(store.requests) == {"queue.put": 2, "table.insert": 1}


# --- step by step, as the simulation goes


@pytest.fixture
async def stepwise(clock: ManualClock) -> AsyncIterator[tuple[SqliteStore, list[str]]]:
    points: list[str] = []

    async def crash(point: str) -> None:
        points.append(point)
        if point == "after:history":
            raise RuntimeError("crash")

    async with SqliteStore(None, clock=clock, crash=crash, stepwise=True) as store:
        yield store, points


async def test_stepwise_crashes_where_it_is_told(stepwise: tuple[SqliteStore, list[str]]) -> None:
    store, points = stepwise
    place = await furnish(store, "hub")
    unit = Unit(
        steps=(
            step("messages", PutMessage(queue="hub", text="x")),
            step("empty"),
            step("history", rows("hub", RowVerb.INSERT, "1"), rows("hub", RowVerb.INSERT, "2")),
            step("instance", rows("hub", RowVerb.MERGE, "1", EtagOf(step=2), A=1)),
        )
    )
    with pytest.raises(RuntimeError, match="crash"):
        await store.commit(unit)
    assert points == ["messages", "after:messages", "history", "after:history"]
    assert await place.texts() == ["x"]
    assert await place.keys() == ["1", "2"]


async def test_stepwise_checks_before_each_step(stepwise: tuple[SqliteStore, list[str]]) -> None:
    store, _ = stepwise
    place = await furnish(store, "hub")
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        if len(calls) == 2:
            raise LeaseLost("gone meanwhile")

    steps = (step("one", PutMessage(queue="hub", text="x")), step("two", rows("hub", RowVerb.INSERT, "1")))
    with pytest.raises(LeaseLost) as caught:
        await store.commit(Unit(steps=steps, check=check))
    assert "step: two" in caught.value.__notes__
    assert await place.texts() == ["x"]
    assert await place.keys() == []
