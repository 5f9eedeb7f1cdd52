"""The stub of an orchestrator in a DAG file: an empty function whose parameters are the arguments of a task.

A stub has the parameters of its orchestrator without ``ctx``. An orchestrator takes one JSON value, so one parameter is
the input itself, and several parameters are the keys of an object. A lone parameter after ``*`` is a key as well.
``docs/decisions/stub-arguments.md`` says why.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, UnionType
from typing import Any, Union, get_args, get_origin

from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.at_parse import is_template
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.triggers.plain_types import written

DECORATOR = "@task.orchestration"
"""The usual decorator's name, as errors and Airflow's UI show it."""
_TEXTS = ("ds", "ds_nodash", "run_id", "ts", "ts_nodash", "ts_nodash_with_tz")
"""Names of texts that Airflow knows about a run. If a stub has a parameter with such a name, and the call gives no
value for it, the orchestrator gets this text."""
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NO_CODE = ("RESUME", "NOP", "CACHE")
"""Bytecode instructions that do nothing."""


class _Shown:
    """An annotation as a person writes it: without the quotes that ``from __future__ import annotations`` adds."""

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Stub:
    """A checked stub. :func:`stub_of` makes it.

    :param function: the empty function of the DAG file.
    :param signature: its signature, with annotations as errors show them.
    :param decorator: the name of the decorator above it, for errors.
    """

    function: FunctionType
    signature: inspect.Signature
    decorator: str = DECORATOR

    @property
    def where(self) -> str:
        """The decorator and the stub's name, for errors."""
        return f"{self.decorator} {self.function.__name__!r}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters, in their order."""
        return tuple(self.signature.parameters)

    @property
    def alone(self) -> bool:
        """Whether the stub has one parameter that is the input itself."""
        parameters = [*self.signature.parameters.values()]
        return len(parameters) == 1 and parameters[0].kind is not inspect.Parameter.KEYWORD_ONLY

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all parameters of a call, by name: arguments, texts of the context, and defaults.

        :raises InputError: if an argument is missing, is given twice, or has no parameter.
        """
        named = {name: "{{ " + name + " }}" for name in self.names if name in _TEXTS}
        try:
            given = self.signature.bind_partial(*args, **kwargs).arguments
            self.signature.bind(*args, **{name: text for name, text in named.items() if name not in given}, **kwargs)
        except TypeError as error:
            raise InputError(f"{self.where}: {error}: its parameters are {self.signature}") from None
        defaults = {name: one.default for name, one in self.signature.parameters.items()}
        return {name: (defaults | named | given)[name] for name in self.names}

    def missing(self, given: Sequence[str]) -> list[str]:
        """Return the names of the parameters that need an argument and are not among the given ones."""
        needed = [name for name, one in self.signature.parameters.items() if one.default is one.empty]
        return [name for name in needed if name not in given and name not in _TEXTS]

    def input_of(self, values: Mapping[str, Any]) -> Any:
        """Return the orchestrator's input, or ``NO_INPUT``. :param values: the values of all parameters, by name."""
        if not self.names:
            return NO_INPUT
        return values[self.names[0]] if self.alone else dict(values)

    def check(self, name: str, value: Any, *, which: str = "") -> None:
        """Check an argument against the annotation of its parameter, as a worker checks the input of an orchestrator.

        :param name: the parameter's name.
        :param value: the argument. A template is not checked, because its value is not known yet.
        :param which: says where the argument stands, for the error, such as ``" of row 2"``.
        :raises InputError: if JSON cannot express the value, or the value does not fit. The text names the argument,
            its value and the way out.
        """
        if is_template(value):
            return
        from airflow_provider_taskhub.codec import decode, dumps, loads
        from airflow_provider_taskhub.engine.registry import annotation_of

        what = f"argument {name!r}{which}"
        try:
            annotation = annotation_of(self.function, name)
            plain = loads(dumps(value, what=what))
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        try:
            decode(plain, annotation, what=what)
        except InputError as error:
            raise InputError(f"{self.where}: {error}: {self._way_out(name, value)}") from None

    def check_input(self, value: Any) -> None:
        """Check the rendered input of a task against the annotations. :raises InputError: as :meth:`check`."""
        if self.alone:
            self.check(self.names[0], value)
        elif self.names:
            for name in self.names:
                self.check(name, value[name])

    def unchecked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the types of the parameters whose values are templates, and may not fit when they are rendered.

        :param values: the values of all parameters, by name.
        :returns: the types as :func:`.written` returns them, by key of the input; "": the input itself.
        """
        from airflow_provider_taskhub.engine.registry import annotation_of

        found = {name: annotation_of(self.function, name) for name, value in values.items() if is_template(value)}
        types = {name: written(one) for name, one in found.items() if not _takes(one, values[name])}
        return {"" if self.alone else name: form for name, form in types.items()}

    def annotations(self) -> Any:
        """Return the annotation of the parameter that is the input itself, or those of all parameters by name."""
        from airflow_provider_taskhub.engine.registry import annotation_of

        found = {name: annotation_of(self.function, name) for name in self.names}
        return found[self.names[0]] if self.alone else found

    def _way_out(self, name: str, value: Any) -> str:
        annotation = self.signature.parameters[name].annotation
        if isinstance(value, str):
            return (
                f"give a value of type {annotation!r}. A Jinja template gives a text, "
                "unless the DAG has render_template_as_native_obj=True"
            )
        return f"give a value of type {annotation!r}, or change the annotation"


@lru_cache(maxsize=1024)
def stub_of(function: Callable[..., Any], decorator: str = DECORATOR) -> Stub:
    """Check a decorated function and return its stub.

    :param function: the decorated function.
    :param decorator: the name of the decorator, for errors.
    :raises InputError: if the function has a body, is ``async``, or has a parameter that a stub cannot have.
    """
    if not isinstance(function, FunctionType):
        raise InputError(
            f"{decorator} decorates {function!r}: put it above a function with an empty body, "
            f"and name what it runs with {decorator}({_kind(decorator)}=…)"
        )
    stub, kind = Stub(function, _signature(function), decorator), _kind(decorator)
    if inspect.iscoroutinefunction(function) or not _is_empty(function):
        raise InputError(
            f"{stub.where}: its body must be empty (`...`, `pass` or a docstring) and it must be a plain `def`: a "
            f"worker of the hub runs the {kind}, and nothing runs the stub. Put the code into the {kind}, "
            f"or, if this function is the {kind}, write a stub and {decorator}({kind}=…) above it"
        )
    for name, parameter in stub.signature.parameters.items():
        if parameter.kind in _REST:
            raise InputError(f"{stub.where}: parameter '{parameter}' has no names to check: name each parameter")
        if name in KNOWN_CONTEXT_KEYS and name not in _TEXTS:
            raise InputError(
                f"{stub.where}: parameter {name!r} has the name of an object of Airflow's context, which the "
                f"{kind} cannot get: use another name. The texts {', '.join(_TEXTS)} can be parameters"
            )
    return stub


def _takes(annotation: Any, template: Any) -> bool:
    """Return whether whatever a template gives fits a type. Jinja gives a text."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return any(kind in (None, Any) or (kind is str and isinstance(template, str)) for kind in kinds)


def _kind(decorator: str) -> str:
    """Return what a decorator's stub stands for: it is also the name of the decorator's parameter."""
    return "orchestrator" if decorator == DECORATOR else "activity"


def _signature(function: FunctionType) -> inspect.Signature:
    found = inspect.signature(function)
    parameters = [
        one if one.annotation is one.empty else one.replace(annotation=_Shown(one.annotation))
        for one in found.parameters.values()
    ]
    return inspect.Signature(parameters)


def _is_empty(function: FunctionType) -> bool:
    """Return whether a function only returns None. The bytecode is read, since the file may be inside a zip."""
    return _instructions(function) == _instructions(_nothing)


def _instructions(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    found = dis.get_instructions(function)
    return [(one.opname, one.argval) for one in found if one.opname not in _NO_CODE]


def _nothing() -> None: ...
