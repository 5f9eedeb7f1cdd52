"""``@task.activity``: one activity of an app as a task function of a DAG file.

The decorated function is a typed stub of an activity that its app declares with ``standalone=True``. Its code is part
of the app, and the task names it: Airflow never has the code, so DAG files need neither Spark nor the libraries of the
activity, and what runs is what the hub's workers have deployed. ``docs/decisions/named-activities.md`` says why the
DAG bundle does not ship it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.decorators.orchestration import OrchestrationOperator, task_of
from airflow_provider_taskhub.decorators.stub import stub_of
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.triggers.arguments import standalone_name

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_taskhub.app import App

__all__ = ["activity_task"]

DECORATOR = "@task.activity"


class _ActivityOperator(OrchestrationOperator):
    """A ``TaskHubOperator`` that starts one standalone activity."""

    custom_operator_name = DECORATOR


def activity_task(
    python_callable: Callable[..., Any] | None = None,
    *,
    activity: str | Callable[..., Any] | None = None,
    app: App | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make one activity a task function. DAG files write it as ``@task.activity``.

    The decorated function is a typed stub: it has the parameters of the activity without ``spark``, and an empty body.
    A call makes a ``TaskHubOperator``, which starts an orchestration of this one activity, and returns its result. The
    app must declare the activity with ``standalone=True``. Arguments become the activity's input, and are checked, as
    :func:`.orchestration_task` does it for an orchestrator.

    :param python_callable: the stub. Python passes it if the decorator is written without parentheses.
    :param activity: name that an ``App`` of the hub's workers declares, or the function that ``@app.activity`` or
        ``@app.spark_activity`` has declared. None: the name of the stub.
    :param app: the app that declares the activity, if the DAG file can import it. None: a name is not looked up.
    :param multiple_outputs: True: each key of the result, which must be an object, is also an XCom of its own. None:
        True if the stub's return annotation is a dict or another mapping, as with ``@task``.
    :param kwargs: the other parameters of ``TaskHubOperator``, except ``input`` and ``orchestrator``.
    :raises InputError: if the stub has a body or parameters that a stub cannot have, if the app does not declare the
        activity as standalone, or if an argument does not fit. The text names the argument, its value and the way out.
    """
    if "input" in kwargs:
        raise InputError(f"{DECORATOR}: input is {kwargs['input']!r}: give it as arguments when you call the stub")
    if "orchestrator" in kwargs:
        raise InputError(f"{DECORATOR}: orchestrator is {kwargs['orchestrator']!r}: use @task.orchestration for it")
    if isinstance(python_callable, str):
        raise InputError(f"{DECORATOR}: got {python_callable!r} by position: write activity={python_callable!r}")

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        stub = stub_of(function, DECORATOR)
        found = activity if app is None else _declared(app, activity or function.__name__, stub.where)
        if callable(found):
            standalone_name(stub.where, found)
        return task_of(stub, found, _ActivityOperator, multiple_outputs, kwargs)

    return decorate if python_callable is None else decorate(python_callable)


def _declared(app: App, activity: str | Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return the function of an activity of an app. :raises InputError: if the app does not declare it."""
    from airflow_provider_taskhub.app import App
    from airflow_provider_taskhub.engine.tasks import NAME

    if not isinstance(app, App):
        raise InputError(f"{where}: app is {app!r}: give the App object of the activity's module")
    name = activity if isinstance(activity, str) else getattr(activity, NAME, repr(activity))
    if name not in app.activities:
        known = ", ".join(app.activities) or "none"
        raise InputError(f"{where}: activity is {name!r}, which {app!r} does not declare: it declares {known}")
    return app.activities[name].function
