"""Random programs as plain data: the same seed and number give the same program.

A program is an object with the id of its instance, the steps that its orchestrator carries out, and the orders that a
client gives while it runs: events, suspensions, resumes, a termination. Only programs whose result is known whatever
the timing are made: what may never be answered stands only in an ``any`` beside something that is, and a wait whose
turn depends on timing has an event name of its own. The names ``a`` and ``b`` are those of events that an instance
takes one after the other (:data:`IN_TURN`).
"""

from __future__ import annotations

import random
from typing import Any

Step = dict[str, Any]
Program = dict[str, Any]

IN_TURN = ("a", "b")
"""Names of events that an instance takes one after the other. One client sends those to the program's own instance."""
DEEPEST = 2
"""Children below the program's own instance."""
HOUR = 3600.0


TASKS = ("activity", "timer", "event", "child", "all", "any")


def make(seed: int, number: int, *, branches: bool = True) -> Program:
    """The program of this number. :param branches: whether parts of it run in branches and within limits."""
    made = _Writer(random.Random(f"{seed} {number}"), f"x{seed}-{number}").program()
    if branches:
        changer = _Changer(random.Random(f"{seed} {number} branches"), made["id"])
        made["steps"] = changer.steps(made["steps"])
    _leave_time(random.Random(f"{seed} {number} grace"), made["orders"])
    return made


def _leave_time(dice: random.Random, orders: list[dict[str, Any]]) -> None:
    """Let some terminates leave time for a clean-up. Another one may come before its end."""
    for order in [order for order in orders if order["do"] == "terminate"]:
        if dice.random() < 0.6:
            order["grace"] = dice.choice([1, 2, 60])
            if dice.random() < 0.3:
                again = {"at": order["at"] + dice.choice([0.0, 0.2, 1.0]), "grace": dice.choice([None, 1])}
                orders.append(order | again)
    orders.sort(key=lambda order: order["at"])


class _Changer:
    """Puts some tasks of a program into branches and within limits, and cancels some activities and children."""

    def __init__(self, dice: random.Random, instance_id: str) -> None:
        self._dice, self._id = dice, instance_id
        self._depth = self._cancelled = 0

    def steps(self, steps: list[Step]) -> list[Step]:
        return [self._step(step) for step in steps]

    def _step(self, step: Step) -> Step:
        if step["do"] not in TASKS:
            return step
        if step["do"] == "child":
            self._depth += 1
            step = step | {"steps": self.steps(step["steps"])}
            self._depth -= 1
        if "of" in step:
            parts = self.steps(step["of"])
            step = step | {"of": self._joined(parts) if step["do"] == "all" else parts}
        kind = self._dice.random()
        caught = {"caught": step["caught"]} if "caught" in step else {}
        if kind < 0.06:
            return {"do": "branch", "of": [step]} | caught
        if kind > 0.85 and step["do"] == "activity":
            return {"do": "cancel", "seconds": self._dice.choice([0.0, 0.05, 0.3, 1.0]), "of": step} | caught
        if kind > 0.6 and step["do"] == "child" and _stands_alone(step):
            after = {"after": self._after()} if self._depth == 0 else {}  # an instance below may run more than once
            return {"do": "cancel", "seconds": self._dice.choice([0.0, 0.05, 0.3, 1.0]), "of": step} | after | caught
        if kind < 0.14:
            seconds = self._dice.choice([0.0, 0.05, 0.3, 1.0, HOUR, HOUR])
            return {"do": "limit", "seconds": seconds, "of": step} | caught
        return step

    def _after(self) -> Step:
        """An activity that is called when a cancelled child has ended: nothing of the child runs after that."""
        self._cancelled += 1
        key = f"{self._id}-k0c{self._cancelled}."
        given = {"value": 0, "times": 1, "seconds": 0.0, "fails": 0, "final": False, "attempts": 1}
        return {"do": "activity", "key": key, "record": False} | given

    def _joined(self, parts: list[Step]) -> list[Step]:
        """Some neighbours one after the other in one branch, instead of all at once."""
        joined: list[Step] = []
        for part in parts:
            if joined and self._dice.random() < 0.3:
                before = joined.pop()
                part = {"do": "branch", "of": [*(before["of"] if before["do"] == "branch" else [before]), part]}
            joined.append(part)
        return joined


def _stands_alone(child: Step) -> bool:
    """Whether nobody waits for an event of this child or sends it one, so that it may end at any time."""
    tells = any(step["do"] == "send" and step["to"] == "parent" for step in child["steps"])
    return not (child["forget"] or child["sends"] or tells)


class _Writer:
    def __init__(self, dice: random.Random, instance_id: str) -> None:
        self._dice, self._id = dice, instance_id
        self._numbers = 0
        self._orders: list[dict[str, Any]] = []

    def program(self) -> Program:
        steps = self._body(self._id, depth=0)
        self._suspend_or_end()
        orders = sorted(self._orders, key=lambda order: order["at"])
        return {"id": self._id, "steps": steps, "orders": orders}

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _likely(self, chance: float) -> bool:
        return self._dice.random() < chance

    # orders

    def _suspend_or_end(self) -> None:
        if self._likely(0.35):
            for _ in range(self._dice.choice([1, 1, 2, 3])):
                at = self._dice.uniform(0.0, 3.0)
                self._orders.append({"at": at, "do": "suspend", "to": self._id})
                self._orders.append(
                    {"at": at + self._dice.choice([0.0, 0.0, 0.3, 1.0]), "do": "resume", "to": self._id}
                )
            last = max(order["at"] for order in self._orders if order["do"] in ("suspend", "resume"))
            self._orders.append({"at": last + 0.001, "do": "resume", "to": self._id})
        if self._likely(0.07):
            self._orders.append({"at": self._dice.uniform(0.0, 3.0), "do": "terminate", "to": self._id})

    def _raise(self, owner: str, name: str) -> None:
        shown = name.upper() if self._likely(0.2) else name
        at = self._dice.choice([0.0, 0.0, self._dice.uniform(0.0, 2.5)])
        self._orders.append({"at": at, "do": "event", "to": owner, "name": shown, "value": self._data()})

    def _data(self) -> Any:
        number = self._next()
        kind = self._dice.random()
        if kind < 0.03:
            return f"{number} " + "d" * self._dice.choice([40_000, 80_000])
        return {"number": number} if kind < 0.3 else number

    # steps

    def _body(self, owner: str | None, depth: int, *, known: bool = True) -> list[Step]:
        """Steps of an instance. :param owner: its id; None: nobody knows it. :param known: it runs only once."""
        steps: list[Step] = []
        for _ in range(self._dice.choice([1, 2, 3, 4, 5] if depth == 0 else [1, 1, 2, 3])):
            steps += self._piece(owner, depth, once=known)
        if self._likely(0.3 if depth == 0 else 0.1):
            steps.insert(self._dice.randint(0, len(steps)), {"do": "again"})
            if self._likely(0.3):
                steps.insert(self._dice.randint(0, len(steps)), {"do": "again"})
        if known and self._likely(0.15):
            name = f"self{self._next()}"
            at = self._dice.randint(0, len(steps))
            steps.insert(at, {"do": "send", "to": "self", "name": name, "value": self._data()})
            steps.insert(self._dice.randint(at + 1, len(steps)), self._event(name))
        if self._likely(0.08):
            steps.append({"do": "raise", "text": f"boom {self._key()}"})
        return steps

    def _piece(self, owner: str | None, depth: int, *, once: bool) -> list[Step]:
        """A step and what belongs to it."""
        kind = self._dice.random()
        if kind < 0.10:
            return [{"do": "status", "value": self._data()}]
        if kind < 0.25 and owner is not None and once:
            return self._waits(owner)
        if kind < 0.42 and depth < DEEPEST:
            return self._child(depth, once=once)
        if kind < 0.47:
            return [{"do": "set", "of": [self._activity(plain=True) for _ in range(self._dice.choice([1, 3, 6]))]}]
        step = self._task(owner if once else None, depth, alone=True)
        step["caught"] = self._likely(0.8)
        return [step]

    def _waits(self, owner: str) -> list[Step]:
        """Waits for events of one name, which come in whatever order; now and then there is one event too many."""
        name = self._dice.choice(IN_TURN)
        count = self._dice.choice([1, 1, 2, 3])
        for _ in range(count + self._likely(0.15)):
            self._raise(owner, name)
        return [self._remind(name) if self._likely(0.3) else self._event(name) for _ in range(count)]

    def _remind(self, name: str) -> Step:
        """Waits for an event beside a timer, and waits anew when the timer is first: the wait before is left behind."""
        return {"do": "remind", "name": name, "seconds": self._dice.choice([0.1, 0.4, 1.0])}

    def _child(self, depth: int, *, once: bool) -> list[Step]:
        """A child that is awaited, or forgotten; its parent sends it an event, or it sends its parent one."""
        forget = once and self._likely(0.15)
        step = self._call(depth, once=once, forget=forget)
        after: list[Step] = []
        if once and step["attempts"] == 1:
            if step["id"] is not None and self._likely(0.4):
                name = f"sent{self._next()}"
                step["sends"].append({"name": name, "value": self._data()})
                step["steps"].insert(self._dice.randint(0, len(step["steps"])), self._event(name))
            if self._likely(0.3):
                name = f"up{self._next()}"
                step["steps"].insert(0, {"do": "send", "to": "parent", "name": name, "value": self._data()})
                after.append(self._event(name))
        return [step | {"caught": self._likely(0.8)}, *after]

    def _call(self, depth: int, *, once: bool, forget: bool = False) -> Step:
        """A call of a child.

        :param once: the caller runs only once, so that the child may have an id that is written here.
        """
        attempts = self._dice.choice([1, 1, 1, 1, 2]) if not forget else 1
        named = once and attempts == 1 and (forget or self._likely(0.6))
        child_id = f"{self._id}-c{self._next()}" if named else None
        steps = self._body(child_id, depth + 1, known=once and attempts == 1)
        return {"do": "child", "id": child_id, "steps": steps, "attempts": attempts, "forget": forget, "sends": []}

    def _task(self, owner: str | None, depth: int, *, alone: bool = False, level: int = 0) -> Step:
        """Something that ends. :param alone: no other task depends on it. :param level: of nesting."""
        kind = self._dice.random()
        if kind < 0.45:
            return self._activity()
        if kind < 0.55:
            return self._timer()
        if kind < 0.65 and not alone and depth < DEEPEST:
            return self._call(depth, once=owner is not None)
        if kind < 0.70 and not alone and owner is not None:
            name = f"own{self._next()}"
            self._raise(owner, name)
            return self._event(name)
        if level < 2 and kind < 0.88:
            return self._all(owner, depth, level)
        if level < 2:
            return self._any(owner, depth, level)
        return self._activity()

    def _all(self, owner: str | None, depth: int, level: int) -> Step:
        parts = [self._task(owner, depth, level=level + 1) for _ in range(self._dice.choice([0, 2, 2, 3, 5]))]
        if owner is not None and self._likely(0.2):  # they take the events of one name
            name, count = f"own{self._next()}", self._dice.choice([2, 3])
            for _ in range(count):
                self._raise(owner, name)
                parts.insert(self._dice.randint(0, len(parts)), self._event(name))
        return {"do": "all", "of": parts}

    def _any(self, owner: str | None, depth: int, level: int) -> Step:
        parts = [self._task(owner, depth, level=level + 1) for _ in range(self._dice.choice([1, 1, 2, 3]))]
        for _ in range(self._dice.choice([0, 1, 1, 2])):
            never = self._timer(HOUR) if self._likely(0.5) else self._event(f"never{self._next()}", raised=False)
            parts.insert(self._dice.randint(0, len(parts)), never)
        return {"do": "any", "of": parts, "cancel": self._likely(0.5)}

    def _activity(self, *, plain: bool = False) -> Step:
        """An activity. :param plain: it does not fail, and its result is its number."""
        attempts = self._dice.choice([1, 1, 1, 2, 3])
        fails = self._dice.choice([0, 0, 0, 1, 2, 3])
        if attempts == 1 and self._likely(0.6):
            fails = 0
        value, times = self._next(), 1
        large = self._dice.random()
        if plain:
            attempts, fails, large = 1, 0, 1.0
        given: Any = value
        if large < 0.03:
            given, times = f"{value},", self._dice.choice([20_000, 60_000])
        elif large < 0.05:
            given = f"{value} " + "i" * 70_000
        return {
            "do": "activity",
            "key": self._key(),
            "record": self._likely(0.4),
            "value": given,
            "times": times,
            "seconds": self._dice.choice([0.0, 0.0, 0.02, 0.1, 0.4]),
            "fails": fails,
            "final": fails > 0 and self._likely(0.2),
            "attempts": attempts,
        }

    def _key(self) -> str:
        return f"{self._id}-k{self._next()}."  # no key is a part of another

    def _timer(self, seconds: float | None = None) -> Step:
        return {"do": "timer", "seconds": seconds or self._dice.choice([0.01, 0.2, 0.7, 1.2])}

    def _event(self, name: str, *, raised: bool = True) -> Step:
        return {"do": "event", "name": name, "raised": raised}
