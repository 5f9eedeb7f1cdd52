"""Finds retry decisions and rewinds in a history. A replay uses the found decisions and asks no retry policy again."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import GenericEvent, HistoryEvent, OrchestrationInstance, TimerCreated
from airflow_provider_taskhub.engine.identity import action_id
from airflow_provider_taskhub.engine.retry import RetryDecision

_RETRY = "retry"


def retry_role(decision: RetryDecision, number: int) -> str:
    """Return the role of the timer that follows a failed attempt. The timer's row stores it as ``TaskHubRole``.

    :param decision: decision of the retry policy.
    :param number: number of the failed attempt's action. It shows which attempt the timer belongs to if several tasks
        fail one after the other.
    """
    return f"{_RETRY} {decision} {number}"


def retry_of(timer: TimerCreated) -> tuple[RetryDecision, int] | None:
    """Return the retry decision that a timer's row stores, and the number of the failed attempt's action.

    :param timer: the event that made the timer.
    :returns: None if the row has no retry decision.
    """
    word, _, rest = (timer.taskhub_role or "").partition(" ")
    decision, _, number = rest.partition(" ")
    if word != _RETRY or decision not in (RetryDecision.AGAIN, RetryDecision.LAST) or not number.isdecimal():
        return None
    return RetryDecision(decision), int(number)


def verdict_of(
    timer: TimerCreated, number: int, instance: OrchestrationInstance, *, rewinds: int
) -> RetryDecision | None:
    """Return the retry decision about a failed attempt if this timer follows that attempt; else None.

    Earlier versions wrote timer rows without ``TaskHubRole``. For such a row the function compares the timer's identity
    with the identities of all possible decisions.

    :param timer: the event that made the timer.
    :param number: number of the failed attempt's action.
    :param instance: the instance, with its current execution id.
    :param rewinds: upper bound of the number of rewinds that the timer's identity can count. Every number up to this
        bound is tried.
    """
    told = retry_of(timer)
    if told is not None:
        return told[0] if told[1] == number else None
    for count in range(rewinds + 1):
        for decision in (RetryDecision.AGAIN, RetryDecision.LAST):
            role = retry_role(decision, number)
            name = action_id(instance, timer.event_id, role, "", input=timer.fire_at.text(), rewinds=count)
            if name == timer.taskhub_action_id:
                return decision
    return None


class Recorded:
    """Finds in a history what retry policies have decided, and what rewinds have rewritten.

    One object is made for each history that is loaded into memory.

    :param past: the history of an instance since its last ``continue_as_new``.
    :ivar rewinds: upper bound of the number of rewinds that the identity of an action in the history can count.
    :ivar rewound: number of ExecutionCompleted events that rewinds have rewritten, one for each rewind.
    """

    def __init__(self, past: Iterable[HistoryEvent] = ()) -> None:
        self._timers: dict[int, TimerCreated] = {}
        self.rewinds = self.rewound = 0
        for event in past:
            if isinstance(event, TimerCreated):
                self._timers[event.event_id] = event
            elif isinstance(event, GenericEvent):
                self.rewound += event.is_rewind
                self.rewinds += event.is_rewind or event.is_message

    def decision(
        self, timer: int, attempt: int, instance: OrchestrationInstance
    ) -> tuple[RetryDecision, Timestamp] | None:
        """Return the retry decision about a failed attempt, and when the timer of this decision fires.

        :param timer: number of the next action after the failure. If a retry timer followed, it is that action.
        :param attempt: number of the failed attempt's action.
        :param instance: the instance, with its current execution id.
        :returns: None if no timer of a retry policy followed.
        """
        event = self._timers.get(timer)
        decision = event and verdict_of(event, attempt, instance, rewinds=self.rewinds)
        return (decision, event.fire_at) if event and decision else None
