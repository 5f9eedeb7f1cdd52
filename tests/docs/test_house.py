"""The page about the house names rooms that exist."""

from __future__ import annotations

import re
import sys

import pytest

from tests.docs.blocks import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import taskhub_reference as reference

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


@pytest.mark.parametrize("picture", ["house", "rooms"])
def test_the_pictures_are_drawn_from_the_contracts_of_import_linter(picture: str) -> None:
    assert f"_generated/{picture}.md" in PAGE
    assert picture in reference.PAGES
    assert "graphviz}" not in PAGE, "a graph by hand does not follow setup.cfg"


@pytest.mark.parametrize("package", ["airflow_provider_taskhub", "hub", "workers", "client", "storage"])
def test_every_module_of_a_package_with_floors_is_in_its_picture(package: str) -> None:
    drawn = set(re.findall(r"\w+", " ".join(reference.floors()[package])))
    found = (PACKAGE if package == PACKAGE.name else PACKAGE / package).iterdir()
    modules = {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - drawn <= {"__init__"}
    pictures = reference.house() + reference.rooms()
    assert all(f'"{package}/{floor}"' in pictures for floor in reference.floors()[package])
