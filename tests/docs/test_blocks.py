"""Every code block of the documentation that can run does run; and the rules for blocks are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_taskhub.demo.ports import free_port
from tests.docs.blocks import PAGES, ROOT, Block, Runner, blocks, compare, needs

pytestmark = pytest.mark.process

NEEDS = {"azurite", "airflow"}
BIN = Path(sys.executable).parent


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a page: no setting of TaskHub or Airflow from outside, and homes in the page's folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKHUB_", "AIRFLOW"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # every start would compile Airflow again
    return kept | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TASKHUB_HOME": str(tmp_path / ".taskhub"),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PYTHONPATH": str(tmp_path),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page").mkdir()
    return tmp_path / "page"


@pytest.mark.timeout(900)  # the tutorial starts a whole Airflow: three minutes on a busy machine
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_blocks_of_a_page_run(
    page: Path, folder: Path, env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    found = blocks(page)
    wanted = needs(page)
    assert set(wanted) <= NEEDS, f"{page.name} needs {wanted}: there are only {sorted(NEEDS)}"
    env |= {"PYTHONPATH": str(folder), "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags")}
    if "azurite" in wanted:
        env["TASKHUB_CONNECTION"] = request.getfixturevalue("azurite")
    if "airflow" in wanted:
        (folder / "dags").mkdir()
        env |= airflow_ports()
        subprocess.run([BIN / "airflow", "db", "migrate"], env=env, check=True, capture_output=True, timeout=240)
    with Runner(folder, env) as runner:
        for block in found:
            runner.run(block)


def airflow_ports() -> dict[str, str]:
    """Free ports. The pages use Airflow's own ones, which another Airflow on this machine may have."""
    api, worker_logs, trigger_logs = free_port(), free_port(), free_port()
    return {
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{api}",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
    }


PAGE = ROOT / "docs" / "page.md"


def fence(info: str, text: str = "") -> str:
    return f"```{info}\n{text}\n```\n\n"


def run(folder: Path, env: dict[str, str], *fences: str) -> None:
    with Runner(folder, env) as runner:
        for block in blocks(PAGE, "".join(fences)):
            runner.run(block)


def test_python_blocks_of_a_page_share_their_variables_and_may_await(folder: Path, env: dict[str, str]) -> None:
    run(
        folder,
        env,
        fence("python file=other.py", "four = 4"),
        fence("python", "import asyncio\nimport other\nnumbers = [other.four]"),
        fence("python", "await asyncio.sleep(0)\nprint(numbers)"),
        fence("text output", "[4]"),
    )


def test_a_python_block_that_fails_is_named_with_its_line(folder: Path, env: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match=r"docs/page\.md:2 \(python\)(.|\n)*assert 1 == 2"):
        run(folder, env, fence("python", "assert 1 == 2"))


def test_commands_of_a_console_block_must_print_what_the_page_shows(folder: Path, env: dict[str, str]) -> None:
    run(folder, env, fence("console", "$ echo one; echo two at 12:00:01\n...\ntwo at 23:59:00\n$ true"))
    with pytest.raises(AssertionError, match="the page shows\nthree"):
        run(folder, env, fence("console", "$ echo one\nthree"))


def test_a_command_that_has_time_is_repeated_until_it_prints_what_the_page_shows(
    folder: Path, env: dict[str, str]
) -> None:
    run(folder, env, fence("console within=20", "$ echo x >> tries; wc -l < tries\n3"))
    with pytest.raises(AssertionError, match="the page shows\nnever"):
        run(folder, env, fence("console within=0.5", "$ echo one\nnever"))


def test_a_command_must_end_with_the_status_that_the_page_promises(folder: Path, env: dict[str, str]) -> None:
    run(folder, env, fence("bash status=3", "exit 3"))
    with pytest.raises(AssertionError, match="ended with status 3 instead of 0"):
        run(folder, env, fence("bash", "exit 3"))


def test_a_background_process_runs_until_the_end_of_the_page(folder: Path, env: dict[str, str]) -> None:
    run(
        folder,
        env,
        fence('bash background until="here"', "sh -c 'echo here; echo $$ > pid; sleep 100'"),
        fence("bash", "sleep 0.1; kill -0 $(cat pid)"),
    )
    assert subprocess.run(["kill", "-0", (folder / "pid").read_text().strip()], check=False).returncode != 0


def test_a_background_process_that_ends_too_soon_fails(folder: Path, env: dict[str, str]) -> None:
    with pytest.raises(AssertionError, match="it ended before it printed 'here'"):
        run(folder, env, fence('bash background until="here"', "true"))


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ("pyhton", "unknown language"),
        ("python nrun", "unknown nrun"),
        ("python no-run", "needs a reason"),
        ('python no-run="because"', "needs a reason"),
    ],
)
def test_a_fence_that_breaks_the_convention_is_refused(info: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        blocks(PAGE, fence(info))


def test_a_block_with_a_reason_does_not_run(folder: Path, env: dict[str, str]) -> None:
    run(folder, env, fence('python no-run="needs an Azure account"', "assert False"))


def test_json_blocks_are_parsed(folder: Path, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        run(folder, env, fence("json", "{no"))


def test_ids_times_and_durations_need_not_be_the_same() -> None:
    block = Block(page=PAGE, line=1, language="text", text="")
    compare(
        block,
        "id 0123456789abcdef0123456789abcdef after 3.2 s at 2026-01-02T03:04:05Z",
        "id " + "f" * 32 + " after 7 s at 2027-12-24T00:00:00.5Z\n",
    )
    with pytest.raises(AssertionError):
        compare(block, "after 3 s", "after 3 m")
