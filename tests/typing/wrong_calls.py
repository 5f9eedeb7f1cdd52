"""Calls that a type checker must refuse: each such line has a comment with a part of the error's text."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_taskhub.app import App, OrchestrationContext, RetryPolicy
from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor
from airflow_provider_taskhub.testing import Event, run
from tests.typing.flights_app import Delays, Job, count_rows, flights_delays, list_months, one_month, publish

app = App("wrong", version=3)  # refused: "version" to "App" has incompatible type "int"
RetryPolicy(max_attempts="3")  # refused: "max_attempts" to "RetryPolicy" has incompatible type "str"
RetryPolicy(max_attempts=3, first_retry_interval=5)  # refused: "first_retry_interval" to "RetryPolicy"


@app.activity(timeout=30)  # refused: No overload variant
def slow() -> None: ...


@app.orchestrator
async def wrong(ctx: OrchestrationContext) -> None:
    ctx.call_activity(list_months, "2013")  # refused: incompatible type "Callable[[int], list[int]]"
    ctx.call_activity(count_rows, [1])  # refused: incompatible type "Callable[[SparkSession, int], int]"
    ctx.call_activity(list_months, 2013, timeout=30)  # refused: Unexpected keyword argument "timeout"
    ctx.call_activity(list_months, 2013, retry=3)  # refused: No overload variant
    ctx.call_activity(42)  # refused: No overload variant
    ctx.call_sub_orchestrator(one_month, "May")  # refused: "call_sub_orchestrator"
    ctx.call_sub_orchestrator(flights_delays, {"year": 2013})  # refused: "call_sub_orchestrator"
    ctx.timeout("60")  # refused: "timeout" of "OrchestrationContext" has incompatible type "str"
    ctx.branch(one_month)  # refused: "branch" of "OrchestrationContext" has incompatible type
    ctx.create_timer(60)  # refused: "create_timer" of "OrchestrationContext" has incompatible type "int"
    ctx.send_event("f-1", 3)  # refused: "send_event" of "OrchestrationContext" has incompatible type "int"
    ctx.when_all([1, 2])  # refused: "when_all" of "OrchestrationContext" has incompatible type "list[int]"
    ctx.call_activity(list_months, "2013", result_type=int)  # refused: incompatible type "Callable[[int], list[int]]"
    delay = await ctx.call_activity("delays", 1, result_type=Delays)
    print(delay.hours)  # refused: "Delays" has no attribute "hours"
    rows = await ctx.call_activity(count_rows, 1)
    rows.upper()  # refused: "int" has no attribute "upper"
    url = await ctx.call_activity(publish, {})
    await ctx.call_activity(count_rows, url)  # refused: "call_activity"
    months = await ctx.when_all([ctx.call_sub_orchestrator(one_month, 1)])
    print(months.minutes)  # refused: "list[dict[str, float]]" has no attribute
    approved = await ctx.wait_for_external_event("approve", bool)
    print(approved.by)  # refused: "bool" has no attribute "by"


async def client(client: Client) -> None:
    await client.start(flights_delays)  # refused: "start" of "Client" has incompatible type
    await client.start("flights_delays", policy="replace")  # refused: "policy" to "start" of "Client"
    await client.wait("f-1", timeout=60)  # refused: "timeout" to "wait" of "Client" has incompatible type "int"
    await client.list(statuses=["Running"])  # refused: List item 0 has incompatible type "str"
    await client.instance("f-1").raise_event()  # refused: Missing positional argument "name"
    await client.members()  # refused: "Client" has no attribute "members"
    print((await client.get("f-1")).status)  # refused: Item "None" of


def test() -> None:
    run(flights_delays, {"year": 2013})  # refused: Argument 1 to "run" has incompatible type
    run(flights_delays, Job(2013, []), events=["approve"])  # refused: has incompatible type "str"; expected "Event |
    Event(name="approve", after=5)  # refused: "after" to "Event" has incompatible type "int"


TaskHubOperator(task_id="a", activity=7)  # refused: "activity" to "TaskHubOperator"
TaskHubOperator(task_id="a", orchestrator=7)  # refused: "orchestrator" to "TaskHubOperator"
TaskHubOperator(task_id="a", orchestrator="a", no_worker_timeout="5 min")  # refused: "no_worker_timeout"
TaskHubSensor(task_id="b", instance_id=timedelta(0))  # refused: "instance_id" to "TaskHubSensor"
