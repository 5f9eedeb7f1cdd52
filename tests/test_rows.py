"""The list of rows itself, and how tests are matched with it."""

from __future__ import annotations

import re
from pathlib import Path

from tests import rows


def test_every_row_of_the_specification_is_listed_once() -> None:
    found = rows.statements()
    expected = [
        f"{kind}{n:02d}" for kind, last in (("K", 60), ("T", 89), ("E", 81), ("D", 109)) for n in range(1, last + 1)
    ]
    assert list(found) == expected
    assert all(len(text) > 10 for text in found.values())


def test_marks_are_found_wherever_they_stand() -> None:
    source = (
        "import pytest\n"
        "pytestmark = pytest.mark.rows('K01')\n"
        "@pytest.mark.rows('K02', 'T03')\n"
        "async def test_a(): ...\n"
        "class TestB:\n"
        "    @pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.rows('E04'))])\n"
        "    def test_c(self, x): rows('D05'); mark.other('D06')\n"
    )
    assert sorted(row for row, _ in rows.marks(source)) == ["E04", "K01", "K02", "T03"]


def test_report_counts_both_sides() -> None:
    lines = list(rows.report({"K01": "a", "K02": "b", "T01": "c"}, {"K01": ["x.py:1"]}))
    assert "  K01     1  x.py:1" in lines
    assert "  K02   b" in lines
    assert lines[-5:] == [
        "K  task hub                1 of 2",
        "T  table partitioning      0 of 1",
        "E  event processor         0 of 0",
        "D  workflow engine         0 of 0",
        "   all                     1 of 3",
    ]


def test_rows_met_otherwise_are_listed_and_each_exists_and_is_tested() -> None:
    known, tested = rows.statements(), rows.cited()
    assert [row for row in rows.DEVIATIONS if row not in known or row not in tested] == []
    lines = list(rows.report(known, tested))
    told = lines[lines.index("\nRows met otherwise on purpose") + 1 :]
    assert told[: len(rows.DEVIATIONS)] == [f"  {row:<5} {instead}" for row, instead in rows.DEVIATIONS.items()]


def test_a_test_that_shows_something_else_on_purpose_is_listed() -> None:
    texts = (path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    said = {row for text in texts for row in re.findall(r"Not as ([KTED]\d+) says, on purpose", text)}
    assert {"E67", "E80", "T68"} <= said <= rows.DEVIATIONS.keys()


def test_every_row_that_a_test_names_exists() -> None:
    known = rows.statements()
    assert {row: places for row, places in rows.cited().items() if row not in known} == {}


def test_every_row_has_one_sentence_of_its_own_in_the_documentation() -> None:
    page = (Path(__file__).parents[1] / "docs/contributing/rows.md").read_text(encoding="utf-8")
    met_otherwise, _, sentences = page.partition("\n## K:")
    known, said = rows.statements(), re.findall(r"^\| ([KTED]\d+) \| (.*) \|$", sentences, re.MULTILINE)
    assert [row for row, _ in said] == list(known)
    assert [row for row, text in said if len(text) < 30 or not text.endswith((".", "?", ")"))] == []
    assert [row for row, text in said if known[row].startswith(text.rstrip("."))] == []
    assert sorted(re.findall(r"^\| ([KTED]\d+) \|", met_otherwise, re.MULTILINE)) == sorted(rows.DEVIATIONS)


def test_the_readme_has_no_placeholders_left() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    assert not re.findall(r"@[A-Z]{3,}@", text)
