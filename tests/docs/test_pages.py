"""What the pages of one kind have in common."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
DECISIONS = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.stem != "index")
CONCEPTS = sorted(path for path in (DOCS / "concepts").glob("*.md") if path.stem not in ("index", "glossary"))
SECTIONS = ["Question", "Choice", "Rejected", "Cost", "How we would notice that it is wrong"]


def sections(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_every_decision_has_the_same_sections(page: Path) -> None:
    assert sections(page) == SECTIONS
    assert f"]({page.name})" in (DOCS / "decisions/index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in CONCEPTS if page.stem != "admission"], ids=lambda page: page.stem)
def test_every_concept_has_a_picture_that_the_build_draws(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "```{graphviz}" in text
    assert text.count("```{graphviz}") == text.count(":alt: "), "a picture says in words what it shows"
    assert f"]({page.name})" in (DOCS / "concepts/index.md").read_text(encoding="utf-8")


def test_the_glossary_has_each_word_once_in_order() -> None:
    words = re.findall(
        r"^\| (\S.*?) \| .+ \|$", (DOCS / "concepts/glossary.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    words = [word for word in words if word not in ("word", "---")]
    assert words == sorted(set(words), key=str.casefold)
    assert len(words) > 50


def test_no_page_cites_what_a_clone_has_not() -> None:
    for page in DOCS.rglob("*.md"):
        if "_build" not in page.parts:
            found = re.findall(r"\bDESIGN\b|\bSTYLE\b|\bspec/|/work/|\bspec §", page.read_text(encoding="utf-8"))
            assert found == [], page
