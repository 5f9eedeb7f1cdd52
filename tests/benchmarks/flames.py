"""A flame graph of a worker: py-spy over its host and its executors, from outside, so that it runs as users run it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.stage import ROOT, BenchError

PROGRAM = ROOT / ".bench" / "tools" / "bin" / "py-spy"
RATE = 250
"""Samples a second. A burst of 1,000 lasts a second; --scale 10 makes a smoother graph of it."""
ENDING = 60.0
"""Seconds in which the graph is drawn."""


@contextmanager
def flames(pid: int, graph: Path) -> Iterator[None]:
    """Sample a process and its children during the block, then write the graph.

    :raises BenchError: with py-spy's words, when it may not look at the process or there was nothing to see.
    """
    if not PROGRAM.is_file():
        raise BenchError(f"there is no {PROGRAM}: `make profile` installs it")
    graph.parent.mkdir(parents=True, exist_ok=True)
    graph.unlink(missing_ok=True)
    command = [PROGRAM, "record", "--pid", str(pid), "--subprocesses", "--rate", str(RATE), "--output", graph]
    sampling = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield
        sampling.send_signal(signal.SIGINT)  # as Ctrl-C: it draws what it has
        words, _ = sampling.communicate(timeout=ENDING)
    except subprocess.TimeoutExpired:
        raise BenchError(f"py-spy drew nothing within {ENDING:g} s") from None
    finally:
        if sampling.poll() is None:
            sampling.kill()
            sampling.wait()
    if not graph.is_file():
        raise BenchError(f"py-spy wrote no graph:\n{words}")
