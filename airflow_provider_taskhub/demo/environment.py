"""Starts everything that the demo needs on one store (hub, workers, Airflow), and runs the pipeline with one kill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from airflow_provider_taskhub.client import Client
from airflow_provider_taskhub.demo import spark_servers
from airflow_provider_taskhub.demo.azurite import Azurite, install
from airflow_provider_taskhub.demo.processes import DemoProcess, Processes
from airflow_provider_taskhub.demo.screen import Screen, months_line, short
from airflow_provider_taskhub.demo.standalone import Airflow
from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.errors import TaskHubError
from airflow_provider_taskhub.hub.model import ActivityRecord, InstanceState, RecordState
from airflow_provider_taskhub.settings import load_settings

DAG = "flights_delays"
TASK = "delays"
MONTHLY = "monthly_delays"
WORKERS = ("alpha", "beta")
STALLED = 180.0
"""Seconds without any change after which the demo fails. The work of a killed worker is repeated much sooner, so a
longer silence is an error."""
READY = 120.0
"""Seconds to wait until both workers are ready."""
GONE = 20.0
"""Seconds within which the executors of a killed worker must end."""


class DemoError(TaskHubError):
    """A run of the pipeline did not end, or its result is wrong. The text ends with the log that shows the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A completed run of the pipeline.

    :param run_id: the DAG run.
    :param instance_id: the instance of the pipeline.
    :param answer: the output of the pipeline.
    :param seconds: the time from the trigger to the end of the DAG run.
    :param victim: the name of the worker that was killed.
    :param month: the month whose activity ran on that worker.
    :param attempts: a label and the activity record of each attempt, in the order in which the attempts began.
    :param url: the address of the DAG run in Airflow's UI.
    """

    run_id: str
    instance_id: str
    answer: Mapping[str, Any]
    seconds: float
    victim: str
    month: int
    attempts: Sequence[tuple[str, ActivityRecord]]
    url: str

    @property
    def repeated(self) -> list[str]:
        """Labels of the activities that had to run again, because their worker was killed."""
        return sorted({label for label, record in self.attempts if record.attempt > 1})


@dataclass(slots=True)
class _Watch:
    """What the demo knows about a run while the run is in progress.

    :param run_id: the DAG run.
    :param begun: the monotonic time of the trigger, in seconds.
    :param changed: the monotonic time of the last change, in seconds.
    :param seen: the last state, to notice a change.
    :param victim: the name of the killed worker; "": no worker was killed yet.
    :param month: the month whose activity ran on that worker; 0: no worker was killed yet.
    :param announced: the last stage that the screen shows.
    """

    run_id: str
    begun: float
    changed: float
    seen: object = None
    victim: str = ""
    month: int = 0
    announced: str = ""


class Environment:
    """The hub, the workers and Airflow of a demo on one store, as an async context manager.

    :param processes: starts and ends the processes.
    :param screen: shows the progress.
    :param storage: ``sqlite`` or ``azurite``.
    :param spark: where the Spark jobs run: ``local``, ``standalone`` or ``connect``.
    :param folder: the folder into which the demo writes.
    :param examples: the folder with the DAG and the app.
    :param azurite: the folder in which Azurite is installed; it is installed there if it is missing.
    """

    def __init__(
        self,
        processes: Processes,
        screen: Screen,
        *,
        storage: str,
        spark: str,
        folder: Path,
        examples: Path,
        azurite: Path,
    ) -> None:
        self._processes = processes
        self._screen = screen
        self._storage = storage
        self._spark = spark
        self._spark_settings: Mapping[str, str] = {}
        self._folder = folder / storage
        self._examples = examples
        self._azurite = azurite
        self._stack = AsyncExitStack()
        self._workers: dict[str, DemoProcess] = {}
        self._killed: set[str] = set()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            (self._folder / "hub").mkdir(parents=True, exist_ok=True)
            os.environ["TASKHUB_HOME"] = str(self._folder / "hub")  # all processes that the demo starts inherit this
            if self._storage == "azurite":
                os.environ["TASKHUB_CONNECTION"] = await self._start_azurite(stack)
                # With Azurite an idle worker may read its queue only every 30 s, which is too slow for a demo.
                os.environ["TASKHUB_MAX_POLLING"] = "PT2S"
            self._client = await stack.enter_async_context(Client.open(load_settings(), create=True))
            self._screen.say(f"the hub is at {self._client.describe()}")
            if self._spark != "local":
                await self._start_spark()
            for name in WORKERS:
                self._start_worker(name)
            self._airflow = Airflow(
                self._processes,
                home=self._folder / "airflow",
                dags=self._examples,
                env={"PYTHONPATH": str(self._examples)},
            )
            stack.push_async_callback(self._stop)
            self._screen.now("starting Airflow")
            await self._airflow.start()
            self._screen.say("Airflow is up at ", (self._airflow.url, f"link {self._airflow.url}"))
            await self._workers_ready()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def run(self, run_id: str, months: Sequence[int]) -> Outcome:
        """Trigger the DAG, kill a worker that runs the activity of a month, and wait for the end of the run.

        :param run_id: the id of the new DAG run.
        :param months: the months that the pipeline reads.
        :raises DemoError: if the run fails, makes no progress, or if a process ends that the demo did not end.
        """
        for name in WORKERS:
            if not self._workers[name].alive:
                self._start_worker(name)
        await self._workers_ready()
        begun = time.monotonic()
        await self._airflow.trigger(DAG, run_id, {"months": list(months)})
        self._screen.say(f"triggered DAG {DAG}, run {run_id}")
        watch = _Watch(run_id=run_id, begun=begun, changed=begun)
        state = await self._watch(watch, months)
        attempts = await self._attempts(state.instance_id)
        if not watch.victim:
            raise DemoError("the pipeline ended before a month was seen running, so no worker was killed")
        return Outcome(
            run_id=run_id,
            instance_id=state.instance_id,
            answer=json.loads(state.output or "null"),
            seconds=time.monotonic() - begun,
            victim=watch.victim,
            month=watch.month,
            attempts=attempts,
            url=self._airflow.run_url(DAG, run_id),
        )

    async def keep(self) -> None:
        """Leave everything running until this call is cancelled.

        :raises DemoError: if a process ends by itself.
        """
        while True:
            self._check_children()
            await asyncio.sleep(1)

    async def _watch(self, watch: _Watch, months: Sequence[int]) -> InstanceState:
        while True:
            self._check_children()
            state = await self._find(watch.run_id)
            records = await self._client.instance(state.instance_id).activities() if state else ()
            if state is not None and not watch.victim:
                await self._kill_in_a_month(watch, state, records)
            airflow = await self._airflow.run_state(DAG, watch.run_id)
            self._show(watch, months, state, records)
            if airflow == "failed":
                raise DemoError(f"the DAG run failed; its task's log ends with:\n{await self._task_log(watch.run_id)}")
            if airflow == "success" and state is not None:
                return state
            self._check_progress(watch, (airflow, state, records))
            await asyncio.sleep(0.05 if state is not None and not watch.victim else 0.3)

    async def _find(self, run_id: str) -> InstanceState | None:
        """Return the instance of a DAG run with its payloads; None if the operator has not started it yet."""
        page = await self._client.list(prefix=f"{DAG}:{TASK}:{run_id}:", limit=1)
        return await self._client.get(page.instances[0].instance_id) if page.instances else None

    async def _kill_in_a_month(self, watch: _Watch, state: InstanceState, records: Sequence[ActivityRecord]) -> None:
        """Kill the worker that runs the activity of a month, if such an activity is running."""
        running = [r for r in records if r.name == MONTHLY and r.state is RecordState.RUNNING]
        if not running:
            return
        record = max(running, key=lambda r: r.claimed.ticks)
        name = short(record.worker)
        offspring = self._processes.kill(self._workers[name])
        self._killed.add(record.worker)
        watch.victim = name
        watch.month = (await self._months(state.instance_id))[record.task_id]
        self._screen.say((f"killed worker {name}", "bold red"), f" (SIGKILL) while it ran month {watch.month:02d}")
        _, left = await asyncio.to_thread(psutil.wait_procs, offspring, timeout=GONE)
        if left:
            raise DemoError(f"{len(left)} processes of the killed worker {name} still run after {GONE:g} s: {left}")
        spark = "" if self._spark == "connect" else ", with Spark,"
        self._screen.say(f"the worker's {len(offspring)} executor processes{spark} have ended too")

    def _show(
        self, watch: _Watch, months: Sequence[int], state: InstanceState | None, records: Sequence[ActivityRecord]
    ) -> None:
        status = json.loads(state.custom_status) if state and state.custom_status else {}
        stage = status.get("stage", "waiting for the task to start")
        if state is not None and stage != watch.announced:
            watch.announced = stage
            facts = ", ".join(f"{key} {value}" for key, value in status.items() if key not in ("stage", "report"))
            self._screen.say(f"stage {stage}{f' ({facts})' if facts else ''}")
        last: dict[int, ActivityRecord] = {}
        for record in sorted(records, key=lambda r: (r.task_id, r.attempt)):
            if record.name == MONTHLY:
                last[record.task_id] = record
        first = min(last, default=0)  # the orchestrator schedules the months in order, so their task ids are in order
        self._screen.now(
            months_line({month: last.get(first + i) for i, month in enumerate(months)}) if last else f"stage {stage}"
        )

    async def _months(self, instance_id: str) -> dict[int, int]:
        """Return the month of each task id, from the history of the instance."""
        return {
            event.event_id: json.loads(event.input or "")[0]["months"][0]
            for event in await self._client.instance(instance_id).history()
            if isinstance(event, TaskScheduled) and event.name == MONTHLY
        }

    async def _attempts(self, instance_id: str) -> list[tuple[str, ActivityRecord]]:
        """Return a label and the activity record of every attempt.

        :raises DemoError: if the activity of a month did not complete exactly once.
        """
        months = await self._months(instance_id)
        records = await self._client.instance(instance_id).activities()
        for task_id, month in months.items():
            done = [r for r in records if r.task_id == task_id and r.state is RecordState.COMPLETED]
            if len(done) != 1:
                raise DemoError(f"month {month} completed {len(done)} times: {[str(r.state) for r in records]}")
        return [
            (f"month {months[r.task_id]:02d}" if r.task_id in months else r.name, r)
            for r in sorted(records, key=lambda r: r.claimed.ticks)
        ]

    def _check_children(self) -> None:
        dead = self._processes.ended()
        if dead is not None:
            raise DemoError(f"{dead.name} ended with status {dead.process.returncode}:\n{dead.tail()}")

    def _check_progress(self, watch: _Watch, now: object) -> None:
        if now != watch.seen:
            watch.seen, watch.changed = now, time.monotonic()
        elif time.monotonic() - watch.changed > STALLED:
            tails = "\n".join(f"--- {c.name}\n{c.tail(12)}" for c in self._processes.children if c.alive)
            raise DemoError(f"nothing has changed for {STALLED:g} s:\n{tails}")

    async def _task_log(self, run_id: str) -> str:
        text = await self._airflow.task_log(DAG, run_id, TASK)
        workers = "\n".join(f"--- {c.name}\n{c.tail(4)}" for c in self._workers.values())
        return "\n".join(text.splitlines()[-40:]) + f"\n{workers}"

    def _start_worker(self, name: str) -> None:
        program = str(Path(sys.executable).with_name("taskhub"))
        command = [program, "worker", "--app", "flights_app:app", "--name", name, "--drain-timeout", "5"]
        env = {
            "PYTHONPATH": str(self._examples),
            "FLIGHTS_HOME": str(self._folder / "report"),
            "PYTHONUNBUFFERED": "1",
            "TASKHUB_EXECUTOR_TIMEOUT": "PT15S",  # fail soon if Spark does not start
            **self._spark_settings,
        }
        self._workers[name] = self._processes.start(f"worker-{name}", command, env=env, cwd=self._folder)

    async def _workers_ready(self) -> None:
        self._screen.now("waiting for both workers")
        deadline = time.monotonic() + READY
        while True:
            self._check_children()
            members = [m.worker for m in await self._client.admin.workers() if m.alive and m.worker not in self._killed]
            alive = {short(worker) for worker in members}
            if alive >= set(WORKERS):
                return
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {c.name}\n{c.tail(12)}" for c in self._workers.values())
                raise DemoError(f"only {sorted(alive)} of the workers {WORKERS} are ready after {READY:g} s:\n{tails}")
            await asyncio.sleep(0.2)

    async def _start_spark(self) -> None:
        """Start the Spark servers. :raises DemoError: if a server ends, or is not ready in time."""
        self._screen.now("starting Spark")
        make = spark_servers.connect if self._spark == "connect" else spark_servers.standalone
        setup = make(self._folder / "spark")
        deadline = time.monotonic() + READY
        for server in setup.servers:
            folder = self._folder / "spark" / server.name
            folder.mkdir(parents=True, exist_ok=True)
            env = {**server.environment(folder), "PYTHONPATH": str(self._examples)}
            child = self._processes.start(server.name, server.command, env=env, cwd=folder)
            while not await asyncio.to_thread(server.is_ready):
                self._check_children()
                if time.monotonic() > deadline:
                    raise DemoError(f"{server.name} is not ready after {READY:g} s:\n{child.tail()}")
                await asyncio.sleep(0.2)
            self._screen.say(f"{server.name} is up at ", (server.page, f"link {server.page}"))
        self._spark_settings = setup.settings()

    async def _start_azurite(self, stack: AsyncExitStack) -> str:
        self._screen.now("starting Azurite")
        if await asyncio.to_thread(install, self._azurite):
            self._screen.say("Azurite is installed")
        azurite = Azurite(self._azurite)
        for name in ("TASKHUB_CONNECTION", "TASKHUB_MAX_POLLING"):
            stack.callback(os.environ.pop, name, None)
        stack.callback(azurite.stop)
        await asyncio.to_thread(azurite.start)
        self._screen.say("Azurite is up")
        return azurite.connection

    async def _stop(self) -> None:
        await asyncio.to_thread(self._processes.stop, list(self._processes.children))
