"""Decides what a try of an Airflow task does with the instance that it finds. No I/O.

:func:`found` names what the instance is to the task. :data:`REACTIONS` gives the decision for each such case and each
value of the operator's parameter ``on_retry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.hooks.identity import GENERATION_TAG
from airflow_provider_taskhub.no_input import NO_INPUT

if TYPE_CHECKING:
    from airflow_provider_taskhub.hooks.identity import TaskIdentity
    from airflow_provider_taskhub.hub.model import InstanceState


class OnRetry(StrEnum):
    """What a retry of the task does with an instance that has ended without a result."""

    REWIND = "rewind"
    """A failed instance goes on from before its failure. A terminated instance starts from its beginning."""
    RESTART = "restart"
    """The instance starts from its beginning."""
    ATTACH = "attach"
    """The retry starts nothing: the task fails again with the error of the instance, until somebody rewinds it."""


class OnClear(StrEnum):
    """What the first try after a clear of the task does with an instance that has ended without a result."""

    REWIND = "rewind"
    """An instance that has failed, or that Airflow has terminated, goes on from there."""
    RESTART = "restart"
    """A new instance starts."""


class FoundInstance(StrEnum):
    """What a task finds under the instance id that it wants.

    "Mine" means: this task started the instance in this DAG run, in its current generation.
    """

    NOTHING = "nothing"
    LIVE = "mine, live"
    COMPLETED = "mine, completed"
    FAILED = "mine, failed"
    FAILED_OTHERWISE = "mine, failed, and a rewind would not do what the task asks for now"
    TERMINATED = "mine, terminated or cancelled"
    STOPPED = "mine, terminated by Airflow before the task was cleared"
    OLDER_LIVE = "an older generation, live"
    OLDER_ENDED = "an older generation, ended"
    FOREIGN_LIVE = "another's, live"
    FOREIGN_ENDED = "another's, ended"


class StartDecision(StrEnum):
    """What the task does about the instance that it finds."""

    START = "start"
    ATTACH = "attach"
    RETURN = "return"
    REWIND = "rewind"
    CONTINUE = "rewind although terminated"
    REPLACE = "replace"
    TERMINATE_AND_REPLACE = "terminate and replace"
    REFUSE = "refuse"


def _always(decision: StartDecision) -> dict[OnRetry, StartDecision]:
    return dict.fromkeys(OnRetry, decision)


REACTIONS: Mapping[FoundInstance, Mapping[OnRetry, StartDecision]] = {
    FoundInstance.NOTHING: _always(StartDecision.START),
    FoundInstance.LIVE: _always(StartDecision.ATTACH),
    FoundInstance.COMPLETED: _always(StartDecision.RETURN),
    FoundInstance.FAILED: {
        OnRetry.REWIND: StartDecision.REWIND,
        OnRetry.RESTART: StartDecision.REPLACE,
        OnRetry.ATTACH: StartDecision.RETURN,
    },
    FoundInstance.FAILED_OTHERWISE: {
        OnRetry.REWIND: StartDecision.REPLACE,
        OnRetry.RESTART: StartDecision.REPLACE,
        OnRetry.ATTACH: StartDecision.RETURN,
    },
    FoundInstance.TERMINATED: {
        OnRetry.REWIND: StartDecision.REPLACE,
        OnRetry.RESTART: StartDecision.REPLACE,
        OnRetry.ATTACH: StartDecision.RETURN,
    },
    FoundInstance.STOPPED: _always(StartDecision.CONTINUE),
    FoundInstance.OLDER_LIVE: _always(StartDecision.TERMINATE_AND_REPLACE),
    FoundInstance.OLDER_ENDED: _always(StartDecision.REPLACE),
    FoundInstance.FOREIGN_LIVE: _always(StartDecision.REFUSE),
    FoundInstance.FOREIGN_ENDED: _always(StartDecision.REPLACE),
}
STARTS = (StartDecision.START, StartDecision.REPLACE, StartDecision.TERMINATE_AND_REPLACE)
"""The decisions that begin a new run of the instance. The new run gets the tags of this try."""
REACTION_TEXTS: Mapping[StartDecision, str] = {
    StartDecision.START: "started",
    StartDecision.ATTACH: "runs already: attached to it",
    StartDecision.RETURN: "has ended already: taking its result",
    StartDecision.REWIND: "had failed: it goes on from before its failure, and what had completed does not run again",
    StartDecision.CONTINUE: "had been terminated: it goes on from there, and what had completed does not run again",
    StartDecision.REPLACE: "had ended without a result for this run: started again",
    StartDecision.TERMINATE_AND_REPLACE: "belonged to an older run of this task: terminated and started again",
}
"""What the task's log says after "instance ID", by decision."""


def found(
    state: InstanceState | None,
    task: TaskIdentity,
    generation: int,
    *,
    otherwise: bool = False,
    stopped: bool = False,
) -> FoundInstance:
    """Return what an instance row means for this task.

    :param state: the row; None: there is no instance with the id.
    :param task: the Airflow task.
    :param generation: the task's current generation.
    :param otherwise: True: a rewind of the instance would not do what the task asks for.
    :param stopped: True: if the instance was terminated, Airflow has done that, and then the task was cleared.
    """
    from airflow_provider_taskhub.engine.events import Status

    if state is None:
        return FoundInstance.NOTHING
    if not task.started(state.tags):
        return FoundInstance.FOREIGN_ENDED if state.status.is_final else FoundInstance.FOREIGN_LIVE
    if (state.tags or {}).get(GENERATION_TAG) != str(generation):
        return FoundInstance.OLDER_ENDED if state.status.is_final else FoundInstance.OLDER_LIVE
    if not state.status.is_final:
        return FoundInstance.LIVE
    if state.status is Status.COMPLETED:
        return FoundInstance.COMPLETED
    if state.status is not Status.FAILED:
        goes_on = stopped and not otherwise and state.status is Status.TERMINATED
        return FoundInstance.STOPPED if goes_on else FoundInstance.TERMINATED
    return FoundInstance.FAILED_OTHERWISE if otherwise else FoundInstance.FAILED


def difference(state: InstanceState, *, orchestrator: str, version: str, given: Any) -> str | None:
    """Return how a failed instance differs from what the task asks for now; None: it does not differ.

    A rewound instance keeps its orchestrator, version and input. If the DAG was changed after the failure, or the input
    is another one in each try, the task must not get the result of the old input.

    :param state: the row of the failed instance, with its input.
    :param orchestrator: the orchestrator that the task asks for now.
    :param version: the version that the task asks for now; "": any.
    :param given: the input that the task gives now; ``NO_INPUT``: none.
    """
    from airflow_provider_taskhub.codec import dumps
    from airflow_provider_taskhub.hooks.outputs import plain

    if state.name != orchestrator:
        return f"it was started with orchestrator {state.name!r}, and the task now asks for {orchestrator!r}"
    if (state.version or "") != version:
        return f"it was started with version {state.version or ''!r}, and the task now asks for {version!r}"
    asked = None if given is NO_INPUT else dumps(given, what=f"input of orchestrator {orchestrator!r}")
    return None if plain(state.input) == plain(asked) else "the task now has another input"
