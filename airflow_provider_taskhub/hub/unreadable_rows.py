"""Warnings about rows that cannot be read: one for each row, although a scan reads the row every second."""

from __future__ import annotations

from functools import lru_cache

import structlog

log = structlog.get_logger(__name__)


@lru_cache(maxsize=1024)
def unreadable(table: str, row: str, reason: str) -> None:
    """Warn of a row that is left out, or shown without its unreadable parts; once for each reason.

    :param table: of the row; of a blob its container. :param row: its keys, or the blob's name.
    """
    log.warning("row_unreadable", table=table, row=row, reason=reason)
