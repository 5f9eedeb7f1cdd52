"""Carry out a unit of storage operations, such as a checkpoint, step by step.

Azure Storage needs this, because it has no transaction over several tables and queues. The simulation can do this on
any store. Other workers may act between any two operations. Tests can crash a process before and after each step.
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
"""Function that carries out one operation, in which each :class:`EtagOf` was already replaced by the ETag."""
Together: TypeAlias = Callable[[Sequence[Coroutine[Any, Any, Result]]], Awaitable[tuple[Result, ...]]]
"""Function that carries out all operations of one step. If several fail, it raises the error of the first of them."""


async def one_by_one(operations: Sequence[Coroutine[Any, Any, Result]]) -> tuple[Result, ...]:
    """Carry out the operations of one step in order. Stop at the first error."""
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
    """Carry out the steps of a unit in order. Stop at the first error.

    The error has the name of its step in its notes. A :class:`StorageError` also has the results of all steps before
    that step, in its attribute ``results``.

    :param execute: function that carries out one operation.
    :param crash: function of a test, awaited with ``<name>`` before each step and ``after:<name>`` after each step.
        None: there is no such function.
    :param together: function that carries out the operations of one step.
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
    """Return the operation with each :class:`EtagOf` replaced by the ETag that it refers to.

    :param earlier: results of the unit's earlier steps.
    """
    if isinstance(operation, PutMessage):
        return named(operation, earlier)
    if not isinstance(operation, Transact) or not any(isinstance(row.etag, EtagOf) for row in operation.rows):
        return operation
    return replace(operation, rows=tuple(_resolved_row(row, earlier) for row in operation.rows))


def _resolved_row(row: RowOperation, earlier: Results) -> RowOperation:
    return replace(row, etag=etag_of(row.etag, earlier)) if isinstance(row.etag, EtagOf) else row


def named(operation: PutMessage, earlier: Results) -> PutMessage:
    """Return the message with the placeholder in its text replaced by the ETag (``PutMessage.naming``).

    :param earlier: results of the unit's earlier steps.
    """
    if operation.naming is None:
        return operation
    mark, reference = operation.naming
    etag = json.dumps(etag_of(reference, earlier))[1:-1]
    return replace(operation, text=operation.text.replace(mark, etag, 1), naming=None)


def etag_of(reference: EtagOf, earlier: Results) -> str:
    """Return the ETag to which a reference refers. ``rules.check_unit`` must have checked the reference before.

    :param earlier: results of the unit's earlier steps.
    """
    written = earlier[reference.step][reference.operation]
    assert isinstance(written, tuple)
    return written[reference.row]
