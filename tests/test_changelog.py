"""The form of CHANGELOG.md: a user finds what is different for him, in one short line each."""

from __future__ import annotations

import re
from pathlib import Path

LINES = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
AREAS = [
    "Orchestrations",
    "Activities and Spark",
    "Workers",
    "Command line",
    "Airflow",
    "Page in Airflow",
    "Client",
    "Storage",
    "Metrics and probes",
    "Documentation and checks",
]
VERSION = re.compile(r"\[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)")
FIRST = next(number for number, line in enumerate(LINES) if line.startswith("## "))


def test_each_version_has_known_kinds_and_each_kind_known_areas_in_order() -> None:
    kinds: list[str] = []
    areas: list[str] = []
    for line in LINES:
        mark, _, title = line.partition(" ")
        if mark == "##":
            assert VERSION.fullmatch(title), f"{line!r}: write '## [1.2.3] - 2026-10-01'"
            kinds = []
        elif mark == "###":
            kinds.append(title)
            areas = []
            assert kinds == [kind for kind in KINDS if kind in kinds], f"{line!r}: use {KINDS} in this order, once each"
        elif mark == "####":
            areas.append(title)
            assert areas == [area for area in AREAS if area in areas], f"{line!r}: use {AREAS} in this order, once each"


def test_each_entry_is_one_short_sentence_or_two_below_an_area() -> None:
    area = ""
    entries = []
    for line in LINES[FIRST:]:
        if line.startswith("#"):
            area = line if line.startswith("#### ") else ""
        elif line:
            assert line.startswith("- "), f"an entry is one line that begins with '- ': {line!r}"
            assert area, f"put the entry below an area: {line!r}"
            assert len(line) <= 200, f"{len(line)} characters, 200 are allowed: {line!r}"
            assert line.endswith("."), f"an entry is a sentence: {line!r}"
            entries.append(line)
    assert len(entries) == len(set(entries)) > 100, "no entry stands twice"
