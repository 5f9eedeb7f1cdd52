"""The programs of one case of ``tests/simulation/cases``, for worker processes.

An activity says in ``$EFFECTS`` when an attempt begins, leaves, and ends. It lasts until a file lets it go.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from airflow_provider_taskhub.app import OrchestrationError
from tests.simulation.case_files import Step, app_of, load

EFFECTS = Path(os.environ["EFFECTS"])


def note(*words: object) -> None:
    with EFFECTS.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def begun(name: str) -> int:
    return sum(line.startswith(f"begin {name} ") for line in EFFECTS.read_text().splitlines())


async def activity(step: Step) -> None:
    name, worker = str(step.call), os.environ["WORKER"]
    note("begin", name, worker, os.getpid())
    attempt = begun(name)
    try:
        while not EFFECTS.with_name(f"go-{name}-{attempt}").exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.02)
    finally:
        note("left", name, worker)
    if attempt <= step.fails:
        raise OrchestrationError(f"{name} does not work", retryable=not step.final)
    note("done", name, worker)


app = app_of(load(Path(os.environ["CASE"])), activity)
