"""The commands that terminate, suspend, resume, rewind or restart an instance, or send an event to it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from airflow_provider_taskhub.cli.instances.options import InstanceId, Reason, value_of
from airflow_provider_taskhub.cli.instances.starting import finish, warn_if_nobody, watch
from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import as_json, console
from airflow_provider_taskhub.cli.watching import terminated
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.client.suspension import SUSPENDED_WITHIN
from airflow_provider_taskhub.client.termination import was_asked_to_clean_up
from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.engine.validation import LONGEST_GRACE
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.hub.refusals import refused, state_text


def terminate(
    instance_id: InstanceId,
    reason: Annotated[str, typer.Option(help="Reason. It becomes the output of the instance.")] = "",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until no activity can begin, and none with an activity record runs any more."
        ),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.0, help="Wait at most so many seconds. Exit status 6 after that.")
    ] = None,
    recurse: Annotated[
        bool, typer.Option("--recurse/--no-recurse", help="Also end the children that still run.")
    ] = True,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=LONGEST_GRACE.total_seconds(),
            help="Let the orchestrator clean up for at most so many seconds: its await raises TerminationRequested.",
        ),
    ] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """End an instance and its children now, or with --grace after their clean-up.

    A worker checks every 1 s (on Azure every 10 s) whether the instance has ended, and then ends activities that
    have no activity record.

    Example: taskhub instances terminate flights-2013 --reason "wrong year" --wait
    """

    async def work(client: Client) -> tuple[InstanceState, bool]:
        time = None if grace is None else timedelta(seconds=grace)
        again = time is not None and await was_asked_to_clean_up(client.instance(instance_id))
        if not wait:
            return await client.terminate(instance_id, reason, recurse=recurse, grace=time), again
        limit = None if timeout is None else timedelta(seconds=timeout)
        state = await terminated(client, instance_id, reason, recurse=recurse, grace=time, timeout=limit, quiet=json)
        return state, again

    state, again = with_client(hub, work)
    if json:
        as_json(state)
        return
    if again and not state.status.is_final:
        console.print(
            f"{instance_id}: {_state(state)}. It is about to end already: the first request counts", soft_wrap=True
        )
    elif wait or not state.status.is_final:
        console.print(f"{instance_id}: {state.status if state.status.is_final else 'asked to end'}", soft_wrap=True)
    elif state.status is Status.COMPLETED:
        console.print(str(refused(state, "there is nothing to end")), soft_wrap=True)
    else:
        console.print(f"{instance_id}: {_state(state)}. What still runs of it was asked to end", soft_wrap=True)


def suspend(
    instance_id: InstanceId,
    reason: Reason = "",
    recurse: Annotated[
        bool, typer.Option("--recurse", help="Also suspend its children and theirs, and wait until all are suspended.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.0, help="With --recurse, wait at most so many seconds. Exit status 6 after that.")
    ] = SUSPENDED_WITHIN.total_seconds(),
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Suspend an instance. Running activities continue, and nothing else begins until `resume`.

    Its children go on, unless --recurse is given.

    Example: taskhub instances suspend flights-2013 --recurse --reason "the cluster is being moved"
    """

    async def work(client: Client) -> InstanceState:
        return await client.suspend(instance_id, reason, recurse=recurse, timeout=timedelta(seconds=timeout))

    state, what = with_client(hub, work), "suspended with its children" if recurse else "asked to suspend"
    again = state.is_held and not recurse
    _report(state, f"{_state(state)}: nothing changes" if again else what, json=json)


def resume(
    instance_id: InstanceId,
    reason: Reason = "",
    recurse: Annotated[bool, typer.Option("--recurse", help="Also resume its children, and theirs.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Resume a suspended instance. The instance also processes the messages that arrived during the suspension.

    Example: taskhub instances resume flights-2013
    """

    async def work(client: Client) -> InstanceState:
        return await client.resume(instance_id, reason, recurse=recurse)

    state, what = with_client(hub, work), f"asked to resume{' with its children' if recurse else ''}"
    if not state.is_held and not recurse:
        what = f"{_state(state)}, and not suspended: this only takes back a suspension that was asked for just now"
    _report(state, what, json=json)


def rewind(
    instance_id: InstanceId,
    reason: Annotated[str, typer.Option(help="Reason. The history keeps it.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the instance has ended again.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Continue a failed instance from the point before its failure. Completed activities do not run again.

    Decisions after the failure, such as a cleanup, are taken back. A failure that the orchestrator handled stays
    handled if the orchestrator decided something after it and before the failure that ended the instance.

    Example: taskhub instances rewind flights-2013 --reason "the table is there now" --wait
    """

    async def work(client: Client) -> InstanceState:
        state = await client.rewind(instance_id, reason)
        return await watch(client, instance_id, None, quiet=json) if wait else state

    state = with_client(hub, work)
    if wait:
        finish(state, json=json, ended=True)
    else:
        _report(state, "rewound", json=json)


def restart(
    instance_id: InstanceId,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Use a new id. The old instance may be in any state.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the instance has ended.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Start an instance again with the input, version and tags that it had, and print its id.

    Example: taskhub instances restart flights-2013 --wait
    """

    async def work(client: Client) -> InstanceState:
        state = await client.restart(instance_id, new_id=new_id)
        await warn_if_nobody(client, state.name)
        return await watch(client, state.instance_id, None, quiet=json) if wait else state

    finish(with_client(hub, work), json=json, ended=wait)


def raise_event(
    instance_id: InstanceId,
    name: Annotated[str, typer.Argument(help="Name of the event.")],
    data: Annotated[str | None, typer.Option("--data", help="Data of the event: one JSON value.")] = None,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Send an external event to an instance.

    Example: taskhub instances raise-event flights-2013 approve --data '{"by": "ann"}'
    """

    async def work(client: Client) -> None:
        await client.raise_event(instance_id, name, value_of(data, "--data"))

    with_client(hub, work)
    if json:
        as_json({"instance_id": instance_id, "event": name, "sent": True})
        return
    console.print(f"{instance_id}: event {name} sent", soft_wrap=True)


def _state(state: InstanceState) -> str:
    return f"is {state_text(state)}"


def _report(state: InstanceState, what: str, *, json: bool) -> None:
    if json:
        as_json(state)
    else:
        console.print(f"{state.instance_id}: {what}", soft_wrap=True)
