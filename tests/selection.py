"""Which tests ``make test`` leaves to ``make test-all``, and which tests must run one after the other in one process.

``tests/extra.toml`` lists the tests that run only in ``make test-all``, with reasons. Every other test runs in
``make test``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

EXTRA = Path(__file__).with_name("extra.toml")
SHARED_AIRFLOW = re.compile(r"tests/airflow/test_real(?!_deployment|_sqlite)\w*\.py|tests/browser/test_page\.py")
"""The test files that use the one Airflow of :func:`tests.airflow.real.started`."""
FIRST = (
    "the shared Airflow",
    "tests/demo/test_demo.py",
    "tests/docs/test_blocks.py",
    "tests/airflow/test_real_deployment.py",
    "tests/spark/",
    "tests/e2e/",
)
"""Units that take minutes, in the order in which they start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Tests that run only in ``make test-all``.

    :param why: what is already shown by tests that run in ``make test``, in a sentence.
    :param tests: folders, files, tests, or tests with their parameters; ``*`` stands for any text.
    """

    why: str
    tests: tuple[str, ...]

    @property
    def patterns(self) -> Mapping[str, re.Pattern[str]]:
        """A pattern for each of ``tests``. It matches the beginning of the ids that are selected."""
        return {name: re.compile(_escaped(name) + ("" if name.endswith("/") else r"(?![\w.-])")) for name in self.tests}


def _escaped(name: str) -> str:
    return re.escape(name).replace(r"\*", ".*")


def extras() -> Sequence[Extra]:
    """Read ``tests/extra.toml``."""
    entries = tomllib.loads(EXTRA.read_text(encoding="utf-8"))["extra"]
    return tuple(Extra(why=entry["why"], tests=tuple(entry["tests"])) for entry in entries)


def reasons(entries: Sequence[Extra], node_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the reason for each test that runs only in ``make test-all``, by its id.

    :param entries: what :func:`extras` has read.
    :param node_ids: the ids of all tests.
    :raises pytest.UsageError: if an entry selects no test, because it was renamed, for example.
    """
    found: dict[str, str] = {}
    for entry in entries:
        for name, pattern in entry.patterns.items():
            selected = [node_id for node_id in node_ids if pattern.match(node_id)]
            if not selected:
                raise pytest.UsageError(f"extra.toml: {name!r} selects no test: correct or remove the entry")
            found |= dict.fromkeys(selected, entry.why)
    return found


def unit(node_id: str) -> str:
    """Name the tests that must run one after the other in one process: they share what is expensive to start.

    :param node_id: pytest's id of a test that starts a process.
    """
    file = node_id.partition("::")[0]
    if SHARED_AIRFLOW.fullmatch(file):
        return FIRST[0]
    return "tests/spark/" if file.startswith("tests/spark/") else file


def start_order(node_id: str) -> int:
    """Return the rank of a test's unit: units that take minutes start first, so that no core waits at the end."""
    name = unit(node_id)
    return next((rank for rank, first in enumerate(FIRST) if name.startswith(first)), len(FIRST))


class UnitScheduling(LoadFileScheduling):
    """Gives xdist's processes one unit after the other, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
