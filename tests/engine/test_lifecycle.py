"""The lifecycle tables, walked whole: every state meets every event, and the reactions are the ones below."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_taskhub.engine.events import EventType, Status
from airflow_provider_taskhub.engine.lifecycle import (
    ACTIVITY,
    HAPPENINGS,
    INSTANCE,
    ActivityHappening,
    ActivityReaction,
    ActivityState,
    Happening,
    LifecycleError,
    Reaction,
    react_activity,
    react_instance,
)
from airflow_provider_taskhub.hub.model import RecordState

A, AH, AR = ActivityState, ActivityHappening, ActivityReaction
OUTCOMES = (Happening.RETURNED, Happening.FAILED, Happening.CONTINUED, Happening.CLEANED_UP)
GRACE = {Happening.ASKED_TO_END, Happening.OVERDUE}
"""What an event means by its content: an event raised that is a request to end, and the timer that ends a clean-up."""


@pytest.mark.rows("D55", "D65")
def test_the_table_of_instances_is_total() -> None:
    assert set(INSTANCE) == set(Status)
    for state, row in INSTANCE.items():
        assert set(row) == set(Happening), state
    assert {Happening(h) for h in HAPPENINGS.values()} | set(OUTCOMES) | GRACE == set(Happening)


@pytest.mark.rows("D56", "D65")
def test_the_table_of_activities_is_total() -> None:
    assert set(ACTIVITY) == set(ActivityState)
    for state, row in ACTIVITY.items():
        assert set(row) == set(ActivityHappening), state


@pytest.mark.parametrize(("state", "happening"), list(itertools.product(Status, Happening)))
@pytest.mark.rows("D55", "D57", "D58", "D60")
def test_every_reaction_of_an_instance(state: Status, happening: Happening) -> None:
    move = INSTANCE[state][happening]
    if move.reaction is Reaction.IMPOSSIBLE:
        with pytest.raises(LifecycleError, match=f"{state} cannot have {happening}"):
            react_instance(state, happening)
        assert happening in OUTCOMES
        return
    assert react_instance(state, happening) is move
    if move.reaction in (Reaction.DISCARD, Reaction.NOTE, Reaction.HOLD, Reaction.LATER, Reaction.CARRY):
        assert move.state is state, "nothing may change"
    if state.is_final:
        assert move.reaction is Reaction.DISCARD, "a final state accepts nothing further"
    if move.state.is_final and not state.is_final:
        assert move.reaction in (Reaction.END, Reaction.TERMINATE)


@pytest.mark.rows("D55")
def test_the_ways_of_an_instance() -> None:
    ways = {(state, move.state) for state, row in INSTANCE.items() for move in row.values() if move.state is not state}
    assert ways == {
        (Status.PENDING, Status.RUNNING),
        (Status.RUNNING, Status.SUSPENDED),
        (Status.SUSPENDED, Status.RUNNING),
        (Status.RUNNING, Status.COMPLETED),
        (Status.RUNNING, Status.FAILED),
        (Status.RUNNING, Status.CONTINUED_AS_NEW),
        (Status.RUNNING, Status.TERMINATED),
        (Status.SUSPENDED, Status.TERMINATED),
        (Status.CONTINUED_AS_NEW, Status.TERMINATED),
        (Status.CONTINUED_AS_NEW, Status.FAILED),
    }


def test_every_event_that_arrives_has_a_meaning() -> None:
    bookkeeping = {
        EventType.ExecutionCompleted,
        EventType.ExecutionFailed,
        EventType.TaskScheduled,
        EventType.SubOrchestrationInstanceCreated,
        EventType.TimerCreated,
        EventType.OrchestratorStarted,
        EventType.OrchestratorCompleted,
        EventType.EventSent,
        EventType.ContinueAsNew,
        EventType.HistoryState,
    }
    assert set(HAPPENINGS) | bookkeeping == set(EventType)
    assert not set(HAPPENINGS) & bookkeeping


@pytest.mark.parametrize(("state", "happening"), list(itertools.product(ActivityState, ActivityHappening)))
@pytest.mark.rows("D56", "D57", "D60", "D66")
def test_every_reaction_of_an_activity(state: ActivityState, happening: ActivityHappening) -> None:
    move = react_activity(state, happening)
    if move.reaction in (AR.IGNORE, AR.REFRESH, AR.WAIT, AR.REPEAT):
        assert move.state is state
    rewound = state in (A.LOST, A.CANCELLED) and happening is AH.WANTED
    if state.is_final and state is not A.LOST and happening is not AH.CLAIMED and not rewound:
        assert move.reaction is AR.IGNORE, "a final attempt accepts nothing further"
    if move.reaction is AR.REPORT:
        assert move.state in (A.COMPLETED, A.FAILED)
    if happening in (AH.BEAT, AH.SUCCEEDED) and state in (A.LOST, A.CANCELLED, A.FAILED):
        assert move.reaction is AR.IGNORE, "an old word for an old state freezes nothing"


@pytest.mark.parametrize(
    ("state", "happening", "reaction", "after"),
    [
        (A.QUEUED, AH.CLAIMED, AR.RUN, A.RUNNING),
        (A.QUEUED, AH.EXPIRED, AR.REPORT, A.FAILED),
        (A.QUEUED, AH.CANCEL, AR.DROP, A.CANCELLED),
        (A.RUNNING, AH.CLAIMED, AR.WAIT, A.RUNNING),
        (A.RUNNING, AH.BEAT, AR.REFRESH, A.RUNNING),
        (A.RUNNING, AH.SUCCEEDED, AR.REPORT, A.COMPLETED),
        (A.RUNNING, AH.FAILED, AR.REPORT, A.FAILED),
        (A.RUNNING, AH.TIMED_OUT, AR.REPORT, A.FAILED),
        (A.RUNNING, AH.CRASHED, AR.REQUEUE, A.LOST),
        (A.RUNNING, AH.SILENT, AR.REQUEUE, A.LOST),
        (A.RUNNING, AH.CANCEL, AR.ASK, A.CANCELLING),
        (A.CANCELLING, AH.CONFIRMED, AR.CLOSE, A.CANCELLED),
        (A.CANCELLING, AH.SUCCEEDED, AR.CLOSE, A.CANCELLED),
        (A.CANCELLING, AH.CRASHED, AR.CLOSE, A.CANCELLED),
        (A.CANCELLING, AH.SILENT, AR.CLOSE, A.CANCELLED),
        (A.CANCELLING, AH.CLAIMED, AR.WAIT, A.CANCELLING),
        (A.COMPLETED, AH.CLAIMED, AR.REPEAT, A.COMPLETED),
        (A.FAILED, AH.CLAIMED, AR.REPEAT, A.FAILED),
        (A.CANCELLED, AH.CLAIMED, AR.DROP, A.CANCELLED),
        (A.LOST, AH.CLAIMED, AR.RUN_NEXT, A.RUNNING),
        (A.RUNNING, AH.UNWANTED, AR.CLOSE, A.CANCELLED),
        (A.CANCELLING, AH.WANTED, AR.REQUEUE, A.LOST),
        (A.CANCELLED, AH.WANTED, AR.REQUEUE, A.LOST),
    ],
)
@pytest.mark.rows("D56", "D63")
def test_rows_of_an_activity(
    state: ActivityState, happening: ActivityHappening, reaction: ActivityReaction, after: ActivityState
) -> None:
    assert react_activity(state, happening) == (reaction, after)


@pytest.mark.rows("D67")
def test_an_attempt_that_runs_ends_by_its_executor_or_with_it() -> None:
    """Not as D67 says, on purpose: an end also comes to what no executor has, or to what its executor has taken along.

    While an attempt runs, nothing but its own outcome completes it or makes it fail, and a cancel only asks.
    """
    ends = {
        (state, happening): move.state
        for state, row in ACTIVITY.items()
        for happening, move in row.items()
        if not state.is_final and move.state.is_final and move.state is not A.LOST
    }
    assert ends == {
        (A.QUEUED, AH.EXPIRED): A.FAILED,
        (A.QUEUED, AH.CANCEL): A.CANCELLED,
        (A.RUNNING, AH.SUCCEEDED): A.COMPLETED,
        (A.RUNNING, AH.FAILED): A.FAILED,
        (A.RUNNING, AH.TIMED_OUT): A.FAILED,
        (A.RUNNING, AH.UNWANTED): A.CANCELLED,
        **{
            (A.CANCELLING, happening): A.CANCELLED
            for happening in (AH.SUCCEEDED, AH.FAILED, AH.TIMED_OUT, AH.CRASHED, AH.SILENT, AH.CONFIRMED)
        },
    }


def test_an_attempts_states_are_those_of_its_record() -> None:
    assert {str(state) for state in ActivityState} - {"queued"} == {str(state) for state in RecordState} - {"unknown"}


@pytest.mark.rows("D29")
def test_an_instance_has_an_event_for_each_part_of_its_life_but_for_the_final_clean_up() -> None:
    """Not as D29 says, on purpose: no event cleans up. What an instance had is freed with the checkpoint of its end."""
    parts = {
        "start": (Status.PENDING, Happening.STARTED, Status.RUNNING),
        "progress": (Status.RUNNING, Happening.ANSWERED, Status.RUNNING),
        "pause": (Status.RUNNING, Happening.SUSPENDED, Status.SUSPENDED),
        "stop": (Status.RUNNING, Happening.TERMINATED, Status.TERMINATED),
        "success": (Status.RUNNING, Happening.RETURNED, Status.COMPLETED),
        "failure": (Status.RUNNING, Happening.FAILED, Status.FAILED),
        "stop after a clean-up by its code": (Status.RUNNING, Happening.CLEANED_UP, Status.TERMINATED),
    }
    for part, (state, happening, after) in parts.items():
        assert react_instance(state, happening).state is after, part
    others = set(Happening) - {happening for _, happening, _ in parts.values()}
    assert others == {Happening.RAISED, Happening.RESUMED, Happening.REWOUND, Happening.CONTINUED, *GRACE}


@pytest.mark.rows("D30")
def test_an_attempt_has_an_event_for_each_part_of_its_life_but_for_a_pause_and_a_retry() -> None:
    """Not as D30 says, on purpose: a suspension holds an instance, and its running activities go on.

    A retry is decided by the instance, as a timer and then a new call, which is queued as the first one was.
    """
    parts = {
        "dispatch": (A.QUEUED, {AH.CLAIMED}, A.RUNNING),
        "waited too long": (A.QUEUED, {AH.EXPIRED}, A.FAILED),
        "running": (A.RUNNING, {AH.BEAT}, A.RUNNING),
        "timeout": (A.RUNNING, {AH.TIMED_OUT}, A.FAILED),
        "failover": (A.RUNNING, {AH.CRASHED, AH.SILENT}, A.LOST),
        "kill": (A.RUNNING, {AH.CANCEL}, A.CANCELLING),
        "killed": (A.CANCELLING, {AH.CONFIRMED}, A.CANCELLED),
        "lost with its instance": (A.RUNNING, {AH.UNWANTED}, A.CANCELLED),
        "undone kill": (A.CANCELLING, {AH.WANTED}, A.LOST),
        "success": (A.RUNNING, {AH.SUCCEEDED}, A.COMPLETED),
        "failure": (A.RUNNING, {AH.FAILED}, A.FAILED),
    }
    for part, (state, happenings, after) in parts.items():
        assert {react_activity(state, happening).state for happening in happenings} == {after}, part
    assert set().union(*(happenings for _, happenings, _ in parts.values())) == set(ActivityHappening)


@pytest.mark.rows("D36")
def test_an_attempt_runs_from_its_dispatch_on() -> None:
    """Not as D36 says, on purpose: the one state that is left is called running, and not dispatched."""
    assert react_activity(A.QUEUED, AH.CLAIMED) == (AR.RUN, A.RUNNING)
    assert react_activity(A.RUNNING, AH.BEAT).state is A.RUNNING
    assert [state for state in A if not state.is_final] == [A.QUEUED, A.RUNNING, A.CANCELLING]
