"""A short soak, and that its looking sees what it must: the long one is ``make soak``."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from airflow_provider_taskhub.hub.model import BLOB
from airflow_provider_taskhub.settings import EMBEDDED_LEASE
from tests.e2e.house import housed
from tests.e2e.soak import Event, Receive, recorded, soak, straddling, two_readers, unserved


@pytest.mark.rows("T20", "T86", "T87")
async def test_nobody_reads_a_queue_that_another_reads(azurite: str, tmp_path: Path) -> None:
    """Processes are killed, stopped, drained and told to end, once each."""
    with housed(tmp_path, azurite, f"Soak{uuid4().hex[:8]}") as house:
        house.lease, house.lease_store = EMBEDDED_LEASE, BLOB  # the storm and the workers' tests have rows
        done = await soak(house, seconds=10.0, workers=3, pace=1.0)
    assert done.wrong == []
    kinds = {event.kind for event in done.events}
    assert kinds == {"SIGKILL", "SIGSTOP", "SIGCONT", "drain-node", "undrain-node", "SIGTERM"}
    assert len({receive.epoch for receive in done.receives}) > 1


def receive(worker: str, epoch: int, began: float, ended: float | None = None) -> Receive:
    return Receive(worker=worker, queue="q", epoch=epoch, began=began, ended=ended)


def test_a_second_reader_is_seen() -> None:
    first, taken, stale = receive("a", 1, 1.0, 1.1), receive("b", 2, 9.0, 9.1), receive("a", 1, 9.5, 9.6)
    assert two_readers([first, taken]) == []
    assert two_readers([first, taken, stale]) == ["q was read by a (epoch 1) 0.500000 s after b (epoch 2)"]
    assert two_readers([first, receive("b", 1, 2.0)]) != [], "an epoch is one worker's"


def test_a_receive_that_was_begun_in_time_is_no_second_reader_however_late_its_answer() -> None:
    frozen, taken = receive("a", 1, 1.0, 20.0), receive("b", 2, 9.0, 9.1)
    assert two_readers([frozen, taken]) == []
    assert straddling([frozen, taken]) == 1
    assert straddling([receive("a", 1, 1.0, 1.1), taken]) == 0


def test_the_time_without_a_reader_counts_for_what_was_done_last() -> None:
    killed = Event(kind="SIGKILL", worker="a", moment=2.0)
    found = [receive("a", 1, 1.0), receive("a", 1, 1.5), receive("b", 2, 9.0)]
    assert unserved(found, [killed]) == {"nothing": 0.5, "SIGKILL": 7.5}


def test_records_are_read_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    (tmp_path / "a-1").write_text("> 0 q 1 1.5\n< 0 1.6 3\n> 1 q 1 4.0\n")
    (tmp_path / "b-2").write_text("> 0 q 2 3.0\n< 0 3.1 0\n")
    found = [(one.worker, one.epoch, one.began, one.ended) for one in recorded(tmp_path)]
    assert found == [("a-1", 1, 1.5, 1.6), ("b-2", 2, 3.0, 3.1), ("a-1", 1, 4.0, None)]
