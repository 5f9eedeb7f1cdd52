"""Sends the frequent requests to the table service: writes, entity-group transactions, reads and queries of rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence

from airflow_provider_taskhub.errors import InputError, Unavailable
from airflow_provider_taskhub.storage import rules
from airflow_provider_taskhub.storage.azure.rest.batch import Part, PartAnswer, decode_batch, encode_batch
from airflow_provider_taskhub.storage.azure.rest.odata import decode_row, encode_filter, encode_row, row_path
from airflow_provider_taskhub.storage.azure.rest.request import Request, Response, Wire
from airflow_provider_taskhub.storage.azure.rest.service_errors import error_of, refusal
from airflow_provider_taskhub.storage.primitives import (
    Entity,
    Filter,
    Page,
    RowOperation,
    RowVerb,
    Transact,
)

_JSON = {
    "accept": "application/json;odata=minimalmetadata",
    "dataserviceversion": "3.0;NetFx",
    "maxdataserviceversion": "3.0;NetFx",
}
_BODY = {"content-type": "application/json", "prefer": "return-no-content"}
_METHODS: Mapping[RowVerb, str] = {
    RowVerb.INSERT: "POST",
    RowVerb.UPSERT_REPLACE: "PUT",
    RowVerb.UPSERT_MERGE: "MERGE",
    RowVerb.REPLACE: "PUT",
    RowVerb.MERGE: "MERGE",
    RowVerb.DELETE: "DELETE",
}
_OWN = ("PartitionKey", "RowKey", "Timestamp")
_NEXT_KEYS = ("x-ms-continuation-nextpartitionkey", "x-ms-continuation-nextrowkey")
_ABSENT = frozenset({404})


def _row_part(table: str, row: RowOperation, verb: RowVerb) -> Part:
    """Return the HTTP request for the write of a row.

    :param verb: kind of write. It differs from ``row.verb`` if an upsert is sent as an insert.
    """
    entity, headers = row.entity, dict(_JSON)
    if row.etag is not None:
        assert isinstance(row.etag, str)  # storage.steps has replaced each EtagOf by an ETag
        headers["if-match"] = row.etag
    body = b""
    if verb is not RowVerb.DELETE:
        headers |= _BODY
        body = encode_row(entity)
    url = f"/{table}" if verb is RowVerb.INSERT else row_path(table, entity.partition_key, entity.row_key)
    return Part(method=_METHODS[verb], url=url, headers=headers, body=body)


class _Present(Exception):
    """A transaction was refused because a row to insert exists already. No row was written."""


class Rows:
    """The operations on rows, as HTTP requests.

    :param wire: object that sends the requests.
    :param address: address of the table service. Each request inside a batch needs this address.
    """

    def __init__(self, wire: Wire, address: str) -> None:
        self._wire = wire
        self._address = address

    async def transact(self, operation: Transact) -> tuple[str, ...]:
        """Write the rows of an operation, and return their ETags ("" for a deleted row)."""
        if len(operation.rows) == 1:
            return (await self._single(operation),)
        if any(row.absent for row in operation.rows):
            # The first request has inserts instead of upserts, because inserts are faster on the emulator: for each
            # upsert it searches the rows with the same RowKey in all partitions twice, for an insert once. If a row
            # exists, the request with upserts follows.
            with contextlib.suppress(_Present):
                return await self._batch(operation, inserting=True)
        return await self._batch(operation)

    async def _single(self, operation: Transact) -> str:
        row = operation.rows[0]
        part = _row_part(operation.table, row, row.verb)
        answer = await self._wire.send(
            Request(
                kind=rules.kind_of(operation),
                service="table",
                method=part.method,
                path=part.url,
                headers=part.headers,
                body=part.body,
                what=_name(operation.table, row),
            )
        )
        return "" if row.verb is RowVerb.DELETE else answer.headers.get("etag", "")

    async def _batch(self, operation: Transact, *, inserting: bool = False) -> tuple[str, ...]:
        """Write several rows in one entity-group transaction.

        :param inserting: True: send an insert for each row with the hint ``absent``.
        :raises _Present: if ``inserting`` is True and one of the rows exists.
        """
        parts = [
            _row_part(operation.table, row, RowVerb.INSERT if inserting and row.absent else row.verb)
            for row in operation.rows
        ]
        content_type, body = encode_batch(
            [Part(method=p.method, url=self._address + p.url, headers=p.headers, body=p.body) for p in parts]
        )
        answer = await self._wire.send(
            Request(
                kind="table.batch",
                service="table",
                method="POST",
                path="/$batch",
                headers={**_JSON, "content-type": content_type},
                body=body,
                what=f"transaction of {len(parts)} rows on table {operation.table!r}",
            )
        )
        answers = decode_batch(answer.headers.get("content-type", ""), answer.body)
        for position, part in enumerate(answers):
            if inserting and part.status == 409:
                raise _Present
            if part.status >= 400:
                raise _batch_error(operation, position, part)
        if len(answers) != len(parts):
            raise Unavailable(f"transaction on table {operation.table!r}: {len(answers)} answers to {len(parts)} rows")
        return tuple(
            "" if row.verb is RowVerb.DELETE else part.etag for row, part in zip(operation.rows, answers, strict=True)
        )

    async def get(self, table: str, partition_key: str, row_key: str) -> Entity | None:
        answer = await self._wire.send(
            Request(
                kind="table.get",
                service="table",
                method="GET",
                path=row_path(table, partition_key, row_key),
                headers=_JSON,
                what=f"row ({partition_key!r}, {row_key!r}) of table {table!r}",
                safe=True,
                accept=_ABSENT,
            )
        )
        if answer.status == 404:
            if answer.code == "TableNotFound":
                raise refusal(what=f"table {table!r}", status=404, code=answer.code)
            return None
        return decode_row(answer.json(), etag=answer.headers.get("etag", ""))

    async def query(
        self,
        table: str,
        filter: Filter | None,
        *,
        select: Sequence[str] | None,
        limit: int,
        continuation: str | None,
    ) -> Page:
        query = [("$top", str(limit))]
        if filter is not None:
            query.append(("$filter", encode_filter(filter)))
        if select is not None:
            query.append(("$select", ",".join(dict.fromkeys((*_OWN, *select)))))
        if continuation is not None:
            query += _position(continuation)
        answer = await self._wire.send(
            Request(
                kind="table.query",
                service="table",
                method="GET",
                path=f"/{table}()",
                query=query,
                headers=_JSON,
                what=f"query of table {table!r}",
                safe=True,
            )
        )
        rows = answer.json()["value"]
        return Page(entities=tuple(decode_row(row) for row in rows), continuation=_continuation(answer))


def _name(table: str, row: RowOperation) -> str:
    return f"{row.verb.value} of row ({row.entity.partition_key!r}, {row.entity.row_key!r}) in table {table!r}"


def _batch_error(operation: Transact, position: int, part: PartAnswer) -> Exception:
    """Return the error for a refused transaction. The error text names the row that caused the refusal; a note of the
    exception has the row's index (``row: 3``)."""
    code, prose = error_of(part.body)
    number, colon, rest = prose.partition(":")
    if colon and number.isdigit():  # the service's text begins with the row's index: "3:The update condition …"
        position, prose = int(number), rest
    if position >= len(operation.rows):
        position = 0
    error = refusal(what=_name(operation.table, operation.rows[position]), status=part.status, code=code, prose=prose)
    error.add_note(f"row: {position}")
    return error


def _continuation(answer: Response) -> str | None:
    keys = [answer.headers.get(name, "") for name in _NEXT_KEYS]
    return json.dumps(keys) if any(keys) else None


def _position(continuation: str) -> list[tuple[str, str]]:
    try:
        partition, row = json.loads(continuation)
    except ValueError:
        raise InputError(f"continuation {continuation[:80]!r} is not valid; pass the continuation of a Page") from None
    names = ("NextPartitionKey", "NextRowKey")
    return [(name, str(value)) for name, value in zip(names, (partition, row), strict=True) if value]
