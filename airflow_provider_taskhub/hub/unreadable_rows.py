"""Warnings about rows that cannot be read. A scan may read a damaged row every second; it is logged only once."""

from __future__ import annotations

from functools import lru_cache

import structlog

log = structlog.get_logger(__name__)


@lru_cache(maxsize=1024)
def unreadable(table: str, row: str, reason: str) -> None:
    """Log a warning about a damaged row or blob. The same row is logged once for each reason.

    The reader of the row ignores the row, or only its damaged values.

    :param table: table of the row, or container of the blob.
    :param row: keys of the row, or name of the blob.
    :param reason: what is damaged.
    """
    log.warning("row_unreadable", table=table, row=row, reason=reason)
