"""Runs the tests on two cores: what computes beside what waits for real processes. ``make test`` and ``make test-all``.

Both groups of tests run at once, each on two processes of pytest. The output of the first group is shown when both have
ended. The last lines are the 15 slowest tests, and one line with the numbers of all tests.

Usage: ``python -m tests.run [--all]``. Without ``--all``, the tests of ``tests/extra.toml`` are left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / ".tests.summary"
"""The last line is also here, for ``.ci/run``."""
SLOWEST = 15
GROUPS = {
    "computing": ("-m", "not process", "--dist", "worksteal", "--numprocesses", "2"),
    # Without the last option, xdist would begin with the files that have the most tests, and not with the longest ones.
    "processes": ("-m", "process", "--dist", "loadfile", "--numprocesses", "2", "--no-loadscope-reorder"),
}
"""The groups of tests, with options of pytest. The output of the last one is shown while it runs."""


def command(group: str, *, everything: bool, report: Path) -> list[str]:
    """Return the command that runs a group of tests.

    :param everything: also run the tests of ``tests/extra.toml``.
    :param report: where pytest writes its report, in the format of JUnit.
    """
    mark, expression, *more = GROUPS[group]
    chosen = expression if everything else f"{expression} and not extra"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return [*pytest, mark, chosen, *more, f"--junitxml={report}"]


def run(*, everything: bool) -> int:
    """Run both groups, then print the slowest tests and the numbers of all tests.

    :param everything: also run the tests of ``tests/extra.toml``.
    :returns: 0 if all tests have passed.
    """
    begun = time.monotonic()
    SUMMARY.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="taskhub-tests-") as name:
        folder = Path(name)
        reports = {group: folder / f"{group}.xml" for group in GROUPS}
        commands = {group: command(group, everything=everything, report=report) for group, report in reports.items()}
        with (folder / "computing.out").open("w+b") as hidden, ExitStack() as stack:
            computing = stack.enter_context(_started(commands["computing"], hidden))
            processes = stack.enter_context(_started(commands["processes"], None))
            statuses = {"processes": processes.wait(), "computing": computing.wait()}
        print((folder / "computing.out").read_text(encoding="utf-8", errors="replace"), flush=True)
        cases = [
            case
            for report in reports.values()
            if report.exists()
            for case in ElementTree.parse(report).iter("testcase")
        ]
    print("tests and minutes by folder:", *by_folder(cases), sep="\n")
    print(f"the {SLOWEST} slowest tests, in seconds:", *slowest(cases), sep="\n")
    for group, status in statuses.items():
        if status not in (0, 1):  # 1: a test has failed, which the numbers say
            print(f"the tests of the group {group!r} did not run to their end: pytest's status is {status}")
    line = summary(cases, minutes=(time.monotonic() - begun) / 60)
    SUMMARY.write_text(line + "\n", encoding="utf-8")
    print(line)
    return max(map(abs, statuses.values()))


def by_folder(cases: Sequence[ElementTree.Element]) -> Sequence[str]:
    """Return a line for each folder of tests, the slowest first. The minutes are those of one process of pytest."""
    tests = Counter[str]()
    seconds: defaultdict[str, float] = defaultdict(float)
    for case in cases:
        folder = "/".join(str(case.get("classname")).split(".")[:2])
        tests[folder] += 1
        seconds[folder] += float(case.get("time", 0))
    order = sorted(seconds, key=lambda folder: -seconds[folder])
    return [f"{seconds[folder] / 60:8.1f}  {tests[folder]:5,}  {folder}" for folder in order]


def slowest(cases: Sequence[ElementTree.Element]) -> Sequence[str]:
    """Return a line for each of the slowest tests."""
    chosen = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:SLOWEST]
    return [f"{float(case.get('time', 0)):8.1f}  {case.get('classname')}::{case.get('name')}" for case in chosen]


def summary(cases: Sequence[ElementTree.Element], *, minutes: float) -> str:
    """Return the line with the numbers of all tests."""
    kinds = Counter(_kind(case) for case in cases)
    numbers = ", ".join(
        f"{kinds[kind]:,} {kind}" for kind in ("passed", "failed", "skipped") if kinds[kind] or kind != "skipped"
    )
    return f"{numbers}; {minutes:.1f} minutes"


def _kind(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


@contextmanager
def _started(command: Sequence[str], output: IO[bytes] | None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in this folder; end it when the block ends before it."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process of pytest would compile all tests again
    errors = subprocess.STDOUT if output else None
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="also the tests that tests/extra.toml names")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that both groups end too
    return run(everything=parser.parse_args().all)


if __name__ == "__main__":
    sys.exit(_main())
