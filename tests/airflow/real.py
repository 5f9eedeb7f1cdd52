"""A real Airflow (API server, scheduler, triggerer, DAG processor) and a worker over an embedded hub, started once.

Airflow's metadata is in PostgreSQL, as in production.

Shared by ``tests/airflow`` and ``tests/browser``: :func:`started` starts everything at its first call; it ends with the
test process, also when that is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from airflow_provider_taskhub.demo.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COMPONENTS = {name: (name,) for name in ("api-server", "scheduler", "triggerer", "dag-processor")}
"""The processes of Airflow by name, with the arguments of ``airflow``."""
APPS = (
    "tests.airflow.hub_app:app",
    "dags_examples.approval_app:app",
    "dags_examples.control_app:app",
    "dags_examples.first_app:app",
    "dags_examples.lineage_app:app",
    "dags_examples.notify_app:app",
    "dags_examples.on_retry_app:app",
    "dags_examples.outputs_app:app",
    "dags_examples.spark_rows_app:app",
    "dags_examples.taskflow_app:app",
)
"""What the worker serves: the tests' own app, and those of the examples that the tests run."""
USERS = {"admin": "admin", "vera": "viewer", "olga": "viewer:ops", "uma": "user", "otto": "op"}
"""Vera is of no team, Olga of the team that owns the DAG ``secret``."""
START = 240.0
"""Seconds until everything is healthy; about 25 on a quiet machine of two cores."""


def _die_with_parent() -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """A component: its own process group, its log in a file. :param user: who runs it, as ``Popen`` takes it."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str], home: Path, **user: Any) -> None:
        self.name, self.command, self.env, self.user = name, command, env, user
        self.log = home / f"{name}.out"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                env=self.env,
                cwd=self.log.parent if self.user else ROOT,  # another user may not see the project
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
                **self.user,
            )

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def stop(self, *, seconds: float = 20.0) -> None:
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.signal(signal.SIGKILL)
        self.process.wait()


class RealAirflow:
    """Airflow's REST API and the hub, as far as tests need them."""

    apps: Sequence[str] = APPS
    dag_count = 62
    """The least number of DAGs that Airflow must have read before the tests begin."""
    components: Mapping[str, Sequence[str]] = COMPONENTS
    preparations: Sequence[Sequence[str]] = (("db", "migrate"), ("teams", "create", "ops"))
    """Commands of ``airflow`` that run before its processes start."""
    base = ""
    """The path in Airflow's ``[api] base_url``."""

    def __init__(self, home: Path, *, postgres: bool = True, **options: str) -> None:
        self.home, self.postgres = home, postgres
        self.changing = home / "changing"
        """A folder for DAG files that a test writes and changes: Airflow reads the new content within seconds."""
        self.changing.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{self.base}"
        self.env = self._environment() | {name: value.format(home=home) for name, value in options.items()}
        self.processes: dict[str, Process] = {}
        self._http = httpx.Client(base_url=self.url, timeout=90)
        self._tokens: dict[str, str] = {}

    def _environment(self) -> dict[str, str]:
        bundle = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles = [
            {"name": "dags", "classpath": bundle, "kwargs": {"path": str(HERE / "dags")}},
            {"name": "ops", "classpath": bundle, "kwargs": {"path": str(HERE / "ops")}, "team_name": "ops"},
            {"name": "changing", "classpath": bundle, "kwargs": {"path": str(self.changing), "refresh_interval": 5}},
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TASKHUB"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile Airflow again
        return kept | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "dags_examples"),  # for by_function.py, and for approval.py's function
            "TASKHUB_HOME": str(self.home / "taskhub"),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__MULTI_TEAM": "True",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            # Airflow's API server on SQLite may lock itself up until this timeout: it writes its audit log in the event
            # loop, which another of its requests needs to give the database free. Nothing runs in it until then.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=20",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            # parsed once, and again when a file changes
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": "tests-only-" * 8,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }

    def start(self) -> None:
        if self.postgres:
            self._start_postgres()
        passwords = self.home / "simple_auth_manager_passwords.json.generated"
        passwords.write_text(json.dumps({name: name for name in USERS}))
        for command in self.preparations:
            done = subprocess.run(["airflow", *command], env=self.env, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stdout + done.stderr
        apps = [part for name in self.apps for part in ("--app", name)]
        app = ["taskhub", "worker", *apps, "--name", "first", "--drain-timeout", "1"]
        self.processes["worker"] = Process("worker", app, self.env | {"PYTHONPATH": str(ROOT)}, self.home)
        for name, arguments in self.components.items():
            self.processes[name] = Process(name, ["airflow", *arguments], self.env, self.home)
        until("a healthy Airflow", self.healthy, seconds=START)
        until("all DAGs parsed", lambda: self.get("/api/v2/dags")["total_entries"] >= self.dag_count, seconds=START)

    def _start_postgres(self) -> None:
        from tests.airflow.postgres import made

        command, user, address = made(self.home)
        self.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = address
        self.processes["postgres"] = Process("postgres", command, self.env, self.home, **user)
        log = self.processes["postgres"].log
        until("PostgreSQL", lambda: "ready to accept connections" in log.read_text())

    def stop(self) -> None:
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while self.processes:
            _, process = self.processes.popitem()
            process.stop(seconds=max(0.0, deadline - time.monotonic()))
        self._http.close()

    def healthy(self) -> bool:
        for process in self.processes.values():
            assert process.process.poll() is None, f"{process.name} has ended:\n{process.log.read_text()[-3000:]}"
        try:
            health = self._http.get("/api/v2/monitor/health").json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(health[part]["status"] == "healthy" for part in parts)

    # -- REST

    def token(self, user: str) -> str:
        if user not in self._tokens:
            answer = self._http.post("/auth/token", json={"username": user, "password": user})
            assert answer.status_code == 201, answer.text
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def request(self, method: str, path: str, *, user: str = "admin", **more: Any) -> httpx.Response:
        return self._http.request(method, path, headers={"Authorization": f"Bearer {self.token(user)}"}, **more)

    def get(self, path: str, *, user: str = "admin", **parameters: Any) -> Any:
        def answered() -> httpx.Response | None:
            answer = self.request("GET", path, user=user, params=parameters)
            # Airflow's own API gives 500 now and then while another of its processes holds a row of the database
            return None if answer.status_code == 500 and path.startswith("/api/v2/") else answer

        answer = until(f"an answer to {path}", answered)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def trigger(self, dag_id: str, *, run_id: str | None = None, logical_date: str | None = None, **params: Any) -> str:
        """Start a run; its id. :param run_id: the id that it gets; None: Airflow chooses one."""
        body = {"logical_date": logical_date, "conf": params} | ({"dag_run_id": run_id} if run_id else {})

        def taken() -> httpx.Response | None:
            answer = self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=body)
            return None if answer.status_code == 500 else answer  # another component holds Airflow's SQLite file

        answer = until("Airflow takes the run", taken)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["dag_run_id"])

    def task(self, dag_id: str, run_id: str, task_id: str = "hub", index: int = -1) -> Any:
        return self.get(f"{self.path(dag_id, run_id, task_id)}{f'/{index}' if index >= 0 else ''}")

    def path(self, dag_id: str, run_id: str, task_id: str = "hub") -> str:
        return f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}"

    def reaches(self, dag_id: str, run_id: str, *states: str, task_id: str = "hub", index: int = -1) -> Any:
        """Wait until the task is in one of the states; a wrong final state fails at once, with all its logs."""
        last: dict[str, Any] = {}

        def look() -> Any:
            if index >= 0 and self.request("GET", f"{self.path(dag_id, run_id, task_id)}/{index}").status_code == 404:
                return None  # Airflow makes the rows of a task mapped over a result only when it has the result
            last.update(self.task(dag_id, run_id, task_id, index))
            if last["state"] in ("success", "failed", "upstream_failed") and last["state"] not in states:
                tries = range(1, int(last["try_number"]) + 1)
                logs = "\n".join(self.log(dag_id, run_id, task_id, attempt, index) for attempt in tries)
                raise AssertionError(f"{dag_id} is {last['state']}:\n{logs}")
            return last if last["state"] in states else None

        return until(f"{dag_id}.{task_id} {states}", look)

    def left_worker(self, dag_id: str, run_id: str, task_id: str = "hub") -> bool:
        """Tell whether the scheduler has seen the end of the task's process.

        Airflow fails a task that continues before that as "killed externally", because its ``LocalExecutor`` takes the
        end of the first process for the end of the second. A person is never that fast; a test is.
        """
        finished = f"TaskInstance Finished: dag_id={dag_id}, task_id={task_id}, run_id={run_id},"
        return finished in self.processes["scheduler"].log.read_text()

    def log(
        self,
        dag_id: str,
        run_id: str,
        task_id: str = "hub",
        attempt: int = 1,
        index: int = -1,
        *,
        having: str = "",
    ) -> str:
        """The log of one try. :param having: wait for this text, because Airflow writes the log after the end."""
        path = f"{self.path(dag_id, run_id, task_id)}/logs/{attempt}"

        def look() -> tuple[str] | None:
            lines = self.get(path, full_content=True, map_index=index)["content"]
            text = "\n".join(f"{line.get('event', line)}{line.get('error_detail') or ''}" for line in lines)
            return (text,) if having in text or self._late_line(dag_id, run_id, having) else None

        return until(f"{having!r} in the log of {dag_id}.{task_id}", look)[0]

    def _late_line(self, dag_id: str, run_id: str, having: str) -> bool:
        """Return whether a text is in the own output of a triggerer, as a line of the run.

        Airflow writes there what it reads from a trigger after it has seen the trigger's end. On a busy machine these
        are the last lines of the trigger.
        """
        outputs = self.home.glob("triggerer*.out") if having else ()
        lines = [line for output in outputs for line in output.read_text(errors="replace").splitlines()]
        return any(having in line and f"dag_id={dag_id}" in line and f"run_id={run_id}" in line for line in lines)

    def waits(self, dag_id: str, run_id: str) -> None:
        """Wait until the task is deferred, its trigger runs and so does its instance."""
        self.reaches(dag_id, run_id, "deferred")
        until("the trigger's log", lambda: f"{dag_id} is Running" in self.log(dag_id, run_id))

    def xcom(self, dag_id: str, run_id: str, key: str = "return_value", index: int = -1) -> Any:
        return self.get(f"{self.path(dag_id, run_id)}/xcomEntries/{key}", map_index=index)["value"]

    def mark(self, dag_id: str, run_id: str, state: str) -> None:
        answer = self.request("PATCH", self.path(dag_id, run_id), json={"new_state": state})
        assert answer.status_code == 200, answer.text

    def clear(self, dag_id: str, run_id: str) -> None:
        """Clear the task. Airflow loses a clear between the end of the last task and the end of the run."""
        if self.task(dag_id, run_id)["state"] in ("success", "failed"):
            run = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}"
            until("the end of the run", lambda: self.get(run)["state"] in ("success", "failed"))
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["hub"], "only_failed": False}
        answer = self.request("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", json=body)
        assert answer.status_code == 200, answer.text

    def delete_run(self, dag_id: str, run_id: str) -> bool:
        """Delete a run. False: Airflow has not deleted it yet.

        A run that is running cannot be deleted: it is marked as failed first, as in Airflow's UI.
        """
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}"
        self.request("PATCH", path, json={"state": "failed"})
        return self.request("DELETE", path).status_code in (204, 404)

    # -- the hub

    def taskhub(self, *arguments: str) -> Any:
        """The command line, with JSON out."""
        command = ["taskhub", *arguments, "--json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60, cwd=ROOT)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def tell(self, instance_id: str, data: object) -> None:
        """Let an instance of ``told`` end."""
        self.taskhub("instances", "raise-event", instance_id, "go", "--data", json.dumps(data))

    def instance(self, instance_id: str) -> Any:
        return self.get("/taskhub/api/instance", id=instance_id)

    def exists(self, instance_id: str) -> bool:
        return self.request("GET", "/taskhub/api/instance", params={"id": instance_id}).status_code == 200

    def status(self, instance_id: str) -> str:
        return str(self.instance(instance_id)["instance"]["status"])


@cache
def started(*, postgres: bool = True, **options: str) -> RealAirflow:
    """The one of this test process.

    :param postgres: False: Airflow's database is SQLite.
    :param options: more of its environment; ``{home}`` in a value is the folder of this Airflow.
    """
    home = Path(tempfile.mkdtemp(prefix="taskhub-real-"))
    real = RealAirflow(home, postgres=postgres, **options)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    atexit.register(real.stop)
    _started.append(real)
    real.start()
    return real


_started: list[RealAirflow] = []


def stop_started() -> None:
    """Stop each Airflow of :func:`started`. Without tasks to run, one takes a tenth of a core."""
    while _started:
        _started.pop().stop()
