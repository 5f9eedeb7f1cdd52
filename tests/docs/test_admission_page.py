"""The table on the page about admission says what the table in the code does."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.engine.identity import next_execution_id, run_name
from airflow_provider_taskhub.hub.admission.facts import Facts, Incoming, MessageKind, Verdict
from airflow_provider_taskhub.hub.admission.rules import Rule
from airflow_provider_taskhub.hub.admission.table import TABLE, Relation, State, relation
from airflow_provider_taskhub.hub.model import Stamp
from tests.hub.by_hand import GEN0, NOW, later
from tests.hub.test_admission import GEN1, OTHER, PARENT, ROWS, of_run, row

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "admission.md"
KINDS = {
    "start by a client": MessageKind.CLIENT_START,
    "start by a parent": MessageKind.CHILD_START,
    "answer of an activity, child or timer": MessageKind.ANSWER,
    "event": MessageKind.EVENT,
    "suspend, resume": MessageKind.SUSPENSION,
    "terminate": MessageKind.TERMINATE,
    "rewind": MessageKind.REWIND,
}
HEAD = ["same, live", "same, free", "over", "waiting, live", "waiting, free", "unnamed, live", "unnamed, free"]
Place = tuple[Relation, State]
FIRST = PARENT
SECOND = replace(PARENT, instance=OrchestrationInstance(instance_id="p", execution_id=next_execution_id("c" * 32)))
"""A parent of an instance, and the next generation of the same parent."""

TOLD = {
    ("already_run", "free"): "DISCARD already run",
    ("already_run", "live"): "DISCARD already run",
    ("before_the_start(record)", "free"): "NEEDS_ROW: RECORD if the row tells of its start and no newer one was "
    "taken, else DISCARD, DEFER with its start or RETRY_LATER",
    ("before_the_start(with_its_start)", "free"): "NEEDS_ROW, then DEFER with its start, DISCARD or RETRY_LATER",
    ("child_start", "free"): "PROCESS, or DISCARD as before",
    ("child_start", "live"): "DEFER (a quarter of its age, 2 to 60 s), or DISCARD (a later generation of its parent "
    "has started it again)",
    ("client_start", "free"): "NEEDS_ROW, then PROCESS, DEFER (until its time), DISCARD (purged, or started again "
    "since) or RETRY_SOON",
    ("client_start", "live"): "NEEDS_ROW, then DEFER (while a child runs under the id), PROCESS (over a run that was "
    "rewound while the client replaced its row), DISCARD or RETRY_SOON",
    (
        "end_unstarted",
        "free",
    ): "NEEDS_ROW: END if the row tells of its start or the message is for a child (REFUSE if another run has used the "
    "child's id), else DISCARD, DEFER with its start or RETRY_LATER",
    ("end_behind_live_run", "live"): "REFUSE if the message is for a child; else NEEDS_ROW, then DEFER or DISCARD "
    "behind the live run",
    ("ended", "free"): "DISCARD ended",
    ("ended", "live"): "DISCARD ended",
    ("if_asked", "live"): "PROCESS if its scheduling event is in the history; else NEEDS_ROW, then RETRY_SOON "
    "after a recent checkpoint, else RETRY_LATER",
    ("older", "free"): "DISCARD older run or generation",
    ("older", "live"): "DISCARD older run or generation",
    ("newest_only", "live"): "PROCESS, or DISCARD if a newer one was taken",
    ("process", "live"): "PROCESS",
    ("after_the_live_run(newest_only)", "live"): "NEEDS_ROW, then DEFER, PROCESS or DISCARD behind the live run",
    ("after_the_live_run(over)", "live"): "NEEDS_ROW, then DEFER or DISCARD behind the live run",
    ("after_the_live_run(process)", "live"): "NEEDS_ROW, then DEFER or PROCESS behind the live run",
    ("uncommitted", "free"): "RETRY_SOON without a history; else NEEDS_ROW, then RETRY_SOON if the row names its run, "
    "else ORPHAN or DISCARD",
    ("uncommitted", "live"): "NEEDS_ROW, then RETRY_SOON if the row names its run, else DISCARD",
    ("unnamed_answer", "free"): "RETRY_SOON without a history, else DISCARD",
    ("without_name(ended=ended, pending=end)", "free"): "NEEDS_ROW: END if the row tells of a start that waits, else "
    "DISCARD or RETRY_LATER",
    ("without_name(ended=ended, pending=record)", "free"): "NEEDS_ROW: RECORD if the row tells of a start that waits, "
    "else DISCARD or RETRY_LATER",
    ("without_name(ended=ended, pending=with_its_start)", "free"): "NEEDS_ROW, then DEFER with its start, DISCARD or "
    "RETRY_LATER",
    ("without_name(ended=orphan, pending=with_its_start)", "free"): "NEEDS_ROW, then DEFER with its start, ORPHAN, "
    "DISCARD or RETRY_LATER",
}
"""A rule and the state of the stored run → what the page says in a cell with this rule.

If you have changed a rule or its place, write the cell on the page first, then here.
"""


def name(rule: Rule) -> str:
    """The rule's function; for a rule that another function has made: that function with its arguments."""
    assert isinstance(rule, FunctionType)
    cells = zip(rule.__code__.co_freevars, rule.__closure__ or (), strict=True)
    made_from = [(argument, cell.cell_contents) for argument, cell in cells]
    maker = rule.__qualname__.partition(".")[0]
    if not made_from:
        return maker
    if len(made_from) == 1:
        return f"{maker}({name(made_from[0][1])})"
    return f"{maker}({', '.join(f'{argument}={name(part)}' for argument, part in made_from)})"


def on_the_page() -> dict[MessageKind, list[str]]:
    """The cells of the table, by the kind of message."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| kind of message |")
    lines = re.findall(r"^\|(.*)\|$", "|" + table.partition("\n\n")[0], re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert head == HEAD, "the columns have changed: please correct this test"
    found = {KINDS[kind]: cells for kind, *cells in rows}
    assert list(found) == list(MessageKind)
    return found


def places(column: str) -> list[Place]:
    """The relations and states that one column stands for: "over" stands for both states."""
    relation, _, state = column.partition(", ")
    return list(product([Relation(relation)], [State(state)] if state else list(State)))


def test_each_cell_of_the_page_says_what_its_rule_does() -> None:
    cells = on_the_page()
    wrong = []
    for (kind, texts), (number, column) in product(cells.items(), enumerate(HEAD)):
        text = texts[number]
        if text.startswith("as "):  # "as waiting": the same rule stands in the column of that relation and this state
            other, state = Relation(text.removeprefix("as ")), places(column)[0][1]
            assert TABLE[kind, other, state] is TABLE[kind, *places(column)[0]], f"{kind}, {column}: not {text!r}"
            continue
        for place in places(column):
            rule = name(TABLE[kind, *place])
            if TOLD.get((rule, str(place[1]))) != text:
                wrong.append(f"{kind}, {', '.join(place)}: the rule is {rule}, and the page says {text!r}")
    assert wrong == []


def reached() -> dict[tuple[MessageKind, Relation, State], set[str]]:
    """The verdicts of each rule of the table, for many messages and facts."""
    found: dict[tuple[MessageKind, Relation, State], set[str]] = defaultdict(set)
    for message, facts in product(messages(), every_facts()):
        place = (message.kind, relation(message, facts), State.LIVE if facts.live else State.FREE)
        found[place].add(TABLE[place](message, facts).verdict.name)
    return found


def messages() -> Iterator[Incoming]:
    for kind, run, sender in product(MessageKind, (None, GEN0, GEN1, OTHER), (None, FIRST.instance)):
        one = of_run(kind, run, sender=sender, deliveries=2)
        event: Any = one.event
        events = [event]
        if kind is MessageKind.CLIENT_START:
            events += [replace(event, scheduled_start_time=later(100)), replace(event, generation=1)]
            events.append(replace(event, taskhub_row_etag="x"))
        elif kind is MessageKind.CHILD_START:
            events = [replace(event, parent=FIRST)]
        elif kind is MessageKind.TERMINATE:
            events.append(replace(event, taskhub_child="Child"))
        for event, age in product(events, (0.0, 300.0)):
            yield replace(one, event=event, stamp=Stamp(inserted=later(-age)))


def every_facts() -> Iterator[Facts]:
    rows = [*ROWS, replace(row(GEN0), restarts=5)]
    suspension_stamp = Stamp(inserted=later(-50))
    for read in rows:
        yield Facts(row=read)
        yield Facts(row=read, suspension_stamp=suspension_stamp)
        for current, final, parent, last in product((GEN0, GEN1), (False, True), (None, FIRST, SECOND), (None, NOW)):
            yield Facts(
                execution_id=current, final=final, parent=parent, checkpointed=last, row=read,
                scheduled={3}, ended={run_name(OTHER)},
            )  # fmt: skip
            yield Facts(
                execution_id=current,
                final=final,
                parent=parent,
                checkpointed=last,
                row=read,
                suspension_stamp=suspension_stamp,
            )


def test_each_cell_of_the_page_names_every_verdict_that_its_rule_can_come_to() -> None:
    verdicts, cells, wrong = reached(), on_the_page(), []
    assert verdicts.keys() == TABLE.keys()
    for (kind, texts), (number, column) in product(cells.items(), enumerate(HEAD)):
        named = {verdict.name for verdict in Verdict if re.search(rf"\b{verdict.name}\b", texts[number])}
        for place in places(column):
            if named and named != verdicts[kind, *place]:
                wrong.append(f"{kind}, {', '.join(place)}: names {named}, comes to {verdicts[kind, *place]}")
    assert wrong == []


def test_no_text_is_left_over() -> None:
    used = {(name(rule), str(state)) for (_, _, state), rule in TABLE.items()}
    assert TOLD.keys() - used == set()
