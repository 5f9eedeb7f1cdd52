"""Admission: decide what the worker does with a message, before any code of the instance runs.

The module is one table. A message has a kind, such as "event". It has a relation to the stored run of its instance:
the run that the sentinel names. The stored run is live, or it has ended. The table has one rule for each combination
of kind, relation and state. The page "Admission" of the documentation explains the rules.
"""

from __future__ import annotations

from enum import StrEnum

from airflow_provider_taskhub.engine.events import ExecutionStarted, ExecutionTerminated
from airflow_provider_taskhub.engine.identity import generation_of, run_name, same_start
from airflow_provider_taskhub.hub.admission import rules
from airflow_provider_taskhub.hub.admission.facts import Facts, Incoming, Judged, MessageKind, Verdict
from airflow_provider_taskhub.hub.admission.rules import Rule

ORPHAN_TURNS = 6
"""How often a message without a run is judged again, after 0.1, 0.4, 1.6 … s, before it is discarded. The delays add up
to two minutes. In this time, another start of the instance id may come."""


class Relation(StrEnum):
    """How the run that a message is for relates to the stored run."""

    SAME = "same"  # the message is for the stored run
    OVER = "over"  # the message is for an ended run; an answer may also be for an earlier generation of the stored run
    WAITING = "waiting"  # the run is neither stored nor ended: its start, or its generation, is not committed yet
    UNNAMED = "unnamed"  # the message does not say which run it is for


class State(StrEnum):
    """State of the stored run."""

    LIVE = "live"  # the stored run has not ended
    FREE = "free"  # there is no stored run, or the stored run has ended


def judge(message: Incoming, facts: Facts) -> Judged:
    """Decide what the worker does with a message."""
    if facts.processed(message.identity):
        return rules.discard("it is already in the history")
    if isinstance(message.event, ExecutionTerminated) and message.event.taskhub_left_over:
        return _left_over(message, facts)
    judged = TABLE[message.kind, relation(message, facts), State.LIVE if facts.live else State.FREE](message, facts)
    if judged.verdict is Verdict.ORPHAN and message.failures >= ORPHAN_TURNS:
        return rules.waits_for_a_parent(message, judged) or rules.discard(judged.reason, forgotten=True)
    if message.spent and judged.verdict in (Verdict.RETRY_SOON, Verdict.RETRY_LATER):
        return _last(message, facts, judged)
    return judged


def _left_over(message: Incoming, facts: Facts) -> Judged:
    """Decide about a terminate that only ends activities and children of a failed run.

    The message is discarded, and the settler ends them. A run that is live was rewound. Or its checkpoint was cut off
    after its parent had learned of the failure. Then the message is judged again for two minutes, because the run will
    fail again.
    """
    same = relation(message, facts) is Relation.SAME
    if same and facts.live and not facts.rewound and message.failures < ORPHAN_TURNS:
        return Judged(verdict=Verdict.ORPHAN, reason="the checkpoint with the failure of its run is not complete")
    return rules.discard("it only ends what its failed run has left running")


def _last(message: Incoming, facts: Facts, judged: Judged) -> Judged:
    """Decide about a message that goes to quarantine if one more failure is counted.

    If the message names a run, and neither a history nor a row of its instance exists, the instance was purged. Then
    the message is discarded, because no instance waits for it. The answer of a child waits for an hour before that,
    because its parent may be a child that has no row yet. The answer of a child whose scheduling event may still come
    is deferred.

    :param judged: the verdict without this rule.
    """
    names = message.run is not None or message.kind is MessageKind.ANSWER
    if names and facts.execution_id is None and not isinstance(message.event, ExecutionStarted):
        if facts.row is None:
            return rules.NEEDS_ROW
        if facts.row.execution_id is None:
            purged = rules.discard("its instance was purged", forgotten=True)
            return rules.waits_for_a_parent(message, judged) or purged
    if judged.verdict is Verdict.RETRY_LATER:  # the last checkpoint may be that of an instance which is suspended
        return rules.waits_for_a_parent(message, judged) or judged
    return rules.waits_for_its_event(message, facts, judged) or judged


def relation(message: Incoming, facts: Facts) -> Relation:
    """Return the relation of the message's run to the stored run."""
    run, current = message.run, facts.execution_id
    if run is None:
        return Relation.UNNAMED
    if current is not None and same_start(run, current):
        if message.kind is not MessageKind.ANSWER or run == current:
            return Relation.SAME
        return Relation.WAITING if generation_of(run) > generation_of(current) else Relation.OVER
    if run_name(run) in facts.ended:
        return Relation.OVER
    return Relation.WAITING


SAME, OVER, WAITING, UNNAMED = Relation.SAME, Relation.OVER, Relation.WAITING, Relation.UNNAMED
LIVE, FREE = State.LIVE, State.FREE

_RULES: dict[MessageKind, dict[tuple[Relation, State], Rule]] = {
    MessageKind.CLIENT_START: {
        (SAME, LIVE): rules.already_run,
        (SAME, FREE): rules.already_run,
        (OVER, LIVE): rules.already_run,
        (OVER, FREE): rules.already_run,
        (WAITING, LIVE): rules.client_start,
        (WAITING, FREE): rules.client_start,
        (UNNAMED, LIVE): rules.client_start,
        (UNNAMED, FREE): rules.client_start,
    },
    MessageKind.CHILD_START: {
        (SAME, LIVE): rules.already_run,
        (SAME, FREE): rules.already_run,
        (OVER, LIVE): rules.already_run,
        (OVER, FREE): rules.already_run,
        (WAITING, LIVE): rules.child_start,
        (WAITING, FREE): rules.child_start,
        (UNNAMED, LIVE): rules.child_start,
        (UNNAMED, FREE): rules.child_start,
    },
    MessageKind.ANSWER: {
        (SAME, LIVE): rules.if_asked,
        (SAME, FREE): rules.ended,
        (OVER, LIVE): rules.older,
        (OVER, FREE): rules.older,
        (WAITING, LIVE): rules.uncommitted,
        (WAITING, FREE): rules.uncommitted,
        (UNNAMED, LIVE): rules.if_asked,
        (UNNAMED, FREE): rules.unnamed_answer,
    },
    MessageKind.EVENT: {
        (SAME, LIVE): rules.process,
        (SAME, FREE): rules.ended,
        (OVER, LIVE): rules.ended,
        (OVER, FREE): rules.ended,
        (WAITING, LIVE): rules.after_the_live_run(rules.process),
        (WAITING, FREE): rules.before_the_start(rules.with_its_start),
        (UNNAMED, LIVE): rules.process,
        (UNNAMED, FREE): rules.without_name(rules.with_its_start, rules.orphan),
    },
    MessageKind.SUSPENSION: {
        (SAME, LIVE): rules.newest_only,
        (SAME, FREE): rules.ended,
        (OVER, LIVE): rules.ended,
        (OVER, FREE): rules.ended,
        (WAITING, LIVE): rules.after_the_live_run(rules.newest_only),
        (WAITING, FREE): rules.before_the_start(rules.record),
        (UNNAMED, LIVE): rules.newest_only,
        (UNNAMED, FREE): rules.without_name(rules.record, rules.ended),
    },
    MessageKind.TERMINATE: {
        (SAME, LIVE): rules.process,
        (SAME, FREE): rules.ended,
        (OVER, LIVE): rules.ended,
        (OVER, FREE): rules.ended,
        (WAITING, LIVE): rules.end_behind_live_run,
        (WAITING, FREE): rules.end_unstarted,
        (UNNAMED, LIVE): rules.process,
        (UNNAMED, FREE): rules.without_name(rules.end, rules.ended),
    },
    MessageKind.REWIND: {
        (SAME, LIVE): rules.process,
        (SAME, FREE): rules.ended,
        (OVER, LIVE): rules.ended,
        (OVER, FREE): rules.ended,
        (WAITING, LIVE): rules.after_the_live_run(rules.over),
        (WAITING, FREE): rules.before_the_start(rules.with_its_start),
        (UNNAMED, LIVE): rules.process,
        (UNNAMED, FREE): rules.without_name(rules.with_its_start, rules.ended),
    },
}
TABLE = {(kind, *place): rule for kind, row in _RULES.items() for place, rule in row.items()}
