"""The short form of ``make publish-kills``, and that its counting sees what it must."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_taskhub.publishing.layout import data_path
from tests.e2e.house import House
from tests.e2e.publish_kills import after, kills, read, wrong
from tests.e2e.publishing_app import ROWS


@pytest.mark.parametrize(("kind", "count"), [("executor", 4), ("worker", 2)])
async def test_kills_in_the_middle_of_writes_double_and_lose_nothing(embedded: House, kind: str, count: int) -> None:
    counts = await kills(embedded, kind, count, seed=1)
    assert counts.told == []
    assert not wrong(counts)
    assert counts.kills == count
    assert counts.writing >= 1
    assert counts.repeated >= 1
    assert counts.reads > 20
    target = embedded.folder / f"target-{kind}"
    whole = read(str(target))
    for file in target.joinpath(data_path()).rglob("0.parquet"):
        file.unlink()
    assert read(str(target)).total() == whole.total() / 2, "the counting sees that files are missing"


def test_what_a_target_must_have_after_a_load() -> None:
    before = Counter({(0, 1): ROWS, (0, 2): ROWS})
    assert after(before, "append", 1, [2]) == {(0, 1): ROWS, (0, 2): ROWS, (1, 2): ROWS}
    assert after(before, "overwrite_partitions", 1, [2]) == {(0, 1): ROWS, (1, 2): ROWS}
    assert after(before, "overwrite", 1, [2]) == {(1, 2): ROWS}


def test_the_app_of_the_kills_is_beside_this_file() -> None:
    assert (Path(__file__).parent / "publishing_app.py").exists()
