"""The data that an activity reads and writes, as URIs. An activity declares them while it runs."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.fast_dataclass import dataclass
from airflow_provider_taskhub.masking import masked

MAX_URI = 1_500
"""Characters of the longest URI. Airflow's assets have the same limit."""
MAX_CHARACTERS = 20_000
"""Characters of all inlets, or of all outlets, of one attempt. They fit one column of the attempt's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The data that one or several activities have read and written.

    :param inlets: URIs of the data that was read, each once.
    :param outlets: URIs of the data that was written, each once.
    """

    inlets: tuple[str, ...] = ()
    outlets: tuple[str, ...] = ()


NO_LINEAGE = Lineage()


class DeclaredLineage:
    """Collects what one attempt of an activity declares. Any thread may call it.

    :param refusal: why this attempt cannot declare data, for the error; None: it can.
    """

    def __init__(self, refusal: str | None = None) -> None:
        self._refusal = refusal
        self._lock = threading.Lock()
        # the keys of a dict are a set that keeps its order
        self._inlets: dict[str, None] = {}
        self._outlets: dict[str, None] = {}

    def inlet(self, uri: str) -> None:
        """Add the URI of data that is read. The errors are those of :func:`checked_uri`, and one at the limit."""
        self._add(self._inlets, uri, "inlet")

    def outlet(self, uri: str) -> None:
        """Add the URI of data that is written. The errors are those of :func:`checked_uri`, and one at the limit."""
        self._add(self._outlets, uri, "outlet")

    def declared(self) -> Lineage:
        """Return what was declared so far."""
        with self._lock:
            return Lineage(inlets=tuple(self._inlets), outlets=tuple(self._outlets))

    def _add(self, known: dict[str, None], uri: str, what: str) -> None:
        checked_uri(uri, what=f"{what}()")
        if self._refusal is not None:
            raise InputError(f"{what}({uri!r}): {self._refusal}")
        with self._lock:
            if uri not in known and sum(map(len, known)) + len(uri) > MAX_CHARACTERS:
                raise InputError(
                    f"{what}({uri!r}): the {what}s of one attempt have at most {MAX_CHARACTERS:,} characters together, "
                    f"and it has declared {len(known)} already. Declare a folder or a table, not its files."
                )
            known[uri] = None


def checked_uri(uri: str, *, what: str) -> None:
    """Check a URI of data.

    :param what: name of the called function, for the error.
    :raises InputError: if it is no URI with a scheme, is too long, has other characters than a URI may have, or
        contains a password, or a secret in its query or fragment.
    """
    if not isinstance(uri, str):
        raise InputError(f"{what}: {uri!r} is of type {type(uri).__name__}: pass the URI as a text")
    shown = masked(uri)
    if len(uri) > MAX_URI:
        raise InputError(f"{what}: {shown[:80]!r}… has {len(uri):,} characters: a URI has at most {MAX_URI:,}")
    if not uri.isascii() or not uri.isprintable() or " " in uri:
        raise InputError(
            f"{what}: {shown!r} has a character that a URI cannot have: replace it with urllib.parse.quote(path)"
        )
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise InputError(f"{what}: {shown!r} is not a URI: {error}") from None
    if parts.password is not None:
        raise InputError(f"{what}: the URI contains a password, which people and logs would see: leave it out")
    if any(masked(part) != part for part in (parts.query, parts.fragment)):
        raise InputError(f"{what}: {shown!r} contains a secret, which people and logs would see: leave it out")
    if not parts.scheme or not (parts.netloc or parts.path):
        raise InputError(
            f"{what}: {shown!r} is not a URI: write for example 'file:///data/daily' or 's3://bucket/daily'"
        )
    if parts.scheme == "airflow":
        raise InputError(f"{what}: {shown!r}: Airflow keeps the scheme 'airflow' for itself: choose another scheme")
