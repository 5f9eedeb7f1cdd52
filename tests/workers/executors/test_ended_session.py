"""What the Python object of a Spark session does when its attempt has ended."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Any

from airflow_provider_taskhub.workers.executors.child.ended_session import hand_over


class Session:
    """As that of Spark Connect: it closes its client when it is deleted."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed = name, closed

    def __del__(self) -> None:
        self._closed.append(self.name)

    def tables(self) -> str:
        return f"tables of {self.name}"


def test_it_stands_for_the_session_of_the_attempt_and_closes_only_its_own_client() -> None:
    current: ContextVar[Any] = ContextVar("current")
    closed: list[str] = []
    first, second = Session("first", closed), Session("second", closed)
    hand_over(first, current)
    token = current.set(second)
    assert (first.name, first.tables(), isinstance(first, Session)) == ("second", "tables of second", True)
    del first
    assert closed == ["first"]
    current.reset(token)
    assert second.tables() == "tables of second"


def test_a_thread_without_an_attempt_or_with_an_ended_one_has_the_session_as_it_is() -> None:
    current: ContextVar[Any] = ContextVar("current")
    session = Session("first", [])
    current.set(session)
    hand_over(session, current)
    seen = [session.tables()]
    thread = threading.Thread(target=lambda: seen.append(session.tables()))
    thread.start()
    thread.join()
    assert seen == ["tables of first"] * 2
    assert not isinstance(session, str)
    assert getattr(session, "nothing", None) is None
