"""What one run of a DAG took, the goals, and the tables. Nothing here starts a process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median

from rich.table import Table
from rich.text import Text

from tests.benchmarks.figures import number

ROLES = ("scheduler", "tasks", "triggerer", "api-server", "database", "hub worker")
"""Whose CPU is measured. ``tasks``: the processes that run tasks; the scheduler starts them."""
OF_WORKERS, OF_TRIGGERS, ABOVE_ONE_TRIGGER = 1.2, 1.5, 0.5
"""What tasks with an orchestration may take at most: as a multiple of trivial tasks in workers, as a multiple of
triggers that do nothing, and for one task the seconds above such a trigger."""
PARSE = 30.0
"""Milliseconds that the operators may add to the reading of a DAG file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A DAG that is run and timed.

    :param name: the name of the workload, and of its DAG with ``_`` in place of ``-``.
    :param tasks: how many tasks a run has.
    :param text: what the tasks are.
    :param slots: whether the tasks run in Airflow's workers.
    :param seconds: the goal for the time of a run; None: no goal.
    :param beside: the workload of trivial tasks whose time is compared; None: none.
    :param ratio: the goal for the time as a multiple of the other's.
    :param more: the goal for the seconds above the other's; None: the ratio is the goal.
    """

    name: str
    tasks: int
    text: str
    slots: bool = True
    seconds: float | None = None
    beside: str | None = None
    ratio: float = OF_WORKERS
    more: float | None = None

    @property
    def dag(self) -> str:
        return self.name.replace("-", "_")


_ALL = (
    Workload(name="task-1", tasks=1, text="a trivial @task"),
    Workload(name="trigger-1", tasks=1, text="one trigger that does nothing", slots=False),
    Workload(
        name="zero-1",
        tasks=1,
        text="one operator, started by the triggerer",
        slots=False,
        beside="trigger-1",
        more=ABOVE_ONE_TRIGGER,
    ),
    Workload(name="worker-1", tasks=1, text="one operator, started by a worker", beside="task-1"),
    Workload(name="outlet-1", tasks=1, text="an orchestration of 3 s with an outlet", seconds=6),
    Workload(name="task-100", tasks=100, text="100 mapped trivial @task"),
    Workload(name="worker-100", tasks=100, text="100 mapped operators, started by workers", beside="task-100"),
    Workload(name="trigger-100", tasks=100, text="100 triggers that do nothing", slots=False),
    Workload(
        name="zero-100",
        tasks=100,
        text="100 mapped rows, started by the triggerer",
        slots=False,
        beside="trigger-100",
        ratio=OF_TRIGGERS,
    ),
    Workload(name="trigger-500", tasks=500, text="500 triggers that do nothing", slots=False),
    Workload(
        name="zero-500",
        tasks=500,
        text="500 mapped rows, started by the triggerer",
        slots=False,
        beside="trigger-500",
        ratio=OF_TRIGGERS,
    ),
)
WORKLOADS: Mapping[str, Workload] = {each.name: each for each in _ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a workload.

    :param heartbeat: Airflow's ``[workers] min_heartbeat_interval`` in seconds.
    :param seconds: from the trigger of the run to its end.
    :param succeeded: how many tasks ended with success.
    :param in_workers: how many tasks ran in a worker at any time.
    :param most_slots: the largest number of worker slots in use at one time.
    :param slot_seconds: the sum of the times for which slots were in use.
    :param slots: the slots in use over time: seconds since the trigger of the run, and the number from then on.
    :param requests: requests to the hub by Airflow's component.
    :param cpu: seconds of CPU by role.
    """

    workload: str
    heartbeat: int
    repetition: int
    seconds: float
    tasks: int
    succeeded: int
    in_workers: int
    most_slots: int
    slot_seconds: float
    slots: Sequence[tuple[float, int]]
    requests: Mapping[str, int]
    cpu: Mapping[str, float]

    @property
    def failed(self) -> int:
        return self.tasks - self.succeeded

    def line(self, machine: str) -> str:
        """Return one JSON object."""
        return json.dumps({**asdict(self), "machine": machine})


def slot_seconds(samples: Sequence[tuple[float, int]]) -> float:
    """Return the area below a curve: each sample holds until the next one.

    :param samples: seconds on a clock, and the number of slots in use.
    """
    return sum((after - now) * slots for (now, slots), (after, _) in pairwise(samples))


def changes(samples: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return the samples whose number of slots differs from the one before, with seconds since the first sample."""
    found: list[tuple[float, int]] = []
    for now, slots in samples:
        if not found or found[-1][1] != slots:
            found.append((round(now - samples[0][0], 1), slots))
    return found


def compared(runs: Sequence[Run], workload: Workload, heartbeat: int) -> list[float]:
    """Return the time of a workload beside the trivial tasks' time, repetition by repetition: as a multiple, or the
    seconds above if that is the goal.
    """
    times = {(run.workload, run.repetition): run.seconds for run in runs if run.heartbeat == heartbeat}
    beside = {repetition: seconds for (name, repetition), seconds in times.items() if name == workload.beside}
    return [
        seconds / beside[repetition] if workload.more is None else seconds - beside[repetition]
        for (name, repetition), seconds in times.items()
        if name == workload.name and repetition in beside
    ]


def table(runs: Sequence[Run]) -> Table:
    """Return a row for each workload and heartbeat interval: medians, and the verdict on each goal."""
    shown = Table(title="Airflow's tasks, medians", title_justify="left")
    shown.add_column("workload")
    for column in ("seconds", "goal", "slots", "slot s", "hub requests", *ROLES, "failed"):
        shown.add_column(column, justify="right", no_wrap=column != "hub requests")
    for heartbeat in sorted({run.heartbeat for run in runs}):
        shown.add_section()
        for workload in WORKLOADS.values():
            found = [run for run in runs if (run.workload, run.heartbeat) == (workload.name, heartbeat)]
            if found:
                shown.add_row(*_cells(workload, found, compared(runs, workload, heartbeat)))
    return shown


def _cells(workload: Workload, runs: Sequence[Run], beside: Sequence[float]) -> Iterable[str | Text]:
    times = [run.seconds for run in runs]
    spread = f"\n{number(min(times))} … {number(max(times))}" if len(times) > 1 else ""
    yield f"{workload.name}, heartbeat {runs[0].heartbeat} s" if workload.slots else workload.name
    yield f"{number(median(times))}{spread}"
    yield _goal(workload, median(times), beside)
    most = max(run.most_slots for run in runs)
    yield str(most) if workload.slots else _verdict(str(most), met=most == 0)
    yield number(median(run.slot_seconds for run in runs))
    yield number(median(sum(run.requests.values()) for run in runs))
    for role in ROLES:
        yield f"{median(run.cpu.get(role, 0.0) for run in runs):.1f}"
    failed = sum(run.failed for run in runs)
    yield _verdict(f"{failed} of {sum(run.tasks for run in runs)}", met=failed == 0)


def _goal(workload: Workload, seconds: float, beside: Sequence[float]) -> Text:
    if workload.seconds is not None:
        return _verdict(f"≤ {workload.seconds:g} s", met=seconds <= workload.seconds)
    if not beside:
        return Text("")
    if workload.more is not None:
        return _verdict(f"{median(beside):+.2f} s of ≤ +{workload.more:g}", met=median(beside) <= workload.more)
    return _verdict(f"{median(beside):.2f} of ≤ {workload.ratio:g}", met=median(beside) <= workload.ratio)


def _verdict(text: str, *, met: bool) -> Text:
    return Text(f"{text} {'✓' if met else '✗'}", style="green" if met else "red")


def parse_line(times: Sequence[float]) -> Text:
    """Return a line about the reading of a DAG file. :param times: milliseconds."""
    return Text("a DAG file with every operator, above one without: ").append(
        _verdict(f"{median(times):.1f} ms of ≤ {PARSE:g}", met=median(times) <= PARSE)
    )
