"""The folders for the temporary files of Spark executors: gone with their executor, or at the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_taskhub.workers.executors.scratch import Scratch, SparkScratch, named_folders, remove_left

HOLDS = """
import sys
from pathlib import Path
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
        ({}, {}, None, []),
        ({"spark.local.dir": "/fast, /other"}, {}, None, ["/fast", "/other"]),
        ({"spark.local.dir": "/fast"}, {"SPARK_LOCAL_DIRS": "/faster"}, None, ["/faster"]),
        ({}, {"SPARK_CONF_DIR": ""}, "spark.master local\nspark.local.dir  /fast", ["/fast"]),
        ({}, {"SPARK_CONF_DIR": ""}, "spark.local.dir=/fast", ["/fast"]),
        ({}, {"SPARK_HOME": ""}, "# spark.local.dir /fast", []),
    ],
)
def test_where_the_user_wants_sparks_files(
    conf: dict[str, str], variables: dict[str, str], file: str | None, named: list[str], tmp_path: Path
) -> None:
    if file is not None:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "spark-defaults.conf").write_text(file)
        folders = {"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path / "conf")}
        variables = {name: folders[name] for name in variables}
    assert named_folders(conf, variables) == named


def test_an_executor_gets_new_folders_in_those_that_the_user_has_named(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("ja va", "a", "b")]
    variables = {"JAVA_TOOL_OPTIONS": f'-Xss4m -Djava.io.tmpdir="{places[0]}"', "SPARK_SUBMIT_OPTS": "-Dx=1"}
    scratch = SparkScratch("local[2]", {"spark.local.dir": f"{places[1]},{places[2]}"}, variables)
    (java,), (one,), (other,) = ([*place.iterdir()] for place in places)
    assert scratch.conf == {"spark.local.dir": f"{one},{other}"}
    assert scratch.variables == {"SPARK_SUBMIT_OPTS": f'-Dx=1 -Djava.io.tmpdir="{java}"'}
    by_variable = SparkScratch("local", {}, {**variables, "SPARK_LOCAL_DIRS": str(places[1])})
    assert by_variable.variables["SPARK_LOCAL_DIRS"].startswith(f"{places[1]}/")
    on_yarn = SparkScratch("yarn", {"spark.local.dir": str(places[1])}, variables)
    assert (on_yarn.conf, [*on_yarn.variables]) == ({}, ["SPARK_SUBMIT_OPTS"]), "its containers get the setting too"
    for each in (scratch, by_variable, on_yarn):
        each.remove()
    assert [*places[0].iterdir()] == []
    assert not any(path.exists() for path in (java, one, other))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        SparkScratch("local", {"spark.local.dir": f"{places[2]},{tmp_path / 'file'}"}, variables)
    assert [*places[2].iterdir()] == [], "nothing stays of folders that could not all be made"
