"""Turns partitions, workers, orders and messages in quarantine into the JSON of the page. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.hooks.masking import masked
from airflow_provider_taskhub.hub.history.places import LimitState
from airflow_provider_taskhub.hub.model import Control, ControlKind, Member, PartitionState
from airflow_provider_taskhub.plugins.timeline import milliseconds

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Quarantined

_LONGEST = 4_000
_MOST_IDS = 10
_KINDS = {
    ControlKind.OFFLINE: "offline",
    ControlKind.PROHIBIT: "prohibited to {node}",
    ControlKind.CAP: "{node}: at most {value} partitions",
    ControlKind.TURN: "at most {value} partitions move in a scan",
    ControlKind.DRAIN: "{node} is drained",
}


def partition(state: PartitionState, orders: Sequence[Control]) -> dict[str, Any]:
    """Return one line of the list of partitions.

    :param state: the partition.
    :param orders: the orders of administrators that are in force in the hub.
    """
    return {
        "partition": state.partition,
        "queue": state.queue,
        "owner": state.owner,
        "state": str(state.state),
        "next_owner": state.next_owner,
        "draining": state.draining,
        "epoch": state.epoch,
        "owned_since": milliseconds(state.owned_since),
        "last_renewal": milliseconds(state.last_renewal),
        "polled": milliseconds(state.polled),
        "messages": state.messages,
        "load": state.load,
        "kicked": masked(state.kicked) or None,
        "offline": state.offline,
        "failover": None
        if state.failover is None
        else {
            "lost": state.failover.lost,
            "at": milliseconds(state.failover.at),
            "silent": state.failover.silent,
            "proven": state.failover.proven,
            "messages": state.failover.messages,
            "instances": state.failover.instances,
            "attempts": state.failover.attempts,
        },
        "orders": [order(one) for one in orders if one.partition == state.partition],
    }


def limit(state: LimitState, *, names: bool) -> dict[str, Any]:
    """Return one line of the list of limits.

    :param state: the limit.
    :param names: True: also return which instances run under it. They belong to DAGs that the user may not see.
    """
    ids = list(dict.fromkeys(place.instance.instance_id for place in state.holders))
    return {
        "kind": str(state.kind),
        "name": state.name,
        "limit": state.limit,
        "shown": state.shown,
        "declared": state.declared,
        "by": state.by or None,
        "running": len(state.holders),
        "waiting": state.waiting,
        "oldest": milliseconds(state.oldest),
        "ids": ids[:_MOST_IDS] if names else None,
        "more": max(0, len(ids) - _MOST_IDS) if names else 0,
    }


def order(control: Control) -> dict[str, Any]:
    """Return an order of an administrator: what it says, and who gave it, when and why. :param control: the order."""
    return {
        "kind": str(control.kind),
        "text": _KINDS[control.kind].format(node=control.node or "every worker", value=control.value),
        "node": control.node,
        "by": control.by,
        "at": milliseconds(control.at),
        "reason": masked(control.reason)[:_LONGEST],
    }


def worker(member: Member, states: Sequence[PartitionState], drained: Control | None, *, names: bool) -> dict[str, Any]:
    """Return one line of the list of workers.

    :param member: the worker.
    :param states: all partitions of the hub.
    :param drained: the order by which the worker may have no partition; None: there is none.
    :param names: True: also return the names of its orchestrators and activities.
    """
    return {
        "worker": member.worker,
        "alive": member.alive,
        "started": milliseconds(member.started),
        "roles": list(member.roles),
        "pools": list(member.pools),
        "apps": dict(member.apps),
        "running": member.running,
        "slots": member.slots_for(spark=False) if member.slots else None,
        "spark_slots": member.slots_for(spark=True) if member.spark_activities else None,
        "taken_over": dict(member.taken_over),
        "weight": member.weight,
        "partitions": [state.partition for state in states if state.owner == member.worker],
        "drained": order(drained) if drained else None,
        "orchestrators": sorted(member.orchestrators) if names else None,
        "activities": sorted(member.activities) if names else None,
    }


def message(item: Quarantined) -> dict[str, Any]:
    """Return one line of the list of messages in quarantine. :param item: the message."""
    return {
        "id": item.message_id,
        "queue": item.queue,
        "instance": item.instance_id,
        "since": milliseconds(item.since),
        "inserted": milliseconds(item.inserted),
        "deliveries": item.dequeue_count,
        "cause": masked(item.cause)[:_LONGEST],
        "stuck": item.stuck is not None,
    }
