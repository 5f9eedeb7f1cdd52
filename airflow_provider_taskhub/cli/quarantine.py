"""``taskhub quarantine``: shows the messages that no worker could process, puts them back or drops them.

A stuck instance is one whose episode (a run of its orchestrator) does not end. All its messages are in quarantine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any

import typer

from airflow_provider_taskhub.cli.options import AsJson, HubName, with_client
from airflow_provider_taskhub.cli.output import Exit, as_json, console, fail, table
from airflow_provider_taskhub.client import Client, HubAdmin
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined

app = typer.Typer(no_args_is_help=True, help="List messages that no worker could process, put them back or drop them.")

MessageIds = Annotated[list[str] | None, typer.Argument(help="Ids of messages, as `list` shows them.")]
Everything = Annotated[bool, typer.Option("--all", help="All messages in quarantine.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="List at most so many messages.")] = 100,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """List the messages in quarantine, with the cause of each.

    Example: taskhub quarantine list --json
    """

    async def work(client: Client) -> tuple[Quarantined, ...]:
        return await client.admin.quarantined(bodies=False, limit=limit + 1)

    found = with_client(hub, work)
    if json:
        as_json([_shown(item, text=False) for item in found[:limit]])
        return
    table(
        "in quarantine",
        ("id", "queue", "instance", "since", "deliveries", "cause"),
        [(i.message_id, i.queue, i.instance_id, i.since, i.dequeue_count, _first(i.cause)) for i in found[:limit]],
    )
    if len(found) > limit:
        console.print(f"more than {limit} are in quarantine: use --limit to list more", soft_wrap=True)


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="Id of the message, as `list` shows it.")],
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Print one message: the whole cause, and the text that was in the queue.

    Example: taskhub quarantine show 0f8fad5b-d9cb-469f-a165-70867728950e
    """

    async def work(client: Client) -> Quarantined | None:
        return await client.admin.find_quarantined(message_id)

    item = with_client(hub, work)
    if item is None:
        fail(f"message {message_id!r} is not in quarantine: `taskhub quarantine list` shows the ids", Exit.NOT_FOUND)
    if json:
        as_json(_shown(item, text=True))
        return
    rows = [(name, value) for name, value in _shown(item, text=False).items() if value not in (None, "")]
    table(f"message {item.message_id}", ("", ""), rows)
    typer.echo(item.text)


@app.command("put-back")
def put_back(
    message_ids: MessageIds = None, every: Everything = False, hub: HubName = None, json: AsJson = False
) -> None:
    """Return messages to their queues. Fix the cause first.

    An instance is stuck if its orchestrator computed for 10 s without an `await`. All messages of a stuck instance are
    in quarantine, and are returned together.

    Example: taskhub quarantine put-back --all
    """
    _each(message_ids, every, hub, HubAdmin.put_back, "put back", _instance, json=json)


@app.command()
def drop(
    message_ids: MessageIds = None,
    every: Everything = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    hub: HubName = None,
    json: AsJson = False,
) -> None:
    """Delete messages. No worker will process them, so an instance that needs one of them waits for ever.

    Example: taskhub quarantine drop 0f8fad5b-d9cb-469f-a165-70867728950e
    """
    if every and not yes and not typer.confirm("Delete all messages in quarantine? This cannot be undone."):
        fail("nothing was dropped", Exit.FAILED)
    _each(message_ids, every, hub, HubAdmin.drop_quarantined, "dropped", _alone, json=json)


def _each(
    message_ids: list[str] | None,
    every: bool,
    hub: str | None,
    do: Callable[[HubAdmin, str], Awaitable[bool]],
    what: str,
    together: Callable[[dict[str, Quarantined], Quarantined], Iterable[str]],
    *,
    json: bool,
) -> None:
    if bool(message_ids) == every:
        raise typer.BadParameter("give ids or --all, not both")

    async def work(client: Client) -> tuple[int, list[str], dict[str, str]]:
        there = {item.message_id: item for item in await client.admin.quarantined(bodies=False)}
        wanted = list(there) if every else list(dict.fromkeys(message_ids or ()))
        done: set[str] = set()
        failed: dict[str, str] = {}
        for message_id in wanted:
            try:
                if message_id in there and message_id not in done and await do(client.admin, message_id):
                    done.update(together(there, there[message_id]))
            except InputError as error:  # the other messages are processed nevertheless
                failed[message_id] = str(error)
        missing = [message_id for message_id in wanted if message_id not in done and message_id not in failed]
        return len(done), missing, failed

    count, missing, failed = with_client(hub, work)
    if json:
        as_json({"done": count, "missing": missing, "failed": failed})
    else:
        console.print(f"{count} {what}", soft_wrap=True)
    wrong = list(failed.values())
    if missing and not every:
        wrong.append(f"not in quarantine: {', '.join(missing)}")
    if wrong:
        fail("; ".join(wrong), Exit.FAILED if failed else Exit.NOT_FOUND)


def _alone(there: dict[str, Quarantined], item: Quarantined) -> Iterable[str]:
    return (item.message_id,)


def _instance(there: dict[str, Quarantined], item: Quarantined) -> Iterable[str]:
    """Return the ids of the messages that go back together with a message.

    If the instance of the message is stuck, these are all its messages; otherwise only the message itself.
    """
    if item.stuck is None:
        return (item.message_id,)
    return [
        other.message_id
        for other in there.values()
        if other.stuck is not None and (other.queue, other.instance_id) == (item.queue, item.instance_id)
    ]


def _shown(item: Quarantined, *, text: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "message_id": item.message_id,
        "queue": item.queue,
        "instance_id": item.instance_id,
        "since": item.since,
        "inserted": item.inserted,
        "dequeue_count": item.dequeue_count,
        "cause": item.cause,
        "stuck": item.stuck,
    }
    return shown | {"text": item.text} if text else shown


def _first(cause: str, limit: int = 200) -> str:
    line = cause.splitlines()[0] if cause else ""
    return line if len(line) <= limit else f"{line[:limit]}…"
