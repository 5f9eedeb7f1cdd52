"""Evaluates and checks the arguments that a DAG gives to the operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hooks.at_parse import check_flag, check_name, check_value, is_template
from airflow_provider_taskhub.masking import is_secret_name, masked
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.triggers import instance_limits
from airflow_provider_taskhub.triggers.ordinary_words import only_words

if TYPE_CHECKING:
    from airflow.sdk import Context

_NAME = "__taskhub_name__"
"""The attribute in which an ``App`` stores the name of a declared function. This constant and the next have the values
of the engine's ``NAME`` and ``STANDALONE``, which a DAG file must not import."""
_STANDALONE = "__taskhub_standalone__"
"""The attribute that an ``App`` sets on a declared activity that can be started by itself. It holds the name of the
parameter that takes the input; "": the activity takes no input."""
_SECRET = (
    "contains a value that Airflow masks as a secret, and the hub stores {what} as plain text: pass the name of a "
    "connection, and read the secret in the activity"
)
_ORCHESTRATOR = "give the name that an App declares"
GIVE_ID = (
    "give the id of an instance, for example {{ ti.xcom_pull(task_ids='...', key='instance_id') }} of the task of a "
    "TaskHubOperator"
)


def problems(
    orchestrator: str, given: Any, instance_id: str | None, version: str, tags: Mapping[str, str]
) -> Iterator[str]:
    """Yield an error text for each wrong argument of the operator. A retry cannot help with such errors.

    :param given: the input as :func:`evaluated` has returned it; ``NO_INPUT``: none.
    """
    from airflow_provider_taskhub.codec import dumps, loads
    from airflow_provider_taskhub.engine.identity import check_new_instance_id
    from airflow_provider_taskhub.engine.validation import check_column, check_tags

    if not orchestrator or not isinstance(orchestrator, str):
        yield f"orchestrator is {orchestrator!r}: {_ORCHESTRATOR}"
    try:
        text = "null" if given is NO_INPUT else dumps(given, what=f"input of orchestrator {orchestrator!r}")
        if instance_id == "None":
            raise InputError("instance_id is 'None', which a template makes of a value that is missing: give an id")
        if instance_id:
            check_new_instance_id(instance_id)
    except InputError as error:
        yield str(error)
        return
    if (place := secret_in(loads(text), "input")) is not None:
        yield f"{place} {_SECRET.format(what='inputs')}"
    try:
        check_column(version, f"version of orchestrator {orchestrator!r}")
        if isinstance(tags, str):
            raise InputError(
                f"tags is the text {tags!r}: give a dict of texts by name. A template of a whole dict needs "
                "render_template_as_native_obj=True in the DAG"
            )
        check_tags(tags, f"orchestrator {orchestrator!r}")
    except InputError as error:
        yield str(error)
        return
    yield from _reserved(tags)


def check_rendered_id(instance_id: str | None, problem: str | None) -> None:
    """Check the rendered id of an instance that the task does not start itself.

    :param problem: what was found while the arguments were rendered; None: nothing.
    :raises InputError: if it is no id, or what Jinja makes of a value that is missing.
    """
    from airflow_provider_taskhub.engine.identity import check_instance_id

    if problem is not None:
        raise InputError(problem)
    if not instance_id or instance_id == "None":
        raise InputError(f"instance_id is {instance_id!r} after rendering: {GIVE_ID}")
    check_instance_id(instance_id)


def _reserved(tags: Mapping[str, str]) -> Iterator[str]:
    """Yield an error text for each tag name that the user may not use."""
    for name in tags:
        if isinstance(name, str) and name.lower().startswith(identity.RESERVED):
            reserved = " or ".join(identity.RESERVED)
            yield f"tag {name!r} is reserved: names that start with {reserved} are TaskHub's. Use another name"


def orchestrator_name(where: str, orchestrator: Any) -> Any:
    """Return the name of an orchestrator that is given as a function. Return every other value unchanged.

    :param where: the operator and its task id, for the error.
    :param orchestrator: a name, a template, or a function that ``@app.orchestrator`` has declared.
    :raises InputError: if it is a function that no app has declared.
    """
    return _declared_name(where, "orchestrator", orchestrator, "@app.orchestrator")


def standalone_name(where: str, activity: Any) -> Any:
    """Return the name of an activity that is given as a function. Return every other value unchanged.

    :param where: the operator and its task id, or the decorator, for the error.
    :param activity: a name, a template, or a function that ``@app.activity`` or ``@app.spark_activity`` has declared.
    :raises InputError: if no app has declared the function, or it cannot be started by itself.
    """
    decorators = "@app.activity(standalone=True) or @app.spark_activity(standalone=True)"
    name = _declared_name(where, "activity", activity, decorators)
    if name is not activity and standalone_parameter(activity) is None:
        raise InputError(f"{where}: activity {name!r} cannot be started by itself: declare it with standalone=True")
    return name


def standalone_parameter(activity: Any) -> str | None:
    """Return the name of the parameter that takes the input of an activity, "" if it takes none.

    :param activity: a function.
    :returns: None if the function is no activity that can be started by itself.
    """
    name: str | None = getattr(activity, _STANDALONE, None)
    return name


def _declared_name(where: str, kind: str, given: Any, decorators: str) -> Any:
    """Return the name of a declared function. Return every other value unchanged.

    :param kind: ``orchestrator`` or ``activity``, for the error.
    :param decorators: how a function of this kind is declared, for the error.
    """
    if not callable(given) or is_template(given):
        return given
    name = getattr(given, _NAME, None)
    if not isinstance(name, str):
        shown = getattr(given, "__qualname__", repr(given))
        raise InputError(
            f"{where}: {kind} is {shown}, which no App has declared: decorate it with {decorators}, "
            f"or give the name of an {kind}"
        )
    return name


def started_name(where: str, orchestrator: Any, activity: Any) -> Any:
    """Return the name of what a task starts: of its orchestrator, or of its activity.

    :param where: the operator and its task id, for the error.
    :param orchestrator: as :func:`orchestrator_name` takes it; None: the task has an activity.
    :param activity: as :func:`standalone_name` takes it; None: the task has an orchestrator.
    :raises InputError: if both are given, or none, or one of them is wrong.
    """
    if (orchestrator is None) == (activity is None):
        given = "nothing" if activity is None else f"orchestrator={orchestrator!r} and activity={activity!r}"
        raise InputError(f"{where}: got {given}: give orchestrator, or activity for a task that runs one activity")
    if activity is None:
        return orchestrator_name(where, orchestrator)
    name = standalone_name(where, activity)
    check_name(where, "activity", name, _ORCHESTRATOR)
    return name


def check_at_parse(where: str, **given: Any) -> None:
    """Check the arguments of ``TaskHubOperator`` as far as they are no templates, when Airflow parses the DAG.

    :param where: the operator and its task id, for the error.
    :param given: the arguments of the operator.
    :raises InputError: if an argument is wrong. The text names the argument, its value and the way out.
    """
    from airflow_provider_taskhub.codec import dumps
    from airflow_provider_taskhub.engine.validation import check_column, check_tags, grace_seconds
    from airflow_provider_taskhub.triggers.reactions import OnClear, OnRetry
    from airflow_provider_taskhub.triggers.worker_reasons import Where

    orchestrator, version, tags = given["orchestrator"], given["version"], given["tags"]
    check_name(where, "orchestrator", orchestrator, _ORCHESTRATOR)
    check_name(where, "taskhub_conn_id", given["taskhub_conn_id"], "give the id of a connection of type 'taskhub'")
    try:
        if given["input"] is not NO_INPUT and not is_template(given["input"]):
            dumps(evaluated(given["input"]), what="input")
        if given["instance_id"] and not is_template(given["instance_id"]):
            from airflow_provider_taskhub.engine.identity import check_new_instance_id

            check_new_instance_id(given["instance_id"])
        if version and not is_template(version):
            check_column(version, "version")
        if tags is not None and not is_template(tags):
            check_tags(tags, "the task")
        if isinstance(tags, Mapping):
            for problem in _reserved(tags):
                raise InputError(problem)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    check_value(where, "on_retry", given["on_retry"], list(OnRetry))
    check_value(where, "on_clear", given["on_clear"], list(OnClear))
    for name in ("start_on", "complete_on"):
        check_value(where, name, given[name], list(Where))
    for name in ("no_worker_timeout", "short_wait"):
        check_duration(where, name, given[name])
    try:
        grace_seconds(given["terminate_grace"], "terminate_grace")
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    instance_limits.check(where, given["max_active_instances"], given["limit_name"])
    check_waiting(where, deferrable=given["deferrable"], poll_interval=given["poll_interval"])
    for name in ("wait_for_completion", "openlineage_inject_parent_job_info"):
        check_flag(where, name, given[name])
    if not is_template(given["start_at"]):
        try:
            moment(given["start_at"])
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def moment(start_at: Any) -> datetime | None:
    """Return the time of the parameter ``start_at``; None: no time is given.

    :param start_at: a datetime, or a text in ISO 8601 as a template renders it. A time without a zone is UTC.
    :raises InputError: if it is another value, or a time that the hub cannot store.
    """
    from airflow_provider_taskhub.codec import Timestamp
    from airflow_provider_taskhub.engine.validation import check_time

    if start_at is None or start_at in ("", "None"):  # Jinja renders None as "None"
        return None
    try:
        time = datetime.fromisoformat(start_at) if isinstance(start_at, str) else start_at
        if not isinstance(time, datetime):
            raise ValueError
    except ValueError:
        raise InputError(
            f"start_at is {start_at!r}: give a datetime, or a text such as '2026-01-31T06:00:00+00:00'"
        ) from None
    check_time(Timestamp.from_datetime(time), f"start_at {time}")
    return time


def time_text(start_at: Any) -> Any:
    """Return a datetime as a text that :func:`moment` reads, for a trigger. Return every other value unchanged."""
    return start_at.isoformat() if isinstance(start_at, datetime) else start_at


def check_duration(where: str, parameter: str, value: Any) -> None:
    """Check a parameter that must be None, a timedelta or a number of seconds, and not below 0.

    :param where: the operator and its task id, for the error.
    :param parameter: the parameter's name.
    :param value: the value.
    :raises InputError: if the value is another one.
    """
    if value is None:
        return
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise InputError(f"{where}: {parameter} is {value!r}: give a timedelta, or seconds, of 0 or more")


def check_waiting(where: str, *, deferrable: Any, poll_interval: Any) -> None:
    """Check the parameters that say where a task waits, and how often a wait in a worker asks the hub.

    :param where: the operator and its task id, for the error.
    :param deferrable: the operator's parameter, with its default in place of None.
    :param poll_interval: the operator's parameter.
    :raises InputError: if one of them is wrong.
    """
    check_duration(where, "poll_interval", poll_interval)
    if poll_interval is not None and not seconds(poll_interval):
        raise InputError(f"{where}: poll_interval is {poll_interval!r}: give more than 0 seconds")
    check_flag(where, "deferrable", deferrable)


def evaluated(value: Any) -> Any:
    """Return the value with lists in place of Airflow's lazy sequences, which are the results of mapped tasks."""
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence

    def plainly(item: Any) -> Any:
        if isinstance(item, LazyXComSequence):
            return item[:]  # reads all items with one request
        if type(item) is dict:
            return {key: plainly(inner) for key, inner in item.items()}
        if isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray):
            return [plainly(inner) for inner in item]
        return item

    try:
        return plainly(value)
    except RecursionError:
        return value  # the value is nested too deep, and writing it as JSON raises the error for the user


def date_tags(context: Context) -> dict[str, str]:
    """Return the run's logical date and data interval as tags. A run that an asset triggered has no such dates."""
    named = {
        identity.LOGICAL_DATE_TAG: context.get("logical_date"),
        identity.INTERVAL_START_TAG: context.get("data_interval_start"),
        identity.INTERVAL_END_TAG: context.get("data_interval_end"),
    }
    return {name: value.isoformat() for name, value in named.items() if value is not None}


def holds_secret(value: Any) -> bool:
    """Return whether a text inside a JSON value contains a secret, as :func:`secret_in` finds it."""
    return secret_in(value, "") is not None


def secret_in(value: Any, what: str) -> str | None:
    """Return where a JSON value contains a secret that Airflow's masker knows; None: it contains none.

    A password that is an ordinary word counts only where secrets stand: below a key with the name of a secret, after
    such a name in a text, and in an address.

    :param value: the value.
    :param what: how the result names the value. Keys and positions follow, for example ``input.db.hosts[0]``.
    """
    from airflow.sdk.log import redact

    pending: list[tuple[Any, str, bool]] = [(value, what, False)]
    while pending:
        item, path, named = pending.pop()
        if isinstance(item, str) and redact(item) != item and (named or masked(item) != item or not only_words(item)):
            return path
        if isinstance(item, dict):
            pending += ((key, f"a key of {path}", False) for key in item)
            pending += ((one, f"{path}.{redact(key)}", named or is_secret_name(str(key))) for key, one in item.items())
        elif isinstance(item, list):
            pending += ((one, f"{path}[{number}]", named) for number, one in enumerate(item))
    return None


def check_event_data(event_name: str, data: Any) -> None:
    """Check the content of an event before it is raised.

    :param event_name: the event's name, for the error.
    :param data: the event's content.
    :raises InputError: if JSON cannot express the content, or if it contains a secret.
    """
    from airflow_provider_taskhub.codec import dumps, loads

    what = f"data of event {event_name!r}"
    if (place := secret_in(loads(dumps(data, what=what)), what)) is not None:
        raise InputError(f"{place} {_SECRET.format(what='events')}")


def seconds(value: timedelta | float | None) -> float | None:
    """Return a duration in seconds; None for None. :param value: a timedelta, or a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def duration(value: timedelta | float | None) -> timedelta | None:
    """Return a duration as a timedelta; None for None. :param value: a timedelta, or a number of seconds."""
    return timedelta(seconds=value) if isinstance(value, int | float) else value
