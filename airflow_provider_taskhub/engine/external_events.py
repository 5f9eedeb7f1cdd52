"""The external events of a live instance: waits that have no event yet, and events that no wait has taken yet.

Upper and lower case of event names are the same, as in DurableTask.

A wait that the code has left behind takes no event: after ``when_any([got, timer])`` was won by the timer, the next
event is for the next wait of its name. A wait that the code awaits goes before one that it has only made or asked. If
the code comes back to the old wait (it awaits it, gives it to a group, or asks whether it is complete), the old wait
takes an event that no other wait has taken meanwhile. A branch that was left behind goes on, so the wait at which it
stands takes an event, but only if no other wait wants it.

A wait in a ``when_all`` can have its event before the code leaves the ``when_all`` behind, because another task is
missing or has failed. The next wait of its name then takes that event, as if it had come later.

A wait that the code has only made, or asked too early, can have its event before the code goes elsewhere. So a wait
that the code uses, and that has no event, takes the oldest event of which the code does not know. The wait that had
this event gets the next one in the same way, if the code uses it later. The same holds for the waits of a ``when_any``
that the code has only made or asked before. A wait that is only asked takes no event from another wait that was asked,
unless it was made after that one got the event: else the event would count for both.

A wait that the code cancels gives an event of which the code does not know to the next wait.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from airflow_provider_taskhub.engine.awaitables import EventWait
from airflow_provider_taskhub.engine.events import EventRaised
from airflow_provider_taskhub.engine.pending_waits import MAX_EXAMINED, AwaitedEvent


class _Given(NamedTuple):
    """An event that a wait has taken.

    :ivar number: number of the event.
    :ivar place: number of the wait.
    :ivar waits: how many waits there were when the wait got the event.
    """

    number: int
    place: int
    waits: int
    task: EventWait
    event: EventRaised


class ExternalEvents:
    """Matches events with waits of the same name: the oldest event goes to the oldest wait that the code awaits."""

    __slots__ = ("_by_name", "_given", "_numbers", "_raised", "_unclaimed", "_waits")

    def __init__(self) -> None:
        self._waits: dict[str, deque[tuple[int, EventWait]]] = {}
        self._numbers = 0
        self._unclaimed: dict[int, EventRaised] = {}
        self._by_name: dict[str, deque[int]] = {}
        self._raised = 0
        self._given: dict[str, list[_Given]] = {}

    def __len__(self) -> int:
        """Return the number of event names for which there are waits."""
        return len(self._waits)

    @property
    def count(self) -> int:
        """Number of events that have come so far."""
        return self._raised

    def unclaimed(self, first: int) -> list[EventRaised]:
        """Return the events of which the code knows nothing yet, in the order in which they came: no wait has taken
        them, or the code has never learned that the wait is complete.

        :param first: leave out so many of the events that came first.
        """
        unread = {one.number: one.event for given in self._given.values() for one in given if not one.task.is_known}
        return [event for number, event in sorted((self._unclaimed | unread).items()) if number >= first]

    def wait(self, task: EventWait) -> None:
        """Give a wait the oldest unused event of its name. If there is none, the wait gets the next one that comes."""
        self._numbers += 1
        self._wait(task, self._numbers)

    def claim(self, task: EventWait, *, joins: bool) -> None:
        """Do what :meth:`wait` does, for a wait to which the code comes back. It has its old place among the waits.

        If there is no unused event, a wait that the code uses takes one of which the code does not know from a wait.

        :param joins: whether the code awaits the wait, or gives it to a group; False: it only asks it.
        """
        if task._done:
            return
        number, task.left_place = task.left_place, None
        if number is not None:
            self._wait(task, number)
        if task._used and not task._done:
            self._take_over(task, joins=joins)

    def release(self, task: EventWait) -> None:
        """Give the event of a wait that the code cancels to the next wait, if the code does not know of it.

        Younger events of which the code does not know either are given anew, so that the events keep their order.
        """
        if not task._done or not (task.is_unused or task.is_left_unfinished):
            return
        key = task.name.casefold()
        given = self._given.get(key, [])
        found = next((one for one in given if one.task is task), None)
        if found is None:
            return
        younger = [one for one in given if one.number > found.number and one.task.is_unused][:MAX_EXAMINED]
        for one in (found, *younger):
            given.remove(one)
            one.task.give_back(one.place)
        for one in younger:
            one.task.left_place = None
            self._put(key, one.task, one.place)
        for one in sorted((found, *younger), key=itemgetter(0)):
            self._offer(one.number, one.event)

    def offer(self, event: EventRaised) -> None:
        """Give an event to the oldest wait for its name. If there is no such wait, keep the event for a later wait."""
        number, self._raised = self._raised, self._raised + 1
        self._offer(number, event)

    def _offer(self, number: int, event: EventRaised) -> None:
        key = event.name.casefold()
        found = self._next(self._waits.get(key, deque()))
        if found is not None:
            self._give(number, *found, event)
            return
        self._waits.pop(key, None)
        self._unclaimed[number] = event
        insort(self._by_name.setdefault(key, deque()), number)

    def awaited(self) -> list[AwaitedEvent]:
        """Return the oldest open wait of each name, for at most :data:`.pending_waits.MAX_EXAMINED` names."""
        found = []
        for waits in islice(self._waits.values(), MAX_EXAMINED):
            for _, task in islice(waits, MAX_EXAMINED):
                if not task._done and not task.is_left_behind():
                    found.append(AwaitedEvent(name=task.name, since=task.since))
                    break
        return found

    def _give(self, number: int, place: int, task: EventWait, event: EventRaised) -> None:
        """Give an event to a wait. :param number: number of the event. :param place: number of the wait."""
        key = task.name.casefold()
        given = self._given.setdefault(key, [])
        if given and (given[0].task.is_known or (len(given) >= MAX_EXAMINED and len(given) & (len(given) - 1) == 0)):
            given[:] = [one for one in given if not one.task.is_known]
        given.append(_Given(number, place, self._numbers, task, event))
        task.raised(event.input)

    def _take_back(self, key: str) -> None:
        """Take events of a name back from waits that the code has left behind with their ``when_all``.

        Only the oldest events that were given are examined, so that many waits for one event stay cheap.
        """
        given = self._given.get(key, [])
        left = [one for one in given[:MAX_EXAMINED] if one.task.is_left_unfinished]
        for one in left:
            given.remove(one)
            one.task.give_back(one.place)
            self._unclaimed[one.number] = one.event
            insort(self._by_name.setdefault(key, deque()), one.number)

    def _take_over(self, task: EventWait, *, joins: bool) -> None:
        """Give a wait the oldest event of those of which the code does not know. The wait that had it waits again."""
        given = self._given.get(task.name.casefold(), [])
        unused = (one for one in given[:MAX_EXAMINED] if one.task.is_unused)
        free = (one for one in unused if joins or not one.task._used or task.place > one.waits)
        found = min(free, default=None, key=itemgetter(0))
        if found is None:
            return
        given.remove(found)
        found.task.give_back(found.place)
        found.task.left_place = None
        self._wait(found.task, found.place)
        self._give(found.number, task.place, task, found.event)

    def _next(self, waits: deque[tuple[int, EventWait]]) -> tuple[int, EventWait] | None:
        """Remove and return the wait that takes the next event, with its number.

        Also remove the waits that can take none.

        An awaited one takes it. If there is none among the oldest waits, the order is: one that the code has not used
        yet, one that the code has only asked, and one of a branch that was left behind.
        """
        others: tuple[list[tuple[int, EventWait]], ...] = ([], [], [])
        found = None
        while waits and found is None and sum(map(len, others)) < MAX_EXAMINED:
            number, task = waits.popleft()
            if task._done:  # the wait was cancelled: the event is for the next wait
                continue
            if task.is_left_behind():
                task.left_place = number
            elif task.is_left_behind(with_branch=True):
                others[2].append((number, task))
            elif task.is_awaited:
                found = number, task
            else:
                others[task._used].append((number, task))
        if found is None:
            found = next((kept.pop(0) for kept in others if kept), None)
        waits.extendleft(sorted((one for kept in others for one in kept), key=itemgetter(0), reverse=True))
        return found

    def _wait(self, task: EventWait, number: int) -> None:
        key, task.place = task.name.casefold(), number
        self._take_back(key)
        numbers = self._by_name.get(key)
        if numbers:
            taken = numbers.popleft()
            self._give(taken, number, task, self._unclaimed.pop(taken))
            return
        self._put(key, task, number)

    def _put(self, key: str, task: EventWait, number: int) -> None:
        waits = self._waits.setdefault(key, deque())
        if waits and number < waits[-1][0]:
            insort(waits, (number, task))
        else:
            waits.append((number, task))
