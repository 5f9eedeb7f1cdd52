"""The folders for the temporary files of Spark executors: gone with their executor, or at the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_taskhub.workers.executors.scratch import Scratch, remove_left
from airflow_provider_taskhub.workers.executors.starting import _names_place

HOLDS = """
import sys
from pathlib import Path
from airflow_provider_taskhub.workers.executors.starting import _names_place
from airflow_provider_taskhub.workers.executors.scratch import Scratch

scratch = Scratch(Path(sys.argv[1]))
(scratch.path / "blockmgr-1").mkdir()
print(scratch.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_is_removed_with_what_is_in_it(tmp_path: Path) -> None:
    one, other = Scratch(tmp_path), Scratch(tmp_path)
    (one.path / "blockmgr-1").mkdir()
    (one.path / "blockmgr-1" / "shuffle").write_text("x")
    remove_left(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([one.path, other.path]), "their process lives"
    one.remove()
    reused = os.open(tmp_path / "mine", os.O_CREAT)
    one.remove()
    os.close(reused)
    (tmp_path / "mine").unlink()
    assert [*tmp_path.iterdir()] == [other.path]
    other.remove()


@pytest.mark.process
def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "taskhub-spark-of-nobody").mkdir()
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        remove_left(tmp_path)
        assert (path / "blockmgr-1").exists(), "it lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    remove_left(tmp_path)
    assert not path.exists()
    assert (tmp_path / "taskhub-spark-of-nobody").exists(), "perhaps it is being made"


@pytest.mark.parametrize(
    ("conf", "variables", "file", "named"),
    [
        ({}, {}, None, False),
        ({"spark.local.dir": "/fast"}, {}, None, True),
        ({}, {"SPARK_LOCAL_DIRS": "/fast"}, None, True),
        ({}, {"SPARK_CONF_DIR": ""}, "spark.master local\nspark.local.dir  /fast", True),
        ({}, {"SPARK_CONF_DIR": ""}, "spark.local.dir=/fast", True),
        ({}, {"SPARK_HOME": ""}, "# spark.local.dir /fast", False),
    ],
)
def test_who_says_where_the_files_are_gets_no_folder(
    conf: dict[str, str], variables: dict[str, str], file: str | None, named: bool, tmp_path: Path
) -> None:
    if file is not None:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "spark-defaults.conf").write_text(file)
        folders = {"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path / "conf")}
        variables = {name: folders[name] for name in variables}
    assert _names_place(conf, variables) == named
