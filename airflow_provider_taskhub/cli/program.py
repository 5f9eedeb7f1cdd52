"""The program ``taskhub``. It fixes the order of sets for a worker before it imports anything that takes time.

The order of a set of texts depends on Python's hash seed, which is random in each process unless ``PYTHONHASHSEED`` is
set. An orchestrator that goes through a set would decide in another order when another process replays it. Python reads
the variable only at its start, so the worker's process starts itself again with it, under the same process id. A check
that refuses loops over sets was rejected: Python has no hook for it.

Executors inherit the variable. PySpark sets the same value for its Python processes.
"""

from __future__ import annotations

import gc
import os
import sys

HASH_SEED = "PYTHONHASHSEED"


def fix_hash_seed() -> None:
    """Start this process again with ``PYTHONHASHSEED=0``, unless the variable is set already.

    A value of the user stays, also ``random``. All workers of a hub need the same value.
    """
    if HASH_SEED not in os.environ and sys.executable and sys.orig_argv:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, HASH_SEED: "0"})


def main() -> None:
    """Run the command line ``taskhub``."""
    if sys.argv[1:2] == ["worker"]:
        fix_hash_seed()
    gc.disable()  # during the imports, garbage collection would take a tenth of the time of a short command
    from airflow_provider_taskhub.cli.main import main as run

    gc.enable()
    run()
