"""Runs the command line in a process of its own, without importing it anew each time.

A start of ``taskhub`` takes 0.6 s of CPU, nearly all of it for imports. Here one process imports the command line once
and forks itself for each command. So a test with thirty commands takes seconds less. Workers, and what the
documentation shows, are started as a user starts them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE


class Commands:
    """Runs commands of ``taskhub``, one after the other."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one command to its end.

        :param arguments: the arguments after ``taskhub``.
        :param environment: the whole environment of the process.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: str(Path(folder, name)) for name in ("stdout", "stderr")}
            order = {"arguments": list(arguments), "environment": dict(environment)} | paths
            watchdog = threading.Timer(PATIENCE, self._server.kill)
            watchdog.start()
            try:
                self._server.stdin.write(json.dumps(order) + "\n")
                self._server.stdin.flush()
                answer = self._server.stdout.readline()
            finally:
                watchdog.cancel()
            printed = {name: Path(path).read_text() if Path(path).exists() else "" for name, path in paths.items()}
        if not answer:
            raise AssertionError(f"taskhub {' '.join(arguments)} did not end in {PATIENCE:g} s: {printed}")
        return subprocess.CompletedProcess(["taskhub", *arguments], int(answer), **printed)


@contextmanager
def commands() -> Iterator[Commands]:
    """Start the process that imports the command line, and end it with the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.forked"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Commands(server)
    finally:
        with contextlib.suppress(BrokenPipeError):
            server.communicate(timeout=PATIENCE)  # the end of its input ends it


def _serve() -> None:
    """Fork for each line of the standard input, and answer with the exit status of the command."""
    from airflow_provider_taskhub.cli import main as _imported  # noqa: F401  what each command shares

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(order: Mapping[str, Any]) -> None:
    """Run one command in this process, and end."""
    from airflow_provider_taskhub.cli.program import main

    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        with open(order[name], "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(order["environment"])
    for folder in reversed(order["environment"].get("PYTHONPATH", "").split(os.pathsep)):
        sys.path.insert(0, folder)
    sys.argv = ["taskhub", *order["arguments"]]
    main()
    sys.exit(0)


if __name__ == "__main__":
    _serve()
