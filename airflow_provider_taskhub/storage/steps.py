"""A unit carried out step by step, operation by operation, as Azure does it: the simulation's way over any store.

Between any two operations another worker may act, and a crash may happen at each named point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from airflow_provider_taskhub.storage.primitives import (
    CrashPoint,
    EtagOf,
    Operation,
    Result,
    Results,
    RowOperation,
    Step,
    Transact,
    Unit,
)


async def carry_out(
    unit: Unit, execute: Callable[[Operation], Awaitable[Result]], crash: CrashPoint | None = None
) -> Results:
    """All steps in order; the first error ends it, with the name of its step in its notes.

    :param execute: carries out one operation by itself; its references to ETags are resolved already.
    :param crash: awaited with the name of each step before it, and with ``after:<name>`` behind it.
    """
    results: list[tuple[Result, ...]] = []
    for step in unit.steps:
        try:
            results.append(await _step(step, unit.check, execute, crash, tuple(results)) if step.operations else ())
        except Exception as error:
            error.add_note(f"step: {step.name}")
            raise
    return tuple(results)


async def _step(
    step: Step,
    check: Callable[[], None] | None,
    execute: Callable[[Operation], Awaitable[Result]],
    crash: CrashPoint | None,
    earlier: Results,
) -> tuple[Result, ...]:
    if crash is not None:
        await crash(step.name)
    if check is not None:
        check()
    done = [await execute(resolved(operation, earlier)) for operation in step.operations]
    if crash is not None:
        await crash(f"after:{step.name}")
    return tuple(done)


def resolved(operation: Operation, earlier: Results) -> Operation:
    """The operation with every :class:`EtagOf` replaced by the ETag that it refers to."""
    if not isinstance(operation, Transact) or not any(isinstance(row.etag, EtagOf) for row in operation.rows):
        return operation
    return replace(operation, rows=tuple(_resolved_row(row, earlier) for row in operation.rows))


def _resolved_row(row: RowOperation, earlier: Results) -> RowOperation:
    return replace(row, etag=etag_of(row.etag, earlier)) if isinstance(row.etag, EtagOf) else row


def etag_of(reference: EtagOf, earlier: Results) -> str:
    """The ETag that an earlier operation gave. The reference was checked by ``rules.check_unit``."""
    written = earlier[reference.step][reference.operation]
    assert isinstance(written, tuple)
    return written[reference.row]
