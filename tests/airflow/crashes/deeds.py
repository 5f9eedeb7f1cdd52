"""What is done to a running Airflow while tasks wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import httpx

from tests.airflow.crashes.waits import DELETED, WAYS, Wait, tell
from tests.airflow.real import Process, RealAirflow
from tests.waiting import until

DOWN = 3.0
"""Seconds for which the killed process is down."""
PATIENCE = 240.0


@dataclass(frozen=True, kw_only=True)
class Deed:
    """Something that is done while tasks wait, and what must become of the tasks.

    :param do: sends the event to the runs that are firing, and does it. What follows the ``yield`` is done at the end.
    :param state: the state of a task at the end.
    :param ended: the state at the end of a task that had succeeded before.
    :param resumed: the state at the end of a task that a worker must end; None: ``state``.
    :param kills: True: the tasks wait no more, so their instances are terminated if they have not ended.
    :param again: True: the tasks start a second instance, which completes.
    :param prefix: the beginning of the ids of the DAGs.
    :param prepare: brings these DAGs into Airflow.
    """

    do: Callable[[RealAirflow, Sequence[Wait]], AbstractContextManager[None]]
    state: str = "success"
    ended: str = "success"
    resumed: str | None = None
    kills: bool = False
    again: bool = False
    prefix: str = "crash"
    prepare: Callable[[RealAirflow], None] = lambda real: None


# -- processes


@contextmanager
def _killed(process: str, real: RealAirflow, waits: Sequence[Wait]) -> Iterator[None]:
    _fire(waits)
    if process == "task":
        for wait in waits:
            if wait.stage == "started" and (pid := real.task(wait.dag, wait.run)["pid"]):
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
    else:
        found = real.processes[process]
        found.signal(signal.SIGKILL)
        found.process.wait(PATIENCE)
        time.sleep(DOWN)
        found.start()
        until("a healthy Airflow", lambda: _healthy(real), seconds=PATIENCE)
    yield


@contextmanager
def _paused(real: RealAirflow, waits: Sequence[Wait]) -> Iterator[None]:
    """Stop the triggerer until a second one has taken its triggers; then it continues beside the second one."""
    first = real.processes["triggerer"]
    _fire(waits)
    first.signal(signal.SIGSTOP)
    env = real.env | {"AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0"}
    second = Process("second-triggerer", first.command, env, real.home)
    try:
        deferred = [wait for wait in waits if wait.stage == "deferred"]
        for wait in deferred:
            until("the second one waits", lambda wait=wait: _log(real, wait).count("waiting for ") == 2)  # type: ignore[misc]
        first.signal(signal.SIGCONT)
        for wait in deferred:
            until("the first one sees it", lambda wait=wait: "waits in another triggerer" in _log(real, wait))  # type: ignore[misc]
        yield
    finally:
        first.signal(signal.SIGCONT)
        second.stop()


def _log(real: RealAirflow, wait: Wait) -> str:
    return real.log(wait.dag, wait.run)


def _healthy(real: RealAirflow) -> bool:
    with suppress(httpx.HTTPError):
        return real.healthy()
    return False


def _fire(waits: Sequence[Wait]) -> None:
    tell([wait for wait in waits if wait.stage == "firing"])


# -- users


@contextmanager
def _by_user(
    act: Callable[[RealAirflow, str, str], object], real: RealAirflow, waits: Sequence[Wait]
) -> Iterator[None]:
    for wait in waits:
        if wait.stage == "firing":
            tell([wait])
        act(real, wait.dag, wait.run)
    yield


def _mark(state: str, real: RealAirflow, dag: str, run: str) -> None:
    answer = real.request("PATCH", real.path(dag, run), json={"new_state": state})
    assert answer.status_code in (200, 409), answer.text  # 409: the task has this state already


def _delete(real: RealAirflow, dag: str, run: str) -> None:
    until("the run is deleted", lambda: real.delete_run(dag, run))


# -- the DAG file

_FILE = """
from datetime import timedelta
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

retried = {{"retries": 1, "retry_delay": timedelta(seconds=1)}}
for name, more in {{
    "{prefix}_triggerer": {{}},
    "{prefix}_resumed": {{"complete_on": "worker"}},
    "{prefix}_worker": {{"start_on": "worker", "short_wait": 4}},
}}.items():
    with DAG(name, schedule=None, max_active_runs=100, default_args=retried):
        {task}
"""
_TASK = 'TaskHubOperator(task_id="hub", orchestrator="told", **more)'
_OTHER = 'TaskHubOperator(task_id="hub", orchestrator="sums", input=[1], **more)'
_NO_TASK = 'EmptyOperator(task_id="other")'


def _write(prefix: str, task: str, real: RealAirflow) -> None:
    new = real.changing / f"{prefix}.new"
    new.write_text(_FILE.format(prefix=prefix, task=task))
    new.rename(new.with_suffix(".py"))  # Airflow never sees half a file


def _write_first(prefix: str, real: RealAirflow) -> None:
    _write(prefix, _TASK, real)
    for way in WAYS:
        path = f"/api/v2/dags/{prefix}_{way}"
        until("the DAG is known", lambda path=path: real.request("GET", path).status_code == 200)  # type: ignore[misc]


@contextmanager
def _file_changed(prefix: str, task: str, real: RealAirflow, waits: Sequence[Wait]) -> Iterator[None]:
    """Change the task of the DAGs, and wait until Airflow has seen it."""
    _fire(waits)
    _write(prefix, task, real)
    for way in WAYS:
        path = f"/api/v2/dags/{prefix}_{way}/dagVersions"
        until("Airflow has read it", lambda path=path: real.get(path)["total_entries"] == 2)  # type: ignore[misc]
    yield


@contextmanager
def _file_removed(prefix: str, real: RealAirflow, waits: Sequence[Wait], *, back: bool) -> Iterator[None]:
    """Remove the file of the DAGs. With ``back``, put it back when workers have not been able to end their tasks."""
    _fire(waits)
    (real.changing / f"{prefix}.py").unlink()
    for way in WAYS:
        path = f"/api/v2/dags/{prefix}_{way}"
        until("Airflow has seen it", lambda path=path: real.get(path)["is_stale"])  # type: ignore[misc]
    if back:
        tell([wait for wait in waits if not wait.told])
        for wait in waits:
            if wait.dag.endswith("_resumed") and wait.stage != "ended":
                real.reaches(wait.dag, wait.run, "up_for_reschedule")
        _write(prefix, _TASK, real)
    yield


DEEDS = {
    "task killed": Deed(do=partial(_killed, "task")),
    "scheduler killed": Deed(do=partial(_killed, "scheduler")),
    "triggerer killed": Deed(do=partial(_killed, "triggerer")),
    "API server killed": Deed(do=partial(_killed, "api-server")),
    "hub's worker killed": Deed(do=partial(_killed, "worker")),
    "triggerer paused": Deed(do=_paused),
    "cleared": Deed(do=partial(_by_user, RealAirflow.clear), kills=True, again=True),
    "marked failed": Deed(do=partial(_by_user, partial(_mark, "failed")), state="failed", ended="failed", kills=True),
    "marked success": Deed(do=partial(_by_user, partial(_mark, "success")), kills=True),
    "run deleted": Deed(do=partial(_by_user, _delete), state=DELETED, ended=DELETED, kills=True),
    "argument changed": Deed(
        prefix="argument",
        prepare=partial(_write_first, "argument"),
        do=partial(_file_changed, "argument", _OTHER),
    ),
    "task removed": Deed(
        prefix="removed",
        prepare=partial(_write_first, "removed"),
        do=partial(_file_changed, "removed", _NO_TASK),
        state="removed",
        kills=True,
    ),
    "file put back": Deed(
        prefix="back",
        prepare=partial(_write_first, "back"),
        do=partial(_file_removed, "back", back=True),
    ),
    "file removed": Deed(
        prefix="gone",
        prepare=partial(_write_first, "gone"),
        do=partial(_file_removed, "gone", back=False),
        resumed="up_for_reschedule",
    ),
}
"""By name. Without the DAG file no worker can end a task: Airflow keeps the task until the file is back."""
