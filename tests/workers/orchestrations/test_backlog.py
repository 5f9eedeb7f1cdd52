"""Which instances a worker has held for long without progress."""

from __future__ import annotations

import asyncio

from airflow_provider_taskhub.hub.model import NO_BACKLOG
from airflow_provider_taskhub.workers.orchestrations import sessions as module
from airflow_provider_taskhub.workers.orchestrations.sessions import FORGET_FAILING, LONG, Session, Sessions
from tests.workers.orchestrations.test_sessions import held, raised, reader


async def running(sessions: Sessions[str], name: str = "a", *, now: float = 0.0) -> Session[str]:
    sessions.deliver(reader(), held(raised(), instance_id=name), now=now)
    session, _ = await sessions.next()
    session.waiting_since = now
    return session


def told(sessions: Sessions[str], now: float) -> list[tuple[str, float, str]]:
    return [(one.instance_id, one.seconds, one.cause) for one in sessions.backlog(now).held]


async def test_an_episode_that_does_not_end_holds_its_instance() -> None:
    sessions: Sessions[str] = Sessions()
    session = await running(sessions, now=100.0)
    assert sessions.backlog(100.0 + LONG - 1) == NO_BACKLOG
    assert told(sessions, 100.0 + LONG) == [("a", LONG, "")]
    sessions.progressed(session)
    sessions.done(session, now=150.0)
    assert sessions.backlog(500.0) == NO_BACKLOG


async def test_nobody_looks_for_held_instances_while_there_is_none() -> None:
    """Else an idle worker would wake up every few seconds, and a simulated month would cost half a million steps."""
    sessions: Sessions[str] = Sessions()
    looking = asyncio.create_task(sessions.until_occupied())
    await asyncio.sleep(0)
    assert not looking.done()
    session = await running(sessions)
    await looking
    sessions.progressed(session)
    sessions.done(session, now=1.0)
    again = asyncio.create_task(sessions.until_occupied())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_an_episode_that_fails_again_and_again_holds_its_instance_since_its_first_failure() -> None:
    sessions: Sessions[str] = Sessions()
    for now in (0.0, 20.0, 40.0):
        session = await running(sessions, now=now)
        sessions.failed(session, f"failure at {now}", now=now)
        sessions.done(session, now=now)
    assert told(sessions, 40.0) == [("a", 40.0, "failure at 40.0")]
    session = await running(sessions, now=50.0)
    assert told(sessions, 50.0) == [("a", 50.0, "failure at 40.0")], "the next try has not succeeded yet"
    sessions.progressed(session)
    sessions.done(session, now=51.0)
    assert sessions.backlog(500.0) == NO_BACKLOG


async def test_a_failure_is_forgotten_with_the_partition_or_after_some_time() -> None:
    for closes in (True, False):
        sessions: Sessions[str] = Sessions()
        session = await running(sessions)
        sessions.failed(session, "broken", now=0.0)
        sessions.done(session, now=0.0)
        if closes:
            sessions.close(session.reader)
        assert bool(told(sessions, LONG)) is not closes
        assert told(sessions, FORGET_FAILING) == []


async def test_the_number_of_remembered_failures_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_FAILING", 3)
    sessions: Sessions[str] = Sessions()
    for number in range(9):
        session = await running(sessions, str(number))
        sessions.failed(session, "broken", now=0.0)
        sessions.done(session, now=0.0)
    assert [name for name, *_ in told(sessions, LONG)] == ["6", "7", "8"]


async def test_instances_that_wait_for_their_turn_are_counted() -> None:
    sessions: Sessions[str] = Sessions()
    for name, now in (("a", 0.0), ("b", 5.0), ("c", 39.0)):
        sessions.deliver(reader(), held(raised(), instance_id=name), now=now)
    found = sessions.backlog(40.0)
    assert (found.held, found.queued, found.longest) == ((), 2, 40.0)
