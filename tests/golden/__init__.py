"""Recordings of the real DurableTask.AzureStorage (2.9.1, against Azurite): the judge of our formats.

One compressed file per recording, so that a clone needs nothing beside it; README.md says what each one holds::

    hello = load("hello")
    hello.trace                      # storage calls in order, as recorded
    hello.states["2_done"]           # the whole hub at that moment: queues, tables, blobs
    hello.messages                   # queue puts of the trace
    hello.history                    # history transactions of the trace
    hello.rows("2_done", "History")  # rows of a table, columns with their Edm types
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent

NAMES: tuple[str, ...] = tuple(sorted(path.name.removesuffix(".json.xz") for path in _FOLDER.glob("*.json.xz")))
"""All recordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A message as it was put in a queue.

    :param n: number of the call in the trace. :param visibility: seconds of ``visibilitytimeout``, None if not sent.
    """

    n: int
    queue: str
    text: str
    visibility: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWrite:
    """A row as a call of the trace wrote it.

    :param verb: POST (insert), PUT (replace), PATCH (merge), DELETE. :param etag: the call's ``If-Match``.
    :param columns: as sent: values with ``…@odata.type`` members, keys included, nulls kept.
    """

    n: int
    table: str
    verb: str
    etag: str | None
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One folder of the recordings; values are shared between tests: read only."""

    name: str
    trace: Sequence[Mapping[str, Any]]
    states: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, str]

    @property
    def hub(self) -> str:
        return f"Rec{self.name}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What the client did, in order."""
        return tuple(call["mark"] for call in self.trace if "mark" in call)

    @property
    def messages(self) -> tuple[Put, ...]:
        """Every message that was put in a queue, in order."""
        return tuple(
            Put(
                n=call["n"],
                queue=call["path"].removesuffix("/messages"),
                text=call["message"],
                visibility=int(v) if (v := call.get("query", {}).get("visibilitytimeout")) is not None else None,
            )
            for call in self.trace
            if "message" in call
        )

    @property
    def history(self) -> tuple[tuple[RowWrite, ...], ...]:
        """Every transaction on the history table that succeeded, in order."""
        return tuple(
            tuple(_batched(call["n"], operation) for operation in call["batch"])
            for call in self.trace
            if "batch" in call and call["status"] < 300
        )

    def writes(self, table: str) -> tuple[RowWrite, ...]:
        """Every single-row write to ``{hub}{table}`` that succeeded, in order; transactions are not in it."""
        full = self.hub + table
        return tuple(
            RowWrite(
                n=call["n"],
                table=table,
                verb=call["verb"],
                etag=call.get("headers", {}).get("if-match"),
                columns=call["body"],
            )
            for call in self.trace
            if call.get("service") == "table"
            and isinstance(call.get("body"), dict)
            and call["status"] < 300
            and (call["path"] == full or call["path"].startswith(f"{full}("))
        )

    def rows(self, state: str, table: str) -> Sequence[Mapping[str, Mapping[str, Any]]]:
        """Rows of ``{hub}{table}`` at a moment: column → ``{"type": Edm type, "value": value}``."""
        found: Sequence[Mapping[str, Mapping[str, Any]]] = self.states[state]["tables"].get(self.hub + table, [])
        return found


def _batched(n: int, operation: Mapping[str, Any]) -> RowWrite:
    name, _, _ = operation["entity"].partition("(")
    return RowWrite(
        n=n,
        table=name,
        verb=operation["verb"],
        etag=operation.get("If-Match"),
        columns=operation.get("body") or {},
    )


@cache
def load(name: str) -> Recording:
    """A recording by its name. :raises KeyError: naming those that exist."""
    if name not in NAMES:
        raise KeyError(f"no recording {name!r}: there are {', '.join(NAMES)}")
    document = json.loads(lzma.decompress((_FOLDER / f"{name}.json.xz").read_bytes()))
    return Recording(name=name, trace=document["trace"], states=document["states"], texts=document["texts"])
