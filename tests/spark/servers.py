"""Real Spark servers on this machine's loopback network, as the demo starts them, and what tests count on them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import urllib.request
from typing import Any

from airflow_provider_taskhub.demo.spark_servers import SparkServer, SparkSetup
from airflow_provider_taskhub.workers.executors import process_session
from tests.waiting import until

STARTED = 240.0
"""Seconds of patience with the start of a server, which takes about ten."""


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


class Servers:
    """The servers of a setup, each in a session of its own, with its log in a file.

    :ivar master: what TaskHub's setting ``spark.master`` must be. :ivar page: of the first server.
    :ivar ports: of the first server; a master has one for applications, one for its page, one for its REST server.
    """

    def __init__(self, setup: SparkSetup, folder: pathlib.Path) -> None:
        self.master, self.conf, self.page = setup.master, dict(setup.conf), setup.servers[0].page
        self.ports = setup.servers[0].ports
        self._setup, self._folder = setup, folder
        self._environment = dict(os.environ)  # a server that a test starts again belongs to the fixture
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        try:
            for server in self._setup.servers:
                self._start(server)
        except BaseException:
            self.stop()
            raise

    def _start(self, server: SparkServer) -> None:
        folder = self._folder / server.name
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "log"
        # PYTHONPATH: the Python workers of the server load the functions of the tests.
        own = {**server.environment(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        with log.open("ab") as output:
            process = subprocess.Popen(
                server.command,
                cwd=folder,
                env={**self._environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)

        def ready() -> bool:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            assert process.poll() is None, f"{server.name} ended with {process.returncode}:\n{tail}"
            return server.is_ready()

        until(f"{server.name} is up", ready, seconds=STARTED)

    def stop(self) -> None:
        for process in self._processes:
            process_session.kill(process.pid)
            process.wait()
        self._processes.clear()

    def tasks(self) -> int:
        """The number of tasks that a Spark Connect server runs now."""
        return active_tasks(self.page)

    def applications(self) -> list[str]:
        """The ids of the applications that a master knows as running."""
        return [application["id"] for application in get(f"{self.page}/json/")["activeapps"]]


def active_tasks(page: str) -> int:
    """The number of tasks that run now, by the status API of an application's page."""
    found = get(f"{page}/api/v1/applications")[0]["id"]
    return sum(executor["activeTasks"] for executor in get(f"{page}/api/v1/applications/{found}/executors"))
