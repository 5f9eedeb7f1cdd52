"""Do something while tasks wait, follow the tasks, and say what is not as it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hooks.identity import DAG_TAG, RUN_TAG, TASK_TAG
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.settings import load_settings
from tests.airflow.crashes.deeds import DEEDS, Deed
from tests.airflow.crashes.waits import Wait, look, tell, waits
from tests.airflow.real import RealAirflow

LIMIT = 60.0
"""Seconds in which an instance that no task waits for must be terminated."""
PATIENCE = 120.0
"""Seconds in which everything must have ended. A task that dies with the scheduler takes the longest."""
_WAITS = ("scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting")


def do(real: RealAirflow, name: str) -> list[Wait]:
    """Bring runs to all stages, do the deed with this name, and return what became of the runs."""
    deed = DEEDS[name]
    deed.prepare(real)
    made = waits(real, name, deed.prefix)
    began = time.monotonic()
    with deed.do(real, made):
        _follow(real, deed, made, began)
    for wait in made:
        print(line(wait), flush=True)
    return made


def _follow(real: RealAirflow, deed: Deed, made: Sequence[Wait], began: float) -> None:
    """Let the instances end that may end, until everything has ended or time is over."""
    deadline = time.monotonic() + PATIENCE
    left = list(made)
    while left and time.monotonic() < deadline:
        look(real, left)
        if generation := 2 if deed.again else 0 if deed.kills else 1:
            tell(
                [wait for wait in left if len(wait.instances) == generation and generation not in wait.told], generation
            )
        for wait in left:
            wait.seconds = time.monotonic() - began if not problems(wait) else None
        left = [wait for wait in left if wait.seconds is None]
        time.sleep(0.5)


def problems(wait: Wait) -> list[str]:
    """Return what is not as it should be after the deed."""
    deed = DEEDS[wait.done]
    state = deed.resumed if deed.resumed and wait.dag.endswith("_resumed") else deed.state
    states = {"started": (state,), "deferred": (state,), "ended": (deed.ended,)}
    firsts = {"started": ("Terminated",), "deferred": ("Terminated",), "ended": ("Completed",)}
    found = []
    if wait.state not in states.get(wait.stage, (state, deed.ended)):
        found.append(f"the task is {wait.state}")
    if len(wait.instances) != 1 + deed.again:
        return [*found, f"{len(wait.instances)} instances"]
    first, last = wait.instances[0], wait.instances[-1]
    # an instance that is told to end just before it is terminated may have either end
    allowed = firsts.get(wait.stage, ("Terminated", "Completed")) if deed.kills else ("Completed",)
    if first.status not in allowed:
        found.append(f"the instance is {first.status}")
    if first.execution != wait.execution:
        found.append("the instance was started again")
    if deed.again and last.status != "Completed":
        found.append(f"the second instance is {last.status}")
    if last.status == "Completed" and last.output != wait.stage:
        found.append(f"the output is {last.output}")
    return found


def late(wait: Wait) -> bool:
    """Whether an instance that no task waits for ran for too long."""
    return DEEDS[wait.done].kills and not DEEDS[wait.done].again and (wait.seconds or 0.0) > LIMIT


def held(wait: Wait) -> bool:
    return not problems(wait) and not late(wait)


def line(wait: Wait) -> str:
    what = f"{wait.done}, started by {wait.way}, {wait.stage} ({wait.before}): {airflow(wait)}; {hub(wait)}"
    why = "".join(f" ({shown.why})" for shown in wait.instances if shown.why)
    return f"{what}{why}" + "".join(f" ! {problem}" for problem in problems(wait))


def airflow(wait: Wait) -> str:
    """Return what Airflow shows of a task, and after how many seconds everything had ended."""
    tries = f", try {wait.tries}" if wait.state != "deleted" else ""
    after = "" if wait.seconds is None else f", {wait.seconds:.0f} s"
    return f"{'' if held(wait) else '! '}{wait.state}{tries}{after}"


def hub(wait: Wait) -> str:
    return ", then ".join(shown.status for shown in wait.instances) or "no instance"


# -- everything in the hub


def unseen(real: RealAirflow, done: Sequence[Wait]) -> Iterator[str]:
    """Yield instances that run and that no task waits for, and terminated ones whose task nobody has killed."""
    killed = {(wait.dag, wait.run) for wait in done if DEEDS[wait.done].kills}
    for state in asyncio.run(_everything()):
        tags = state.tags or {}
        dag, run = tags[DAG_TAG], tags[RUN_TAG]
        if state.status == "Terminated" and (dag, run) not in killed:
            yield f"{state.instance_id} was terminated, and nobody has killed its task"
        if not state.status.is_final:
            answer = real.request("GET", real.path(dag, run, tags[TASK_TAG]))
            task = answer.json()["state"] if answer.status_code == 200 else "deleted"
            if task not in _WAITS:
                yield f"{state.instance_id} is {state.status}, and its task is {task}"


async def _everything() -> list[InstanceState]:
    found, continuation = [], None
    async with Client.open(load_settings()) as client:
        while True:
            page = await client.list(limit=1000, continuation=continuation)
            found += page.instances
            if (continuation := page.continuation) is None:
                return found
