"""Logs of attempts while the store does not answer."""

from __future__ import annotations

from structlog.testing import capture_logs

from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from airflow_provider_taskhub.workers.executors.attempt_log import OutputLog


class Store:
    """Keeps what is appended, and refuses until a moment."""

    def __init__(self, clock: VirtualClock, until: float) -> None:
        self.clock, self.until = clock, clock.monotonic() + until
        self.kept = b""

    async def append(self, name: str, data: bytes) -> None:
        if self.clock.monotonic() < self.until:
            raise AccessDenied("the account refuses the key")
        self.kept += data


def test_output_is_kept_while_the_store_refuses_and_said_once_a_minute() -> None:
    async def play() -> list[str]:
        clock = VirtualClock()
        store = Store(clock, until=90)
        output = OutputLog("log", store.append, clock, limit=1_000)
        with capture_logs() as lines:
            for number in range(120):
                output.add(b"%d\n" % number)
                await clock.sleep(1)
            await output.close()
        assert store.kept.split() == [b"%d" % number for number in range(120)]
        return [line["event"] for line in lines]

    assert run(play()) == ["log_delayed", "log_delayed", "works_again"]


def test_what_the_store_does_not_take_after_the_end_of_an_attempt_is_lost_and_that_is_logged() -> None:
    async def play() -> tuple[float, list[dict[str, object]]]:
        clock = VirtualClock()
        output = OutputLog("log", Store(clock, until=3_600).append, clock, limit=1_000)
        with capture_logs() as lines:
            output.add(b"last words\n")
            began = clock.monotonic()
            await output.close()
        return clock.monotonic() - began, [dict(line) for line in lines if line["event"] == "log_lost"]

    waited, (lost,) = run(play())
    assert waited == 10.0
    assert lost["bytes"] == 11
