"""Any event, instance, failure …, for property-based tests: values that a queue and a table can hold."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import strategies as st

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine import events as ev
from airflow_provider_taskhub.engine.events import FailureDetails, HistoryEvent, OrchestrationInstance, ParentInstance
from airflow_provider_taskhub.hub.formats.event_fields import LAYOUTS, EventField, FieldPlace
from airflow_provider_taskhub.hub.formats.json_values import Kind

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
number = st.integers(-(2**31), 2**31 - 1)
times = st.integers(-116_444_736_000_000_000, 2_534_023_007_999_999_999 // 10).map(Timestamp)  # from 1601 on
instances = st.builds(OrchestrationInstance, instance_id=name, execution_id=st.none() | text)
parents = st.builds(ParentInstance, name=name, instance=instances, task_schedule_id=number, version=st.none() | text)
tags = st.dictionaries(name.filter(lambda key: key != "$type"), text, max_size=3)
plain = st.none() | st.booleans() | number | text
properties = st.dictionaries(name.filter(lambda key: key != "$type"), plain, max_size=3)
failures = st.recursive(
    st.builds(
        FailureDetails,
        error_type=text,
        error_message=text,
        stack_trace=st.none() | text,
        is_non_retriable=st.booleans(),
        properties=st.none() | properties,
    ),
    lambda inner: st.builds(FailureDetails, error_type=text, error_message=text, inner_failure=inner),
    max_leaves=3,
)
traces = st.builds(
    ev.TraceContext,
    trace_parent=st.none() | text,
    trace_state=st.none() | text,
    id=st.none() | text,
    span_id=st.none() | text,
    activity_start_time=st.none() | times,
)

_KINDS: Mapping[Kind, st.SearchStrategy[object]] = {
    Kind.TEXT: text,
    Kind.INT: number,
    Kind.BOOL: st.booleans(),
    Kind.TIME: times,
    Kind.STATUS: st.sampled_from(ev.Status),
    Kind.INSTANCE: instances,
    Kind.PARENT: parents,
    Kind.FAILURE: failures,
    Kind.TRACE: traces,
    Kind.TAGS: tags,
}
_NEVER_NULL = frozenset({"event_id", "is_played", "generate_new_trace"})


def _member(member: EventField) -> st.SearchStrategy[object]:
    values = _KINDS[member.kind]
    return values if member.required or member.field in _NEVER_NULL else st.none() | values


def events(where: FieldPlace) -> st.SearchStrategy[HistoryEvent]:
    """Any event of any class, with every member that a message or a row has."""
    kinds: list[st.SearchStrategy[HistoryEvent]] = [
        st.builds(layout.cls, **{member.field: _member(member) for member in layout.members if where in member.where})
        for layout in LAYOUTS.values()
    ]
    return st.one_of(kinds)
