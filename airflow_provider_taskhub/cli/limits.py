"""``taskhub limits``: shows the activities that have a limit."""

from __future__ import annotations

from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, table
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hub.history.places import LimitState


def limits(hub: HubName = None, json: AsJson = False) -> None:
    """List the activities with a limit: how many run in the whole hub, which, and about how many wait.

    An activity gets a limit in its code: `@app.activity(limit=2)`.

    Example: taskhub limits --json
    """

    async def work(client: Client) -> tuple[LimitState, ...]:
        return await client.admin.limits()

    found = with_client(hub, work)
    if json:
        as_json([_shown(state) for state in found])
        return
    rows = [(one.activity, one.limit, len(one.holders), one.waiting, ", ".join(_holders(one))) for one in found]
    table("activities with a limit", ("activity", "limit", "running", "waiting", "who"), rows)


def _holders(state: LimitState) -> list[str]:
    return [f"{place.instance.instance_id} #{place.task_id}" for place in state.holders]


def _shown(state: LimitState) -> dict[str, object]:
    holders = [
        {"instance_id": one.instance.instance_id, "task_id": one.task_id, "attempt": one.attempt, "worker": one.worker}
        for one in state.holders
    ]
    return {
        "activity": state.activity,
        "limit": state.limit,
        "running": len(state.holders),
        "waiting": state.waiting,
        "holders": holders,
    }
