"""The package carries its own reasons: it cites no document that a clone has not, and the pages it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

CITED = re.compile(
    r"\bDESIGN\b|\bSTYLE\b|shared/(?:spec|seeds|review|design)|\bspec(?:ification)? ?§|\bspec/|§"
    r"|(?<!U\+)\b[KTED]\d\d\d?\b"
)
"""Design notes, chapters of a specification, and its rows, which docs/contributing/rows.md has in words."""
PACKAGE = sorted((ROOT / "airflow_provider_taskhub").rglob("*.py")) + sorted((ROOT / "dags_examples").rglob("*.py"))


TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parent.name != "docs"]
ROW = re.compile(r"^[KTED]\d+$")


def cited(paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for found in CITED.findall(line)
        if paths is PACKAGE or not ROW.match(found)
    ]


def test_no_line_of_the_package_cites_a_document_that_a_clone_has_not() -> None:
    assert len(PACKAGE) > 100
    assert cited(PACKAGE) == [], "say the reason in words, or link a page of docs/"


def test_tests_cite_rows_of_the_specification_and_nothing_else() -> None:
    assert len(TESTS) > 100
    assert cited(TESTS) == [], "say the reason in words"


@pytest.mark.parametrize("line", ["(DESIGN §7)", "as in spec §2.4", "see STYLE 17", "(K30)", "shared/spec/airflow.md"])
def test_the_pattern_matches_each_kind_of_citation(line: str) -> None:
    assert CITED.search(line)


def test_every_page_that_the_package_names_exists() -> None:
    named = {name for path in PACKAGE for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
