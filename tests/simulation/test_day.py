"""A short form of ``python -m tests.simulation.day``."""

from __future__ import annotations

from tests.simulation.day import LIMIT, SLOTS, SMALL, day


def test_limits_hold_and_every_tenant_has_its_share_while_workers_die_and_join() -> None:
    found = day(600, hours=2)
    assert not found.wrong, list(found.lines())
    counted = {"load", "divided of small", "divided of large", "divided of back", "memory of a worker"}
    assert (set(found.most), max(found.most.values()), found.most_small) == (counted, LIMIT, SMALL.instances)
    assert found.deaths == 4
    assert 0 < found.repeated <= found.deaths * SLOTS
