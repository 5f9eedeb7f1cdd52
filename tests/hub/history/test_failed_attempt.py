"""Which attempt's log a failed orchestration is explained by."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from airflow_provider_taskhub.app import App, OrchestrationContext
from airflow_provider_taskhub.engine.events import OrchestrationInstance, Status
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.storage.primitives import PutBlob
from airflow_provider_taskhub.storage.sqlite.store import SqliteStore
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.in_process_worker import house

app = App("families", version="1")


@app.activity
def load(path: str) -> None:
    if path:
        raise OSError(f"no {path}")


@app.orchestrator
async def child(ctx: OrchestrationContext, path: str) -> None:
    await ctx.call_activity(load, "")
    await ctx.call_activity(load, path)


@app.orchestrator
async def parent(ctx: OrchestrationContext, path: str) -> None:
    try:
        await ctx.call_activity(load, "the first")
    except Exception:
        ctx.set_custom_status("the first is not needed")
    await ctx.call_sub_orchestrator(child, path)


@app.orchestrator
async def grandparent(ctx: OrchestrationContext, path: str) -> None:
    await ctx.call_sub_orchestrator(parent, path)


@pytest.mark.parametrize("top", ["top", "top."])
@pytest.mark.parametrize("orchestrator", ["child", "parent", "grandparent"])
def test_the_attempt_that_failed_last_also_in_a_child_of_a_child(orchestrator: str, top: str) -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await client.start(orchestrator, "flights", instance_id=top)
            ended = await client.wait(top, timeout=timedelta(minutes=1))
            assert ended.status is Status.FAILED
            listed = (await client.list()).instances
            failing = next(state for state in listed if state.name == "child")
            run_of_child = OrchestrationInstance(instance_id=failing.instance_id, execution_id=failing.execution_id)
            log = log_name(run_of_child, 1, 1)
            await store.execute(PutBlob(container=client.hub.names.logs, name=log, data=b"last words"))
            attempt = await client.instance(top).failed_attempt()
            assert attempt is not None
            assert (attempt.name, attempt.task_id, attempt.log) == ("load", 1, log)

    run(play(), limit=timedelta(minutes=5))


@app.orchestrator
async def own_error(ctx: OrchestrationContext, path: str) -> None:
    try:
        await ctx.call_activity(load, path)
    except Exception:
        await ctx.call_activity(load, "")
    raise AttributeError("of the orchestrator's own")


@app.orchestrator
async def first_of_two(ctx: OrchestrationContext, path: str) -> None:
    errors = []
    for name in (f"{path} 1", f"{path} 2"):
        try:
            await ctx.call_activity(load, name)
        except Exception as error:
            errors.append(error)
    raise ValueError("both failed") from errors[0]


@pytest.mark.parametrize(("orchestrator", "task_id"), [("own_error", None), ("first_of_two", 0)])
def test_only_an_attempt_that_made_the_instance_fail_explains_it(orchestrator: str, task_id: int | None) -> None:
    clock = VirtualClock()

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            client = living.client
            await client.start(orchestrator, "flights", instance_id="i")
            ended = await client.wait("i", timeout=timedelta(minutes=1))
            assert ended.status is Status.FAILED
            instance = OrchestrationInstance(instance_id="i", execution_id=ended.execution_id)
            for number in range(2):
                log = log_name(instance, number, 1)
                await store.execute(PutBlob(container=client.hub.names.logs, name=log, data=b"last words"))
            attempt = await client.instance("i").failed_attempt()
            assert (None if attempt is None else attempt.task_id) == task_id

    run(play(), limit=timedelta(minutes=5))


def test_the_workers_line_of_a_failed_orchestration_says_where_its_code_failed() -> None:
    clock = VirtualClock()
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if 'raise AttributeError("of the' in text
    )

    async def play() -> None:
        async with SqliteStore(None, clock=clock) as store, house(store, app, clock=clock) as living:
            await living.client.start("own_error", "flights", instance_id="i")
            await living.client.wait("i", timeout=timedelta(minutes=1))

    with capture_logs() as logs:
        run(play(), limit=timedelta(minutes=5))
    (said,) = [entry for entry in logs if entry["event"] == "instance_ended"]
    assert (said["error"], said["at"]) == (
        "AttributeError: of the orchestrator's own",
        f"{__file__}:{line}, in own_error",
    )
