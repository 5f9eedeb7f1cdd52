"""Decides whether an Airflow worker or the triggerer starts a task of TaskHub, and which of them ends it.

A task that its trigger starts and ends needs no process and no slot of an Airflow worker. :func:`place` names every
reason why a task needs a worker all the same. Airflow reads the decision when it serializes a DAG, so the whole DAG is
known then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import XComArg, conf
from jinja2 import StrictUndefined

from airflow_provider_taskhub.hooks.outputs import reference_in
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.triggers.arguments import holds_secret, time_text
from airflow_provider_taskhub.triggers.rendering import VALUES, changed_natively
from airflow_provider_taskhub.triggers.templates import is_template, why_not_in_triggerer
from airflow_provider_taskhub.triggers.upstream_outputs import only_worker_reads, without_outputs
from airflow_provider_taskhub.triggers.worker_reasons import Reason, Where, after_success, task_listener


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Why a worker starts the task, why it ends a success, and why it ends a failure. Empty: the triggerer does it."""

    start: tuple[str, ...]
    success: tuple[str, ...]
    failure: tuple[str, ...]


LARGEST_ARGUMENTS = 64 * 1024
"""Characters of the largest arguments, as JSON, that are passed to a trigger. Airflow stores them in the DAG and again
in each trigger."""


def place(operator: Any, base: type, *, start_on: str, complete_on: str) -> Placement:
    """Return where the task starts and ends.

    :param operator: the operator, before its templates are rendered.
    :param base: the operator's class in this package, whose methods the trigger stands for.
    :param start_on: the operator's parameter.
    :param complete_on: the operator's parameter.
    """

    def chosen(name: str, where: str, reasons: Iterator[Reason]) -> tuple[str, ...]:
        if where == Where.WORKER:
            return (f"{name}='worker'",)
        return tuple(reason.text for reason in reasons if reason.forces or where == Where.AUTO)

    return Placement(
        start=chosen("start_on", start_on, starting(operator, base)),
        success=chosen("complete_on", complete_on, succeeding(operator, base)),
        failure=chosen("complete_on", complete_on, failing(operator, base)),
    )


def starting(operator: Any, base: type) -> Iterator[Reason]:
    """Yield each reason why a worker must start the task."""
    if not operator.has_dag():
        yield Reason("the task is in no DAG")
        return
    yield from _no_triggerer(operator)
    for name in ("execute", "pre_execute", "render_template_fields"):
        if getattr(type(operator), name) is not getattr(base, name):
            yield Reason(f"{type(operator).__name__} overrides {name}()")
    yield from _templates(operator)
    for name, form in getattr(operator, "input_types", {}).items():
        if form is None:
            what = f"argument {name!r}" if name else "the input"
            yield Reason(f"only a worker can check {what} against the annotation of the stub")
    if getattr(operator, "openlineage_inject_parent_job_info", False):
        yield Reason("openlineage_inject_parent_job_info: only a worker knows the run that OpenLineage names")
    if (listener := task_listener()) is not None:
        yield Reason(f"listener {listener} expects the start of each task", forces=False)
    if operator.on_execute_callback:
        yield Reason("on_execute_callback", forces=False)
    if operator._pre_execute_hook:
        yield Reason("pre_execute", forces=False)
    if operator.pool != "default_pool":
        yield Reason(f"pool {operator.pool!r}: Airflow counts only the tasks that a worker starts", forces=False)
    for name in ("max_active_tis_per_dag", "max_active_tis_per_dagrun"):
        if getattr(operator, name) is not None:
            yield Reason(f"{name}: Airflow counts only the tasks that a worker starts", forces=False)
    if operator.queue != conf.get("operators", "default_queue") and conf.getboolean(
        "triggerer", "queues_enabled", fallback=False
    ):
        yield Reason(f"queue {operator.queue!r}: a trigger that starts a task has no queue", forces=False)


def succeeding(operator: Any, base: type) -> Iterator[Reason]:
    """Yield each reason why a worker must end a task whose instance has completed."""
    yield from _ending(operator, base)
    yield from after_success(operator)


def failing(operator: Any, base: type) -> Iterator[Reason]:
    """Yield each reason why a worker must end a task whose instance has failed."""
    yield from _ending(operator, base)
    if operator.retry_policy:
        yield Reason("retry_policy")
    if operator.has_dag() and operator.dag.fail_fast:
        yield Reason("fail_fast of the DAG")
    skips = getattr(operator, "soft_fail", False) or getattr(operator, "never_fail", False)
    for name in ("on_skipped_callback",) if skips else ("on_failure_callback", "on_retry_callback"):
        if getattr(operator, name):
            yield Reason(name, forces=False)
    if operator.email and (operator.email_on_failure or operator.email_on_retry):
        yield Reason("email", forces=False)


def _no_triggerer(operator: Any) -> Iterator[Reason]:
    """Yield a reason if the user wants no triggerer: perhaps none runs, and then nothing would start the task."""
    if not operator.deferrable:
        yield Reason("deferrable is False: the task uses no triggerer")


def _ending(operator: Any, base: type) -> Iterator[Reason]:
    yield from _no_triggerer(operator)
    if type(operator).execute_complete is not base.execute_complete:  # type: ignore[attr-defined]
        yield Reason(f"{type(operator).__name__} overrides execute_complete()")
    if (listener := task_listener()) is not None:
        yield Reason(f"listener {listener} expects the end of each task", forces=False)


def _templates(operator: Any) -> Iterator[Reason]:
    """Yield each reason why only a worker can render the operator's arguments."""
    given = {name: getattr(operator, name) for name in operator.template_fields}
    fields = {name: value for name, value in given.items() if value is not NO_INPUT}
    if "start_at" in fields:
        fields["start_at"] = time_text(fields["start_at"])
    reasons = [*argument_reasons(operator, fields)]
    yield from reasons
    if not reasons and len(json.dumps(without_outputs(fields)[0])) > LARGEST_ARGUMENTS:
        yield Reason(f"the arguments are longer than {LARGEST_ARGUMENTS:,} characters")


def argument_reasons(operator: Any, values: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Iterator[Reason]:
    """Yield each reason why only a worker can render some values.

    :param operator: the operator, whose DAG says how templates are rendered.
    :param values: the values of templated arguments, by name. A name may come more than once.
    """
    texts: list[str] = []
    pairs = [*(values.items() if isinstance(values, Mapping) else values)]
    for name, value in pairs:
        odd = next(_not_json(value, texts), None)
        if odd is not None:
            yield Reason(f"argument {name!r} has {odd}, which only a worker can resolve")
            return
    if holds_secret([value for _, value in pairs]):  # a worker refuses it
        yield Reason("the arguments contain a value that Airflow masks as a secret")
    if operator.template_ext:
        yield Reason("template files")
    for name in ("jinja_environment_kwargs", "template_undefined"):
        if getattr(operator.dag, name) not in (None, StrictUndefined):
            yield Reason(f"{name} of the DAG")
    templates = [text for text in texts if is_template(text)]
    for text in templates:
        if (why := why_not_in_triggerer(text, operator.dag)) is not None:
            yield Reason(f"the triggerer cannot render the template {text[:200]!r}: {why}")
            return
    native = operator.render_template_as_native_obj
    if not (operator.dag.render_template_as_native_obj if native is None else native):
        return
    if templates:
        yield Reason("the triggerer cannot render templates as native objects")
        return
    kind = getattr(operator, "_input_type", lambda: None)
    for name, value in pairs:
        changed = changed_natively(value, kind() if name == "input" else None) if name in VALUES else None
        if changed is not None:
            yield Reason(
                f"argument {name!r} has the text {changed[:200]!r}, of which native rendering makes another value"
            )
            return


def _not_json(value: Any, texts: list[str]) -> Iterator[str]:
    """Yield each part of a value that only a worker can resolve. Add the texts in the value to ``texts``."""
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, XComArg):
        if (odd := only_worker_reads(value)) is not None:
            yield odd
    elif reference_in(value) is not None:
        yield "an output reference"
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str or key.startswith("__"):  # Airflow's serialization uses such keys
                yield f"a dict with the key {key!r}"
            yield from _not_json(item, texts)
    elif type(value) is list:
        for item in value:
            yield from _not_json(item, texts)
    elif value is not None and type(value) not in (int, float, bool):
        yield f"a value of type {type(value).__name__}"
