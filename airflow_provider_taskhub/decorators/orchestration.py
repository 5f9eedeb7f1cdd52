"""``@task.orchestration``: an orchestration as a task function of a DAG file.

The decorated function is a typed stub of an orchestrator. A call makes a ``TaskHubOperator`` whose ``input`` is built
from the arguments of the call. The operator then behaves in every respect like one that the DAG file makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import _TaskDecorator, get_unique_task_id
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_taskhub.decorators.orchestrator_input import OrchestratorInput
from airflow_provider_taskhub.decorators.stub import DECORATOR, Stub, stub_of
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider_taskhub.app import App

__all__ = ["orchestration_task"]


class OrchestrationOperator(TaskHubOperator):
    """A ``TaskHubOperator`` whose input is made from the arguments of a stub.

    :param python_callable: the stub.
    :param op_args: the call's arguments by position.
    :param op_kwargs: the call's arguments by name.
    :param orchestrator: the orchestrator's name or function; None: its name is that of the stub.
    """

    custom_operator_name: str = DECORATOR
    # A mapped task is not made yet when Airflow looks for the tasks whose outputs are in its arguments: it looks into
    # these two fields of the class. In a task that is made, `input` has the arguments.
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *TaskHubOperator.template_fields)
    shallow_copy_attrs: Sequence[str] = ("_stub",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        orchestrator: str | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        stub = stub_of(python_callable, self.custom_operator_name)
        values = stub.bind(op_args or (), op_kwargs or {})
        if not getattr(self, "_BaseOperator__from_mapped", False):  # a mapped task has its id, and values are rendered
            task_id = get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
            for name, value in stub.signature.bind_partial(*(op_args or ()), **(op_kwargs or {})).arguments.items():
                stub.check(name, value)
            if (against := _input_of(orchestrator)) is not None:
                against.check_names(stub)
                against.check_values(stub, values)
        super().__init__(
            task_id=task_id,
            orchestrator=python_callable.__name__ if orchestrator is None else orchestrator,
            input=stub.input_of(values),
            **kwargs,
        )
        self.op_args: Sequence[Any] = ()
        self.op_kwargs: Mapping[str, Any] = {}
        self.template_fields = TaskHubOperator.template_fields
        self._stub = stub
        self.input_types = stub.unchecked(values)

    @classmethod
    def input_of(cls, stub: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Return the input of a task: that of a call of the decorated function.

        :param stub: the decorated function.
        :param values: the arguments of the call, by name.
        :raises InputError: if an argument is missing, or has no parameter.
        """
        checked = stub_of(stub, cls.custom_operator_name)
        return checked.input_of(checked.bind((), values))

    def _input_type(self) -> Any:
        """Return the annotations of the stub's parameters."""
        return self._stub.annotations() if self._stub.names else None

    def _request(self, context: Context) -> Any:  # as the operator: the request to start an instance
        request = super()._request(context)
        try:
            self._stub.check_input(request.input)
        except InputError as error:
            raise AirflowFailException(str(error)) from None
        return request


class _OrchestrationDecorator(_TaskDecorator):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Airflow's decorated function, with checks of the arguments of mapped tasks when Airflow parses the DAG.

    Airflow itself looks at these arguments only when the task runs.
    """

    def partial(self, **kwargs: Any) -> Any:
        """Return the decorated function with arguments that all mapped tasks have."""
        for name, value in kwargs.items():
            self._check(name, value)
        return super().partial(**kwargs)

    def expand(self, **map_kwargs: Any) -> Any:
        """Return the output of tasks, one for each item of the arguments."""
        self._check_missing(map_kwargs)
        for name, values in map_kwargs.items():
            for number, value in enumerate(values if isinstance(values, list | tuple) else ()):
                self._check(name, value, f" of row {number}")
        return super(_OrchestrationDecorator, self._named()).expand(**map_kwargs)

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> Any:
        """Return the output of tasks, one for each dict of arguments."""
        for number, row in enumerate(kwargs if isinstance(kwargs, list | tuple) else ()):
            if isinstance(row, Mapping):
                self._check_missing(row, f" of row {number}")
                self._validate_arg_names("expand_kwargs", {**row})
                for name, value in row.items():
                    self._check(name, value, f" of row {number}")
        return super(_OrchestrationDecorator, self._named()).expand_kwargs(kwargs, strict=strict)

    def _named(self) -> Any:
        """Return the same with the orchestrator's name in place of its function, whose source Airflow would store."""
        against = _input_of(self.kwargs.get("orchestrator"))
        return self if against is None else self.override(orchestrator=against.name)

    def _check(self, name: str, value: Any, which: str = "") -> None:
        stub = self._stub()
        if name in stub.names:  # Airflow refuses other names
            stub.check(name, value, which=which)
            if (against := _input_of(self.kwargs.get("orchestrator"))) is not None:
                against.check_argument(stub, name, value)

    def _stub(self) -> Stub:
        return stub_of(self.function, self.operator_class.custom_operator_name)

    def _check_missing(self, given: Mapping[str, Any], which: str = "") -> None:
        stub = self._stub()
        for name in stub.missing([*self.kwargs.get("op_kwargs", {}), *given]):
            raise InputError(f"{stub.where}: argument {name!r}{which} is missing: give it to partial() or expand()")


def orchestration_task(
    python_callable: Callable[..., Any] | None = None,
    *,
    orchestrator: str | Callable[..., Any] | None = None,
    app: App | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Make an orchestration a task function. DAG files write it as ``@task.orchestration``.

    The decorated function is a typed stub: it has the parameters of the orchestrator without ``ctx``, and an empty
    body. A call makes a ``TaskHubOperator`` and returns its output. One parameter is the orchestrator's input itself.
    Several parameters are the keys of a JSON object, and so is a lone one after ``*``. Parameters with a default are in
    the object too. A parameter named ``ds``, ``ds_nodash``, ``ts``, ``ts_nodash``, ``ts_nodash_with_tz`` or ``run_id``
    gets this text of the run, unless the call gives it.

    Arguments are checked against the stub's annotations when Airflow parses the DAG. If ``orchestrator`` is a function,
    or ``app`` is given, they are also checked against the orchestrator. Templates and outputs of other tasks are
    checked against the stub's annotations when the task begins. The name of the stub is the task id. ``override``,
    ``partial``, ``expand`` and ``expand_kwargs`` work as those of ``@task``.

    :param python_callable: the stub. Python passes it if the decorator is written without parentheses.
    :param orchestrator: name that an ``App`` of the hub's workers declares, or the function that ``@app.orchestrator``
        has declared. None: the name of the stub.
    :param app: the app that declares the orchestrator, if the DAG file can import it. None: a name is not looked up.
    :param multiple_outputs: True: each key of the output, which must be an object, is also an XCom of its own. None:
        True if the stub's return annotation is a dict or another mapping, as with ``@task``.
    :param kwargs: the other parameters of ``TaskHubOperator``, except ``input``.
    :raises InputError: if the stub has a body or parameters that a stub cannot have, if the app does not declare the
        orchestrator, or if an argument does not fit. The text names the argument, its value and the way out.
    """
    if "input" in kwargs:
        raise InputError(f"{DECORATOR}: input is {kwargs['input']!r}: give it as arguments when you call the stub")
    if isinstance(python_callable, str):
        raise InputError(f"{DECORATOR}: got {python_callable!r} by position: write orchestrator={python_callable!r}")

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        stub = stub_of(function)
        found = orchestrator if app is None else _declared(app, orchestrator or function.__name__, stub.where)
        return task_of(stub, found, OrchestrationOperator, multiple_outputs, kwargs)

    return decorate if python_callable is None else decorate(python_callable)


def task_of(
    stub: Stub,
    orchestrator: str | Callable[..., Any] | None,
    operator_class: type[OrchestrationOperator],
    multiple_outputs: bool | None,
    kwargs: Mapping[str, Any],
) -> TaskDecorator:
    """Return the task function of a stub.

    :param orchestrator: the name or the function of what the task starts; None: its name is that of the stub.
    :param operator_class: the operator that the task function makes.
    :param multiple_outputs: as :func:`orchestration_task` takes it.
    :param kwargs: parameters of the operator.
    :raises InputError: if the stub does not fit the function.
    """
    if (against := _input_of(orchestrator)) is not None:
        against.check_names(stub)
    given = kwargs if orchestrator is None else {**kwargs, "orchestrator": orchestrator}
    inferred = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}
    return _OrchestrationDecorator(function=stub.function, operator_class=operator_class, kwargs={**given}, **inferred)


def _declared(app: App, orchestrator: str | Callable[..., Any], where: str) -> Callable[..., Any]:
    """Return the function of an orchestrator of an app. :raises InputError: if the app does not declare it."""
    from airflow_provider_taskhub.app import App
    from airflow_provider_taskhub.engine.tasks import NAME

    if not isinstance(app, App):
        raise InputError(f"{where}: app is {app!r}: give the App object of the orchestrator's module")
    name = orchestrator if isinstance(orchestrator, str) else getattr(orchestrator, NAME, repr(orchestrator))
    if name not in app.orchestrators:
        known = ", ".join(app.orchestrators) or "none"
        raise InputError(f"{where}: orchestrator is {name!r}, which {app!r} does not declare: it declares {known}")
    return app.orchestrators[name].function


def _input_of(orchestrator: Any) -> OrchestratorInput | None:
    """Return the input of an orchestrator that is given as a function; None: only its name is known.

    :raises InputError: if it is a function that no app has declared.
    """
    return OrchestratorInput.of(orchestrator) if callable(orchestrator) else None
