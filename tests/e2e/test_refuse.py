"""A store that refuses: at the start it ends the process, later it is waited for. The long form is ``make refuse``."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from uuid import uuid4

from airflow_provider_taskhub.demo.azurite import KEY
from tests.e2e.house import housed
from tests.e2e.refuse import Proxy, refuse, told_of
from tests.waiting import PATIENCE


async def test_workers_whose_key_is_refused_for_a_while_lose_and_double_nothing(azurite: str, tmp_path: Path) -> None:
    with Proxy(azurite) as proxy, housed(tmp_path, azurite, f"Refuse{uuid4().hex[:8]}") as house:
        damage, _, fleet = await refuse(house, proxy, seconds=6.0, count=14)
        wrong = [text for worker in fleet for text in await asyncio.to_thread(told_of, worker)]
        said = fleet[0].text()
    assert damage.told == []
    assert wrong == []
    assert "refused the credentials" in said


def test_a_refusal_at_the_start_ends_worker_and_commands_with_a_status_of_its_own(azurite: str, tmp_path: Path) -> None:
    wrong = azurite.replace(KEY, base64.b64encode(b"wrong" * 8).decode())
    with housed(tmp_path, wrong, f"Refuse{uuid4().hex[:8]}") as house:
        worker = house.worker("w")
        assert worker.process.wait(PATIENCE) == 5
        assert "refused the credentials" in worker.text()
        assert "Traceback" not in worker.text()
        done = house.command("instances", "list")
        assert done.returncode == 5
        assert done.stderr.count("refused the credentials") == 1, "one message"
        assert "goes on" not in done.stderr
