"""What the past of a generation says about its retries and rewinds: replay follows it instead of deciding again."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import GenericEvent, HistoryEvent, OrchestrationInstance, TimerCreated
from airflow_provider_taskhub.engine.identity import action_id
from airflow_provider_taskhub.engine.retry import RetryDecision

_RETRY = "retry"


def retry_role(verdict: RetryDecision, number: int) -> str:
    """The role of the timer that follows a failed attempt. Its row has it as ``TaskHubRole``.

    :param number: of the attempt's action: of two tasks that fail one after the other only one may take the timer.
    """
    return f"{_RETRY} {verdict} {number}"


def retry_of(timer: TimerCreated) -> tuple[RetryDecision, int] | None:
    """What a retry policy decided, and the number of the attempt's action; None: its row does not say."""
    word, _, rest = (timer.taskhub_role or "").partition(" ")
    verdict, _, number = rest.partition(" ")
    if word != _RETRY or verdict not in (RetryDecision.AGAIN, RetryDecision.LAST) or not number.isdecimal():
        return None
    return RetryDecision(verdict), int(number)


def verdict_of(
    timer: TimerCreated, number: int, instance: OrchestrationInstance, *, rewinds: int
) -> RetryDecision | None:
    """What a retry policy decided about a failed attempt, if this timer followed that attempt.

    :param number: of the attempt's action. :param instance: with the generation's execution id.
    :param rewinds: for a row without ``TaskHubRole``, as earlier versions wrote it: an upper bound of the rewinds that
        its identity may count. Every count up to it is tried.
    """
    told = retry_of(timer)
    if told is not None:
        return told[0] if told[1] == number else None
    for count in range(rewinds + 1):
        for verdict in (RetryDecision.AGAIN, RetryDecision.LAST):
            role = retry_role(verdict, number)
            name = action_id(instance, timer.event_id, role, "", input=timer.fire_at.text(), rewinds=count)
            if name == timer.taskhub_action_id:
                return verdict
    return None


class Recorded:
    """Read once from the past, when a generation is loaded.

    :param past: the history of the generation.
    :ivar rewound: completions that rewinds took back.
    """

    def __init__(self, past: Iterable[HistoryEvent] = ()) -> None:
        self._timers: dict[int, TimerCreated] = {}
        self._rewinds = self.rewound = 0
        for event in past:
            if isinstance(event, TimerCreated):
                self._timers[event.event_id] = event
            elif isinstance(event, GenericEvent):
                self.rewound += event.is_rewind
                self._rewinds += event.is_rewind or event.is_message

    def verdict(
        self, timer: int, attempt: int, instance: OrchestrationInstance
    ) -> tuple[RetryDecision, Timestamp] | None:
        """What followed a failed attempt, and when its timer fires; None: no timer of a retry policy did.

        :param timer: number of the next action. :param attempt: number of the attempt's action.
        """
        event = self._timers.get(timer)
        verdict = event and verdict_of(event, attempt, instance, rewinds=self._rewinds)
        return (verdict, event.fire_at) if event and verdict else None
