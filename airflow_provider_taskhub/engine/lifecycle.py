"""Lifecycles of instances and of activities: total tables, state × event → reaction.

Adding a state means one row. Code that acts asks :func:`react_instance` or :func:`react_activity` first and does what
the reaction says; an impossible pair raises before anything was touched.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from airflow_provider_taskhub.engine.events import EventType, Status
from airflow_provider_taskhub.errors import TaskHubError


class LifecycleError(TaskHubError):
    """Something happened that cannot happen in this state: a bug of the caller, who has touched nothing yet."""


class Happening(StrEnum):
    """What can happen to an instance."""

    STARTED = "started"
    ANSWERED = "answered"  # by an activity, a child or a timer
    RAISED = "raised"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    TERMINATED = "terminated"
    REWOUND = "rewound"
    RETURNED = "returned"  # the orchestrator itself, as the next two
    FAILED = "failed"
    CONTINUED = "continued"


class Reaction(StrEnum):
    """What is done about it."""

    BEGIN = "begin"
    DELIVER = "deliver"
    HOLD = "hold"  # recorded now, delivered on resume
    SUSPEND = "suspend"
    RESUME = "resume"  # and deliver what was held
    TERMINATE = "terminate"
    NOTE = "note"  # recorded, nothing else
    CARRY = "carry"  # into the next generation
    LATER = "later"  # its message is kept: the start is under way
    DISCARD = "discard"  # the event is reported as stale and changes nothing
    END = "end"
    IMPOSSIBLE = "impossible"


class Move(NamedTuple):
    """A reaction and the state after it."""

    reaction: Reaction
    state: Status


HAPPENINGS = {
    EventType.ExecutionStarted: Happening.STARTED,
    EventType.TaskCompleted: Happening.ANSWERED,
    EventType.TaskFailed: Happening.ANSWERED,
    EventType.SubOrchestrationInstanceCompleted: Happening.ANSWERED,
    EventType.SubOrchestrationInstanceFailed: Happening.ANSWERED,
    EventType.TimerFired: Happening.ANSWERED,
    EventType.EventRaised: Happening.RAISED,
    EventType.ExecutionSuspended: Happening.SUSPENDED,
    EventType.ExecutionResumed: Happening.RESUMED,
    EventType.ExecutionTerminated: Happening.TERMINATED,
    EventType.GenericEvent: Happening.REWOUND,
    EventType.ExecutionRewound: Happening.REWOUND,
}
"""Events that arrive as messages, and what they mean."""


def _ended(state: Status) -> dict[Happening, Move]:
    """A final state accepts nothing further."""
    outcomes = (Happening.RETURNED, Happening.FAILED, Happening.CONTINUED)
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
        Happening.REWOUND: Move(Reaction.DISCARD, Status.PENDING),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
        Happening.FAILED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.PENDING),
    },
    Status.RUNNING: {
        Happening.STARTED: Move(Reaction.DISCARD, Status.RUNNING),
        Happening.ANSWERED: Move(Reaction.DELIVER, Status.RUNNING),
        Happening.RAISED: Move(Reaction.DELIVER, Status.RUNNING),
        Happening.SUSPENDED: Move(Reaction.SUSPEND, Status.SUSPENDED),
        Happening.RESUMED: Move(Reaction.NOTE, Status.RUNNING),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.REWOUND: Move(Reaction.NOTE, Status.RUNNING),
        Happening.RETURNED: Move(Reaction.END, Status.COMPLETED),
        Happening.FAILED: Move(Reaction.END, Status.FAILED),
        Happening.CONTINUED: Move(Reaction.END, Status.CONTINUED_AS_NEW),
    },
    Status.SUSPENDED: {
        Happening.STARTED: Move(Reaction.DISCARD, Status.SUSPENDED),
        Happening.ANSWERED: Move(Reaction.HOLD, Status.SUSPENDED),
        Happening.RAISED: Move(Reaction.HOLD, Status.SUSPENDED),
        Happening.SUSPENDED: Move(Reaction.NOTE, Status.SUSPENDED),
        Happening.RESUMED: Move(Reaction.RESUME, Status.RUNNING),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),
        Happening.REWOUND: Move(Reaction.NOTE, Status.SUSPENDED),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
        Happening.FAILED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.SUSPENDED),
    },
    Status.CONTINUED_AS_NEW: {  # decided in this episode, the next generation not begun
        Happening.STARTED: Move(Reaction.DISCARD, Status.CONTINUED_AS_NEW),
        Happening.ANSWERED: Move(Reaction.DISCARD, Status.CONTINUED_AS_NEW),
        Happening.RAISED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.SUSPENDED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.RESUMED: Move(Reaction.CARRY, Status.CONTINUED_AS_NEW),
        Happening.TERMINATED: Move(Reaction.TERMINATE, Status.TERMINATED),  # it wins
        Happening.REWOUND: Move(Reaction.NOTE, Status.CONTINUED_AS_NEW),
        Happening.RETURNED: Move(Reaction.IMPOSSIBLE, Status.CONTINUED_AS_NEW),
        Happening.FAILED: Move(Reaction.END, Status.FAILED),
        Happening.CONTINUED: Move(Reaction.IMPOSSIBLE, Status.CONTINUED_AS_NEW),
    },
    Status.COMPLETED: _ended(Status.COMPLETED),
    Status.FAILED: _ended(Status.FAILED),  # a rewind rewrites the history first: then it is not FAILED any more
    Status.CANCELED: _ended(Status.CANCELED),
    Status.TERMINATED: _ended(Status.TERMINATED),
}


def react_instance(state: Status, happening: Happening) -> Move:
    """The reaction of an instance.

    :raises LifecycleError: when this cannot happen in this state.
    """
    move = INSTANCE[state][happening]
    if move.reaction is Reaction.IMPOSSIBLE:
        raise LifecycleError(f"an instance that is {state} cannot have {happening}")
    return move


class ActivityState(StrEnum):
    """One attempt of an activity. The values are those of activity records, and ``queued`` before there is one."""

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

    CLAIMED = "claimed"  # a worker has a delivery of its work item in hands
    BEAT = "beat"  # heartbeat or progress of its holder
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the user's code raised
    TIMED_OUT = "timed out"
    EXPIRED = "expired"  # waited longer than its queue timeout
    CRASHED = "crashed"  # its executor ended
    SILENT = "silent"  # its record stood still for the take time, or its holder's lock file was free
    CANCEL = "cancel"  # the instance was terminated
    CONFIRMED = "confirmed"  # the executor says that nothing of it runs any more


class ActivityReaction(StrEnum):
    """What is done about it."""

    RUN = "run"
    RUN_NEXT = "run next"  # as the next attempt: the loss counts against no retry policy
    REFRESH = "refresh"  # the record's row
    REPORT = "report"  # record the outcome, put the response, delete the work item
    REPEAT = "repeat"  # put the recorded response again, delete the work item
    REQUEUE = "requeue"  # leave the work item to the next attempt
    ASK = "ask"  # the executor to cancel, then wait for its word
    CLOSE = "close"  # record that nothing runs any more, delete the work item
    DROP = "drop"  # delete the work item; nothing ever ran
    WAIT = "wait"  # somebody else holds it: look again later
    IGNORE = "ignore"


class ActivityMove(NamedTuple):
    """A reaction and the state after it."""

    reaction: ActivityReaction
    state: ActivityState


def _row(
    state: ActivityState, **moves: tuple[ActivityReaction, ActivityState]
) -> dict[ActivityHappening, ActivityMove]:
    """A row: everything not named is set aside."""
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
    ),
    _S.CANCELLING: _row(
        _S.CANCELLING,
        CLAIMED=(_R.WAIT, _S.CANCELLING),
        BEAT=(_R.REFRESH, _S.CANCELLING),
        # However the attempt ended, nothing of it runs any more, and nobody waits for what it found.
        SUCCEEDED=(_R.CLOSE, _S.CANCELLED),
        FAILED=(_R.CLOSE, _S.CANCELLED),
        TIMED_OUT=(_R.CLOSE, _S.CANCELLED),
        CRASHED=(_R.CLOSE, _S.CANCELLED),
        SILENT=(_R.CLOSE, _S.CANCELLED),
        CONFIRMED=(_R.CLOSE, _S.CANCELLED),
    ),
    _S.COMPLETED: _row(_S.COMPLETED, CLAIMED=(_R.REPEAT, _S.COMPLETED)),
    _S.FAILED: _row(_S.FAILED, CLAIMED=(_R.REPEAT, _S.FAILED)),
    _S.CANCELLED: _row(_S.CANCELLED, CLAIMED=(_R.DROP, _S.CANCELLED)),
    _S.LOST: _row(_S.LOST, CLAIMED=(_R.RUN_NEXT, _S.RUNNING), CANCEL=(_R.DROP, _S.CANCELLED)),
}


def react_activity(state: ActivityState, happening: ActivityHappening) -> ActivityMove:
    """The reaction of an attempt of an activity."""
    return ACTIVITY[state][happening]
