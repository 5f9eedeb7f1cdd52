"""Runs that wait at a stage, and what Airflow and the hub show of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.hooks.outputs import plain
from airflow_provider_taskhub.hub.model import InstanceState
from airflow_provider_taskhub.settings import load_settings
from airflow_provider_taskhub.triggers.outcome import reason
from tests.airflow.real import RealAirflow
from tests.waiting import until

STAGES = ("started", "deferred", "firing", "ended")
WAYS = {
    "triggerer": "triggerer",
    "resumed": "triggerer, ends in worker",
    "worker": "worker",
}
"""Who starts the task, by the end of the DAG's id."""
DELETED = "deleted"
"""The state of a task whose run is not in Airflow."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the hub shows of an instance."""

    status: str
    execution: str | None
    output: object
    why: str

    @classmethod
    def of(cls, state: InstanceState) -> Shown:
        status = str(state.status)
        why = reason(state) if status == "Terminated" else ""
        return cls(status=status, execution=state.execution_id, output=plain(state.output), why=why)

    @property
    def final(self) -> bool:
        return self.status not in ("Pending", "Running", "Suspended")


@dataclass
class Wait:
    """One run at a stage of its wait, and what Airflow and the hub show of it.

    :param before: the state of the task when something was done to it.
    :param execution: the execution id of the instance at this moment. A restart would change it.
    :param state: the state of the task at the end.
    :param instances: the instances of the task: of the first generation, of the second.
    :param told: the generations that were sent the event which lets them end.
    :param seconds: from the deed to the end of the task and of its instances.
    """

    done: str
    stage: str
    dag: str
    run: str
    before: str = ""
    execution: str | None = None
    state: str = ""
    tries: int = 0
    instances: Sequence[Shown] = ()
    told: set[int] = field(default_factory=set)
    seconds: float | None = None

    @property
    def way(self) -> str:
        return WAYS[self.dag.rpartition("_")[2]]

    def instance(self, generation: int = 1) -> str:
        return f"{self.dag}:hub:{self.run}:g{generation}"


def waits(real: RealAirflow, done: str, prefix: str) -> list[Wait]:
    """Bring a run of each DAG to each stage, those at the stage "started" last and first in the list.

    A run at the stage "firing" is only deferred: the event is sent with :func:`tell`.
    """
    made = [
        Wait(done, stage, f"{prefix}_{way}", real.trigger(f"{prefix}_{way}")) for stage in STAGES[1:] for way in WAYS
    ]
    for wait in made:
        real.reaches(wait.dag, wait.run, "deferred")
        until("the trigger waits", lambda wait=wait: "told is Running" in real.log(wait.dag, wait.run))  # type: ignore[misc]
    ended = [wait for wait in made if wait.stage == "ended"]
    tell(ended)
    for wait in ended:
        real.reaches(wait.dag, wait.run, "success")
    started = [Wait(done, "started", f"{prefix}_{way}", real.trigger(f"{prefix}_{way}")) for way in reversed(WAYS)]
    until("the instances are started", lambda: _run_all(started))
    made = started + made
    look(real, made)
    for wait in made:
        wait.before, wait.execution = wait.state, wait.instances[0].execution
    return made


def tell(those: Iterable[Wait], generation: int = 1) -> None:
    """Let instances end, each with the name of its stage as its output."""

    async def run() -> None:
        async with Client.open(load_settings()) as client:
            for wait in those:
                await client.raise_event(wait.instance(generation), "go", wait.stage)
                wait.told.add(generation)

    asyncio.run(run())


def look(real: RealAirflow, those: Sequence[Wait]) -> None:
    """Read what Airflow and the hub show."""
    asyncio.run(_look(those))
    for wait in those:
        with suppress(httpx.HTTPError, AssertionError):
            answer = real.request("GET", real.path(wait.dag, wait.run))
            if answer.status_code == 404:
                wait.state = DELETED
                continue
            assert answer.status_code == 200, answer.text
            wait.state, wait.tries = str(answer.json()["state"]), int(answer.json()["try_number"])


async def _look(those: Sequence[Wait]) -> None:
    async with Client.open(load_settings()) as client:
        for wait in those:
            found = [await client.get(wait.instance(generation)) for generation in (1, 2)]
            wait.instances = [Shown.of(state) for state in found if state is not None]


def _run_all(those: Sequence[Wait]) -> bool:
    asyncio.run(_look(those))
    return all(wait.instances and wait.instances[0].status == "Running" for wait in those)
