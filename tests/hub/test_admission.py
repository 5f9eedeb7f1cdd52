"""What becomes of a message, by values: the whole table of admission, and each of its rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from airflow_provider_taskhub.engine.events import (
    ExecutionResumed,
    ExecutionSuspended,
    ExecutionTerminated,
    GenericEvent,
    HistoryEvent,
    OrchestrationInstance,
    ParentInstance,
    Status,
    SubOrchestrationInstanceCompleted,
    SubOrchestrationInstanceFailed,
    TaskCompleted,
    TaskFailed,
    TimerFired,
)
from airflow_provider_taskhub.engine.identity import next_execution_id, run_name
from airflow_provider_taskhub.hub.admission.facts import (
    Facts,
    Incoming,
    Judged,
    MessageKind,
    RowFacts,
    Verdict,
    delay,
    newest,
    unknown_delay,
)
from airflow_provider_taskhub.hub.admission.rules import BEFORE_START
from airflow_provider_taskhub.hub.admission.table import ORPHAN_TURNS, TABLE, Relation, State, judge, relation
from airflow_provider_taskhub.hub.model import Stamp
from tests.hub.by_hand import GEN0, NOW, later, raised, start

GEN1 = next_execution_id(GEN0)
GEN2 = next_execution_id(GEN1)
OTHER = "b" * 32
RUNNING = Facts(execution_id=GEN0, checkpointed=NOW, scheduled={3})
DONE = replace(RUNNING, final=True)
AFTER_OTHER = replace(RUNNING, ended={run_name(OTHER)})
PARENT = ParentInstance(
    instance=OrchestrationInstance(instance_id="p", execution_id="c" * 32), name="P", version="", task_schedule_id=0
)
SUSPENDED, RESUMED = ExecutionSuspended(timestamp=NOW), ExecutionResumed(timestamp=NOW)
TERMINATED, REWOUND = ExecutionTerminated(timestamp=NOW), GenericEvent(timestamp=NOW, data="")
PROCESS, DISCARD, DEFER, ORPHAN = Verdict.PROCESS, Verdict.DISCARD, Verdict.DEFER, Verdict.ORPHAN
SOON, LATER, ROW = Verdict.RETRY_SOON, Verdict.RETRY_LATER, Verdict.NEEDS_ROW
HOLD = Verdict.HOLD


def judged(
    event: HistoryEvent,
    facts: Facts,
    *,
    execution_id: str | None = GEN0,
    message_id: str = "m",
    at: float = 0.0,
    process: str = "",
    number: int = 0,
    **more: Any,
) -> Judged:
    """:param at: when it was enqueued, in seconds from now."""
    stamp = Stamp(inserted=later(at), process=process, number=number)
    message = Incoming(event=event, execution_id=execution_id, identity=message_id, stamp=stamp, now=NOW, **more)
    found = judge(message, facts)
    assert found.reason or found.verdict in (PROCESS, ROW, Verdict.END, Verdict.RECORD), "what waits or goes says why"
    return found


def verdict(event: HistoryEvent, facts: Facts, **more: Any) -> Verdict:
    return judged(event, facts, **more).verdict


def named(event: Any, run: str) -> Any:
    """The event, for a run."""
    return replace(event, taskhub_execution_id=run)


def answers(number: int) -> list[HistoryEvent]:
    return [
        TaskCompleted(timestamp=NOW, task_scheduled_id=number),
        TaskFailed(timestamp=NOW, task_scheduled_id=number),
        SubOrchestrationInstanceCompleted(timestamp=NOW, task_scheduled_id=number),
        SubOrchestrationInstanceFailed(timestamp=NOW, task_scheduled_id=number),
        TimerFired(timestamp=NOW, timer_id=number, fire_at=NOW),
    ]


def type_of(event: HistoryEvent) -> str:
    return event.event_type.name


def row(execution_id: str | None, status: Status | None = Status.RUNNING, **fields: Any) -> RowFacts:
    return RowFacts(execution_id=execution_id, status=status if execution_id else None, **fields)


PENDING = row(OTHER, Status.PENDING)
"""The row of a run that waits for its start."""


# --- the table ----------------------------------------------------------------------------------------------------


def test_there_is_a_rule_for_every_kind_relation_and_state() -> None:
    assert set(TABLE) == set(product(MessageKind, Relation, State))


EVENTS: dict[MessageKind, Any] = {
    MessageKind.CLIENT_START: start(),
    MessageKind.CHILD_START: start(parent=PARENT),
    MessageKind.ANSWER: answers(3)[0],
    MessageKind.EVENT: raised(),
    MessageKind.SUSPENSION: SUSPENDED,
    MessageKind.TERMINATE: TERMINATED,
    MessageKind.REWIND: REWOUND,
}
RUNS = {Relation.SAME: GEN0, Relation.OVER: "d" * 32, Relation.WAITING: OTHER, Relation.UNNAMED: None}
ROWS = [None, row(None), row(GEN0), row(GEN0, Status.COMPLETED), PENDING, row(OTHER, Status.TERMINATED)]


def of_run(kind: MessageKind, run: str | None, **more: Any) -> Incoming:
    event = EVENTS[kind]
    if kind in (MessageKind.CLIENT_START, MessageKind.CHILD_START):
        event = replace(event, instance=OrchestrationInstance(instance_id="i", execution_id=run))
    elif kind is not MessageKind.ANSWER and run is not None:
        event = named(event, run)
    return Incoming(event=event, execution_id=run, identity="m", stamp=Stamp(inserted=NOW), now=NOW, **more)


@pytest.mark.parametrize(("kind", "named_run", "state"), list(TABLE), ids=str)
def test_every_cell_comes_to_a_verdict_and_needs_the_row_once_at_most(
    kind: MessageKind, named_run: Relation, state: State
) -> None:
    facts = replace(RUNNING, final=state is State.FREE, ended={run_name("d" * 32)})
    for sender, spent, read in product((None, PARENT.instance), (False, True), ROWS):
        message = of_run(kind, RUNS[named_run], sender=sender, spent=spent)
        assert (message.kind, relation(message, facts)) == (kind, named_run)
        found = judge(message, replace(facts, row=read))
        assert read is None or found.verdict is not ROW
        if found.verdict is DEFER:
            assert timedelta(0) < found.pause <= timedelta(minutes=1)


@pytest.mark.rows("K37", "K29")
@pytest.mark.parametrize("event", [*answers(3), raised(), start(), TERMINATED, SUSPENDED], ids=type_of)
def test_what_is_in_the_history_is_only_deleted(event: HistoryEvent) -> None:
    for facts in (RUNNING, DONE, Facts()):
        assert verdict(event, replace(facts, seen={"m"})) is DISCARD


# --- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K32")
@pytest.mark.parametrize("event", answers(3), ids=type_of)
def test_history_decides_that_an_answer_is_processed(event: HistoryEvent) -> None:
    assert verdict(event, RUNNING, at=-3600) is PROCESS
    assert verdict(event, RUNNING, execution_id=None) is PROCESS, "one that names no generation too"


@pytest.mark.rows("K32", "K33", "K35")
@pytest.mark.parametrize("event", answers(4), ids=type_of)
@pytest.mark.parametrize(
    ("checkpointed", "at", "expected"),
    [
        (0.0, 5.0, SOON),
        (0.9, 0.0, SOON),  # the same second: queues know no finer time
        (0.9, 0.5, SOON),
        (0.9, -0.1, LATER),
        (60.0, 0.0, LATER),
    ],
)
def test_storage_times_tell_what_an_unasked_answer_is(
    event: HistoryEvent, checkpointed: float, at: float, expected: Verdict
) -> None:
    assert verdict(event, replace(RUNNING, checkpointed=later(checkpointed)), at=at) is expected


@pytest.mark.rows("K32")
def test_a_live_session_looks_the_time_of_the_last_checkpoint_up() -> None:
    facts = replace(RUNNING, checkpointed=None)
    assert verdict(answers(3)[0], facts) is PROCESS
    assert verdict(answers(4)[0], facts) is ROW
    assert verdict(answers(4)[0], replace(facts, row=row(GEN0))) is SOON, "it looks once"


@pytest.mark.rows("K36")
@pytest.mark.parametrize(
    ("addressed", "current", "expected"),
    [
        (GEN0, GEN1, DISCARD),
        (GEN1, GEN2, DISCARD),
        (GEN1, GEN0, SOON),  # the switch is being committed
        (GEN2, GEN0, SOON),
        (GEN1, GEN1, PROCESS),
    ],
)
def test_generations_of_one_start_are_counted_in_their_ids(addressed: str, current: str, expected: Verdict) -> None:
    assert verdict(answers(3)[0], replace(RUNNING, execution_id=current), execution_id=addressed) is expected


@pytest.mark.rows("K34", "K36")
def test_a_live_session_looks_whether_a_newer_generation_is_committed_by_now() -> None:
    live = replace(RUNNING, checkpointed=None)
    assert verdict(answers(3)[0], live, execution_id=GEN1) is ROW
    assert verdict(answers(3)[0], replace(live, row=row(GEN0)), execution_id=GEN1) is SOON


@pytest.mark.rows("K36")
def test_an_answer_for_a_run_that_is_over_is_discarded_without_a_look() -> None:
    answer = answers(3)[0]
    for facts in (AFTER_OTHER, replace(AFTER_OTHER, final=True), replace(AFTER_OTHER, execution_id=None)):
        assert verdict(answer, facts, execution_id=OTHER) is DISCARD


@pytest.mark.rows("K36")
def test_an_answer_for_a_run_that_nothing_tells_of_may_be_in_front_of_its_history() -> None:
    answer = answers(3)[0]
    assert verdict(answer, RUNNING, execution_id=OTHER) is ROW
    assert verdict(answer, replace(RUNNING, row=row(OTHER)), execution_id=OTHER) is SOON
    for read in (row(GEN0), row(None)):  # of .NET's generations no list tells
        assert verdict(answer, replace(RUNNING, row=read), execution_id=OTHER) is DISCARD
    ended = replace(DONE, row=row(GEN0))
    assert verdict(answer, ended, execution_id=OTHER) is ORPHAN, "a child may be beginning"
    assert verdict(answer, ended, execution_id=OTHER, at=-5) is DISCARD
    assert verdict(answer, ended, execution_id=OTHER, failures=ORPHAN_TURNS) is DISCARD


@pytest.mark.rows("K31", "K46")
def test_answers_without_a_history_or_after_the_end() -> None:
    assert verdict(answers(3)[0], Facts()) is SOON
    assert verdict(answers(3)[0], DONE) is DISCARD
    assert verdict(answers(9)[0], DONE) is DISCARD
    assert verdict(answers(3)[0], DONE, execution_id=None) is DISCARD
    assert verdict(answers(3)[0], Facts(), execution_id=None) is SOON


# --- starts -------------------------------------------------------------------------------------------------------


@pytest.mark.rows("K44")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), ROW),
        (Facts(row=row(GEN0, Status.PENDING)), PROCESS),
        (Facts(row=row(None)), SOON),  # .NET puts the message first
        (Facts(row=row(OTHER)), SOON),
        (Facts(row=row(OTHER, restarts=2)), DISCARD),  # started again since
        (Facts(row=row(OTHER, restarts=0)), SOON),  # the row of this start is still to come
        (Facts(row=row(GEN0, Status.TERMINATED)), DISCARD),  # .NET ends a Pending instance by its row alone
        (Facts(execution_id=OTHER, final=True, row=row(GEN0, Status.PENDING)), PROCESS),  # over an ended history
        (Facts(execution_id=OTHER, parent=PARENT, row=row(GEN0, Status.PENDING)), DEFER),  # over a child that runs
        (Facts(execution_id=OTHER, row=row(GEN0, Status.PENDING)), PROCESS),  # over a run that was rewound meanwhile
        (Facts(row=row(GEN0, Status.PENDING), ended={run_name(GEN0)}), DISCARD),
    ],
)
def test_a_start_of_a_client_is_run_if_the_row_is_its_own(facts: Facts, expected: Verdict) -> None:
    assert verdict(start(generation=1), facts) is expected


@pytest.mark.rows("K41", "K46")
def test_a_start_waits_for_its_time_and_is_dropped_if_its_row_is_purged() -> None:
    due = start(scheduled_start_time=later(3600))
    assert judged(due, Facts(row=row(GEN0, Status.PENDING))).pause == timedelta(hours=1)
    assert verdict(start(taskhub_row_etag="e"), Facts(row=row(None))) is DISCARD
    purged = start(taskhub_row_etag="e", scheduled_start_time=later(3600))
    assert verdict(purged, Facts(row=row(None))) is DISCARD, "at once, and not in an hour"


@pytest.mark.rows("K44", "K27")
@pytest.mark.parametrize("current", [GEN0, GEN1, GEN2])
@pytest.mark.parametrize("final", [False, True])
def test_a_start_that_has_run_is_known_after_any_number_of_generations(current: str, final: bool) -> None:
    facts = replace(RUNNING, execution_id=current, final=final)
    assert verdict(start(), facts) is DISCARD
    assert verdict(start(parent=PARENT), facts) is DISCARD


@pytest.mark.rows("K48")
def test_a_child_needs_no_row_but_an_id_that_is_free() -> None:
    child = start(OTHER, parent=PARENT)
    assert verdict(child, Facts()) is PROCESS
    assert verdict(child, DONE) is PROCESS
    pauses = [judged(child, RUNNING, at=-age).pause.total_seconds() for age in (0, 8, 40, 400)]
    assert pauses == [2, 2, 10, 60]


@pytest.mark.rows("K27", "K36")
def test_a_child_that_has_ended_does_not_run_again_over_a_later_run() -> None:
    child = start(OTHER, parent=PARENT)
    assert verdict(child, AFTER_OTHER) is DISCARD
    assert verdict(child, replace(AFTER_OTHER, final=True)) is DISCARD


# --- what is for whichever generation is current ------------------------------------------------------------------


@pytest.mark.rows("K57")
@pytest.mark.parametrize("execution_id", [None, GEN0, OTHER])
def test_what_names_no_run_goes_to_the_one_that_is_live(execution_id: str | None) -> None:
    for event in (raised(), SUSPENDED, TERMINATED, REWOUND):
        assert verdict(event, RUNNING, execution_id=execution_id) is PROCESS
        assert verdict(event, DONE, execution_id=execution_id) is ROW
        assert verdict(event, Facts(row=row(None)), execution_id=execution_id) is LATER


@pytest.mark.rows("K36", "K41", "K57")
def test_what_names_no_run_is_for_the_start_that_the_row_tells_of() -> None:
    for facts in (Facts(row=PENDING), replace(DONE, row=PENDING)):
        assert verdict(raised(), facts, at=-5) is DEFER
        assert verdict(SUSPENDED, facts, at=-5) is Verdict.RECORD
        assert verdict(TERMINATED, facts, at=-5) is Verdict.END
    for read in (row(GEN0), row(OTHER), row(GEN0, Status.PENDING)):  # the last one lags behind its history
        for event in (raised(), SUSPENDED, TERMINATED):
            assert verdict(event, replace(DONE, row=read), at=-5) is DISCARD


@pytest.mark.rows("K27", "K36", "K57")
def test_an_unnamed_event_after_an_end_may_be_for_a_child_that_is_about_to_start() -> None:
    ended = replace(DONE, row=row(GEN0))
    assert verdict(raised(), ended) is ORPHAN
    assert verdict(raised(), ended, failures=ORPHAN_TURNS) is DISCARD
    assert verdict(raised(), ended, at=-60) is DISCARD
    assert verdict(raised(), ended, at=-60, sender=PARENT.instance) is ORPHAN, (
        "it may have waited with the start in front of it"
    )
    assert verdict(SUSPENDED, ended) is DISCARD


@pytest.mark.rows("K36")
@pytest.mark.parametrize("event", [raised(), SUSPENDED, RESUMED, TERMINATED, REWOUND], ids=type_of)
def test_what_names_a_run_is_for_no_other(event: HistoryEvent) -> None:
    for facts in (RUNNING, replace(RUNNING, execution_id=GEN2)):
        assert verdict(named(event, GEN0), facts) is PROCESS
    assert verdict(named(event, GEN0), DONE) is DISCARD
    for facts in (AFTER_OTHER, replace(AFTER_OTHER, final=True)):
        assert verdict(named(event, OTHER), facts) is DISCARD


@pytest.mark.rows("K27", "K36")
@pytest.mark.parametrize("event", [raised(), TERMINATED], ids=type_of)
def test_what_a_parent_sends_waits_behind_a_live_run_for_as_long_as_its_start_does(event: HistoryEvent) -> None:
    for age in (1, 600, 86_400):
        found = judged(named(event, OTHER), RUNNING, at=-age, sender=PARENT.instance)
        assert (found.verdict, found.pause <= timedelta(seconds=15)) == (DEFER, True)


@pytest.mark.rows("K27", "K36")
def test_a_run_that_the_sender_awaits_too_gets_its_event_after_two_minutes() -> None:
    """It may be waiting for that; one of another parent, or of a client, is none of the sender's."""
    event, sibling = named(raised(), OTHER), replace(RUNNING, parent=PARENT)
    assert verdict(event, sibling, at=-119, sender=PARENT.instance) is DEFER
    assert verdict(event, sibling, at=-121, sender=PARENT.instance) is PROCESS
    for other in (replace(PARENT.instance, instance_id="q"), replace(PARENT.instance, execution_id="d" * 32)):
        assert verdict(event, sibling, at=-121, sender=other) is DEFER
    assert verdict(event, replace(sibling, fire_and_forget=True), at=-121, sender=PARENT.instance) is DEFER
    assert verdict(named(TERMINATED, OTHER), sibling, at=-121, sender=PARENT.instance) is DEFER


@pytest.mark.rows("K27", "K36")
def test_a_child_is_not_run_again_for_a_generation_of_its_parent_that_is_over() -> None:
    """Unless nobody can have begun it: its parent may not have waited for it."""

    def asked(execution_id: str, parent: str = "p") -> ParentInstance:
        return replace(PARENT, instance=OrchestrationInstance(instance_id=parent, execution_id=execution_id))

    for facts, otherwise in ((RUNNING, DEFER), (DONE, PROCESS)):
        since = replace(facts, parent=asked(GEN1))
        assert verdict(start(OTHER, parent=asked(GEN0)), since, deliveries=2) is DISCARD
        assert verdict(start(OTHER, parent=asked(GEN0)), since) is otherwise
        for other in (asked(GEN1), asked(GEN2), asked(GEN0, "q"), asked("c" * 32)):
            assert verdict(start(OTHER, parent=other), since, deliveries=2) is otherwise
    over = replace(DONE, parent=asked(GEN1), checkpointed=later(-300), row=row(GEN0, Status.COMPLETED))
    event = named(raised(), OTHER)
    assert verdict(event, over, at=-300, sender=asked(GEN0).instance) is DISCARD, "nobody starts that run any more"
    assert verdict(event, over, at=-300, sender=asked(GEN1).instance) is LATER


@pytest.mark.rows("K36", "K41")
@pytest.mark.parametrize(
    ("event", "expected"), [(raised(), PROCESS), (SUSPENDED, PROCESS), (TERMINATED, DISCARD)], ids=str
)
def test_a_client_read_the_name_in_the_row_so_a_row_with_another_name_says_that_it_is_over(
    event: HistoryEvent, expected: Verdict
) -> None:
    """Or it was a generation of .NET's, whose events are for whichever generation is current."""
    assert verdict(named(event, OTHER), RUNNING) is ROW
    assert verdict(named(event, OTHER), replace(RUNNING, row=PENDING)) is DEFER
    assert verdict(named(event, OTHER), replace(RUNNING, row=row(GEN0))) is expected
    assert verdict(named(event, OTHER), replace(DONE, row=row(GEN0, Status.COMPLETED))) is DISCARD


@pytest.mark.rows("K41", "K57")
def test_an_event_waits_for_the_start_that_the_row_tells_of_for_as_long_as_it_takes() -> None:
    event = named(raised(), OTHER)
    for facts in (Facts(), DONE):
        assert verdict(event, facts) is ROW
        for age in (1, 86_400):
            found = judged(event, replace(facts, row=PENDING), at=-age)
            assert (found.verdict, found.pause <= timedelta(seconds=15)) == (DEFER, True)
        scheduled = replace(facts, row=replace(PENDING, due=later(3600)))
        assert judged(event, scheduled, at=-86_400).pause == timedelta(hours=1) - BEFORE_START


@pytest.mark.rows("K16", "K57")
def test_an_event_is_held_in_memory_around_the_time_of_its_start() -> None:
    """So the first episode has all events, in their order, although each became visible at a time of its own."""
    event = named(raised(), OTHER)
    for seconds, expected in ((4, DEFER), (3, HOLD), (0.5, HOLD), (-9, HOLD), (-10, DEFER), (-3600, DEFER)):
        due = Facts(row=replace(PENDING, due=later(seconds)))
        assert verdict(event, due) is expected
        assert verdict(event, due, waited=True) is DEFER
    assert judged(event, Facts(row=replace(PENDING, due=later(4)))).pause == timedelta(seconds=1)


@pytest.mark.rows("K41", "K57")
@pytest.mark.parametrize("event", [raised(), REWOUND], ids=type_of)
def test_a_message_for_a_run_that_has_not_begun_waits_for_the_start_unless_the_row_says_that_the_run_has_ended(
    event: HistoryEvent,
) -> None:
    """A .NET client can end a Pending instance in the instance row only."""
    for facts in (Facts(), DONE):
        assert verdict(named(event, OTHER), facts) is ROW
        assert verdict(named(event, OTHER), replace(facts, row=PENDING)) is DEFER
        assert verdict(named(event, OTHER), replace(facts, row=row(OTHER, Status.TERMINATED))) is DISCARD


@pytest.mark.rows("K35", "K57")
def test_an_event_for_a_start_that_nothing_tells_of_is_kept_in_the_end() -> None:
    """A child's start has no row. Two minutes after the message, or after the end before it, it should be there."""
    event = named(raised(), OTHER)
    nothing, ended = Facts(row=row(None)), replace(DONE, row=row(GEN0, Status.COMPLETED))
    for facts in (nothing, replace(ended, checkpointed=later(-300))):
        assert verdict(event, facts, at=-119, sender=PARENT.instance) is DEFER
        assert verdict(event, facts, at=-121, sender=PARENT.instance) is LATER
    assert verdict(event, replace(ended, checkpointed=later(-100)), at=-300, sender=PARENT.instance) is DEFER


@pytest.mark.rows("K30", "K46")
def test_at_its_limit_what_names_a_run_of_which_nothing_is_left_is_for_a_purged_instance() -> None:
    for event in (*answers(3), named(raised(), OTHER), named(TERMINATED, OTHER)):
        assert verdict(event, Facts(), at=-4000, spent=True) is ROW
        assert verdict(event, Facts(row=row(None)), at=-4000, spent=True) is DISCARD
    assert verdict(start(), Facts(row=row(None)), spent=True) is SOON, "a start is kept for people"
    assert verdict(raised(), Facts(row=row(None)), at=-600, spent=True) is LATER


@pytest.mark.rows("K31", "K32")
@pytest.mark.parametrize("event", answers(4), ids=type_of)
def test_an_answer_that_comes_again_is_kept_for_people_at_its_limit(event: HistoryEvent) -> None:
    """An activity or a timer answers again when its message is sent again; a child does not."""
    child = isinstance(event, SubOrchestrationInstanceCompleted | SubOrchestrationInstanceFailed)
    assert verdict(event, RUNNING, execution_id=GEN0, spent=True) is (DEFER if child else SOON)


@pytest.mark.rows("K31", "K32")
@pytest.mark.parametrize("event", answers(4)[2:4], ids=type_of)
def test_no_number_of_failures_spends_a_childs_answer_whose_event_may_still_come(event: HistoryEvent) -> None:
    pending = row(GEN0, Status.PENDING)
    for facts, run in (
        (RUNNING, GEN0),
        (RUNNING, None),
        (RUNNING, GEN1),
        (Facts(row=pending), GEN0),
        (replace(DONE, row=PENDING), OTHER),
    ):
        assert verdict(event, facts, execution_id=run) is SOON
        assert verdict(event, facts, execution_id=run, spent=True) is DEFER
    without, old = replace(RUNNING, checkpointed=later(60)), -3600
    assert verdict(event, without, spent=True, at=old) is LATER, "a checkpoint without it"
    assert verdict(event, DONE, execution_id=GEN1, spent=True) is SOON, "its run has ended: it is kept for people"
    ended = row(GEN0, Status.TERMINATED)
    assert verdict(event, Facts(row=ended), spent=True) is SOON, "its row has ended: it is kept for people"


@pytest.mark.rows("K31", "K46")
def test_the_answer_of_a_child_waits_an_hour_for_a_parent_that_nothing_tells_of() -> None:
    """The parent may be a child too, which has no row before its first checkpoint."""
    nothing, ended = Facts(row=row(None)), replace(DONE, checkpointed=later(-7200), row=row(GEN0, Status.COMPLETED))
    for event in answers(3)[2:4]:
        for at, expected in ((-3599, DEFER), (-3600, DISCARD)):
            assert verdict(event, nothing, at=at, spent=True) is expected
            without = LATER if expected is DISCARD else DEFER
            assert verdict(event, RUNNING, execution_id=GEN0, at=at, spent=True) is PROCESS
            assert verdict(event, replace(RUNNING, scheduled=set()), at=at, spent=True) is without
            assert verdict(event, ended, execution_id=OTHER, at=at, failures=ORPHAN_TURNS) is expected
    for event in (*answers(3)[:2], answers(3)[4]):
        assert verdict(event, nothing, spent=True) is DISCARD, "what has sent it sends it again"


# --- before the first checkpoint ----------------------------------------------------------------------------------


@pytest.mark.rows("K41")
def test_a_terminate_ends_a_run_that_has_not_begun() -> None:
    ends = named(TERMINATED, OTHER)
    for facts in (Facts(), DONE):
        assert verdict(ends, facts) is ROW
        assert verdict(ends, replace(facts, row=PENDING)) is Verdict.END
        assert verdict(ends, replace(facts, row=row(OTHER, Status.TERMINATED))) is DISCARD
        child = replace(ends, taskhub_child="child")
        for read in (row(None), row(GEN0, Status.COMPLETED)):
            found = verdict(child, replace(facts, row=read), sender=PARENT.instance)
            assert found is (Verdict.END if facts == Facts() else Verdict.REFUSE), "the row of another run stays"
    assert verdict(ends, Facts(row=row(None)), at=-600) is LATER, "its row may have been purged"


def test_the_run_of_a_child_behind_a_live_run_is_ended_at_once() -> None:
    ends = named(replace(TERMINATED, taskhub_child="child"), OTHER)
    assert verdict(ends, RUNNING, sender=PARENT.instance) is Verdict.REFUSE
    assert verdict(replace(ends, taskhub_child=None), RUNNING) is ROW


@pytest.mark.rows("K41", "K46")
def test_a_suspension_of_a_run_that_has_not_begun_is_recorded_unless_a_newer_one_was() -> None:
    for event in (named(SUSPENDED, OTHER), named(RESUMED, OTHER)):
        facts = Facts(row=PENDING)
        assert verdict(event, facts) is Verdict.RECORD
        assert verdict(event, replace(facts, suspension_stamp=Stamp(inserted=later(1)))) is DISCARD
        assert verdict(event, replace(facts, suspension_stamp=Stamp(inserted=NOW))) is Verdict.RECORD, (
            "within one second"
        )


@pytest.mark.rows("K26", "K46")
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"at": -1}, DISCARD),
        ({"at": -1, "process": "b", "number": 99}, DISCARD),
        ({}, PROCESS),  # of the same time, and nobody knows of what process: as it arrives
        ({"process": "b", "number": 1}, PROCESS),
        ({"process": "a", "number": 4}, DISCARD),
        ({"process": "a", "number": 5}, DISCARD),  # the very same: its put was repeated
        ({"process": "a", "number": 6}, PROCESS),
        ({"at": 1, "process": "a", "number": 4}, DISCARD),  # overtaken on its way to the queue
        ({"at": 1}, PROCESS),
    ],
)
def test_a_suspension_or_resume_older_than_the_newest_taken_is_discarded(
    sent: dict[str, Any], expected: Verdict
) -> None:
    known = replace(RUNNING, suspension_stamp=Stamp(inserted=NOW, process="a", number=5))
    for event in (SUSPENDED, RESUMED):
        assert verdict(event, known, **sent) is expected
        assert verdict(event, RUNNING, **sent) is PROCESS, "none was taken yet"
    for event in (TERMINATED, raised()):
        assert verdict(event, known, **sent) is PROCESS, "nothing else is in that order"


# --- stamps and back-offs -----------------------------------------------------------------------------------------


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


@pytest.mark.rows("K35")
def test_a_message_is_hidden_longer_after_each_failure_up_to_a_limit() -> None:
    def seconds(kind: Verdict, count: int) -> list[float]:
        return [delay(kind, failures).total_seconds() for failures in range(count)]

    assert seconds(LATER, 12) == [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600]
    assert seconds(SOON, 8) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0])
    assert seconds(ORPHAN, ORPHAN_TURNS) == pytest.approx([0.1, 0.4, 1.6, 6.4, 25.6, 102.4])


def test_a_worker_that_knows_is_looked_for_every_quarter_of_a_minute() -> None:
    waits = [unknown_delay(count).total_seconds() for count in range(10)]  # from 0: claimed with its put
    assert waits == [2, 2, 4, 6, 8, 10, 12, 14, 15, 15]


def test_a_deferred_message_comes_again_after_a_quarter_of_its_age() -> None:
    """A deferred message comes again after a quarter of its age, 2 to 15 s."""
    event = named(raised(), OTHER)
    pauses = [judged(event, Facts(row=PENDING), at=-age).pause.total_seconds() for age in (0, 8, 40, 400)]
    assert pauses == [2, 2, 10, 15]


def test_a_terminate_for_what_a_failed_run_has_left_running_ends_no_other_run() -> None:
    """A run that is stored as live fails again soon, if its checkpoint was cut off. One that was rewound does not."""
    event = replace(TERMINATED, taskhub_execution_id=GEN0, taskhub_child="c", taskhub_left_over=True)
    assert verdict(event, DONE) is DISCARD
    assert [verdict(event, RUNNING, failures=count) for count in (0, ORPHAN_TURNS)] == [ORPHAN, DISCARD]
    assert verdict(event, replace(RUNNING, rewound=True)) is DISCARD
    assert verdict(event, AFTER_OTHER) is ORPHAN
    for facts in (Facts(), replace(RUNNING, execution_id=OTHER, ended={run_name(GEN0)})):
        assert verdict(event, facts) is DISCARD
    row = RowFacts(execution_id=GEN0, status=Status.PENDING)
    assert verdict(event, Facts(row=row)) is DISCARD, "it waits for its start: it has not failed"
