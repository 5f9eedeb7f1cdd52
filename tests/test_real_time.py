"""No verdict of a test rests on real time: sleeps, short patience and measured durations are found in the source, and
the list of those that may stay gives a reason for each.

Not found, because they look the same in virtual time: ``asyncio.sleep`` and the limits of a wait in a module that uses
virtual time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CLOCKS = {
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
    for unit in ("", "_ns")
} | {"SYSTEM_CLOCK.monotonic", "SYSTEM_CLOCK.utc_now", "datetime.now", "datetime.datetime.now", "datetime.utcnow"}
WAITS = {
    "wait",
    "wait_for",
    "join",
    "result",
    "get",
    "acquire",
    "communicate",
    "timeout",
    "run",
    "check_output",
    "until",
    "until_async",
}
"""Calls whose argument or ``timeout=`` may be the longest time that they wait."""
LEAST = 30.0
"""Seconds: a shorter patience can be over on a busy machine."""
WORDS = re.compile(
    r"sleep|Event\(\)|timeout|monotonic|perf_counter|_time|time\.time|now\(|wait|join|until|result\(|acquire"
)
"""Modules without any of these are not parsed, since that takes long."""
VIRTUAL = "airflow_provider_taskhub.virtual_time"

WAIT = "the wait itself"
POLL = "asks again; more than a condition must be watched, or tests.waiting cannot be imported in its process"
WORK = "work of a user's function, which may take longer"
PACE = "the pace of disturbances or of new work; the verdict counts what is lost, and asks for no number in a time"
MEASURE = "measures: it prints what a make target reports, and no test asserts the duration"

ALLOWED: dict[str, dict[str, str]] = {
    "airflow/crashes/deeds.py": {"_killed": PACE},
    "airflow/crashes/verdict.py": {"_follow": MEASURE},
    "airflow/hub_app.py": {"month": WORK, "rest": WORK},
    "airflow/kills.py": {"down": PACE, "kills": MEASURE, "mapped": MEASURE},
    "benchmarks/app.py": {"pause": WORK},
    "benchmarks/front/stage.py": {"Stage._ended": MEASURE},
    "benchmarks/growth.py": {
        "_idle": MEASURE,
        "_waiting": MEASURE,
        "_watch": MEASURE,
        "_seen": POLL,
    },
    "benchmarks/page.py": {"_change": MEASURE, "_measured": MEASURE},
    "benchmarks/stage.py": {"Stage._wait_until_ready": POLL, "Stage.settled": POLL},
    "benchmarks/workloads.py": {
        "_all_ended": POLL,
        "_ended": "the limit of a benchmark, minutes: it ends with what the worker said",
        "_idle": MEASURE,
    },
    "demo/test_processes.py": {"test_a_second_ctrl_c_does_not_stop_the_cleaning": PACE},
    "docs/blocks.py": {
        "Runner._console": "a page says how long a reader repeats a command; longer is as good",
        "_stop": "the grace between SIGTERM and SIGKILL",
    },
    "e2e/case_app.py": {"activity": POLL},
    "e2e/deadly_app.py": {"_run": WORK},
    "e2e/explore/app.py": {"_carry_out": WORK},
    "e2e/explore/driver.py": {"_give": PACE, "_kill": PACE, "_settle": POLL},
    "e2e/hour.py": {"hour": PACE},
    "e2e/hour_app.py": {"runs": WORK},
    "e2e/house_app.py": {"held": POLL, "kept": WORK, "tick": WORK},
    "e2e/publish_kills.py": {"Reader.run": PACE, "kills": PACE},
    "e2e/publishing_app.py": {"load": WORK},
    "e2e/refuse.py": {"refuse": PACE},
    "e2e/soak.py": {
        "Crew.disturb": PACE,
        "Crew.drain": PACE,
        "Crew.kill": PACE,
        "Crew.stop": PACE,
        "_work": PACE,
        "moves": MEASURE,
        "soak": PACE,
    },
    "e2e/storm.py": {"_kill": PACE, "still": MEASURE, "storm": PACE},
    "e2e/storm_app.py": {"kept": WORK, "tick": WORK},
    "e2e/telling_app.py": {"tells": POLL},
    "engine/test_beginners.py": {"Test_a_refused_call.test_of_asyncio": "the sleep is refused"},
    "engine/test_asyncio.py": {
        "generator": "what an orchestrator must not do; it is refused",
        "sleep": "what an orchestrator must not do; it is refused",
        "test_the_line_is_of_the_code_that_has_called_and_not_of_its_caller": "calls an orchestrator, `sleep`",
        "wait_for": "what an orchestrator must not do; it is refused",
    },
    "engine/test_branches.py": {
        "Test_failures.test_what_a_branch_calls_of_asyncio_is_refused_with_its_line": "must be refused"
    },
    "engine/test_episodes.py": {
        "Test_code.test_a_foreign_awaitable_is_named_with_its_line": "what an orchestrator must not do; it is refused"
    },
    "hub/partitions/test_lease_life.py": {
        "test_ages_go_on_while_a_machine_is_suspended": "the test gives the operating system's clock"
    },
    "hub/partitions/test_virtual_time.py": {
        "test_time_stands_still_while_a_thread_works": "a thread that works for a moment, which may take longer"
    },
    "spark/apps.py": {
        "_meet": POLL,
        "_forever": WORK,
        "careless": POLL,
        "endless": WORK,
        "in_two_stages": POLL,
        "leaves_hidden": POLL,
    },
    "spark/connect_apps.py": {"_slow": WORK, "dies_once": POLL, "settings": POLL},
    "storage/contract/test_tables.py": {
        "test_a_subscriber_without_news_waits_only_the_given_seconds": "the wait that ends by itself; longer is as good"
    },
    "testing/test_branches.py": {"work": "an activity in testing.run, whose time is virtual"},
    "testing/test_cancel.py": {
        "test_a_running_activity_is_cancelled": "an activity in testing.run, whose time is virtual"
    },
    "testing/test_not_awaited.py": {"note": "an activity in testing.run, whose time is virtual"},
    "waiting.py": {"until": WAIT, "until_async": WAIT},
    "workers/apps.py": {"_wait": POLL},
    "workers/executors/test_pool.py": {
        "test_an_attempt_that_comes_too_late_does_not_begin": "compares nothing; one moment is over, one is in an hour"
    },
}
"""Why a function may sleep in real time or assert a duration, by the path of its module and its name."""


def found_in(source: str, *, virtual: bool = False) -> set[str]:
    """The functions of a module that sleep in real time or assert a duration. :param virtual: it uses virtual time."""
    return {name for name, function in _functions(ast.parse(source)) if _is_timed(function, virtual=virtual)}


def _functions(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The functions of a module and the methods of its classes, each with what it contains, and the rest as ``""``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}".rstrip("."), inner) for name, inner in _functions(node))
        else:
            yield "", node


def _is_timed(function: ast.AST, *, virtual: bool) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(_sleeps(call, virtual=virtual) for call in calls) or _asserts_a_duration(function)


def _sleeps(call: ast.Call, *, virtual: bool) -> bool:
    match ast.unparse(call.func), call.args:
        case "time.sleep" | "sleep" | "SYSTEM_CLOCK.sleep", _:
            return True
        case "asyncio.sleep", [ast.Constant(value=0)]:
            return False
        case "asyncio.sleep", _:
            return not virtual
        case "threading.Event().wait", args:
            return bool(args)
    return ast.unparse(call.func).endswith(".wait_for_timeout") or (not virtual and _is_impatient(call))


def _is_impatient(call: ast.Call) -> bool:
    """Tell whether a call waits for less than ``LEAST``. A wait of 0 looks, and waits for nothing."""
    called = ast.unparse(call.func)
    name = called.rpartition(".")[2]
    if name not in WAITS or called == "ctx.timeout":
        return False
    limits = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    match name, call.args:
        case "wait" | "join" | "result" | "timeout", [limit]:
            limits.append(limit)
        case "wait_for" | "acquire" | "wait", [_, limit]:
            limits.append(limit)
        case "until" | "until_async", _:
            limits += [keyword.value for keyword in call.keywords if keyword.arg == "seconds"]
    return any(isinstance(limit, ast.Constant) and _is_short(limit.value) for limit in limits)


def _is_short(limit: object) -> bool:
    return isinstance(limit, int | float) and 0 < limit < LEAST


def _asserts_a_duration(function: ast.AST) -> bool:
    """Tell whether an assertion, or the condition of a failure, compares what comes from a real clock, directly or
    through variables.
    """
    from_clock: set[str] = set()

    def measures(node: ast.AST) -> bool:
        return any(
            (isinstance(part, ast.Call) and ast.unparse(part.func) in CLOCKS)
            or (isinstance(part, ast.Name) and part.id in from_clock)
            for part in _without_texts(node)
        )

    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign
    assigned = [node for node in ast.walk(function) if isinstance(node, kinds) and node.value is not None]
    before: set[str] | None = None
    while from_clock != before:  # a variable may depend on one that is assigned further down, in a loop
        before = set(from_clock)
        for node in assigned:
            if node.value is not None and measures(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                from_clock |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return any(measures(verdict) for node in ast.walk(function) if (verdict := _verdict(node)))


def _verdict(node: ast.AST) -> ast.expr | None:
    """Return the condition of an assertion, or of an ``if`` that fails the test."""
    match node:
        case ast.Assert(test=condition):
            return condition
        case ast.If(test=condition, body=body, orelse=orelse):
            parts = [part for statement in (*body, *orelse) for part in ast.walk(statement)]
            return condition if any(map(_fails, parts)) else None
    return None


def _fails(node: ast.AST) -> bool:
    return isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("fail"))


def _without_texts(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression contains, without f-strings: a time in one makes a name, and no duration."""
    if not isinstance(node, ast.JoinedStr):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _without_texts(child)


@cache
def _is_virtual(path: Path) -> bool:
    """Tell whether a module uses virtual time, itself or through modules of the tests that it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == VIRTUAL:
            return True
        imported = ROOT.joinpath(*node.module.split(".")).with_suffix(".py")
        if node.module.startswith("tests.") and imported.exists() and _is_virtual(imported):
            return True
    return False


def test_no_test_sleeps_or_asserts_a_duration_in_real_time_without_a_reason() -> None:
    found = {
        str(path.relative_to(TESTS)): functions
        for path in sorted(TESTS.rglob("*.py"))
        if WORDS.search(text := path.read_text()) and (functions := found_in(text, virtual=_is_virtual(path)))
    }
    allowed = {module: set(functions) for module, functions in ALLOWED.items()}
    more = {module: functions - allowed.get(module, set()) for module, functions in found.items()}
    gone = {module: functions - found.get(module, set()) for module, functions in allowed.items()}
    assert not {module: names for module, names in more.items() if names}, "wait with tests.waiting, or give a reason"
    assert not {module: names for module, names in gone.items() if names}, "take it off the list"


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "await asyncio.sleep(0.1)",
        "threading.Event().wait(0.1)",
        "page.wait_for_timeout(100)",
        "assert time.monotonic() - began < 3",
        "took = time.perf_counter() - began; assert 0 < took < 3",
        "began = time.time(); now = began + 1; assert later - now < 3",
        "took = time.monotonic_ns() - began; assert took < 3",
        "if SYSTEM_CLOCK.monotonic() - began > 3: pytest.fail('late')",
        "if datetime.now(UTC) > late: raise AssertionError",
        "SYSTEM_CLOCK.sleep(1)",
        "sleep(1)",
        "await asyncio.wait_for(ended, 0.2)",
        "async with asyncio.timeout(0.5): await ended",
        "thread.join(0.5)",
        "concurrent.futures.wait(futures, 1)",
        "assert future.result(5)",
        "assert SYSTEM_CLOCK.utc_now() - began < limit",
        "assert event.wait(timeout=1)",
        "queue.get(timeout=1)",
        "process.communicate(timeout=5)",
        "until('it ends', process.poll, seconds=2)",
        "took: float = time.monotonic() - began; assert took < 3",
    ],
)
def test_a_sleep_and_an_asserted_duration_are_found(line: str) -> None:
    assert WORDS.search(line), "else a module with this line alone is not parsed"
    assert found_in(f"async def test():\n    {line}") == {"test"}
    assert found_in(f"class Some:\n    async def test(self):\n        {line}") == {"Some.test"}


@pytest.mark.parametrize(
    "line",
    [
        "await asyncio.sleep(0)",
        "threading.Event().wait()",
        "event.wait(60)",
        "assert not event.wait(0)",
        "await asyncio.wait_for(ended, PATIENCE)",
        "', '.join(names)",
        "if time.monotonic() > end: break",
        "assert clock.monotonic() - began < 3",
        "began = time.monotonic(); print(time.monotonic() - began)",
    ],
)
def test_waits_for_conditions_and_virtual_time_are_not_found(line: str) -> None:
    assert found_in(f"async def test():\n    {line}") == set()


def test_a_sleep_of_the_event_loop_is_not_found_where_time_is_virtual() -> None:
    assert found_in("async def test():\n    await asyncio.sleep(5)", virtual=True) == set()
    assert found_in("async def test():\n    async with asyncio.timeout(5): await ended", virtual=True) == set()
    assert _is_virtual(TESTS / "simulation" / "test_dead_workers.py")
    assert not _is_virtual(TESTS / "e2e" / "house.py")
