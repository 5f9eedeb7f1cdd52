"""The page about the house names rooms that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_taskhub"
PAGE = (ROOT / "docs/contributing/house.md").read_text(encoding="utf-8")


def test_every_room_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:hub|workers|storage|operators|engine)/[\w/]+)`", PAGE)
    assert len(named) > 15
    assert [room for room in named if not (PACKAGE / room).is_dir() and not (PACKAGE / f"{room}.py").exists()] == []


def test_every_folder_of_the_package_is_on_the_page() -> None:
    folders = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    assert [name for name in folders if f"`{name}" not in PAGE] == []


def test_every_folder_of_tests_is_on_the_page_about_tests() -> None:
    page = (ROOT / "docs/contributing/tests.md").read_text(encoding="utf-8")
    folders = sorted(path.parent.name for path in (ROOT / "tests").glob("*/__init__.py"))
    assert [name for name in folders if f"`tests/{name}" not in page] == []
