"""A unit carried out step by step: Azure's way, and the simulation's over any store.

Between any two operations another worker may act, and a crash may happen at each named point.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from airflow_provider_taskhub.errors import StorageError
from airflow_provider_taskhub.storage.primitives import (
    CrashPoint,
    EtagOf,
    Operation,
    PutMessage,
    Result,
    Results,
    RowOperation,
    Transact,
    Unit,
)

Execute: TypeAlias = Callable[[Operation], Coroutine[Any, Any, Result]]
"""Carries out one operation by itself; its references to ETags are resolved already."""
Together: TypeAlias = Callable[[Sequence[Coroutine[Any, Any, Result]]], Awaitable[tuple[Result, ...]]]
"""Carries out the operations of one step; raises the first error in their order."""


async def one_by_one(operations: Sequence[Coroutine[Any, Any, Result]]) -> tuple[Result, ...]:
    """In order; nothing after an error is begun."""
    done: list[Result] = []
    try:
        for operation in operations:
            done.append(await operation)
    finally:
        for operation in operations[len(done) :]:
            operation.close()
    return tuple(done)


async def carry_out(
    unit: Unit, execute: Execute, crash: CrashPoint | None = None, *, together: Together = one_by_one
) -> Results:
    """All steps in order; the first error ends it, with its step in its notes and what was done before in ``results``.

    :param crash: awaited with the name of each step before it, and with ``after:<name>`` behind it.
    :param together: how the operations of a step are carried out.
    """
    results: list[tuple[Result, ...]] = []
    for step in unit.steps:
        try:
            if not step.operations:
                results.append(())
                continue
            if crash is not None:
                await crash(step.name)
            if unit.check is not None:
                unit.check()
            earlier = tuple(results)
            results.append(await together([execute(resolved(operation, earlier)) for operation in step.operations]))
            if crash is not None:
                await crash(f"after:{step.name}")
        except Exception as error:
            error.add_note(f"step: {step.name}")
            if isinstance(error, StorageError):
                error.results = tuple(results)
            raise
    return tuple(results)


def resolved(operation: Operation, earlier: Results) -> Operation:
    """The operation with every :class:`EtagOf` replaced by the ETag that it refers to."""
    if isinstance(operation, PutMessage):
        return named(operation, earlier)
    if not isinstance(operation, Transact) or not any(isinstance(row.etag, EtagOf) for row in operation.rows):
        return operation
    return replace(operation, rows=tuple(_resolved_row(row, earlier) for row in operation.rows))


def _resolved_row(row: RowOperation, earlier: Results) -> RowOperation:
    return replace(row, etag=etag_of(row.etag, earlier)) if isinstance(row.etag, EtagOf) else row


def named(operation: PutMessage, earlier: Results) -> PutMessage:
    """The message with the ETag in its text that it is to name."""
    if operation.naming is None:
        return operation
    mark, reference = operation.naming
    etag = json.dumps(etag_of(reference, earlier))[1:-1]
    return replace(operation, text=operation.text.replace(mark, etag, 1), naming=None)


def etag_of(reference: EtagOf, earlier: Results) -> str:
    """The ETag that an earlier operation gave. The reference was checked by ``rules.check_unit``."""
    written = earlier[reference.step][reference.operation]
    assert isinstance(written, tuple)
    return written[reference.row]
