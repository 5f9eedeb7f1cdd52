"""A real Airflow as companies run it: two schedulers and triggerers, Celery, users of FAB, a path in its address."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from airflow_provider_taskhub.demo.ports import free_port
from tests.airflow.real import COMPONENTS, HERE, Process, RealAirflow
from tests.waiting import PATIENCE, until

ROLES = {
    "Page": (("can_read", "Plugins"),),
    "Sums": (
        ("can_read", "Plugins"),
        ("can_read", "DAG:sums"),
        ("can_edit", "DAG:sums"),
        ("can_read", "DAG Runs"),
        ("can_edit", "DAG Runs"),
        ("can_read", "Task Instances"),
    ),
}
"""Roles beside those of FAB: the right to see the page; the right to one DAG."""
USERS = {
    "vic": ("Viewer",),
    "ulla": ("User",),
    "vera": ("Viewer", "Page"),
    "uma": ("User", "Page"),
    "otto": ("Op",),
    "sam": ("Sums",),
}
"""The users beside admin, and their roles. Vera, Uma and Otto may do what they may with the simple auth manager."""
_ADMIN = "users create -u admin -p admin -f admin -l admin -e admin@example.com -r Admin"


class Deployment(RealAirflow):
    """Starts everything on one machine; Celery's broker is a Redis."""

    base = "/air/flow"
    dag_count = RealAirflow.dag_count - 1  # FAB knows no teams, so the DAG of the team is missing
    components = COMPONENTS | {
        "scheduler-2": ("scheduler",),
        "triggerer-2": ("triggerer",),
        "celery": ("celery", "worker", "--concurrency", "3", "--without-gossip", "--without-mingle"),
    }
    preparations = (("db", "migrate"), tuple(_ADMIN.split()))

    def _environment(self) -> dict[str, str]:
        bundle = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundles = [{"name": "dags", "classpath": bundle, "kwargs": {"path": str(HERE / "dags")}}]
        self._redis = free_port()
        return super()._environment() | {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__PARALLELISM": "32",
            "AIRFLOW__CORE__MULTI_TEAM": "False",
            "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
            "AIRFLOW__FAB__AUTH_RATE_LIMITED": "False",  # several users log in within a second
            "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{self._redis}/0",
            # Airflow's default: the first trigger can hold the heartbeat of a triggerer up for longer than 15 s
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
            # two triggerers on one machine: each takes a free port
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": "0",
        }

    def start(self) -> None:
        self._start_redis()
        super().start()
        until("both schedulers and triggerers", lambda: self._alive("Scheduler") == self._alive("Triggerer") == 2)
        for role, rights in ROLES.items():
            actions = [{"action": {"name": action}, "resource": {"name": resource}} for action, resource in rights]
            self._make("roles", {"name": role, "actions": actions})
        for name, roles in USERS.items():
            person = {"username": name, "password": name, "first_name": name, "last_name": name}
            self._make("users", person | {"email": f"{name}@example.com", "roles": [{"name": role} for role in roles]})

    def _start_redis(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program, "no Redis on this machine: apt-get install redis-server"
        options = {"bind": "127.0.0.1", "port": str(self._redis), "dir": str(self.home), "save": ""}
        command = [program, *(part for name, value in options.items() for part in (f"--{name}", value))]
        self.processes["redis"] = Process("redis", command, self.env, self.home)
        until("Redis", lambda: "Ready to accept connections" in self.processes["redis"].log.read_text())

    def _alive(self, kind: str) -> int:
        return int(self.get("/api/v2/jobs", job_type=f"{kind}Job", is_alive=True)["total_entries"])

    def _make(self, what: str, body: Mapping[str, Any]) -> None:
        answer = self.request("POST", f"/auth/fab/v1/{what}", json=body)
        assert answer.status_code == 200, answer.text

    def browser(self, user: str) -> httpx.Client:
        """Log in through the form, as a browser does; the client keeps Airflow's cookies."""
        browser = httpx.Client(base_url=self.url, timeout=90, follow_redirects=True)
        form = browser.get("/auth/login/")
        token = re.search(r'name="csrf_token"[^>]*value="([^"]+)"', form.text)
        assert token, form.text[:2000]
        browser.post("/auth/login/", data={"username": user, "password": user, "csrf_token": token[1]})
        return browser

    def triggerer_of(self, run_id: str) -> Process:
        """Return the triggerer that waits for the task of a run: the one that has opened the log of the task."""

        def found() -> Process | None:
            both = (self.processes["triggerer"], self.processes["triggerer-2"])
            return next((one for one in both if _opens(one, run_id)), None)

        return until(f"a triggerer with a trigger of {run_id}", found)

    def scheduler_of(self, run_id: str) -> Process:
        """Return a scheduler that has handled the run."""

        def found() -> Process | None:
            both = (self.processes["scheduler"], self.processes["scheduler-2"])
            return next((one for one in both if run_id in one.log.read_text()), None)

        return until(f"a scheduler of {run_id}", found)


def _opens(process: Process, text: str) -> bool:
    parent = psutil.Process(process.process.pid)
    return any(text in file.path for one in (parent, *parent.children(recursive=True)) for file in one.open_files())


@contextmanager
def killed(process: Process) -> Iterator[None]:
    """Kill a process (SIGKILL), and start it again after the ``with`` block."""
    process.signal(signal.SIGKILL)
    process.process.wait(PATIENCE)
    try:
        yield
    finally:
        process.start()
