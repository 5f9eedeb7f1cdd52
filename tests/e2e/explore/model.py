"""What a program's instances must come to, found by reading the program and by nothing of the engine.

Where timing makes several results legal the prediction is a pattern that all of them match. Each event is taken once.
Those that one client sends are taken in their order; others may arrive in any order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from json import dumps
from typing import Any

from tests.e2e.explore.generator import HOUR, IN_TURN, Program, Step

UNNAMED = "?"
"""What the ids begin with that we give to instances whose ids the program does not say."""
COMPLETED, FAILED, TERMINATED = "Completed", "Failed", "Terminated"


@dataclass(frozen=True, slots=True)
class Event:
    """The data of some event of this name that is raised in this instance."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class Error:
    """A failure.

    :param kind: the class of the error that an orchestrator catches. :param text: what the code that failed has said.
    :param headline: output of the instance that ends with it.
    """

    kind: str
    text: str
    headline: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """Any of these."""

    options: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """A task that has a result. :param value: pattern."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fails:
    """A task that fails. :param errors: with one of these."""

    errors: tuple[Error, ...]


Outcome = Ends | Fails | None
"""None: a task that is never settled."""


Events = Mapping[tuple[str, str], Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What becomes of an instance.

    :param output: pattern of what it returns; of a failed one its possible headlines.
    :param events: data of all events of the program, by instance and name. :param in_turn: those of them that are taken
        in the order in which they stand there. :param sure: it exists, whatever the timing.
    :param may_terminate: it may have been terminated instead.
    """

    status: str
    output: Any
    custom_status: Any
    events: Events
    in_turn: Set[tuple[str, str]]
    sure: bool
    may_terminate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How often an execution calls an activity, retries included. :param least: 0 where timing decides."""

    least: int
    most: int
    record: bool


@dataclass(slots=True)
class Prediction:
    """:param instances: those whose ids are known. :param calls: by the activity's key."""

    instances: dict[str, Expected] = field(default_factory=dict)
    calls: dict[str, Calls] = field(default_factory=dict)


def predict(program: Program) -> Prediction:
    """What the program must come to."""
    return _Reader(program).read()


class _Reader:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._found = Prediction()
        self._terminates = any(order["do"] == "terminate" for order in program["orders"])
        self._events: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self._unnamed = count()
        self._cancels = 0
        self._ended: list[tuple[str, Ends | Fails, Any, bool, bool]] = []

    def read(self) -> Prediction:
        for order in self._program["orders"]:
            if order["do"] == "event":
                self._events[order["to"], order["name"].casefold()].append(order["value"])
        self._instance(self._program["id"], "", self._program["steps"], sure=not self._terminates, exists=True)
        for instance_id, outcome, status, exists, may_terminate in self._ended:
            self._found.instances[instance_id] = Expected(
                status=COMPLETED if isinstance(outcome, Ends) else FAILED,
                output=outcome.value if isinstance(outcome, Ends) else [error.headline for error in outcome.errors],
                custom_status=status,
                events=self._events,
                in_turn={(self._program["id"], name) for name in IN_TURN},
                sure=exists,
                may_terminate=may_terminate,
            )
        return self._found

    def _instance(self, own: str, parent: str, steps: Sequence[Step], *, sure: bool, exists: bool) -> Ends | Fails:
        """Read an instance's steps.

        :param own: its id, or one of our own where the program does not say it. :param sure: nothing cuts it off.
        """
        values: list[Any] = []
        status: Any = None
        outcome: Ends | Fails = Ends(values)
        for step in steps:
            match step["do"]:
                case "status":
                    status = step["value"]
                case "send":
                    to = parent if step["to"] == "parent" else own
                    self._events[to, step["name"].casefold()].append(step["value"])
                case "raise":
                    outcome = Fails((Error("", step["text"], f"OrchestrationError: {step['text']}"),))
                    break
                case "again":
                    pass
                case _:
                    found = self._task(step, own, sure=sure)
                    assert found is not None, f"a step that never ends: {step}"
                    if isinstance(found, Fails) and not step.get("caught"):
                        outcome = found
                        break
                    values.append(found.value if isinstance(found, Ends) else OneOf(found.errors))
        if not own.startswith(UNNAMED):
            self._ended.append((own, outcome, status, exists, self._terminates or self._cancels > 0))
        return outcome

    def _task(self, step: Step, own: str, *, sure: bool) -> Outcome:
        """:param sure: the orchestrator waits until it is settled."""
        match step["do"]:
            case "activity":
                return self._activity(step, sure=sure)
            case "timer":
                return None if step["seconds"] >= HOUR else Ends(True)
            case "event":
                return Ends(Event(own, step["name"].casefold())) if step["raised"] else None
            case "remind":
                return Ends(Event(own, step["name"].casefold()))
            case "set":
                found = [self._activity(part, sure=sure) for part in step["of"]]
                return Ends(sorted(outcome.value for outcome in found if isinstance(outcome, Ends)))
            case "child":
                return self._child(step, own, sure=sure)
            case "all":
                return self._all(step, own, sure=sure)
            case "any":
                return self._any(step, own)
            case "branch":
                return self._branch(step, own, sure=sure)
            case "limit":
                wide = step["seconds"] >= HOUR
                return self._cut_off(step, own, sure=sure and wide, options=[] if wide else [[False]])
            case "cancel":  # after that, a failed call is not tried again
                if "after" in step:
                    self._activity(step["after"], sure=False)
                failed = []
                if step["of"]["do"] == "activity" and step["of"]["fails"]:
                    failed = [[True, Error("TaskFailedError", f"boom {step['of']['key']}", "")]]
                self._cancels += 1
                outcome = self._cut_off(step, own, sure=False, options=[[False], *failed])
                self._cancels -= 1
                return outcome
        raise AssertionError(step)

    def _activity(self, step: Step, *, sure: bool) -> Outcome:
        if step["fails"] == 0:
            calls, fails = 1, False
        elif step["final"]:
            calls, fails = 1, True
        else:
            calls, fails = min(step["attempts"], step["fails"] + 1), step["fails"] >= step["attempts"]
        self._found.calls[step["key"]] = Calls(least=calls if sure else 0, most=calls, record=step["record"])
        if fails:
            name, kind = (
                "recorded" if step["record"] else "plain",
                "OrchestrationError" if step["final"] else "RuntimeError",
            )
            text = f"boom {step['key']}"
            return Fails((Error("TaskFailedError", text, f"activity {name!r} failed: {kind}: {text}"),))
        return Ends(step["value"] * step["times"])

    def _child(self, step: Step, own: str, *, sure: bool) -> Outcome:
        for sent in step["sends"]:
            self._events[step["id"], sent["name"].casefold()].append(sent["value"])
        outcome = self._instance(
            step["id"] or f"{UNNAMED}{next(self._unnamed)}", own, step["steps"], sure=sure, exists=sure
        )
        if step["forget"]:
            return Ends(None)
        if isinstance(outcome, Fails):
            return Fails(tuple(map(_of_child, outcome.errors)))
        return outcome

    def _all(self, step: Step, own: str, *, sure: bool) -> Outcome:
        certain = sure and not any(isinstance(self._glance(part), Fails) for part in step["of"])
        found = [self._task(part, own, sure=certain) for part in step["of"]]
        errors = [error for outcome in found if isinstance(outcome, Fails) for error in outcome.errors]
        if errors:
            return Fails(tuple(errors))
        if any(outcome is None for outcome in found):
            return None
        return Ends([outcome.value for outcome in found if isinstance(outcome, Ends)])

    def _any(self, step: Step, own: str) -> Outcome:
        found = [self._task(part, own, sure=False) for part in step["of"]]
        options = []
        for at, outcome in enumerate(found):
            if isinstance(outcome, Ends):
                options.append([at, outcome.value])
            elif isinstance(outcome, Fails):
                options += [[at, error] for error in outcome.errors]
        return Ends(OneOf(tuple(options))) if options else None

    def _branch(self, step: Step, own: str, *, sure: bool) -> Outcome:
        values = []
        for part in step["of"]:
            outcome = self._task(part, own, sure=sure)
            if not isinstance(outcome, Ends):
                return outcome
            values.append(outcome.value)
        return Ends(values)

    def _cut_off(self, step: Step, own: str, *, sure: bool, options: list[Any]) -> Outcome:
        """:param options: what it gives if it is cut off."""
        outcome = self._task(step["of"], own, sure=sure)
        if isinstance(outcome, Ends):
            options.append([True, outcome.value])
        elif isinstance(outcome, Fails):
            options += [[True, error] for error in outcome.errors]
        return Ends(OneOf(tuple(options))) if options else None

    def _glance(self, step: Step) -> Outcome:
        """The outcome of a task, noting nothing."""
        return _Reader({"id": "", "steps": [], "orders": []})._task(step, UNNAMED, sure=False)


def _of_child(error: Error) -> Error:
    """What a parent sees of the failure with which its child ended."""
    headline = f"child orchestration 'program' failed: {error.headline}"
    return Error("SubOrchestrationFailedError", error.text, headline)


def differences(expected: Expected, *, status: str, output: str | None, custom_status: Any) -> list[str]:
    """What is wrong with an instance, a line each.

    :param output: what it has returned, or the headline of its failure.
    """
    if status == TERMINATED and expected.may_terminate:
        return []
    if status != expected.status:
        return [f"is {status} with {str(output)[:200]}, not {expected.status} with {shown(expected.output)}"]
    if custom_status != expected.custom_status:
        return [f"custom status is {custom_status!r:.100}, not {expected.custom_status!r:.100}"]
    if status == FAILED:
        if output in expected.output:
            return []
        return [f"failed with {str(output)[:300]!r}, not with one of {expected.output}"]
    taken: list[tuple[Event, Any]] = []
    if not matches(expected.output, output, taken):
        return [f"returned {dumps(output)[:2000]}, not {shown(expected.output)}"]
    return _events(expected, taken)


def _events(expected: Expected, taken: Iterable[tuple[Event, Any]]) -> list[str]:
    left = {name: Counter(map(dumps, values)) for name, values in expected.events.items()}
    told = []
    for event, value in taken:
        text, rest = dumps(value), left.get((event.owner, event.name), Counter())
        if rest[text] <= 0:
            told.append(f"event {event.name!r} with {text[:100]} was taken once more than it was raised")
        rest[text] -= 1
    for name in expected.in_turn:
        sent = [dumps(value) for value in expected.events.get(name, ())]
        texts = [dumps(value) for event, value in taken if (event.owner, event.name) == name]
        places = [sent.index(text) for text in texts if text in sent]
        if places != sorted(places):
            told.append(f"events {name[1]!r} were taken in the order {places} of those that were raised")
    return told


def matches(pattern: Any, value: Any, taken: list[tuple[Event, Any]]) -> bool:
    """Whether a value fits a pattern. :param taken: gets the events that it shows."""
    match pattern:
        case Event():
            taken.append((pattern, value))
            return True
        case Error():
            told = value if isinstance(value, dict) else {}
            return told.get("error") == pattern.kind and str(told.get("text")).endswith(pattern.text)
        case OneOf(options):
            for option in options:
                before = len(taken)
                if matches(option, value, taken):
                    return True
                del taken[before:]
            return False
        case list():
            if not isinstance(value, list) or len(value) != len(pattern):
                return False
            return all(matches(part, item, taken) for part, item in zip(pattern, value, strict=True))
    return bool(pattern == value and type(pattern) is type(value))


def shown(pattern: Any) -> str:
    """A pattern for people."""
    return repr(pattern)[:2000]
