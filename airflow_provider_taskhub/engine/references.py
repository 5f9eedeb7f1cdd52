"""References to large data: an activity returns one in place of the data, and the next activity opens it.

A parameter with Spark's ``DataFrame`` as its annotation is stored as a :class:`Reference`. The code that calls the
function opens it. No I/O, and no import of pyspark.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_taskhub.errors import InputError


@dataclass(frozen=True, slots=True)
class Reference:
    """Data that a Spark activity has written, as its result. JSON has only these few values, and not the data.

    An activity whose input has the annotation ``DataFrame`` gets the data as a DataFrame::

        @app.spark_activity
        def month(spark: SparkSession, number: int) -> Reference:
            with publish(f"s3a://lake/months/{number}") as path:
                frame.write.parquet(path)
            return Reference(f"s3a://lake/months/{number}", published=True)

        @app.spark_activity
        def year(spark: SparkSession, months: list[DataFrame]) -> dict[str, int]: ...

    :param path: where the data are: a path that Spark can load, or the target of :func:`.activity.publish`.
    :param format: format of the data, as ``spark.read.format`` takes it.
    :param rows: number of rows, for people and for decisions of the orchestrator; None: unknown.
    :param published: True: ``path`` is the target of :func:`.activity.publish`, and the data that were published last
        are read. False: all data below ``path`` are read.
    :param options: further options of Spark's reader.
    :raises InputError: if the path or the format is no text, or is empty.
    """

    path: str
    format: str = "parquet"
    rows: int | None = None
    published: bool = False
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("path", "format"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InputError(f"Reference: {name} is {value!r}: give a text that is not empty")


class Frame:
    """Stands for Spark's ``DataFrame`` where a module imports it only for its type checker."""


def is_frame(kind: Any) -> bool:
    """Return whether a class is Spark's ``DataFrame``, or stands for it."""
    if not isinstance(kind, type):
        return False
    return kind is Frame or (kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.sql"))


def stored(annotation: Any) -> Any:
    """Return an annotation with :class:`Reference` in place of ``DataFrame``: the type of the value that is stored.

    :param annotation: a resolved annotation. ``DataFrame`` may be inside of lists, tuples, dicts and unions.
    """
    if is_frame(annotation):
        return Reference
    arguments = typing.get_args(annotation)
    replaced = tuple(map(stored, arguments))
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return annotation
    origin: Any = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, replaced)
    return replaced[0] if origin is typing.Annotated else origin[replaced]


def opened(value: Any, load: Callable[[Reference], Any]) -> Any:
    """Return a decoded input with each :class:`Reference` in it replaced.

    :param value: the input of a function whose annotation has a ``DataFrame``.
    :param load: makes a DataFrame of a reference.
    """
    if isinstance(value, Reference):
        return load(value)
    if isinstance(value, list | tuple):
        return type(value)(opened(item, load) for item in value)
    if isinstance(value, dict):
        return {key: opened(item, load) for key, item in value.items()}
    return value
