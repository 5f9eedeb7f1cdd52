"""The README is short, and everything that it points to is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = sorted(set(re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', TEXT)))


def test_the_readme_is_what_a_newcomer_reads_in_five_minutes() -> None:
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize("link", [one or other for one, other in LINKS])
def test_every_link_of_the_readme_leads_to_a_file_and_a_heading(link: str) -> None:
    name, _, anchor = link.partition("#")
    path = ROOT / name
    assert path.is_file()
    headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8")) if anchor else []
    anchors = [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert not anchor or anchor in anchors
