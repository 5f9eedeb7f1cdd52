"""Parts of the reference that the build writes from the code, so that they cannot go stale.

Each function returns Markdown. A page of the reference shows one with ``{include} _generated/NAME.md``.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from configparser import RawConfigParser
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from sphinx.application import Sphinx

from airflow_provider_taskhub import settings as settings_module
from airflow_provider_taskhub.cli.main import app as command_line
from airflow_provider_taskhub.engine import lifecycle as tables
from airflow_provider_taskhub.provider_info import get_provider_info
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, PREFIX, LeaseTimes, Settings, SparkSettings

PACKAGE = Path(settings_module.__file__).parent
HERE = Path(__file__).parent
_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
_EVENT = re.compile(r"[a-z]+(_[a-z0-9]+)+|quarantined|AbandoningMessage")  # the last is DurableTask's


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# --- settings -----------------------------------------------------------------------------------------------------


def settings() -> str:
    """Every setting: name in the file, environment variable, default, unit or type, meaning."""
    rows = []
    for model, before in ((Settings, ""), (LeaseTimes, "lease."), (SparkSettings, "spark.")):
        texts = attribute_texts(Path(settings_module.__file__), model.__name__)
        for name, info in model.model_fields.items():
            if not before and name in ("lease", "spark"):
                continue
            path = f"{before}{name}"
            variable = PREFIX + path.upper().replace(".", "__")
            default = _lease_default(name) if before == "lease." else _shown(info.default)
            if info.default_factory is not None:
                default = "`{}`"
            rows.append((f"`{path}` `{variable}`", default, _kind(info.annotation), texts.get(name, "")))
    return _table(("setting, variable", "default", "type", "meaning"), rows)


def _lease_default(name: str) -> str:
    azure, embedded = getattr(AZURE_LEASE, name), getattr(EMBEDDED_LEASE, name)
    return f"{_shown(azure)} on Azure, {_shown(embedded)} embedded"


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if value is None or value == "":
        return "none"
    return f"`{value}`"


def _kind(annotation: Any) -> str:
    text = str(annotation)
    for part, kind in (
        ("timedelta", "duration, such as `PT30S`"),
        ("Literal", "`table` or `blob`"),
        ("dict", "JSON object"),
        ("int", "whole number"),
        ("SecretStr", "text, secret"),
    ):
        if part in text:
            return kind
    return "text"


def attribute_texts(path: Path, cls: str) -> dict[str, str]:
    """The text about each attribute of a class, as one line of Markdown: under it, or as a parameter of the class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    body = node.body
    told = re.split(r":param (\w+):", ast.get_docstring(node) or "")
    found = {name: _sentence(text) for name, text in zip(told[1::2], told[2::2], strict=True)}
    for one, after in pairwise(body):
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[one.target.id] = _markdown(str(after.value.value))
    return found


def _sentence(text: str) -> str:
    """What a docstring says of a parameter, as a sentence of its own."""
    one = _markdown(text)
    return f"{one[:1].upper()}{one[1:]}"


def _markdown(text: str) -> str:
    """One line of Markdown for a docstring's reStructuredText."""
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(text.split()))
    return text.replace("``", "`")


# --- command line -------------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, Any]]:
    """Every command with its full name, groups first."""
    return list(_walk("taskhub", typer.main.get_command(command_line)))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if name == "taskhub demo":  # only a checkout has it: `make demo`
        return
    yield name, command
    for sub, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield from _walk(f"{name} {sub}", inner)


def command_reference() -> str:
    parts = []
    for name, command in commands():
        depth = "##" if len(name.split()) <= 2 else "###"
        text, *examples = (command.help or "").split("Example:")
        parts.append(f"{depth} {name}\n\n{_paragraphs(text)}\n")
        if examples:
            parts.append("```text\n" + "\n".join(" ".join(one.split()) for one in examples) + "\n```\n")
        rows = [_parameter(one) for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
        if rows:
            parts.append(_table(("option or argument", "default", "meaning"), rows))
    return "\n".join(parts)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b", "").split("\n\n")).replace("<", "&lt;")


def _parameter(one: Any) -> tuple[str, str, str]:
    if one.param_type_name == "argument":
        name = f"`{one.name.upper()}{' ...' if one.nargs != 1 else ''}`"
    else:
        name = ", ".join(f"`{opt}`" for opt in (*one.opts, *one.secondary_opts))
        if not getattr(one, "is_flag", False):
            name += f" {_value(one)}"
    default = "required" if one.required else "" if one.default in (None, "", False, ()) else f"`{one.default}`"
    if callable(one.default):
        default = ""
    return name, default, _markdown((one.help or "").replace("<", "&lt;"))


def _value(one: Any) -> str:
    """What follows an option: the values that an enumeration has, or the kind of value."""
    kind = one.type_descriptor.annotation
    kind = (getattr(kind, "__args__", None) or (kind,))[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{item.value}`" for item in kind)
    word = {int: "NUMBER", float: "NUMBER"}.get(kind, "TEXT")
    if one.min is not None or one.max is not None:
        word += (
            f" ({'' if one.min is None else one.min} to {one.max})" if one.max is not None else f" (at least {one.min})"
        )
    return word


# --- connection ---------------------------------------------------------------------------------------------------


def connection() -> str:
    """Fields of the Airflow connection, and the options of Airflow's configuration."""
    info = get_provider_info()
    fields = info["connection-types"][0]["conn-fields"]
    rows = [("`password`", "", info["connection-types"][0]["ui-field-behaviour"]["relabeling"]["password"] + ".")]
    for name, one in fields.items():
        schema = one["schema"]
        default = schema.get("default")
        rows.append((f"`{name}` (extra)", f"`{default}`" if default else "none", one["description"]))
    options = [
        (f"`[taskhub] {name}`", f"`{one['default']}`" if one["default"] else "none", one["description"])
        for name, one in info["config"]["taskhub"]["options"].items()
    ]
    return (
        "## Fields of the connection\n\n" + _table(("field", "default", "meaning"), rows)
        + "\n## Options of Airflow's configuration\n\n" + _table(("option", "default", "meaning"), options)
    )  # fmt: skip


# --- metrics and log events -----------------------------------------------------------------------------------------


@cache
def metrics() -> dict[str, tuple[str, str]]:
    """Kind and meaning of every metric that the sources name."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.targets[0].id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }  # fmt: skip
        for node in ast.walk(tree):
            function = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and function.endswith("MetricFamily"):
                name, text = (
                    texts[one.id] if isinstance(one, ast.Name) else ast.literal_eval(one) for one in node.args[:2]
                )
                found[name] = ("counter" if "Counter" in function else "gauge", text)
    return dict(sorted(found.items()))


@dataclass
class Event:
    """What the code says about one log event."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


@cache
def events() -> dict[str, Event]:
    """Every log event of workers and commands that the sources name."""
    found: dict[str, Event] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "demo" in path.relative_to(PACKAGE).parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }  # fmt: skip
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [
                names.get(one.id) if isinstance(one, ast.Name) else getattr(one, "value", None) for one in node.args
            ]
            if function in _LEVELS and _is_event(values[0]):
                level = "error" if function == "exception" else function
                _logged(found, str(values[0]), {level}, node)
            elif function == "log" and len(values) > 1 and _is_event(values[1]):
                _logged(found, str(values[1]), _levels(tree, node.args[0]), node)
            elif function == "Outage" and len(values) > 1 and _is_event(values[1]):
                _outage(found, str(values[1]))
            elif _is_event(values[0]) and (function == "_attempt" or _is_outages(node.func)):
                _outage(found, str(values[0]))
    return dict(sorted(found.items()))


def _logged(found: dict[str, Event], name: str, levels: set[str], call: ast.Call) -> None:
    event = found.setdefault(name, Event())
    event.levels |= levels
    event.fields |= {one.arg for one in call.keywords if one.arg and one.arg != "exc_info"}
    event.fields |= {str(key) for one in call.keywords if one.arg is None for key in _keys(one.value)}


def _keys(value: ast.expr) -> Iterator[object]:
    """The fields of ``**({"error": text} if failed else {})``."""
    for one in ast.walk(value):
        if isinstance(one, ast.Dict):
            yield from (key.value for key in one.keys if isinstance(key, ast.Constant))


def _levels(module: ast.Module, level: ast.expr) -> set[str]:
    """The levels in the first argument of ``log.log``, such as ``logging.INFO``, or in what its variable is set to."""
    values = [level]
    if isinstance(level, ast.Name):
        values = [
            node.value for node in ast.walk(module)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == level.id
        ]  # fmt: skip
    named = {one.attr.lower() for value in values for one in ast.walk(value) if isinstance(one, ast.Attribute)}
    return named & set(_LEVELS)


def _outage(found: dict[str, Event], name: str) -> None:
    event = found.setdefault(name, Event())
    event.levels.add("warning")
    event.fields |= {"error", "failures", "seconds"}


def _is_outages(function: ast.expr) -> bool:
    """Whether this is the method ``of`` of an ``Outages``."""
    return isinstance(function, ast.Attribute) and function.attr == "of" and "outages" in ast.unparse(function).lower()


def _is_event(value: object) -> bool:
    return isinstance(value, str) and _EVENT.fullmatch(value) is not None


def meanings() -> dict[str, str]:
    """What each log event means, in docs/reference/log-events.toml."""
    return dict(tomllib.loads((HERE.parent / "reference" / "log-events.toml").read_text(encoding="utf-8")))


def metrics_and_events() -> str:
    told = meanings()
    rows = [(f"`{name}`", kind, text) for name, (kind, text) in metrics().items()]
    lines = [
        (
            f"`{name}`",
            ", ".join(sorted(one.levels)),
            ", ".join(f"`{part}`" for part in sorted(one.fields)),
            told.get(name, ""),
        )
        for name, one in events().items()
    ]
    return (
        "## Metrics\n\n" + _table(("metric", "kind", "meaning"), rows)
        + "\n## Log events\n\n" + _table(("event", "level", "fields", "meaning"), lines)
    )  # fmt: skip


# --- floors -------------------------------------------------------------------------------------------------------


def floors() -> dict[str, list[str]]:
    """Return the floors of each package that a contract of import-linter in setup.cfg orders, from top to bottom."""
    config = RawConfigParser()
    config.read(HERE.parents[1] / "setup.cfg", encoding="utf-8")
    found = {}
    for section in config.values():
        if section.get("type") == "layers":
            package = section.get("containers", PACKAGE.name).rpartition(".")[2]
            found[package] = section["layers"].replace(f"{PACKAGE.name}.", "").strip().splitlines()
    return found


def house() -> str:
    """Return the picture of the floors of the package."""
    return _picture({PACKAGE.name: floors()[PACKAGE.name]})


def rooms() -> str:
    """Return the picture of the floors inside the rooms that have floors of their own."""
    return _picture({name: one for name, one in floors().items() if name != PACKAGE.name})


def _picture(packages: Mapping[str, Sequence[str]]) -> str:
    groups = "\n".join(_group(name, one) for name, one in packages.items())
    words = re.sub(" [|:] ", ", ", ". ".join(f"{name}: {'; '.join(one)}" for name, one in packages.items()))
    return (
        "```{graphviz}\n:caption: From top to bottom, as in setup.cfg\n"
        f":alt: From top to bottom. {words}\n\ndigraph {{ ranksep=0.3\n{groups} }}\n```\n"
    )  # fmt: skip


def _group(name: str, floors: Sequence[str]) -> str:
    nodes = "; ".join(f'"{name}/{one}" [label="{_wrapped(one)}"]' for one in floors)
    chain = " -> ".join(f'"{name}/{one}"' for one in floors)
    return f'subgraph "cluster_{name}" {{ label="{name}"; {nodes}; {chain} }}'


def _wrapped(text: str, width: int = 36) -> str:
    return "\\n".join(textwrap.wrap(text, width))


# --- lifecycles -----------------------------------------------------------------------------------------------------


def lifecycle() -> str:
    """What an instance and an attempt do about what happens to them, in each of their states, and the words of that."""
    return (
        "## Instances\n\n" + _moves(tables.INSTANCE)
        + "\n" + _words("what happens", tables.Happening) + "\n" + _words("reaction", tables.Reaction)
        + "\n## Attempts of activities\n\n" + _moves(tables.ACTIVITY)
        + "\n" + _words("what happens", tables.ActivityHappening) + "\n" + _words("reaction", tables.ActivityReaction)
    )  # fmt: skip


def _moves(table: Mapping[Any, Mapping[Any, Any]]) -> str:
    """One row for each state and reaction, with all that the state answers with this reaction."""
    rows = []
    for state, moves in table.items():
        groups: dict[Any, list[str]] = {}
        for happening, move in moves.items():
            groups.setdefault(move, []).append(str(happening))
        for move, happenings in groups.items():
            after = "" if move.state is state else f"`{move.state}`"
            rows.append((f"`{state}`", ", ".join(happenings), str(move.reaction), after))
    return _table(("state", "what happens", "reaction", "next state"), rows)


def _words(head: str, words: type[Enum]) -> str:
    """The words of an enumeration of the tables, each with the comment beside it."""
    source = Path(tables.__file__).read_text(encoding="utf-8")
    body = source.split(f"class {words.__name__}(")[1].split("\nclass ")[0]
    told = dict(re.findall(r'^    \w+ = "(.+)"  # (.+)$', body, re.MULTILINE))
    return _table((head, "meaning"), [(str(word), _sentence(told[str(word)])) for word in words if str(word) in told])


# --- Sphinx -------------------------------------------------------------------------------------------------------

PAGES = {
    "settings": settings,
    "command-line": command_reference,
    "connection": connection,
    "metrics-and-events": metrics_and_events,
    "house": house,
    "lifecycle": lifecycle,
    "rooms": rooms,
}


def write(app: Sphinx) -> None:
    """Write the parts, each only when it has changed: an unchanged file is not read again."""
    folder = Path(app.srcdir) / "reference" / "_generated"
    folder.mkdir(exist_ok=True)
    for name, part in PAGES.items():
        path, text = folder / f"{name}.md", part()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


_FIELD = r":(?:param|raises|returns?|ivar)\b[^:`]*:"
_INLINE = re.compile(rf"(?<=\S) (?={_FIELD})")


def one_field_a_line(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Docstrings may have several fields in one line (``:param a: ... :param b: ...``): give each a line of its own."""
    found: list[str] = []
    inside = False  # of a field: the lines that continue it must be indented
    for line in _INLINE.sub("\n", "\n".join(lines)).split("\n"):
        begins = re.match(_FIELD, line) is not None
        if begins and not inside and found and found[-1].strip():
            found.append("")
        inside = begins or (inside and bool(line.strip()))
        found.append(f"    {line}" if inside and not begins and not line.startswith(" ") else line)
    lines[:] = found


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", one_field_a_line)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
