"""Azure Storage's rules as pure functions, applied by both stores before anything is sent.

Owns names, keys, sizes, ranges and the shape of transactions, units and filters, so that the embedded store refuses
what Azure refuses, and so that nothing relies on what only the emulator Azurite accepts: batches across partitions,
more than 1 MiB or 252 properties, control characters in messages. Never reads a store.

This module is longer than others: it is a list of rules that do not depend on each other.

Every ``check_…`` returns None, or raises ``InputError`` (a value Azure would answer 400 to) or ``PayloadTooLarge``,
naming the thing, the value and the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from uuid import UUID

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.errors import InputError, PayloadTooLarge
from airflow_provider_taskhub.storage.primitives import (
    MAX_ENTITY_BYTES,
    MAX_KEY_CHARACTERS,
    MAX_MESSAGE_BYTES,
    MAX_PROPERTIES,
    MAX_PROPERTY_BYTES,
    MAX_RECEIVE,
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_OPERATIONS,
    MAX_VISIBILITY,
    And,
    Compare,
    DeleteBlob,
    DeleteMessage,
    Entity,
    EtagOf,
    Filter,
    Int64,
    Operation,
    Or,
    Property,
    PutBlob,
    PutMessage,
    RowOperation,
    RowVerb,
    Transact,
    Unit,
    UpdateMessage,
)

KEY_COLUMNS = frozenset({"PartitionKey", "RowKey", "Timestamp"})
OPERATORS = frozenset({"eq", "ne", "gt", "ge", "lt", "le"})
MAX_COMPARISONS = 15
"""Comparisons in one ``$filter`` (Azure: "Querying tables and entities")."""
MAX_PAGE = 1000
MAX_APPEND_BYTES = 4 * 1024 * 1024
MAX_APPENDS = 50_000
MAX_BLOB_BYTES = 256 * 1024 * 1024
"""Of a blob written in one piece; our bound, far under both Azure's 5,000 MiB and SQLite's 1 GB."""
MIN_LEASE, MAX_LEASE = 15, 60
MIN_TIME = Timestamp.parse("1601-01-01T00:00:00Z")
MAX_TIME = Timestamp.parse("9999-12-31T23:59:59.9999999Z")
CONDITIONAL = frozenset({RowVerb.REPLACE, RowVerb.MERGE, RowVerb.DELETE})
"""Verbs that need an ETag."""

_DASHED = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}", re.ASCII)
_KEY_REFUSED = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# XML 1.0 characters without CR: a parser turns a raw CR into LF, so it would not come back as it went
_MESSAGE_REFUSED = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHORT = 1024
"""Characters of an ASCII text that no rule can refuse."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIXED_SIZES = ((bool, 1), (Int64, 8), (int, 4), (float, 8), (Timestamp, 8), (UUID, 16))


# --- names --------------------------------------------------------------------------------------------------------


cache_names = lru_cache(maxsize=4096)
"""Names are few and asked for with every operation; a refusal is an exception, and never kept."""


@cache_names
def check_queue_name(name: str) -> None:
    _dashed("queue", name)


@cache_names
def check_container_name(name: str) -> None:
    _dashed("container", name)


def _dashed(what: str, name: str) -> None:
    if not 3 <= len(name) <= 63 or not _DASHED.fullmatch(name):
        raise InputError(
            f"{what} name {name!r}: Azure takes 3 to 63 lower-case letters, digits and single dashes, "
            "a letter or digit at both ends"
        )


@cache_names
def check_table_name(name: str) -> None:
    if not _TABLE.fullmatch(name) or name.lower() == "tables":
        raise InputError(f"table name {name!r}: Azure takes 3 to 63 letters and digits, a letter first, not 'tables'")


def check_blob_name(name: str) -> None:
    """1 to 1,024 characters in at most 254 segments that survive a URL: no backslash, no control character, no
    segment that ends in a dot, no slash at either end."""
    segments = name.split("/")
    if not 1 <= utf16_units(name) <= 1024 or len(segments) > 254:
        raise InputError(f"blob name {name[:80]!r}: Azure takes 1 to 1,024 characters in at most 254 segments")
    if _CONTROL.search(name) or "\\" in name or _SURROGATE.search(name):
        raise InputError(f"blob name {name!r}: control characters, lone surrogates and backslashes are refused")
    if not segments[0] or not segments[-1] or any(part.endswith(".") for part in segments):
        raise InputError(f"blob name {name!r}: no slash at either end, and no segment may end in a dot")


@cache_names  # an episode names its instance in every row
def check_key(what: str, value: str) -> None:
    r"""A PartitionKey or RowKey: at most 512 UTF-16 units, none of ``/ \ # ?``, no control character.

    :param what: how an error names the key, e.g. ``PartitionKey``.
    """
    found = _KEY_REFUSED.search(value) or _SURROGATE.search(value)
    if found:
        raise InputError(f"{what} {value!r}: character {found.group()!r} is refused by Azure; escape it")
    if utf16_units(value) > MAX_KEY_CHARACTERS:
        raise InputError(f"{what} {value[:80]!r}…: longer than {MAX_KEY_CHARACTERS} UTF-16 units")


def check_column(name: str) -> None:
    """A property name: a C# identifier of at most 255 characters."""
    if not name.isidentifier() or len(name) > 255:
        raise InputError(f"column {name!r}: Azure takes an identifier of at most 255 characters")


# --- rows ---------------------------------------------------------------------------------------------------------


def utf16_units(text: str) -> int:
    """Length as .NET and Azure count it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def property_bytes(value: Property) -> int:
    """Bytes of a property's value by Azure's formula for the size of an entity."""
    if isinstance(value, str):
        return 4 + 2 * utf16_units(value)
    if isinstance(value, bytes):
        return 4 + len(value)
    return next(size for kind, size in _FIXED_SIZES if isinstance(value, kind))


def entity_bytes(entity: Entity) -> int:
    """Bytes of a row by Azure's formula: 4 + keys + per property 8 + name + value."""
    size = 4 + 2 * (utf16_units(entity.partition_key) + utf16_units(entity.row_key))
    for name, value in entity.properties.items():
        if value is not None:
            size += 8 + 2 * utf16_units(name) + property_bytes(value)
    return size


def place(entity: Entity) -> str:
    """A row as errors name it."""
    return f"row ({entity.partition_key!r}, {entity.row_key!r})"


def bound(entity: Entity) -> int:
    """More bytes than a row can have, by Azure's formula and in a batch's body; cheap, and far under every limit for
    the rows of every day, which need not be measured then."""
    characters = sum(len(value) for value in entity.properties.values() if isinstance(value, str | bytes))
    return _bound(len(entity.properties), characters)


def _bound(properties: int, characters: int) -> int:
    return 13_200 + 600 * properties + 12 * characters


def check_property(name: str, value: Property | None) -> None:
    """Type, range and size of one property."""
    if isinstance(value, str):
        if len(value) > SHORT or not value.isascii():
            _check_string(name, value)
    elif value is None or isinstance(value, bool | UUID | float):
        return
    elif isinstance(value, bytes):
        if len(value) > MAX_PROPERTY_BYTES:
            raise PayloadTooLarge(f"column {name!r}: {len(value)} bytes; Azure takes {MAX_PROPERTY_BYTES}")
    elif isinstance(value, int):
        _check_integer(name, value)
    elif isinstance(value, Timestamp):
        if not _time_fits(value):
            raise InputError(f"column {name!r}: time out of Azure's range (years 1601 to 9999): {value.ticks} ticks")
    else:
        raise InputError(f"column {name!r}: type {type(value).__name__} is none of Azure's; convert it")


def _time_fits(value: Timestamp) -> bool:
    return MIN_TIME.ticks <= value.ticks <= MAX_TIME.ticks


def _check_string(name: str, value: str) -> None:
    if 2 * len(value) > MAX_PROPERTY_BYTES or (not value.isascii() and 2 * utf16_units(value) > MAX_PROPERTY_BYTES):
        raise PayloadTooLarge(
            f"column {name!r}: {2 * utf16_units(value)} bytes as UTF-16; Azure takes {MAX_PROPERTY_BYTES}"
        )
    if not value.isascii() and _SURROGATE.search(value):
        raise InputError(f"column {name!r}: a lone surrogate cannot be sent")


def _check_integer(name: str, value: int) -> None:
    bits = 63 if isinstance(value, Int64) else 31
    if not -(1 << bits) <= value < 1 << bits:
        way_out = "too large for a row" if bits == 63 else "wrap it in Int64"
        raise InputError(f"column {name!r}: {value} does not fit Edm.Int{bits + 1}; {way_out}")


def check_entity(entity: Entity) -> int:
    """Keys, columns and size of a row that is written. :returns: its :func:`bound`."""
    check_key("PartitionKey", entity.partition_key)
    check_key("RowKey", entity.row_key)
    _check_columns(tuple(entity.properties))
    characters = 0
    for name, value in entity.properties.items():
        if type(value) is str:
            characters += len(value)
            if len(value) > SHORT or not value.isascii():
                _check_string(name, value)
        elif type(value) is Timestamp:
            if not _time_fits(value):
                check_property(name, value)
        elif value is not None and type(value) is not bool:
            check_property(name, value)
            characters += len(value) if isinstance(value, str | bytes) else 0
    size = _bound(len(entity.properties), characters)
    _check_size(entity, size)
    return size


@cache_names
def _check_columns(names: tuple[str, ...]) -> None:
    for name in names:
        check_column(name)
        if name in KEY_COLUMNS:
            raise InputError(f"column {name!r} is the row's own; it cannot be a property")


def surely_fits(properties: int, characters: int) -> bool:
    """Whether a row of so many properties, of which texts and bytes have so many characters, is within all limits."""
    return properties <= MAX_PROPERTIES and _bound(properties, characters) <= MAX_ENTITY_BYTES


def check_size(entity: Entity) -> None:
    """At most 252 properties and 1 MiB; asked again of a merged row."""
    _check_size(entity, bound(entity))


def _check_size(entity: Entity, most: int) -> None:
    if len(entity.properties) <= MAX_PROPERTIES and most <= MAX_ENTITY_BYTES:
        return
    count = sum(value is not None for value in entity.properties.values())
    if count > MAX_PROPERTIES:
        raise PayloadTooLarge(f"{place(entity)}: {count} properties; Azure takes {MAX_PROPERTIES}")
    size = entity_bytes(entity)
    if size > MAX_ENTITY_BYTES:
        raise PayloadTooLarge(f"{place(entity)}: {size} bytes; Azure takes {MAX_ENTITY_BYTES}")


def check_row(row: RowOperation) -> int:
    """One row of a write: its entity, and an ETag exactly where the verb has a condition. :returns: as the entity's."""
    size = check_entity(row.entity)
    if row.verb in CONDITIONAL:
        if not row.etag:
            raise InputError(f"{row.verb.value} of {place(row.entity)}: needs an etag ('*' for any)")
    elif row.etag is not None:
        raise InputError(f"{row.verb.value} of {place(row.entity)}: takes no etag")
    return size


def check_transaction(operation: Transact) -> None:
    """1 to 100 rows, of one partition key, none twice, at most 4 MiB together."""
    check_table_name(operation.table)
    count = len(operation.rows)
    if not 1 <= count <= MAX_TRANSACTION_OPERATIONS:
        raise InputError(f"transaction on {operation.table!r}: {count} rows; Azure takes 1 to 100")
    most = sum([check_row(row) for row in operation.rows])
    if count == 1:
        return
    partitions = {row.entity.partition_key for row in operation.rows}
    if len(partitions) > 1:
        raise InputError(f"transaction on {operation.table!r}: more than one PartitionKey: {sorted(partitions)[:3]}")
    if len({row.entity.row_key for row in operation.rows}) < count:
        raise InputError(f"transaction on {operation.table!r}: a row stands in it twice")
    if most <= MAX_TRANSACTION_BYTES:
        return
    size = sum(row_request_bytes(row) for row in operation.rows)
    if size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(f"transaction on {operation.table!r}: {size} bytes; Azure takes {MAX_TRANSACTION_BYTES}")


def row_request_bytes(row: RowOperation) -> int:
    """Upper bound of a row's bytes in a batch's body: its part headers, and its columns as ASCII JSON."""
    entity = row.entity
    size = 800 + 6 * (utf16_units(entity.partition_key) + utf16_units(entity.row_key))
    if row.verb is RowVerb.DELETE:
        return size
    for name, value in entity.properties.items():
        size += 2 * len(name) + 40
        if isinstance(value, str):
            size += _json_bytes(value)
        elif isinstance(value, bytes):
            size += len(value) * 4 // 3 + 4
        elif value is not None:
            size += 40
    return size


def _json_bytes(text: str) -> int:
    if text.isascii():  # quotes, backslashes and line ends are escaped by one character, other controls by five
        return len(text) + text.count('"') + text.count("\\") + 5 * len(_CONTROL.findall(text))
    return 6 * utf16_units(text)


# --- messages -----------------------------------------------------------------------------------------------------


def check_message(text: str) -> None:
    """At most 65,536 UTF-8 bytes of characters that survive XML (a raw CR does not)."""
    found = _MESSAGE_REFUSED.search(text)
    if found:
        raise InputError(f"message: character {found.group()!r} at {found.start()} does not survive XML; escape it")
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise PayloadTooLarge(f"message: {size} bytes as UTF-8; Azure takes {MAX_MESSAGE_BYTES}; spill it to a blob")


def check_visibility(visibility: timedelta) -> None:
    """0 to 7 days."""
    if not timedelta(0) <= visibility <= MAX_VISIBILITY:
        raise InputError(f"visibility {visibility}: Azure takes 0 to 7 days")


def whole_seconds(visibility: timedelta) -> int:
    """A visibility as Azure takes it, rounded up so that nothing is seen early. The embedded store keeps fractions."""
    return -(-visibility // timedelta(seconds=1))


def check_receive(queue: str, limit: int, visibility: timedelta) -> None:
    check_peek(queue, limit)
    if not timedelta(0) < visibility <= MAX_VISIBILITY:
        raise InputError(f"receive from {queue!r}: visibility {visibility}; Azure takes 1 s to 7 days")


def check_peek(queue: str, limit: int) -> None:
    check_queue_name(queue)
    if not 1 <= limit <= MAX_RECEIVE:
        raise InputError(f"receive from {queue!r}: limit {limit}; Azure takes 1 to {MAX_RECEIVE}")


# --- queries ------------------------------------------------------------------------------------------------------


def comparisons(filter: Filter) -> Iterator[Compare]:
    """All comparisons of a filter, from the left."""
    if isinstance(filter, Compare):
        yield filter
    else:
        for part in filter.parts:
            yield from comparisons(part)


def check_filter(filter: Filter | None) -> None:
    """Known operators, values of Azure's types, no empty And or Or, at most 15 comparisons."""
    if filter is None:
        return
    _check_shape(filter)
    found = list(comparisons(filter))
    if len(found) > MAX_COMPARISONS:
        raise InputError(f"filter with {len(found)} comparisons; Azure takes {MAX_COMPARISONS}: split the query")
    for compare in found:
        _check_compare(compare)


def _check_shape(filter: Filter) -> None:
    if isinstance(filter, And | Or):
        if not filter.parts:
            raise InputError(f"filter: {type(filter).__name__} without parts")
        for part in filter.parts:
            _check_shape(part)


def _check_compare(compare: Compare) -> None:
    check_column(compare.column)
    if compare.operator not in OPERATORS:
        raise InputError(f"filter on {compare.column!r}: operator {compare.operator!r} is none of {sorted(OPERATORS)}")
    if compare.column in ("PartitionKey", "RowKey") and not isinstance(compare.value, str):
        raise InputError(f"filter on {compare.column}: compares with a string, not {compare.value!r}")
    if compare.column == "Timestamp" and not isinstance(compare.value, Timestamp):
        raise InputError(f"filter on Timestamp: compares with a Timestamp, not {compare.value!r}")
    if compare.value is None:
        raise InputError(f"filter on {compare.column!r}: None cannot be compared with")
    check_property(compare.column, compare.value)


def check_query(table: str, filter: Filter | None, select: Sequence[str] | None, limit: int) -> None:
    check_table_name(table)
    check_filter(filter)
    for name in select or ():
        check_column(name)
    if not 1 <= limit <= MAX_PAGE:
        raise InputError(f"query of {table!r}: limit {limit}; Azure takes 1 to {MAX_PAGE}")


# --- blobs and leases ---------------------------------------------------------------------------------------------


def check_blob(container: str, name: str) -> None:
    check_container_name(container)
    check_blob_name(name)


def check_append(container: str, name: str, data: bytes) -> None:
    """1 byte to 4 MiB at a time."""
    check_blob(container, name)
    if not data:
        raise InputError(f"append to blob {name!r}: nothing to append")
    if len(data) > MAX_APPEND_BYTES:
        raise PayloadTooLarge(f"append to blob {name!r}: {len(data)} bytes; Azure takes {MAX_APPEND_BYTES} at a time")


def check_lease_target(container: str, name: str | None) -> None:
    check_container_name(container)
    if name is not None:
        check_blob_name(name)


def check_lease_seconds(seconds: int) -> None:
    if not MIN_LEASE <= seconds <= MAX_LEASE:
        raise InputError(f"lease of {seconds} s: Azure takes {MIN_LEASE} to {MAX_LEASE} s")


def check_lease_id(lease_id: str) -> None:
    """A GUID in its usual form."""
    try:
        UUID(lease_id)
    except ValueError:
        raise InputError(f"lease id {lease_id!r}: Azure takes a GUID") from None


# --- operations and units -----------------------------------------------------------------------------------------


def check_operation(operation: Operation) -> None:
    """Everything that can be refused of one operation without asking the store."""
    match operation:
        case PutMessage():
            check_queue_name(operation.queue)
            check_visibility(operation.visibility)
            check_message(operation.text)
        case UpdateMessage():
            check_queue_name(operation.queue)
            check_visibility(operation.visibility)
            if operation.text is not None:
                check_message(operation.text)
        case DeleteMessage():
            check_queue_name(operation.queue)
        case Transact():
            check_transaction(operation)
        case PutBlob():
            _check_put(operation)
        case DeleteBlob():
            check_blob(operation.container, operation.name)


def _check_put(operation: PutBlob) -> None:
    check_blob(operation.container, operation.name)
    if operation.lease_id is not None:
        check_lease_id(operation.lease_id)
    if len(operation.body) > MAX_BLOB_BYTES:
        raise PayloadTooLarge(f"blob {operation.name!r}: {len(operation.body)} bytes; the limit is {MAX_BLOB_BYTES}")


def check_alone(operation: Operation) -> None:
    """An operation outside a unit: as :func:`check_operation`, and no reference to another one's ETag."""
    check_operation(operation)
    if isinstance(operation, Transact) and any(isinstance(row.etag, EtagOf) for row in operation.rows):
        raise InputError(f"transaction on {operation.table!r}: EtagOf means nothing outside a unit")
    if isinstance(operation, PutMessage) and operation.naming is not None:
        raise InputError(f"message to {operation.queue!r}: EtagOf means nothing outside a unit")


def check_unit(unit: Unit) -> None:
    """Every operation, and that each ``EtagOf`` names a row written by an *earlier* step (operations of one step go in
    parallel on Azure)."""
    for index, step in enumerate(unit.steps):
        for operation in step.operations:
            check_operation(operation)
            if isinstance(operation, Transact):
                for row in operation.rows:
                    if isinstance(row.etag, EtagOf):
                        _check_reference(unit, index, row.etag)
            elif isinstance(operation, PutMessage) and operation.naming is not None:
                _check_reference(unit, index, operation.naming[1])


def _check_reference(unit: Unit, index: int, reference: EtagOf) -> None:
    try:
        earlier = 0 <= reference.step < index
        target = unit.steps[reference.step].operations[reference.operation] if earlier else None
        if isinstance(target, Transact) and target.rows[reference.row].verb is not RowVerb.DELETE:
            return
    except IndexError:
        pass
    raise InputError(f"step {unit.steps[index].name!r}: {reference} is no row written by an earlier step")


def kind_of(operation: Operation) -> str:
    """Under which name of ``Store.requests`` an operation is counted."""
    if isinstance(operation, Transact):
        return "table.batch" if len(operation.rows) > 1 else _ROW_KINDS[operation.rows[0].verb]
    return _KINDS[type(operation)]


_ROW_KINDS: Mapping[RowVerb, str] = {
    RowVerb.INSERT: "table.insert",
    RowVerb.UPSERT_REPLACE: "table.upsert",
    RowVerb.UPSERT_MERGE: "table.upsert",
    RowVerb.REPLACE: "table.update",
    RowVerb.MERGE: "table.update",
    RowVerb.DELETE: "table.delete",
}
_KINDS: Mapping[type, str] = {
    PutMessage: "queue.put",
    UpdateMessage: "queue.update",
    DeleteMessage: "queue.delete",
    PutBlob: "blob.put",
    DeleteBlob: "blob.delete",
}
