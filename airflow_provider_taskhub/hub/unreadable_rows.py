"""Log warnings about rows and blobs that cannot be read.

A process may read the same damaged row every second. It logs one warning for each row and reason, not one for each
reading.
"""

from __future__ import annotations

from functools import lru_cache

import structlog

log = structlog.get_logger(__name__)


@lru_cache(maxsize=1024)
def unreadable(table: str, row: str, reason: str) -> None:
    """Log a warning about a damaged row or blob, once for each row and reason.

    The caller then ignores the row, or only its damaged values.

    :param table: table of the row, or container of the blob.
    :param row: keys of the row, or name of the blob.
    :param reason: what is damaged.
    """
    log.warning("row_unreadable", table=table, row=row, reason=reason)
