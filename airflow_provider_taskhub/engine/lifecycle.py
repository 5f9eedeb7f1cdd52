"""The lifecycles of instances and activities: two tables that give a reaction for each pair of state and happening.

A caller asks :func:`react_instance` or :func:`react_activity` first, and then does what the reaction says. If a
pair is impossible for an instance, an error is raised before the caller has changed anything. A new state needs one new
row.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from airflow_provider_taskhub.engine.events import EventType, Status
from airflow_provider_taskhub.errors import TaskHubError


class LifecycleError(TaskHubError):
    """Something was reported that cannot happen in this state. It is a bug of the caller; nothing was changed yet."""


class Happening(StrEnum):
    """What can happen to an instance."""

    STARTED = "started"
    ANSWERED = "answered"  # an activity or a child has answered, or a timer has fired
    RAISED = "raised"  # an external event has come
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    TERMINATED = "terminated"
    ASKED_TO_END = "asked to end"  # terminated with time for a clean-up, or cancelled by its parent
    OVERDUE = "overdue"  # the time for the clean-up is over
    REWOUND = "rewound"
    RETURNED = "returned"  # the orchestrator function has returned
    FAILED = "failed"  # the orchestrator function has raised an error
    CONTINUED = "continued"  # the orchestrator function has returned after a call of continue_as_new
    CLEANED_UP = "cleaned up"  # the orchestrator function has returned or raised after it was asked to end


class Reaction(StrEnum):
    """What an instance does when something happens to it."""

    BEGIN = "begin"  # run the orchestrator for the first time
    DELIVER = "deliver"  # give the event to the orchestrator
    HOLD = "hold"  # store the event now, and give it to the orchestrator after a resume
    SUSPEND = "suspend"
    RESUME = "resume"  # resume, and give the held events to the orchestrator
    TERMINATE = "terminate"
    INTERRUPT = "interrupt"  # cancel what is open, then raise TerminationRequested in the orchestrator, or end
    INTERRUPT_AFTER = "interrupt after the resume"  # the same, after the resume that follows at once
    NOTE = "note"  # store the event; the orchestrator does not get it
    CARRY = "carry"  # give the event to the orchestrator after continue_as_new
    LATER = "later"  # keep the event's message until the start message has arrived
    DISCARD = "discard"  # do not store the event; Episode.stale lists the event
    END = "end"  # store that the instance ends or continues as new
    IMPOSSIBLE = "impossible"  # raise LifecycleError


class Move(NamedTuple):
    """The reaction to a happening, and the state of the instance after it."""

    reaction: Reaction
    state: Status


HAPPENINGS = {
    EventType.ExecutionStarted: Happening.STARTED,
    EventType.TaskCompleted: Happening.ANSWERED,
    EventType.TaskFailed: Happening.ANSWERED,
    EventType.SubOrchestrationInstanceCompleted: Happening.ANSWERED,
    EventType.SubOrchestrationInstanceFailed: Happening.ANSWERED,
    EventType.TimerFired: Happening.ANSWERED,  # that of a clean-up: OVERDUE
    EventType.EventRaised: Happening.RAISED,
    EventType.ExecutionSuspended: Happening.SUSPENDED,
    EventType.ExecutionResumed: Happening.RESUMED,
    EventType.ExecutionTerminated: Happening.TERMINATED,  # with time for a clean-up: ASKED_TO_END
    EventType.GenericEvent: Happening.REWOUND,
    EventType.ExecutionRewound: Happening.REWOUND,
}
"""The types of events that arrive as messages, and the happening that each type means."""


def _ended(state: Status) -> dict[Happening, Move]:
    """Return the row of a final state: every event is discarded, and the orchestrator cannot end again."""
    outcomes = (Happening.RETURNED, Happening.FAILED, Happening.CONTINUED, Happening.CLEANED_UP)
    row = dict.fromkeys(Happening, Move(Reaction.DISCARD, state))
    row.update(dict.fromkeys(outcomes, Move(Reaction.IMPOSSIBLE, state)))
    return row


INSTANCE: dict[Status, dict[Happening, Move]] = {
    Status.PENDING: {
        Happening.STARTED: Move(Reaction.BEGIN, Status.RUNNING),
        Happening.ANSWERED: Move(Reaction.DISCARD, Status.PENDING),
        Happening.RAISED: Move(Reaction.LATER, Status.PENDING),
        Happening.SUSPENDED: Move(Reaction.LATER, Status.PENDING),
        Happening.RESUMED: Move(Reaction.LATER, Status.PENDING),
        Happening.TERMINATED: Move(Reaction.LATER, Status.PENDING),
        Happening.ASKED_TO_END: Move(Reaction.LATER, Status.PENDING),
        Happening.OVERDUE: Move(Reaction.DISCARD, Status.PENDING),
        Happening.REWOUND: Move(Reaction.DISCARD, Status.PENDING),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
        Happening.FAILED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
        Happening.CLEANED_UP: Move(Reaction.IMPOSSIBLE, Status.PENDING),
    },
    Status.RUNNING: {
        Happening.STARTED: Move(Reaction.DISCARD, Status.RUNNING),
        Happening.ANSWERED: Move(Reaction.DELIVER, Status.RUNNING),
        Happening.RAISED: Move(Reaction.DELIVER, Status.RUNNING),
        Happening.SUSPENDED: Move(Reaction.SUSPEND, Status.SUSPENDED),
        Happening.RESUMED: Move(Reaction.NOTE, Status.RUNNING),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.ASKED_TO_END: Move(Reaction.INTERRUPT, Status.RUNNING),
        Happening.OVERDUE: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.REWOUND: Move(Reaction.NOTE, Status.RUNNING),
        Happening.RETURNED: Move(Reaction.END, Status.COMPLETED),
        Happening.FAILED: Move(Reaction.END, Status.FAILED),
        Happening.CONTINUED: Move(Reaction.END, Status.CONTINUED_AS_NEW),
        Happening.CLEANED_UP: Move(Reaction.END, Status.TERMINATED),
    },
    Status.SUSPENDED: {
        Happening.STARTED: Move(Reaction.DISCARD, Status.SUSPENDED),
        Happening.ANSWERED: Move(Reaction.HOLD, Status.SUSPENDED),
        Happening.RAISED: Move(Reaction.HOLD, Status.SUSPENDED),
        Happening.SUSPENDED: Move(Reaction.DISCARD, Status.SUSPENDED),
        Happening.RESUMED: Move(Reaction.RESUME, Status.RUNNING),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.ASKED_TO_END: Move(Reaction.INTERRUPT_AFTER, Status.SUSPENDED),  # a resume follows at once
        Happening.OVERDUE: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.REWOUND: Move(Reaction.NOTE, Status.SUSPENDED),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
        Happening.FAILED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
        Happening.CLEANED_UP: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
    },
    Status.CONTINUED_AS_NEW: {  # the orchestrator has called continue_as_new and returned, and has not begun again
        Happening.STARTED: Move(Reaction.DISCARD, Status.CONTINUED_AS_NEW),
        Happening.ANSWERED: Move(Reaction.DISCARD, Status.CONTINUED_AS_NEW),
        Happening.RAISED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.SUSPENDED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.RESUMED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),  # the orchestrator does not begin again
        Happening.ASKED_TO_END: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.OVERDUE: Move(Reaction.DISCARD, Status.CONTINUED_AS_NEW),
        Happening.REWOUND: Move(Reaction.NOTE, Status.CONTINUED_AS_NEW),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.CONTINUED_AS_NEW),
        Happening.FAILED: Move(Reaction.END, Status.FAILED),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.CONTINUED_AS_NEW),
        Happening.CLEANED_UP: Move(Reaction.IMPOSSIBLE, Status.CONTINUED_AS_NEW),
    },
    Status.COMPLETED: _ended(Status.COMPLETED),
    # REWOUND is discarded here: a rewind first rewrites the history, so that the instance is not FAILED any more.
    Status.FAILED: _ended(Status.FAILED),
    Status.CANCELED: _ended(Status.CANCELED),
    Status.TERMINATED: _ended(Status.TERMINATED),
}


def react_instance(state: Status, happening: Happening) -> Move:
    """Return the reaction of an instance, and its state after the reaction.

    :param state: the current status of the instance.
    :param happening: what happens to the instance.
    :raises LifecycleError: the happening is impossible in this state.
    """
    move = INSTANCE[state][happening]
    if move.reaction is Reaction.IMPOSSIBLE:
        raise LifecycleError(f"an instance that is {state} cannot have {happening}")
    return move


class ActivityState(StrEnum):
    """The state of one attempt of an activity.

    No activity record (the row of an attempt) has the state ``queued``: an attempt is queued until a worker claims it.
    The claim inserts the record. If the orchestrator cancels the call before that, the cancel inserts the record.
    """

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return self not in (ActivityState.QUEUED, ActivityState.RUNNING, ActivityState.CANCELLING)


class ActivityHappening(StrEnum):
    """What can happen to an attempt."""

    CLAIMED = "claimed"  # a worker has received the work item of the activity
    BEAT = "beat"  # the worker that runs the attempt has written a heartbeat or progress
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the user code has raised an error
    TIMED_OUT = "timed out"
    EXPIRED = "expired"  # the attempt has waited longer than its queue timeout
    CRASHED = "crashed"  # the executor process has ended
    SILENT = "silent"  # the record has not changed for the time lease.take, or the worker is proven dead
    CANCEL = "cancel"  # the instance has ended and needs no outcome, or a rewind has undone the call
    CONFIRMED = "confirmed"  # the executor has said that no code of the attempt runs any more
    UNWANTED = "unwanted"  # its worker is silent or proven dead, and no next attempt may begin
    WANTED = "wanted"  # a rewind has opened the instance again, which waits for the answer to the call


class ActivityReaction(StrEnum):
    """What the worker does when something happens to an attempt."""

    RUN = "run"
    RUN_NEXT = "run next"  # run the activity as the next attempt; the retry policy does not count the lost attempt
    REFRESH = "refresh"  # update the activity record
    REPORT = "report"  # store the outcome, put the response message, delete the work item
    REPEAT = "repeat"  # put the stored response again, delete the work item
    REQUEUE = "requeue"  # keep the work item for the next attempt
    ASK = "ask"  # ask the executor to cancel, and wait until it confirms the cancel
    CLOSE = "close"  # record that no code of the attempt runs any more, delete the work item
    DROP = "drop"  # delete the work item without running any code
    WAIT = "wait"  # another worker runs the attempt: check again later
    IGNORE = "ignore"


class ActivityMove(NamedTuple):
    """The reaction to a happening, and the state of the attempt after it."""

    reaction: ActivityReaction
    state: ActivityState


def _row(
    state: ActivityState, **moves: tuple[ActivityReaction, ActivityState]
) -> dict[ActivityHappening, ActivityMove]:
    """Return a row of the table. For a happening that ``moves`` does not name, the reaction is IGNORE."""
    row = dict.fromkeys(ActivityHappening, ActivityMove(ActivityReaction.IGNORE, state))
    row.update({ActivityHappening[name]: ActivityMove(*move) for name, move in moves.items()})
    return row


_S, _R = ActivityState, ActivityReaction

ACTIVITY: dict[ActivityState, dict[ActivityHappening, ActivityMove]] = {
    _S.QUEUED: _row(
        _S.QUEUED,
        CLAIMED=(_R.RUN, _S.RUNNING),
        EXPIRED=(_R.REPORT, _S.FAILED),
        CANCEL=(_R.DROP, _S.CANCELLED),
    ),
    _S.RUNNING: _row(
        _S.RUNNING,
        CLAIMED=(_R.WAIT, _S.RUNNING),
        BEAT=(_R.REFRESH, _S.RUNNING),
        SUCCEEDED=(_R.REPORT, _S.COMPLETED),
        FAILED=(_R.REPORT, _S.FAILED),
        TIMED_OUT=(_R.REPORT, _S.FAILED),
        CRASHED=(_R.REQUEUE, _S.LOST),
        SILENT=(_R.REQUEUE, _S.LOST),
        CANCEL=(_R.ASK, _S.CANCELLING),
        UNWANTED=(_R.CLOSE, _S.CANCELLED),
        WANTED=(_R.REFRESH, _S.RUNNING),
    ),
    _S.CANCELLING: _row(
        _S.CANCELLING,
        CLAIMED=(_R.WAIT, _S.CANCELLING),
        BEAT=(_R.REFRESH, _S.CANCELLING),
        # After each of the happenings below, no code of the attempt runs any more. The outcome is not stored: an
        # attempt is only cancelled when its instance has ended, and no rewind takes its outcome, or if its call was
        # cancelled.
        SUCCEEDED=(_R.CLOSE, _S.CANCELLED),
        FAILED=(_R.CLOSE, _S.CANCELLED),
        TIMED_OUT=(_R.CLOSE, _S.CANCELLED),
        CRASHED=(_R.CLOSE, _S.CANCELLED),
        SILENT=(_R.CLOSE, _S.CANCELLED),
        CONFIRMED=(_R.CLOSE, _S.CANCELLED),
        WANTED=(_R.REQUEUE, _S.LOST),
    ),
    _S.COMPLETED: _row(_S.COMPLETED, CLAIMED=(_R.REPEAT, _S.COMPLETED)),
    _S.FAILED: _row(_S.FAILED, CLAIMED=(_R.REPEAT, _S.FAILED)),
    _S.CANCELLED: _row(_S.CANCELLED, CLAIMED=(_R.DROP, _S.CANCELLED), WANTED=(_R.REQUEUE, _S.LOST)),
    _S.LOST: _row(
        _S.LOST,
        CLAIMED=(_R.RUN_NEXT, _S.RUNNING),
        CANCEL=(_R.DROP, _S.CANCELLED),
        WANTED=(_R.REQUEUE, _S.LOST),
    ),
}


def react_activity(state: ActivityState, happening: ActivityHappening) -> ActivityMove:
    """Return what the worker does about an attempt of an activity, and the attempt's state after it.

    :param state: the current state of the attempt.
    :param happening: what happens to the attempt.
    """
    return ACTIVITY[state][happening]
