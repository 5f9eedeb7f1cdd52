"""Azure Storage's limits as pure functions. Both kinds of stores check each call by them before they carry it out.

The rules cover names, keys, sizes, ranges, and the shape of transactions, units and filters. They have two purposes.
The embedded store refuses the same values as Azure. And no code can rely on values that only the emulator Azurite
accepts: transactions over several partition keys, rows with more than 1 MiB or 252 properties, control characters in
messages.

This module has more than 400 lines, because it is a list of rules that do not depend on each other.

Each function ``check_…`` raises ``InputError`` for a value that Azure would refuse with status 400, or
``PayloadTooLarge``. The error names the object, the value and the rule.
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
"""Most comparisons in one ``$filter`` (Azure's page "Querying tables and entities")."""
MAX_PAGE = 1000
"""Most rows in one page of a query."""
MAX_APPEND_BYTES = 4 * 1024 * 1024
"""Most bytes in one append to a blob."""
MAX_APPENDS = 50_000
"""Most appends to one blob."""
MAX_BLOB_BYTES = 256 * 1024 * 1024
"""Largest blob that TaskHub writes in one request, in bytes. Azure allows 5,000 MiB, and SQLite allows 1 GB."""
MIN_LEASE, MAX_LEASE = 15, 60
"""Shortest and longest duration of a blob lease, in seconds."""
MIN_TIME = Timestamp.parse("1601-01-01T00:00:00Z")
MAX_TIME = Timestamp.parse("9999-12-31T23:59:59.9999999Z")
CONDITIONAL = frozenset({RowVerb.REPLACE, RowVerb.MERGE, RowVerb.DELETE})
"""Verbs of row writes that need an ETag."""

_DASHED = re.compile(r"[a-z0-9](?:-?[a-z0-9])*", re.ASCII)
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}", re.ASCII)
_KEY_REFUSED = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# The characters that a message must not have: all but those of XML 1.0, and CR, which an XML parser turns into LF.
_MESSAGE_REFUSED = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SHORT = 1024
"""An ASCII text of at most this many characters is always a valid property value, so it needs no further checks."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIXED_SIZES = ((bool, 1), (Int64, 8), (int, 4), (float, 8), (Timestamp, 8), (UUID, 16))


# --- checks of names ----------------------------------------------------------------------------------------------


cache_names = lru_cache(maxsize=4096)
"""Decorator for a check of a name: a name that passed is not checked again, because most operations use the same names.

A refused name is checked again each time: ``lru_cache`` does not remember exceptions."""


@cache_names
def check_queue_name(name: str) -> None:
    _check_dashed_name("queue", name)


@cache_names
def check_container_name(name: str) -> None:
    _check_dashed_name("container", name)


def _check_dashed_name(what: str, name: str) -> None:
    if not 3 <= len(name) <= 63 or not _DASHED.fullmatch(name):
        raise InputError(
            f"{what} name {name!r}: Azure accepts 3 to 63 lower-case letters, digits and single dashes, "
            "with a letter or digit at both ends"
        )


@cache_names
def check_table_name(name: str) -> None:
    if not _TABLE.fullmatch(name) or name.lower() == "tables":
        raise InputError(
            f"table name {name!r}: Azure accepts 3 to 63 letters and digits that begin with a letter, except 'tables'"
        )


def check_blob_name(name: str) -> None:
    """Check that a blob name has 1 to 1,024 characters and at most 254 segments, and that a URL does not change it.

    Therefore a name has no backslash, no control character, no segment that ends in a dot, and no slash at its ends.
    """
    segments = name.split("/")
    if not 1 <= utf16_units(name) <= 1024 or len(segments) > 254:
        raise InputError(f"blob name {name[:80]!r}: Azure accepts 1 to 1,024 characters in at most 254 segments")
    if _CONTROL.search(name) or "\\" in name or _SURROGATE.search(name):
        raise InputError(f"blob name {name!r}: control characters, lone surrogates and backslashes are not allowed")
    if not segments[0] or not segments[-1] or any(part.endswith(".") for part in segments):
        raise InputError(f"blob name {name!r}: it may not begin or end with a slash, and no segment may end in a dot")


@cache_names  # pays because all rows of a history have the same PartitionKey
def check_key(what: str, value: str) -> None:
    r"""Check a PartitionKey or RowKey: at most 512 UTF-16 units, none of ``/ \ # ?``, no control character.

    :param what: name of the key in the error, for example ``PartitionKey``.
    :param value: the key.
    """
    found = _KEY_REFUSED.search(value) or _SURROGATE.search(value)
    if found:
        raise InputError(f"{what} {value!r}: Azure refuses the character {found.group()!r}; escape it")
    if utf16_units(value) > MAX_KEY_CHARACTERS:
        raise InputError(f"{what} {value[:80]!r}…: longer than {MAX_KEY_CHARACTERS} UTF-16 units")


def check_column(name: str) -> None:
    """Check that a column name is an identifier of at most 255 characters."""
    if not name.isidentifier() or len(name) > 255:
        raise InputError(f"column {name!r}: Azure accepts an identifier of at most 255 characters")


# --- checks of rows -----------------------------------------------------------------------------------------------


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 code units, as .NET and Azure count it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def property_bytes(value: Property) -> int:
    """Return the size of a property's value in bytes, by Azure's formula for the size of a row."""
    if isinstance(value, str):
        return 4 + 2 * utf16_units(value)
    if isinstance(value, bytes):
        return 4 + len(value)
    return next(size for kind, size in _FIXED_SIZES if isinstance(value, kind))


def entity_bytes(entity: Entity) -> int:
    """Return the size of a row in bytes by Azure's formula: 4 + keys, and for each property 8 + name + value."""
    size = 4 + 2 * (utf16_units(entity.partition_key) + utf16_units(entity.row_key))
    for name, value in entity.properties.items():
        if value is not None:
            size += 8 + 2 * utf16_units(name) + property_bytes(value)
    return size


def place(entity: Entity) -> str:
    """Return the keys of a row as a text for error messages."""
    return f"row ({entity.partition_key!r}, {entity.row_key!r})"


def bound(entity: Entity) -> int:
    """Return an upper bound for the size of a row in bytes, both by Azure's formula and in the body of a batch request.

    The bound is cheap to compute. If the bound of a row is under the limits, which holds for almost all rows, the exact
    size is not computed.
    """
    characters = sum(len(value) for value in entity.properties.values() if isinstance(value, str | bytes))
    return _bound(len(entity.properties), characters)


def _bound(properties: int, characters: int) -> int:
    return 13_200 + 600 * properties + 12 * characters


def check_property(name: str, value: Property | None) -> None:
    """Check the type, range and size of one property.

    :param name: name of the property, for the error.
    """
    if isinstance(value, str):
        if len(value) > SHORT or not value.isascii():
            _check_string(name, value)
    elif value is None or isinstance(value, bool | UUID | float):
        return
    elif isinstance(value, bytes):
        if len(value) > MAX_PROPERTY_BYTES:
            raise PayloadTooLarge(f"column {name!r}: {len(value)} bytes; Azure accepts {MAX_PROPERTY_BYTES}")
    elif isinstance(value, int):
        _check_integer(name, value)
    elif isinstance(value, Timestamp):
        if not _time_fits(value):
            raise InputError(
                f"column {name!r}: {value.ticks} ticks are outside of Azure's range of times (years 1601 to 9999)"
            )
    else:
        raise InputError(f"column {name!r}: Azure has no type for {type(value).__name__}; convert the value")


def _time_fits(value: Timestamp) -> bool:
    return MIN_TIME.ticks <= value.ticks <= MAX_TIME.ticks


def _check_string(name: str, value: str) -> None:
    if 2 * len(value) > MAX_PROPERTY_BYTES or (not value.isascii() and 2 * utf16_units(value) > MAX_PROPERTY_BYTES):
        raise PayloadTooLarge(
            f"column {name!r}: {2 * utf16_units(value)} bytes as UTF-16; Azure accepts {MAX_PROPERTY_BYTES}"
        )
    if not value.isascii() and _SURROGATE.search(value):
        raise InputError(f"column {name!r}: the text has a lone surrogate, which UTF-8 cannot encode")


def _check_integer(name: str, value: int) -> None:
    bits = 63 if isinstance(value, Int64) else 31
    if not -(1 << bits) <= value < 1 << bits:
        way_out = "store it as a text" if bits == 63 else "wrap it in Int64"
        raise InputError(f"column {name!r}: {value} does not fit Edm.Int{bits + 1}; {way_out}")


def check_entity(entity: Entity) -> int:
    """Check the keys, columns and size of a row before it is written.

    :returns: the row's :func:`bound`, in bytes.
    """
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
            raise InputError(f"column {name!r}: Azure reserves this name for a system column; choose another name")


def surely_fits(properties: int, characters: int) -> bool:
    """Return True if a row is within all limits by its :func:`bound`. False: its exact size must be computed.

    :param properties: number of properties in the row.
    :param characters: total length of the row's text and binary values.
    """
    return properties <= MAX_PROPERTIES and _bound(properties, characters) <= MAX_ENTITY_BYTES


def check_size(entity: Entity) -> None:
    """Check that a row has at most 252 properties and 1 MiB. The result of a merge must be checked again."""
    _check_size(entity, bound(entity))


def _check_size(entity: Entity, most: int) -> None:
    if len(entity.properties) <= MAX_PROPERTIES and most <= MAX_ENTITY_BYTES:
        return
    count = sum(value is not None for value in entity.properties.values())
    if count > MAX_PROPERTIES:
        raise PayloadTooLarge(f"{place(entity)}: {count} properties; Azure accepts {MAX_PROPERTIES}")
    size = entity_bytes(entity)
    if size > MAX_ENTITY_BYTES:
        raise PayloadTooLarge(f"{place(entity)}: {size} bytes; Azure accepts {MAX_ENTITY_BYTES}")


def check_row(row: RowOperation) -> int:
    """Check the write of one row. REPLACE, MERGE and DELETE need an ETag; the other verbs must not have one.

    :returns: the row's :func:`bound`, in bytes.
    """
    size = check_entity(row.entity)
    if row.verb in CONDITIONAL:
        if not row.etag:
            raise InputError(f"{row.verb.value} of {place(row.entity)}: needs an etag ('*' matches any etag)")
    elif row.etag is not None:
        raise InputError(f"{row.verb.value} of {place(row.entity)}: takes no etag; leave it None")
    return size


def check_transaction(operation: Transact) -> None:
    """Check that a transaction has 1 to 100 different rows with one partition key, and at most 4 MiB."""
    check_table_name(operation.table)
    count = len(operation.rows)
    if not 1 <= count <= MAX_TRANSACTION_OPERATIONS:
        raise InputError(f"transaction on {operation.table!r}: {count} rows; Azure accepts 1 to 100")
    most = sum([check_row(row) for row in operation.rows])
    if count == 1:
        return
    partitions = {row.entity.partition_key for row in operation.rows}
    if len(partitions) > 1:
        raise InputError(f"transaction on {operation.table!r}: more than one PartitionKey: {sorted(partitions)[:3]}")
    if len({row.entity.row_key for row in operation.rows}) < count:
        raise InputError(f"transaction on {operation.table!r}: it contains the same row twice")
    if most <= MAX_TRANSACTION_BYTES:
        return
    size = sum(row_request_bytes(row) for row in operation.rows)
    if size > MAX_TRANSACTION_BYTES:
        raise PayloadTooLarge(
            f"transaction on {operation.table!r}: {size} bytes; Azure accepts {MAX_TRANSACTION_BYTES}"
        )


def row_request_bytes(row: RowOperation) -> int:
    """Return an upper bound for the bytes of a row in a batch request: the headers, and the columns as ASCII JSON."""
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
    if text.isascii():  # JSON adds one character to a quote or backslash, and at most five to a control character
        return len(text) + text.count('"') + text.count("\\") + 5 * len(_CONTROL.findall(text))
    return 6 * utf16_units(text)


# --- checks of messages -------------------------------------------------------------------------------------------


def check_message(text: str) -> None:
    """Check that a message has at most 65,536 bytes as UTF-8 and only characters that XML transports unchanged."""
    found = _MESSAGE_REFUSED.search(text)
    if found:
        raise InputError(
            f"message: XML cannot transport the character {found.group()!r} at position {found.start()}; escape it"
        )
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_MESSAGE_BYTES:
        raise PayloadTooLarge(f"message: {size} bytes as UTF-8; Azure accepts {MAX_MESSAGE_BYTES}; move it to a blob")


def check_visibility(visibility: timedelta) -> None:
    """Check that a visibility (the time for which a message is hidden) is 0 to 7 days."""
    if not timedelta(0) <= visibility <= MAX_VISIBILITY:
        raise InputError(f"visibility {visibility}: Azure accepts 0 to 7 days")


def whole_seconds(visibility: timedelta) -> int:
    """Return a visibility in whole seconds, as Azure needs it.

    The value is rounded up, so that no message becomes visible early. The embedded store keeps the fraction.
    """
    return -(-visibility // timedelta(seconds=1))


def check_receive(queue: str, limit: int, visibility: timedelta) -> None:
    check_peek(queue, limit)
    if not timedelta(0) < visibility <= MAX_VISIBILITY:
        raise InputError(f"receive from {queue!r}: visibility {visibility}; Azure accepts 1 s to 7 days")


def check_peek(queue: str, limit: int) -> None:
    check_queue_name(queue)
    if not 1 <= limit <= MAX_RECEIVE:
        raise InputError(f"receive from {queue!r}: limit {limit}; Azure accepts 1 to {MAX_RECEIVE}")


# --- checks of queries --------------------------------------------------------------------------------------------


def comparisons(filter: Filter) -> Iterator[Compare]:
    """Iterate over all comparisons of a filter, from left to right."""
    if isinstance(filter, Compare):
        yield filter
    else:
        for part in filter.parts:
            yield from comparisons(part)


def check_filter(filter: Filter | None) -> None:
    """Check a filter: known operators, values of Azure's types, no And or Or without parts, at most 15 comparisons."""
    if filter is None:
        return
    _check_shape(filter)
    found = list(comparisons(filter))
    if len(found) > MAX_COMPARISONS:
        raise InputError(f"filter with {len(found)} comparisons: Azure accepts {MAX_COMPARISONS}; split the query")
    for compare in found:
        _check_compare(compare)


def _check_shape(filter: Filter) -> None:
    if isinstance(filter, And | Or):
        if not filter.parts:
            raise InputError(f"filter: {type(filter).__name__} has no parts; use at least one")
        for part in filter.parts:
            _check_shape(part)


def _check_compare(compare: Compare) -> None:
    check_column(compare.column)
    if compare.operator not in OPERATORS:
        raise InputError(
            f"filter on {compare.column!r}: unknown operator {compare.operator!r}; use one of {sorted(OPERATORS)}"
        )
    if compare.column in ("PartitionKey", "RowKey") and not isinstance(compare.value, str):
        raise InputError(f"filter on {compare.column}: the value must be a string, not {compare.value!r}")
    if compare.column == "Timestamp" and not isinstance(compare.value, Timestamp):
        raise InputError(f"filter on Timestamp: the value must be a Timestamp, not {compare.value!r}")
    if compare.value is None:
        raise InputError(f"filter on {compare.column!r}: the value must not be None")
    check_property(compare.column, compare.value)


def check_query(table: str, filter: Filter | None, select: Sequence[str] | None, limit: int) -> None:
    check_table_name(table)
    check_filter(filter)
    for name in select or ():
        check_column(name)
    if not 1 <= limit <= MAX_PAGE:
        raise InputError(f"query of {table!r}: limit {limit}; Azure accepts 1 to {MAX_PAGE}")


# --- checks of blobs and leases -----------------------------------------------------------------------------------


def check_blob(container: str, name: str) -> None:
    check_container_name(container)
    check_blob_name(name)


def check_range(container: str, name: str, offset: int, length: int) -> None:
    """Check a read of a part of a blob: from a byte that is not negative, at least 1 byte."""
    check_blob(container, name)
    if offset < 0 or length < 1:
        raise InputError(
            f"part of blob {name!r}: offset {offset}, length {length}; read at least 1 byte from byte 0 on"
        )


def check_append(container: str, name: str, data: bytes) -> None:
    """Check an append to a blob: 1 byte to 4 MiB of data."""
    check_blob(container, name)
    if not data:
        raise InputError(f"append to blob {name!r}: the data is empty; append at least 1 byte")
    if len(data) > MAX_APPEND_BYTES:
        raise PayloadTooLarge(
            f"append to blob {name!r}: {len(data)} bytes; Azure accepts {MAX_APPEND_BYTES} in one append"
        )


def check_lease_target(container: str, name: str | None) -> None:
    check_container_name(container)
    if name is not None:
        check_blob_name(name)


def check_lease_seconds(seconds: int) -> None:
    if not MIN_LEASE <= seconds <= MAX_LEASE:
        raise InputError(f"lease of {seconds} s: Azure accepts {MIN_LEASE} to {MAX_LEASE} s")


def check_lease_id(lease_id: str) -> None:
    """Check that a lease id is a GUID."""
    try:
        UUID(lease_id)
    except ValueError:
        raise InputError(f"lease id {lease_id!r}: Azure accepts only a GUID") from None


# --- checks of operations and units -------------------------------------------------------------------------------


def check_operation(operation: Operation) -> None:
    """Check one operation by all rules that need no request to the store."""
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
    """Check an operation that is not part of a unit. It must not refer to the ETag of another operation's row."""
    check_operation(operation)
    if isinstance(operation, Transact) and any(isinstance(row.etag, EtagOf) for row in operation.rows):
        raise InputError(f"transaction on {operation.table!r}: EtagOf is allowed only inside a unit")
    if isinstance(operation, PutMessage) and operation.naming is not None:
        raise InputError(f"message to {operation.queue!r}: EtagOf is allowed only inside a unit")


def check_unit(unit: Unit) -> None:
    """Check each operation of a unit, and that each ``EtagOf`` refers to a row that an *earlier* step writes.

    A reference to the same step is refused: Azure carries out the operations of one step in parallel.
    """
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
    name = unit.steps[index].name
    raise InputError(f"step {name!r}: {reference} does not refer to a row that an earlier step writes")


def kind_of(operation: Operation) -> str:
    """Return the kind under which ``Store.requests`` counts an operation."""
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
