"""Renders templates so that texts stay texts, and finds Python text that a template has made of a dict.

With ``render_template_as_native_obj``, a DAG gets Python objects in place of texts: Jinja makes the number 20260101 of
``{{ ds_nodash }}``. That is wrong for an id, for a tag, and for a part of an input that is declared as a ``str``.
Without it, Jinja makes Python text of a dict or list: ``{'a': 1}``, which no orchestrator expects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, get_args, get_origin

from airflow_provider_taskhub.hooks.at_parse import is_template
from airflow_provider_taskhub.triggers.input_fields import fields_of, members_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

VALUES = frozenset(("input", "data", "start_at", "statuses", "op_args", "op_kwargs"))
"""Templated arguments that may be other values than texts."""
_TYPES: Mapping[str, Any] = {"tags": dict[str, str]}
CHECKED = ("input", "data", "instance_id")
"""Templated arguments in which Python text of a dict or list is an error."""


class TextRendering:
    """Base of operators, sensors and notifiers, beside Airflow's own base class, which must come after this one.

    :ivar _python_text: the error about Python text in one of :data:`CHECKED`; None: there is none.
    """

    _python_text: str | None = None
    _should_render_native: Callable[[Any], bool]

    def _input_type(self) -> Any:
        """Return the annotation of the input, or a dict of the annotations of its keys; None: it is not known."""
        return None

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Context, jinja_env: Environment, seen_oids: set[int]
    ) -> None:
        """Render templated arguments. Airflow calls this for all tasks, also for the rows of mapped ones."""
        render: Any = super()._do_render_template_fields  # type: ignore[misc]  # of Airflow's base class
        if parent is not self:
            render(parent, template_fields, context, jinja_env, seen_oids)
            return
        dag = context.get("dag") or getattr(self, "get_dag", lambda: None)()  # a notifier has no get_dag
        texts, given = PythonTexts(), {name: getattr(self, name, None) for name in CHECKED}
        if dag is not None and self._should_render_native(dag):
            environment = texts.seen_by(dag.get_template_env(force_sandboxed=True))
            self._render_texts(template_fields, context, environment, seen_oids)
        render(parent, template_fields, context, texts.seen_by(jinja_env), seen_oids)
        self._python_text = texts.first_error(self, given)

    def _render_texts(self, names: Any, context: Context, texts: Environment, seen: Collection[int]) -> None:
        """Render what must stay a text, before Airflow renders the rest. :param texts: an environment for texts."""
        from airflow.sdk.definitions._internal.templater import LiteralValue
        from airflow.sdk.definitions.context import render_template_to_string

        def rendered(template: str) -> LiteralValue:
            return LiteralValue(render_template_to_string(texts.from_string(template), context))

        for name in names:
            kind = self._input_type() if name == "input" else None if name in VALUES else _TYPES.get(name, str)
            setattr(self, name, with_texts(getattr(self, name), kind, rendered, seen))


def with_texts(value: Any, kind: Any, render: Callable[[str], Any], seen: Collection[int] = ()) -> Any:
    """Return a value with rendered texts in place of the templates that must give a ``str``.

    :param value: an argument with templates.
    :param kind: its annotation, or a dict of the annotations of its keys; None: any value.
    :param render: renders a template as a text.
    :param seen: ids of objects that contain no templates, because another task has made them.
    """
    if id(value) in seen:
        return value
    if isinstance(value, str):
        return render(value) if [*_kinds(kind)] == [str] else value  # Jinja makes a number also of the plain text "7"
    if type(value) is dict:
        return {key: with_texts(item, _of_key(kind, key), render, seen) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_texts(item, _of_items(kind), render, seen) for item in value)
    return value


def changed_natively(value: Any, kind: Any) -> str | None:
    """Return the first plain text in a value of which native rendering makes another value, such as a number; None:
    there is no such text.

    :param kind: as for :func:`with_texts`. A text that is declared as a ``str`` stays as it is.
    """
    from jinja2.nativetypes import native_concat

    def changed(item: Any) -> Iterator[str]:
        if isinstance(item, str):
            if not is_template(item) and native_concat([item] if item else []) != item:
                yield item
        elif isinstance(item, Mapping):
            for inner in item.values():
                yield from changed(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                yield from changed(inner)

    return next(changed(with_texts(value, kind, lambda text: None)), None)


class PythonTexts:
    """Finds texts that templates have made of dicts, lists and other containers, as Python writes them."""

    def __init__(self) -> None:
        self._made: set[str] = set()

    def seen_by(self, environment: Environment) -> Environment:
        """Return a copy of the environment that notes the containers which its templates write into texts."""
        given = environment.finalize
        if given is None:
            return environment.overlay(finalize=self._see)
        if hasattr(given, "jinja_pass_arg"):  # it takes more than the value
            return environment
        return environment.overlay(finalize=lambda value: self._see(given(value)))

    def _see(self, value: Any) -> Any:
        if isinstance(value, Mapping | Sequence | Set) and not isinstance(value, str | bytes):
            self._made.add(str(value).strip())
        return value

    def first_error(self, owner: Any, given: Mapping[str, Any]) -> str | None:
        """Return the first error about the arguments of an operator, sensor, notifier or trigger; None: all are right.

        :param owner: has the rendered arguments as attributes.
        :param given: the arguments before they were rendered, by name.
        """
        errors = (self.error(value, getattr(owner, name, None), name) for name, value in given.items())
        return next(filter(None, errors), None)

    def error(self, given: Any, rendered: Any, path: str) -> str | None:
        """Return the error about a template whose text is that of a container; None: there is no such template.

        :param given: a value before its templates were rendered.
        :param rendered: the value after that.
        :param path: the name of the value, for the error.
        """
        if not isinstance(given, str):
            return next(filter(None, (self.error(*pair) for pair in _pairs(given, rendered, path))), None)
        text = getattr(rendered, "value", rendered)  # of Airflow's LiteralValue
        if not is_template(given) or "tojson" in given or not isinstance(text, str) or text.strip() not in self._made:
            return None
        template = given.strip()
        if path == "instance_id":
            return (
                f"instance_id is {template!r}, which makes Python text of a list or dict: give one id. For the rows of "
                "a mapped task, map over their outputs with .expand(instance_id=...), or give map_indexes to xcom_pull"
            )
        alone = template.startswith("{{") and template.endswith("}}") and template.count("{{") == 1
        json_text = f"{template[2:-2].strip()} | tojson" if alone else "... | tojson"
        return (
            f"{path} is {template!r}, which makes Python text of a dict or list, and no JSON. Give the output of a "
            f"task itself (an XComArg), write {{{{ {json_text} }}}} for a text of JSON, or set "
            "render_template_as_native_obj=True in the DAG for the value itself"
        )


def _pairs(given: Any, rendered: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    if isinstance(given, Mapping) and isinstance(rendered, Mapping):
        yield from ((item, rendered.get(key), f"{path}.{key}") for key, item in given.items())
    elif isinstance(given, list | tuple) and isinstance(rendered, list | tuple):
        both = enumerate(zip(given, rendered, strict=False))
        yield from ((one, other, f"{path}[{number}]") for number, (one, other) in both)


def _kinds(kind: Any) -> Iterator[Any]:
    return iter(()) if isinstance(kind, Mapping) else members_of(kind)


def _of_key(kind: Any, key: Any) -> Any:
    if isinstance(kind, Mapping):
        return kind.get(key)
    found = [one for one in _kinds(kind) if get_origin(one) in (dict, Mapping)]
    return get_args(found[0])[1] if found else fields_of(kind).get(key, (None, False))[0]


def _of_items(kind: Any) -> Any:
    found = [one for one in _kinds(kind) if get_origin(one) in (list, tuple) and get_args(one)]
    return get_args(found[0])[0] if found else None
