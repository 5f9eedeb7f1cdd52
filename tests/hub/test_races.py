"""What becomes of a message, by values: every rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import (
    ExecutionResumed,
    ExecutionSuspended,
    ExecutionTerminated,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import next_execution_id
from airflow_provider_taskhub.hub.contract import Stamp
from airflow_provider_taskhub.hub.messages.races import (
    LATE_TURNS,
    Facts,
    Verdict,
    delay,
    judge,
    newest,
    unknown_delay,
)
from tests.hub.make import GEN0, NOW, later, raised, start

GEN1 = next_execution_id(GEN0)
GEN2 = next_execution_id(GEN1)
OTHER = "b" * 32
RUNNING = Facts(execution_id=GEN0, checkpointed=NOW, scheduled={3})
DONE = replace(RUNNING, final=True)
PARENT = ParentInstance(
    instance=OrchestrationInstance(instance_id="p", execution_id="c" * 32), name="P", version="", task_schedule_id=0
)


def verdict(
    event: HistoryEvent,
    facts: Facts,
    *,
    execution_id: str | None = GEN0,
    message_id: str = "m",
    inserted: Timestamp = NOW,
    deliveries: int = 1,
    sent: bool = False,
    process: str = "",
    number: int = 0,
) -> Verdict:
    judged = judge(
        event,
        execution_id=execution_id,
        message_id=message_id,
        stamp=Stamp(inserted=inserted, process=process, number=number),
        facts=facts,
        now=NOW,
        deliveries=deliveries,
        sent=sent,
    )
    if judged.verdict not in (Verdict.PROCESS, Verdict.LOOK, Verdict.CANCEL_START):
        assert judged.reason, "whatever is not processed says why"
    return judged.verdict


def answers(number: int) -> list[HistoryEvent]:
    return [
        TaskCompleted(timestamp=NOW, task_scheduled_id=number),
        TaskFailed(timestamp=NOW, task_scheduled_id=number),
        SubOrchestrationInstanceCompleted(timestamp=NOW, task_scheduled_id=number),
        SubOrchestrationInstanceFailed(timestamp=NOW, task_scheduled_id=number),
        TimerFired(timestamp=NOW, timer_id=number, fire_at=NOW),
    ]


def named(event: HistoryEvent) -> str:
    return event.event_type.name


@pytest.mark.rows("K37", "K29")
@pytest.mark.parametrize("event", [*answers(3), raised(), start(), ExecutionTerminated(timestamp=NOW)], ids=named)
def test_what_is_in_the_history_is_only_deleted(event: HistoryEvent) -> None:
    assert verdict(event, replace(RUNNING, seen={"m"})) is Verdict.STALE


@pytest.mark.rows("K32")
@pytest.mark.parametrize("event", answers(3), ids=named)
def test_history_decides_that_a_response_is_processed(event: HistoryEvent) -> None:
    assert verdict(event, RUNNING, inserted=later(-3600)) is Verdict.PROCESS
    assert verdict(event, RUNNING, execution_id=None) is Verdict.PROCESS, "one that names no generation too"


@pytest.mark.rows("K32", "K33", "K35")
@pytest.mark.parametrize("event", answers(4), ids=named)
@pytest.mark.parametrize(
    ("checkpointed", "inserted", "expected"),
    [
        (0.0, 5.0, Verdict.RACE),
        (0.9, 0.0, Verdict.RACE),  # the same second: queues know no finer time
        (0.9, 0.5, Verdict.RACE),
        (0.9, -0.1, Verdict.WAIT),
        (60.0, 0.0, Verdict.WAIT),
    ],
)
def test_storage_times_tell_what_an_unasked_response_is(
    event: HistoryEvent, checkpointed: float, inserted: float, expected: Verdict
) -> None:
    facts = replace(RUNNING, checkpointed=later(checkpointed))
    assert verdict(event, facts, inserted=later(inserted)) is expected


@pytest.mark.rows("K32")
def test_a_live_session_looks_the_time_of_the_last_checkpoint_up() -> None:
    facts = replace(RUNNING, checkpointed=None)
    assert verdict(answers(3)[0], facts) is Verdict.PROCESS
    assert verdict(answers(4)[0], facts) is Verdict.LOOK
    assert verdict(answers(4)[0], replace(facts, row_read=True)) is Verdict.RACE, "it looks once"


@pytest.mark.rows("K36")
@pytest.mark.parametrize(
    ("addressed", "current", "expected"),
    [
        (GEN0, GEN1, Verdict.STALE),
        (GEN1, GEN2, Verdict.STALE),
        (GEN1, GEN0, Verdict.RACE),  # the switch is being committed
        (GEN2, GEN0, Verdict.RACE),
        (GEN1, GEN1, Verdict.PROCESS),
    ],
)
def test_generations_of_one_start_are_counted_in_their_ids(addressed: str, current: str, expected: Verdict) -> None:
    assert verdict(answers(3)[0], replace(RUNNING, execution_id=current), execution_id=addressed) is expected


@pytest.mark.rows("K34", "K36")
def test_a_live_session_looks_whether_a_newer_generation_is_committed_by_now() -> None:
    live = replace(RUNNING, checkpointed=None)
    assert verdict(answers(3)[0], live, execution_id=GEN1) is Verdict.LOOK
    assert verdict(answers(3)[0], replace(live, row_read=True), execution_id=GEN1) is Verdict.RACE


@pytest.mark.rows("K36")
def test_of_two_starts_the_row_names_the_newer() -> None:
    response = answers(3)[0]
    assert verdict(response, RUNNING, execution_id=OTHER) is Verdict.LOOK
    read = replace(RUNNING, row_read=True)
    assert verdict(response, replace(read, row_execution_id=OTHER), execution_id=OTHER) is Verdict.RACE
    assert verdict(response, replace(read, row_execution_id=GEN0), execution_id=OTHER) is Verdict.STALE
    assert verdict(response, replace(read, row_execution_id=None), execution_id=OTHER) is Verdict.STALE


@pytest.mark.rows("K31", "K46")
def test_responses_without_a_history_or_after_the_end() -> None:
    assert verdict(answers(3)[0], Facts()) is Verdict.RACE
    assert verdict(answers(3)[0], DONE) is Verdict.STALE
    assert verdict(answers(9)[0], DONE) is Verdict.STALE


@pytest.mark.rows("K57")
@pytest.mark.parametrize("execution_id", [None, GEN0, OTHER])
def test_events_and_controls_go_to_the_current_generation(execution_id: str | None) -> None:
    for event in (raised(), ExecutionTerminated(timestamp=NOW)):
        assert verdict(event, RUNNING, execution_id=execution_id) is Verdict.PROCESS
        assert verdict(event, DONE, execution_id=execution_id) is Verdict.LOOK
    assert verdict(raised(), Facts(row_read=True), execution_id=execution_id) is Verdict.WAIT
    assert verdict(ExecutionTerminated(timestamp=NOW), Facts(), execution_id=execution_id) is Verdict.CANCEL_START


def row(named: str | None, **fields: Any) -> Facts:
    return Facts(row_read=True, row_execution_id=named, **fields)


@pytest.mark.rows("K36")
def test_a_terminate_that_says_which_start_it_saw_ends_no_other() -> None:
    """The row may tell of a start of which the history does not tell yet."""
    meant = ExecutionTerminated(timestamp=NOW, taskhub_execution_id=GEN0)
    later_generation = replace(RUNNING, execution_id=next_execution_id(GEN0))
    for facts in (RUNNING, later_generation):
        assert verdict(meant, facts) is Verdict.PROCESS
    other = replace(RUNNING, execution_id=OTHER)
    assert verdict(meant, other) is Verdict.LOOK
    assert verdict(meant, replace(other, row_read=True, row_execution_id=OTHER)) is Verdict.STALE
    named = replace(other, row_read=True, row_execution_id=GEN0)
    assert verdict(meant, named) is Verdict.PROCESS
    assert verdict(meant, replace(named, row_pending=True)) is Verdict.CANCEL_START  # a start that is still to come
    ended = replace(other, row_read=True, final=True)
    assert verdict(meant, replace(ended, row_execution_id=OTHER)) is Verdict.STALE
    assert verdict(meant, replace(ended, row_execution_id=GEN0, row_pending=True)) is Verdict.CANCEL_START


@pytest.mark.rows("K36", "K41", "K57")
@pytest.mark.parametrize(
    ("ended", "expected", "terminated"),
    [
        (row(GEN0), Verdict.STALE, Verdict.STALE),
        (row(OTHER, row_pending=True), Verdict.EARLY, Verdict.CANCEL_START),  # started again
        (row(OTHER, row_pending=True, row_due=later(60)), Verdict.EARLY, Verdict.CANCEL_START),
        (row(OTHER, row_pending=True, row_due=later(-60)), Verdict.EARLY, Verdict.CANCEL_START),
        (row(GEN0, row_pending=True), Verdict.STALE, Verdict.STALE),  # the row lags
        (row(OTHER), Verdict.STALE, Verdict.STALE),
    ],
)
def test_what_comes_for_an_ended_instance_is_for_its_next_start_if_there_is_one(
    ended: Facts, expected: Verdict, terminated: Verdict
) -> None:
    ended = replace(ended, execution_id=GEN0, checkpointed=NOW, final=True)
    held = Verdict.STEER if expected is Verdict.EARLY else expected
    assert verdict(raised(), ended, inserted=later(-5)) is expected
    assert verdict(ExecutionSuspended(timestamp=NOW), ended, inserted=later(-5)) is held
    assert verdict(ExecutionTerminated(timestamp=NOW), ended, inserted=later(-5)) is terminated


@pytest.mark.rows("K36", "K57")
def test_a_childs_next_start_is_waited_for_by_what_came_after_its_end() -> None:
    """No row tells of it before its first checkpoint."""
    ended = row(GEN0, execution_id=GEN0, checkpointed=NOW, final=True)
    assert verdict(raised(), ended, inserted=NOW) is Verdict.LATE
    assert verdict(ExecutionSuspended(timestamp=NOW), ended, inserted=NOW) is Verdict.STALE
    for answer in answers(3):
        assert verdict(answer, ended, execution_id=OTHER, inserted=NOW) is Verdict.LATE
        assert verdict(answer, ended, execution_id=OTHER, inserted=later(-5)) is Verdict.STALE
    assert [delay(Verdict.LATE, turn).total_seconds() for turn in range(LATE_TURNS)] == pytest.approx(
        [0.1, 0.4, 1.6, 6.4, 25.6, 102.4]
    )


@pytest.mark.rows("K27", "K36")
def test_what_an_orchestration_sent_before_an_end_may_be_for_the_start_that_it_sent_in_front() -> None:
    """Both may have waited for that end; a client's event is for what ran then."""
    ended = row(GEN0, execution_id=GEN0, checkpointed=NOW, final=True)
    assert verdict(raised(), ended, inserted=later(-60), sent=True) is Verdict.LATE
    assert verdict(raised(), ended, inserted=later(-60)) is Verdict.STALE


@pytest.mark.rows("K26", "K46")
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"inserted": later(-1)}, Verdict.STALE),
        ({"inserted": later(-1), "process": "b", "number": 99}, Verdict.STALE),
        ({}, Verdict.PROCESS),  # of the same time, and nobody knows of what process: as it arrives
        ({"process": "b", "number": 1}, Verdict.PROCESS),
        ({"process": "a", "number": 4}, Verdict.STALE),
        ({"process": "a", "number": 5}, Verdict.STALE),  # the very same: its put was repeated
        ({"process": "a", "number": 6}, Verdict.PROCESS),
        ({"inserted": later(1), "process": "a", "number": 4}, Verdict.STALE),  # overtaken on its way to the queue
        ({"inserted": later(1)}, Verdict.PROCESS),
    ],
)
def test_a_suspension_or_resume_older_than_the_newest_taken_is_stale(sent: dict[str, Any], expected: Verdict) -> None:
    known = replace(RUNNING, steered=Stamp(inserted=NOW, process="a", number=5))
    for event in (ExecutionSuspended(timestamp=NOW), ExecutionResumed(timestamp=NOW)):
        assert verdict(event, known, **sent) is expected
        assert verdict(event, RUNNING, **sent) is Verdict.PROCESS, "none was taken yet"
    for event in (ExecutionTerminated(timestamp=NOW), raised()):
        assert verdict(event, known, **sent) is Verdict.PROCESS, "nothing else is in that order"


def test_the_newest_of_two_stamps() -> None:
    early, late = Stamp(inserted=NOW), Stamp(inserted=later(1))
    assert newest(None, None) is None
    assert newest(early, None) is newest(None, early) is early
    assert newest(early, late) is newest(late, early) is late


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        (Stamp(inserted=NOW), "17723664000000000"),
        (Stamp(inserted=NOW, process="0a", number=7), "17723664000000000/0a/7"),
    ],
)
def test_a_stamp_there_and_back(stamp: Stamp, text: str) -> None:
    assert stamp.text() == text
    assert Stamp.parse(text) == stamp


def test_a_stamp_that_no_column_could_hold_keeps_its_time_and_a_damaged_one_is_none() -> None:
    foreign = Stamp(inserted=NOW, process="x" * 40_000, number=7)
    assert Stamp.parse(foreign.text()) == Stamp(inserted=NOW)
    for text in (None, 5, "", "soon", "5/xyz/1", "5/ab", f"{'9' * 5000}"):
        assert Stamp.parse(text) is None


@pytest.mark.rows("K44")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), Verdict.LOOK),
        (row(GEN0), Verdict.PROCESS),
        (row(None), Verdict.RACE),  # .NET puts the message first
        (row(OTHER), Verdict.RACE),
        (row(OTHER, row_generation=2), Verdict.STALE),  # started again since
        (row(OTHER, row_generation=0), Verdict.RACE),  # the row of this start is still to come
        (row(GEN0, row_terminated=True), Verdict.STALE),  # K41
        (row(GEN0, execution_id=OTHER, final=True), Verdict.PROCESS),  # a restart over an ended history
        (row(GEN0, execution_id=OTHER, final=True, row_terminated=True), Verdict.STALE),
    ],
)
def test_a_start_of_a_client_is_run_if_the_row_is_its_own(facts: Facts, expected: Verdict) -> None:
    assert verdict(start(generation=1), facts) is expected


@pytest.mark.rows("K44", "K27")
@pytest.mark.parametrize("current", [GEN0, GEN1, GEN2])
@pytest.mark.parametrize("final", [False, True])
def test_a_start_that_has_run_is_known_after_any_number_of_generations(current: str, final: bool) -> None:
    facts = replace(RUNNING, execution_id=current, final=final)
    assert verdict(start(), facts) is Verdict.STALE
    assert verdict(start(parent=PARENT), facts) is Verdict.STALE


@pytest.mark.rows("K48")
def test_a_child_needs_no_row_but_an_id_that_is_free() -> None:
    child = start(OTHER, parent=PARENT)
    assert verdict(child, Facts()) is Verdict.PROCESS
    assert verdict(child, RUNNING) is Verdict.EARLY
    assert verdict(child, DONE) is Verdict.PROCESS


@pytest.mark.rows("K27", "K36")
def test_a_child_is_not_run_again_for_a_generation_of_its_parent_that_is_over() -> None:
    """Unless nobody can have begun it: its parent may not have waited for it."""

    def asked(execution_id: str, number: int = 0, parent: str = "p") -> ParentInstance:
        instance = OrchestrationInstance(instance_id=parent, execution_id=execution_id)
        return replace(PARENT, instance=instance, task_schedule_id=number)

    def again(parent: ParentInstance, facts: Facts, deliveries: int = 2) -> Verdict:
        event = start(OTHER, parent=parent)
        return verdict(event, facts, execution_id=OTHER, deliveries=deliveries)

    for facts, otherwise in ((RUNNING, Verdict.EARLY), (DONE, Verdict.PROCESS)):
        since = replace(facts, parent=asked(GEN1, 5))
        assert again(asked(GEN0, 9), since) is Verdict.STALE
        assert again(asked(GEN0, 9), since, deliveries=1) is otherwise
        assert again(asked(GEN1, 4), since) is otherwise, "a parent may wait for both"
        assert again(asked(GEN2), since) is otherwise
        assert again(asked(GEN0, parent="q"), since) is otherwise
        assert again(asked("c" * 32), since) is otherwise, "of another start, or of .NET: who knows"
        assert again(asked(GEN0), facts) is otherwise, "a client's"


@pytest.mark.rows("K35")
def test_back_offs() -> None:
    long = [delay(Verdict.WAIT, failures).total_seconds() for failures in range(12)]
    assert long == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]
    races = [delay(Verdict.RACE, failures).total_seconds() for failures in range(8)]
    assert races == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0])


def test_a_worker_that_knows_is_looked_for_every_quarter_of_a_minute() -> None:
    waits = [unknown_delay(count).total_seconds() for count in range(10)]  # from 0: claimed with its put
    assert waits == [2, 2, 4, 6, 8, 10, 12, 14, 15, 15]
