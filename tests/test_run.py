"""Tests of what :mod:`tests.run` prints at its end."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.run import SLOWEST, by_folder, slowest, summary

REPORT = """
<testsuites><testsuite>
  <testcase classname="tests.a" name="test_one" time="1.25"/>
  <testcase classname="tests.a" name="test_two[x]" time="70.04"><failure>why</failure></testcase>
  <testcase classname="tests.b" name="test_three" time="0.5"><error>why</error></testcase>
</testsuite></testsuites>
"""
CASES = list(ElementTree.fromstring(REPORT).iter("testcase"))


def test_the_last_line_has_the_numbers_and_the_minutes() -> None:
    assert summary(CASES, minutes=12.34) == "1 passed, 2 failed; 12.3 minutes"
    many = [ElementTree.fromstring("<testcase/>")] * 1234 + [ElementTree.fromstring("<testcase><skipped/></testcase>")]
    assert summary(many, minutes=1) == "1,234 passed, 0 failed, 1 skipped; 1.0 minutes"


def test_the_slowest_tests_come_first() -> None:
    assert [line.split() for line in slowest(CASES)] == [
        ["70.0", "tests.a::test_two[x]"],
        ["1.2", "tests.a::test_one"],
        ["0.5", "tests.b::test_three"],
    ]
    assert len(slowest(CASES * 20)) == SLOWEST


def test_folders_have_their_tests_and_minutes() -> None:
    assert [line.split() for line in by_folder(CASES * 2)] == [["2.4", "4", "tests/a"], ["0.0", "2", "tests/b"]]
