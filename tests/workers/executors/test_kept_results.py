"""Where the result of an activity is kept that is too large for the hub."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from airflow_provider_taskhub.workers.executors.child.kept_results import KEPT, keep
from tests.workers.conftest import PoolMaker, request


def contents(folder: Path) -> dict[str, object]:
    return {str(path): json.loads(path.read_text()) for path in folder.iterdir()}


async def test_a_result_above_the_maximum_fails_at_once_and_is_kept(make_pool: PoolMaker, tmp_path: Path) -> None:
    pool = await make_pool(max_result=1000, kept_results=tmp_path / "here")
    failure = (await pool.run(request("large", 999))).failure
    assert failure is not None
    assert "'large' is 1,001 bytes" in failure.error_message
    found = re.search(
        r"The result is kept as JSON in (\S+) on \S+. Take it soon: only the newest 20", failure.error_message
    )
    assert found, failure.error_message
    assert contents(tmp_path / "here") == {found[1]: "x" * 999}
    assert (await pool.run(request("large", 998))).result == json.dumps("x" * 998)
    assert len(contents(tmp_path / "here")) == 1


def test_only_the_newest_results_are_kept_and_only_the_user_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir(mode=0o700)
    (folder / "mine.json").write_text("of the user")
    for number in range(KEPT + 3):
        said = keep(b"%d" % number, folder, instance_id="a/../b", task_id=number, machine="m")
        assert f"kept as JSON in {folder}/a%2F..%2Fb-{number}-" in said
    (folder / "mine.json").unlink()  # it is still there
    assert {path.read_bytes() for path in folder.iterdir()} == {b"%d" % number for number in range(3, KEPT + 3)}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    said = keep(b"1", tmp_path / "results", instance_id="i", task_id=0, machine="m")
    assert said == f"The result could not be kept in {tmp_path}/results (File exists): it is lost"


@pytest.mark.parametrize("instance_id", ["é" * 200, "x" * 500])
def test_a_long_id_is_cut(tmp_path: Path, instance_id: str) -> None:
    assert "kept as JSON" in keep(b"1", tmp_path, instance_id=instance_id, task_id=0, machine="m")


def test_what_a_killed_executor_has_not_finished_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, new = tmp_path / "i-0-00000000.part", tmp_path / "i-0-11111111.part"
    for path, age in ((old, 3700), (new, 60)):
        path.write_text("half")
        modified = path.stat().st_mtime - age
        os.utime(path, (modified, modified))
    keep(b"1", tmp_path, instance_id="i", task_id=0, machine="m")
    assert (old.exists(), new.exists()) == (False, True)
