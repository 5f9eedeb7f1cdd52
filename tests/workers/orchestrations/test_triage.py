"""How a batch is sorted: by values, with a hub that has nothing but instance rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import ExecutionSuspended, ExecutionTerminated, Status
from airflow_provider_taskhub.engine.identity import run_name
from airflow_provider_taskhub.hub.admission.facts import Facts
from airflow_provider_taskhub.hub.history.checkpoint import Stored
from airflow_provider_taskhub.hub.model import InstanceState, Suspension
from airflow_provider_taskhub.hub.queues.delivery import Delivery
from airflow_provider_taskhub.workers.orchestrations import triage
from airflow_provider_taskhub.workers.orchestrations.triage import Triage, TriagedBatch
from tests.hub.by_hand import GEN0, NOW, held, raised, start

OTHER = "b" * 32
ROW = InstanceState(
    instance_id="i", execution_id=OTHER, name="Hello", status=Status.PENDING, input="7", tags={"a": "b"}, created=NOW
)
ENDED = Facts(execution_id=GEN0, checkpointed=NOW, final=True)


def sort(
    monkeypatch: pytest.MonkeyPatch,
    *batch: Delivery,
    facts: Facts = ENDED,
    row: InstanceState | None = ROW,
    may_run: bool = True,
) -> TriagedBatch:
    async def instance(instance_id: str, *, payloads: Any = False) -> InstanceState | None:
        return row

    async def admit(*_: object) -> bool:
        return may_run

    async def unchanged(*_: object) -> Any:
        return NOW

    monkeypatch.setattr(triage, "unchanged", unchanged)
    hub: Any = SimpleNamespace(instance=instance, clock=SimpleNamespace(utc_now=lambda: NOW))
    session: Any = SimpleNamespace(instance_id="i", reader=SimpleNamespace(visibility=timedelta(seconds=30)))
    live: Any = SimpleNamespace(stored=Stored(sentinel_etag="e"))
    limits: Any = SimpleNamespace(admit=admit)
    coming = Triage(hub, limits).judge_batch(session, live, batch, facts)
    with pytest.raises(StopIteration) as done:
        coming.send(None)
    found = done.value.value
    assert isinstance(found, TriagedBatch)
    return found


def named(event: Any, run: str = OTHER) -> Any:
    return replace(event, taskhub_execution_id=run)


def test_of_two_messages_that_carry_out_one_action_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    first = held(raised())
    found = sort(monkeypatch, first, first, facts=replace(ENDED, final=False))
    assert (found.process, [one for one, _ in found.discard]) == ([first], [first])


def test_without_a_place_a_start_is_stored_and_other_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = held(start(OTHER))
    found = sort(monkeypatch, begins, may_run=False)
    assert (found.stored, found.process, found.start) == ([begins], [], None)
    event, terminate = held(raised()), held(named(ExecutionTerminated(timestamp=NOW), GEN0))
    found = sort(monkeypatch, event, terminate, facts=replace(ENDED, final=False), may_run=False)
    assert (found.stored, found.process) == ([], [terminate])
    assert [one for one, _ in found.later] == [event]


@pytest.mark.rows("K36", "K57")
def test_what_follows_a_start_is_judged_by_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, meant, before = held(start(OTHER)), held(named(raised())), held(named(raised(), GEN0))
    found = sort(monkeypatch, begins, meant, before)
    assert found.process == [begins, meant]
    assert [one for one, _ in found.discard] == [before], "its run is over as soon as the next one begins"
    assert found.facts.ended == {run_name(GEN0)}
    stored = Suspension(run=OTHER, reason="not yet", by="ann", at=NOW)
    assert found.suspension(stored) is stored
    assert found.suspension(replace(stored, run="c" * 32)) is None


@pytest.mark.rows("K41", "K46")
def test_an_end_before_the_start_takes_what_came_before_it_into_its_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    suspends, ends, event = held(named(ExecutionSuspended(timestamp=NOW))), None, held(named(raised()))
    ends = held(named(ExecutionTerminated(timestamp=NOW)))
    found = sort(monkeypatch, suspends, ends, event)
    assert found.process == [suspends, ends, event], "all are deleted with the checkpoint, and not before it"
    assert not found.record
    assert found.made is not None
    assert (found.made.instance.execution_id, found.made.name, found.made.input) == (OTHER, "Hello", "7")
    alone = sort(monkeypatch, suspends)
    assert (alone.process, alone.record, alone.start) == ([], [(suspends, OTHER)], None)


@pytest.mark.rows("K41")
def test_an_end_of_a_child_without_a_row_makes_its_start_from_the_terminate(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = held(ExecutionTerminated(timestamp=NOW, taskhub_execution_id=OTHER, taskhub_child="Child"))
    found = sort(monkeypatch, ends, facts=Facts(), row=None)
    assert found.made is not None
    assert (found.made.instance.execution_id, found.made.name, found.made.parent) == (OTHER, "Child", None)
