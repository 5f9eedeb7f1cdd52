"""Runs an Airflow of the demo's own: its own AIRFLOW_HOME, a SQLite database, free ports, four child processes.

``airflow standalone`` is not used, because its components write into one output, and because it does not say which
component has ended.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow_provider_taskhub.demo.ports import free_port
from airflow_provider_taskhub.demo.processes import DemoProcess, Processes, tail
from airflow_provider_taskhub.errors import TaskHubError

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
START_LIMIT = 180.0
"""Seconds to wait until all four components are healthy. With two cores this usually takes 10 to 25 s."""
REQUEST_LIMIT = 20.0
"""Seconds to wait for the answer to one request."""
BUSY_TRIES = 10
"""Number of tries of a request, with pauses of a second, while Airflow answers with status 5xx. Another process may
have locked Airflow's SQLite file."""
_HEARTBEATS = {"scheduler": "scheduler", "dag_processor": "dag-processor", "triggerer": "triggerer"}


class AirflowError(TaskHubError):
    """Airflow did not start, or answered a request with an error.

    :param status: the status of the HTTP response; None: there was no response.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Airflow:
    """Starts Airflow's components, and calls the parts of Airflow's REST API that the demo needs.

    :param processes: starts and ends the processes.
    :param home: the folder for AIRFLOW_HOME.
    :param dags: the folder with the DAG files.
    :param env: environment variables for every component, for example the hub's settings.
    """

    def __init__(self, processes: Processes, *, home: Path, dags: Path, env: Mapping[str, str]) -> None:
        self._processes = processes
        self._home = home
        self._dags = dags
        self._extra = env
        self._token = ""
        self._children: list[DemoProcess] = []
        self._ports = [free_port() for _ in range(3)]
        self.url = f"http://127.0.0.1:{self._ports[0]}"

    async def start(self) -> None:
        """Create the database, start the components, and wait until all are healthy.

        :raises AirflowError: if Airflow does not start. The text contains the last lines of a log.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        program = str(Path(sys.executable).with_name("airflow"))
        migrate = self._processes.start("airflow-db", [program, "db", "migrate"], env=self._env(), cwd=self._home)
        await self._until(lambda: not migrate.alive, "airflow db migrate", migrate.log)
        migrate.expected = True
        if migrate.process.returncode != 0:
            raise AirflowError(f"airflow db migrate failed:\n{migrate.tail()}")
        for component in COMPONENTS:
            self._children.append(
                self._processes.start(f"airflow-{component}", [program, component], env=self._env(), cwd=self._home)
            )
        await self._until(self._healthy, "Airflow", self._processes.children[-1].log)
        self._token = (await self._call("GET", "/auth/token"))["access_token"]

    async def stop(self) -> None:
        """End the components."""
        await asyncio.to_thread(self._processes.stop, self._children)

    async def trigger(self, dag_id: str, run_id: str, conf: Mapping[str, Any]) -> None:
        """Wait until Airflow has parsed the DAG, and start a DAG run, unless a run with this id exists.

        :param dag_id: the DAG.
        :param run_id: the id of the new run.
        :param conf: the parameters of the run.
        """
        found: list[str] = []

        async def parsed() -> bool:
            answer = await self._call("GET", f"/api/v2/dags?dag_id_pattern={quote(dag_id)}")
            found[:] = [dag["dag_id"] for dag in answer["dags"]]
            if dag_id not in found:
                await self._refuse_import_errors()
            return dag_id in found

        await self._until(parsed, f"the DAG {dag_id}", self._log("dag-processor"))
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)}
        try:
            await self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        except AirflowError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    async def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a DAG run: ``queued``, ``running``, ``success`` or ``failed``."""
        answer = await self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}")
        return str(answer["state"])

    async def task_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Return the log of a task's first try, as far as Airflow has stored it."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/logs/1?full_content=true"
        answer = await self._call("GET", path)
        return "\n".join(
            str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in answer.get("content", [])
        )

    def run_url(self, dag_id: str, run_id: str) -> str:
        """Return the address of a DAG run in Airflow's UI."""
        return f"{self.url}/dags/{dag_id}/runs/{quote(run_id)}"

    def _log(self, component: str) -> Path:
        return next(child.log for child in self._children if child.name == f"airflow-{component}")

    def _env(self) -> dict[str, str]:
        """Return the components' environment variables.

        Airflow listens only on the loopback network, and every user is an administrator, because only the user of this
        machine can reach it.
        """
        api, worker_logs, trigger_logs = self._ports
        return {
            "AIRFLOW_HOME": str(self._home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._home / 'airflow.db'}?timeout=60",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(api),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret(),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            # when Airflow does not notice the end of a task at once, it waits for this interval, in seconds
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "PYTHONUNBUFFERED": "1",
            **self._extra,
        }

    def _secret(self) -> str:
        """Return the secret that signs the components' tokens. It is created once and kept in AIRFLOW_HOME."""
        path = self._home / "jwt_secret"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
        return path.read_text()

    async def _healthy(self) -> bool:
        try:
            answer = await self._call("GET", "/api/v2/monitor/health")
        except AirflowError:
            return False
        return all((answer.get(name) or {}).get("status") == "healthy" for name in _HEARTBEATS)

    async def _refuse_import_errors(self) -> None:
        errors = (await self._call("GET", "/api/v2/importErrors"))["import_errors"]
        if errors:
            raise AirflowError(f"{errors[0]['filename']} does not import:\n{errors[0]['stack_trace'][-2000:]}")

    async def _until(self, done: Any, what: str, log: Path) -> None:
        deadline = time.monotonic() + START_LIMIT
        while True:
            answer = done()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            dead = self._processes.ended()
            if dead is not None and dead.name != "airflow-db":
                raise AirflowError(f"{dead.name} ended with status {dead.process.returncode}:\n{dead.tail()}")
            if time.monotonic() > deadline:
                raise AirflowError(f"{what} was not ready within {START_LIMIT:g} s:\n{tail(log)}")
            await asyncio.sleep(0.25)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        for _ in range(BUSY_TRIES):
            try:
                return await asyncio.to_thread(self._request, method, path, body)
            except AirflowError as error:
                if error.status is not None and error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise  # without a status: the server has not answered in time, as on a busy machine
                failure = error
            await asyncio.sleep(1)
        raise failure

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy
        try:
            with opener.open(request, timeout=REQUEST_LIMIT) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")[:500]
            raise AirflowError(f"Airflow answered {error.code} to {method} {path}: {text}", error.code) from error
        except (OSError, ValueError) as error:
            raise AirflowError(f"Airflow did not answer {method} {path}: {error}") from error
