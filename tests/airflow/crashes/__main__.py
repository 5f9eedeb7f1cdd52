"""The command: ``python -m tests.airflow.crashes``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import httpx

from tests.airflow import crashes
from tests.airflow.crashes.deeds import DEEDS
from tests.airflow.crashes.verdict import airflow, do, held, hub, unseen
from tests.airflow.crashes.waits import STAGES, WAYS, Wait
from tests.airflow.real import started

OPTIONS = {
    # By default Airflow looks for tasks whose scheduler has died every 300 s. A scheduler without a heartbeat counts as
    # dead after 30 s: with less, a busy machine makes the scheduler take its own tasks for lost, again and again.
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    # By default a worker that does not find the DAG file tries again after 60 s.
    "AIRFLOW__WORKERS__MISSING_DAG_RETRY_DELAY": "3",
}


def table(cases: Sequence[Wait]) -> Iterator[str]:
    """For each deed: the state of the task, its try, the seconds until everything had ended; the instances below."""
    yield f"{'what was done':21}{'started by':27}" + "".join(f"{stage:30}" for stage in STAGES).rstrip()
    for done in dict.fromkeys(case.done for case in cases):
        for number, way in enumerate(WAYS.values()):
            row = {case.stage: case for case in cases if (case.done, case.way) == (done, way)}
            yield f"{done if number == 0 else '':21}{way:27}" + _cells([airflow(row[stage]) for stage in STAGES])
            yield " " * 48 + _cells([hub(row[stage]) for stage in STAGES])
    yield ""
    whys = Counter((case.done, shown.why) for case in cases for shown in case.instances if shown.why)
    for (done, why), count in whys.items():
        yield f"{done}: {count} instances were terminated with the reason {why!r}"


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"{text:30}" for text in texts).rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=crashes.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=DEEDS, help="do only this; may be repeated")
    asked = parser.parse_args()
    real = started(**OPTIONS)
    os.environ["TASKHUB_HOME"] = real.env["TASKHUB_HOME"]
    cases, broken = [], 0
    for name in asked.only or DEEDS:
        try:
            cases += do(real, name)
        except (AssertionError, httpx.HTTPError) as error:  # the table of the others is worth having
            broken += 1
            print(f"{name}: ! {error}", flush=True)
    print("\n".join(table(cases)))
    wrong = [case for case in cases if not held(case)]
    left = list(unseen(real, cases))
    print(*left, sep="\n", end="\n" if left else "")
    print(f"{len(cases)} waits, {len(wrong)} not as they should; {len(left)} instances run unseen or ended by mistake")
    return int(bool(wrong or left or broken))


if __name__ == "__main__":
    sys.exit(main())
