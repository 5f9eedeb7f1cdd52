"""Checks a stub against the function of its orchestrator, where the DAG file has this function.

The check is the one of a worker, which decodes the input by the annotation of the orchestrator's parameter. As long as
a part of the input is a template, only the names of the keys and the known values can be checked.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow_provider_taskhub.decorators.stub import DECORATOR
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks.at_parse import is_template
from airflow_provider_taskhub.no_input import NO_INPUT
from airflow_provider_taskhub.triggers.arguments import orchestrator_name
from airflow_provider_taskhub.triggers.input_fields import fields_of, input_parameter, members_of, type_of_input

if TYPE_CHECKING:
    from airflow_provider_taskhub.decorators.stub import Stub

_NO_OBJECTS = (str, bytes, int, float, Sequence, set, frozenset, date, time, timedelta, Decimal, UUID, Enum)
"""Types that no JSON object can be decoded to."""


@dataclasses.dataclass(frozen=True, slots=True)
class OrchestratorInput:
    """The one input of an orchestrator.

    :param function: the orchestrator.
    :param name: the name by which it is declared.
    :param parameter: the parameter that takes the input; None: it takes no input.
    :param annotation: the type of this parameter; None: any type.
    """

    function: Callable[..., Any]
    name: str
    parameter: str | None
    annotation: Any

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, function: Callable[..., Any]) -> OrchestratorInput:
        """Return the input of a function that ``@app.orchestrator`` has declared.

        :raises InputError: if no app has declared the function, or if the annotation uses a name that the function's
            module does not have.
        """
        name = orchestrator_name(DECORATOR, function)
        return cls(function, name, input_parameter(function), type_of_input(function))

    def check_names(self, stub: Stub) -> None:
        """Check what does not depend on arguments: whether the stub makes an input that the orchestrator takes.

        :raises InputError: if the stub has no parameter, too many or others than the input's type has fields.
        """
        for problem in self._problems_of_names(stub):
            raise InputError(f"{stub.where}: orchestrator {self.name!r} {problem}")

    def check_argument(self, stub: Stub, name: str, value: Any) -> None:
        """Check one argument, while others are not known. :raises InputError: if it does not fit the orchestrator."""
        if is_template(value):
            return
        if stub.alone:
            self.check_values(stub, {name: value})
            return
        from airflow_provider_taskhub.codec import decode, dumps, loads

        annotation = fields_of(self.annotation).get(name, (None, False))[0]
        what = f"argument {name!r} of orchestrator {self.name!r}"
        try:
            decode(loads(dumps(value)), annotation, what=what)
        except InputError as error:
            raise InputError(f"{stub.where}: {error}") from None

    def check_values(self, stub: Stub, values: Mapping[str, Any]) -> None:
        """Check the arguments of a call. :param values: the values of all parameters of the stub, by name.

        :raises InputError: if they do not fit the orchestrator's input.
        """
        given = stub.input_of(values)
        if is_template(given):
            for name, value in values.items():
                self.check_argument(stub, name, value)
        elif self.parameter is not None:
            from airflow_provider_taskhub.codec import dumps, loads
            from airflow_provider_taskhub.engine.inputs import input_arguments

            what = f"input of orchestrator {self.name!r}"
            try:
                plain = given if given is NO_INPUT else loads(dumps(given))
                input_arguments(self.function, self.parameter, self.annotation, plain, what=what)
            except InputError as error:
                raise InputError(f"{stub.where}: {error}: change the arguments of the call") from None

    def _problems_of_names(self, stub: Stub) -> Iterator[str]:
        names = ", ".join(stub.names)
        if self.parameter is None:
            if stub.names:
                yield f"takes no input, and the stub has the parameters ({names}): remove them"
            return
        if not stub.names:
            if not self._works_without():
                yield f"needs an input ({self.parameter}: {self._type()}): give the stub its parameters"
            return
        fields = fields_of(self.annotation)
        if stub.alone:
            if names in fields and _no_object(_annotation(stub)):
                yield (
                    f"takes an object with the key {names!r}, and a lone parameter is the input itself: "
                    f"write (*, {stub.signature.parameters[names]})"
                )
            return
        if _no_object(self.annotation):
            yield (
                f"takes {self.parameter}: {self._type()}, and the parameters ({names}) make an object: "
                "give the stub one parameter, not after *"
            )
        for name in stub.names if fields else ():
            if name not in fields:
                yield f"has no {name!r} in its input {self._type()}: it has {', '.join(fields)}"
        missing = [name for name, (_, required) in fields.items() if required and name not in stub.names]
        if missing:
            yield f"needs {', '.join(missing)} in its input {self._type()}: add them to the stub's parameters"

    def _works_without(self) -> bool:
        from airflow_provider_taskhub.codec import decode
        from airflow_provider_taskhub.engine.inputs import has_default

        try:
            decode(None, self.annotation)
        except InputError:
            return has_default(self.function, str(self.parameter))
        return True

    def _type(self) -> str:
        return inspect.formatannotation(self.annotation) if self.annotation is not None else "Any"


def _annotation(stub: Stub) -> Any:
    from airflow_provider_taskhub.engine.registry import annotation_of

    return annotation_of(stub.function, stub.names[0])


def _no_object(annotation: Any) -> bool:
    """Return whether no JSON object can be decoded to a type."""
    kinds = [typing.get_origin(kind) or kind for kind in members_of(annotation)]
    return bool(kinds) and all(isinstance(kind, type) and issubclass(kind, _NO_OBJECTS) for kind in kinds)
