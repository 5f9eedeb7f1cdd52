"""``make rows``: which rows of the specification have a test, which have none, and which are met otherwise.

``rows.txt`` holds one row a line: its id, what must hold, and where the statement comes from. K: the DurableTask task
hub; T: the table partitioning service; E: the event-processor partition manager; D: the workflow engine. A test names
its rows with ``@pytest.mark.rows("K26", "T16")``; they are read off the source, so nothing needs to run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
KINDS = {"K": "task hub", "T": "table partitioning", "E": "event processor", "D": "workflow engine"}

DEVIATIONS = {
    "D01": "starts, rewinds and purges write too, and workers write the records of attempts",
    "D02": "starts, rewinds and purges write too, as in DurableTask; all other requests only put a message",
    "D03": "starts, rewinds and purges write too, as in DurableTask; pause, resume, stop and events are messages",
    "D13": "a worker counts for all of its instances: messages put, messages deleted, messages in quarantine",
    "D18": "bound to a partition for life, and to its worker until the partition moves; inside, to no thread",
    "D23": "as long as fewer instances wait so than a worker runs at once; the default is 100",
    "D24": "between machines on Azure Storage, whose queues tell nobody of a message, at the next poll",
    "D29": "no event for the final clean-up: what an instance had in memory is freed with the checkpoint of its end",
    "D30": "no event pauses or retries an attempt: a suspension holds its instance, and a retry is a new call",
    "D33": "no code listens inside of a worker: who waits outside is told by hints in the store",
    "D34": "a timeout of an activity fails it; a warning is code of its orchestrator, with ctx.timeout",
    "D36": "the one state that is left is called running",
    "D61": "a suspend or terminate takes effect at once, also if nothing is left; only a clean-up may call activities",
    "D62": "a cancelled call with records ends at once; others stay in their queue: held, or dropped in their turn",
    "D63": "a kill waits for the executor's word, a terminate only if asked to; a pause asks no executor",
    "D67": "an end also comes to an attempt that no executor has, or whose worker is gone; suspended is no state of it",
    "D68": "a record begins with its claim; it has no state for dispatched, and a standstill is only logged",
    "D69": "an outcome is written again for an hour; then the work item goes back, and the activity runs again",
    "D73": "an outcome survives once the store has it; one that died with its worker is made by the next attempt",
    "D83": "no attempt is sent to a worker: who cannot run a call gives it back to its queue for up to 15 s",
    "D90": "on the embedded store after 0.5 s, because its scans are that frequent",
    "D91": "nobody looks for instances: who takes a partition has its unfinished work in the queue",
    "D92": "instances that wait are not read at all, and of messages there is a bounded buffer for each partition",
    "E67": "strictly one after another by instance, not by partition: a slow instance holds up nobody else",
    "E80": "no callback takes errors, their records do; those that are a partition's name it",
    "E81": "shown on the embedded store: Azurite tells tables by case, which Azure does not",
    "T68": "one partition in eight may move a third time: nothing tells the balance who will be restarted next",
    "T89": "the epoch is for display: the ETag of an instance's sentinel refuses what a paused old owner commits",
}
"""Rows whose tests show something else than they say: what holds instead, and why."""


def statements(path: Path = HERE / "rows.txt") -> dict[str, str]:
    """Row id → statement, in the order of the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {row: text for row, _, text in (line.partition(" ") for line in lines if line)}


def cited(folder: Path = HERE) -> dict[str, list[str]]:
    """Row id → places (``file:line``) of the marks that name it."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for row, line in marks(path.read_text(encoding="utf-8")):
            found.setdefault(row, []).append(f"{path.relative_to(folder)}:{line}")
    return found


def marks(source: str) -> Iterator[tuple[str, int]]:
    """Every id in a call of ``…mark.rows(…)``: on functions, classes, parameters and modules alike."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _is_rows(node.func):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, argument.lineno


def _is_rows(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "rows"
        and isinstance(function.value, ast.Attribute)
        and function.value.attr == "mark"
    )


def report(rows: Mapping[str, str], tests: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The lines to print: rows with tests, rows without, rows met otherwise, counts by kind."""
    yield "Rows with tests"
    for row in rows:
        if row in tests:
            yield f"  {row:<5} {len(tests[row]):>3}  {', '.join(tests[row][:3])}{' …' if len(tests[row]) > 3 else ''}"
    yield "\nRows without a test"
    for row, text in rows.items():
        if row not in tests:
            yield f"  {row:<5} {text if len(text) <= 110 else text[:109] + '…'}"
    yield "\nRows met otherwise on purpose"
    for row, instead in DEVIATIONS.items():
        if row in rows:
            yield f"  {row:<5} {instead}"
    yield ""
    for kind, title in KINDS.items():
        mine = [row for row in rows if row[0] == kind]
        yield f"{kind}  {title:<20} {sum(row in tests for row in mine):>4} of {len(mine)}"
    yield f"   {'all':<20} {sum(row in tests for row in rows):>4} of {len(rows)}"


def main() -> int:
    """Prints the report; 1 when a test names a row that does not exist."""
    rows, tests = statements(), cited()
    print("\n".join(report(rows, tests)))
    wrong = {row: places for row, places in tests.items() if row not in rows}
    for row, places in wrong.items():
        print(f"no such row: {row} ({', '.join(places)})", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
