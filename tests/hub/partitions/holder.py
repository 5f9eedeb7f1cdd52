"""A worker process for the tests: claims an incarnation, starts an executor that inherits its lock, and waits.

Usage: ``holder.py HOME NAME [executor]``. Prints its identity and, if it started one, its executor's pid.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from airflow_provider_taskhub.hub.partitions.incarnation import Incarnation

incarnation = Incarnation.claim(sys.argv[2], Path(sys.argv[1]))
print(incarnation.identity, flush=True)
if "executor" in sys.argv:
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[incarnation.lock_fd],
    )
    print(child.pid, flush=True)
sys.stdin.read()
