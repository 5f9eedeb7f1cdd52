"""A reader of several queues shares its room with others: it says when they must wait for it, and for how long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from airflow_provider_taskhub.engine.events import TaskScheduled
from airflow_provider_taskhub.hub.formats.message_envelope import encode
from airflow_provider_taskhub.hub.queues.lane_reader import LaneReader
from airflow_provider_taskhub.storage.primitives import PutMessage
from airflow_provider_taskhub.virtual_time import VirtualClock, run
from tests.hub.by_hand import NOW, held
from tests.hub.queues.test_polling import Remote, context_of

FIRST, LANES = "polled-first", ("polled-lane", "polled-low")
CALL = encode(held(TaskScheduled(timestamp=NOW, event_id=1, name="load")).envelope)


def looks(*, waits_in: str, room: int) -> list[SimpleNamespace]:
    """Let a reader read for a minute, and return what it says after each receive, and when it tells others to look.

    :param waits_in: the queue in which a call waits. There is one in a lane, too.
    :param room: the room until a call has come. Then there is none.
    """

    async def scenario() -> list[SimpleNamespace]:
        clock, told, came = VirtualClock(), list[SimpleNamespace](), list[object]()
        async with Remote(clock) as store:
            for queue in (FIRST, *LANES):
                await store.create_queue(queue)
            for queue in {waits_in, LANES[0]}:
                await store.execute(PutMessage(queue=queue, text=CALL))

            def polled() -> None:
                told.append(SimpleNamespace(queue=reader.queue, waits=reader.waits_for_room, emptied=reader.emptied))

            reader = LaneReader(
                context_of(store, clock),
                first=FIRST,
                lanes=LANES,
                own=True,
                room=lambda: 0 if came else room,
                deliver=came.append,
                polled=polled,
            )
            reader.look(LANES[0])
            running = asyncio.create_task(reader.run())
            await clock.sleep(60)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return told

    return run(scenario())


def test_others_wait_while_a_lane_has_not_been_read() -> None:
    """The first queue is empty, but it is still the turn of this reader, and its queues do not count as empty."""
    first, lane = looks(waits_in=LANES[0], room=2)[:2]
    assert (first.queue, first.waits, first.emptied) == (FIRST, True, None)
    assert (lane.queue, lane.waits) == (LANES[0], False)


def test_others_are_told_when_the_room_is_gone_for_which_they_wait() -> None:
    """The reader has received a call, and others wait until it has read the lane, too. Then there is no room for it."""
    told = looks(waits_in=FIRST, room=2)
    assert [one.queue for one in told] == [FIRST, FIRST]
    assert told[0].waits
