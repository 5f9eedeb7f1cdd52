"""A short run of ``python -m tests.e2e.takeover``."""

from __future__ import annotations

from tests.e2e.house import House
from tests.e2e.takeover import take_over


async def test_a_new_worker_goes_on_with_what_a_killed_one_had_open(embedded: House) -> None:
    done = await take_over(embedded, 300)
    assert done.wrong == 0
    assert done.begun + done.pending == 300
