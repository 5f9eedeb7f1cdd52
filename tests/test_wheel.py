"""What a user installs: the wheel's files, and its command line where nothing but its own requirements is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from airflow_provider_taskhub import __version__

pytestmark = pytest.mark.process

CHECKOUT = Path(__file__).parents[1]
PACKAGE = "airflow_provider_taskhub"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout: a build writes into the folder of its sources."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(CHECKOUT / PACKAGE, source / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, target], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its requirements, and without Airflow, Azure and Spark."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (info,) = site.glob(f"{PACKAGE}-*.dist-info")
    for distribution in _required(metadata.PathDistribution(info), set()):
        for path in {path.parts[0] for path in distribution.files or () if path.parts[0] != ".."}:
            if not (site / path).exists():
                (site / path).symlink_to(Path(str(distribution.locate_file(path))))
    return folder / "bin" / "python"


def _required(distribution: metadata.Distribution, seen: set[str]) -> Iterator[metadata.Distribution]:
    """What a distribution needs without its extras, and what those need."""
    for line in distribution.requires or ():
        name, _, marker = line.partition(";")
        name = re.split(r"[^\w.-]", name.strip())[0].lower()
        if "extra ==" in marker or name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # a marker of another platform or Python
            continue
        yield found
        yield from _required(found, seen)


def taskhub(python: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The console script, by its entry point."""
    code = (
        "import sys; from importlib.metadata import entry_points; sys.argv[0] = 'taskhub'; "
        "(found,) = entry_points(group='console_scripts', name='taskhub'); found.load()()"
    )
    command = [python, "-I", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **env})


def test_the_wheel_has_every_module_but_the_demo(names: set[str]) -> None:
    sources = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / PACKAGE).rglob("*.py")}
    demo = {name for name in sources if name.startswith(f"{PACKAGE}/demo/")}
    assert len(demo) > 3
    assert {name for name in names if name.endswith(".py")} == sources - demo
    assert not {name for name in names if "demo" in name or "azurite" in name}


def test_the_wheel_has_nothing_beside_the_package_and_its_description(names: set[str]) -> None:
    assert {name.split("/")[0] for name in names} == {PACKAGE, f"{PACKAGE}-{__version__}.dist-info"}
    assert f"{PACKAGE}/py.typed" in names


def test_the_wheel_has_the_files_of_the_page(names: set[str]) -> None:
    page = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / PACKAGE / "plugins" / "page").iterdir()}
    assert len(page) > 5
    assert page <= names


def test_the_wheel_tells_airflow_of_the_provider_and_its_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        text = file.read(f"{PACKAGE}-{__version__}.dist-info/entry_points.txt").decode()
    assert "[apache_airflow_provider]\nprovider_info = airflow_provider_taskhub.provider_info:get_provider_info" in text
    assert "[airflow.plugins]\ntaskhub = airflow_provider_taskhub.plugins.taskhub:TaskHubPlugin" in text


def test_the_command_line_needs_no_extra(environment: Path) -> None:
    absent = taskhub(environment, "--help")
    assert absent.returncode == 0, absent.stderr
    assert {"hub", "instances", "partitions", "quarantine", "worker"} <= set(absent.stdout.split())
    looked = [environment, "-I", "-c", "import importlib.util as u; print(*map(u.find_spec, ['pyspark', 'airflow']))"]
    assert subprocess.run(looked, capture_output=True, text=True, check=True).stdout == "None None\n"


def test_only_a_checkout_has_the_command_demo(environment: Path) -> None:
    assert "demo" not in taskhub(environment, "--help").stdout
    assert taskhub(environment, "demo").returncode == 2
    here = taskhub(Path(sys.executable), "demo", "--help")
    assert here.returncode == 0, here.stderr


def test_the_embedded_hub_needs_no_extra(environment: Path, tmp_path: Path) -> None:
    env = {"TASKHUB_CONNECTION": f"sqlite:///{tmp_path}/hub.db"}
    for arguments in (["hub", "create"], ["instances", "start", "first", "--id", "one"]):
        assert taskhub(environment, *arguments, **env).returncode == 0
    assert "one" in taskhub(environment, "instances", "list", **env).stdout
