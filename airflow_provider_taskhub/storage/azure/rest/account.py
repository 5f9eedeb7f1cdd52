"""Reads the addresses and the credential of a storage account from a connection string, and signs requests.

All secrets of the Azure store are in this module. No repr and no error text contains a secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import quote, urlsplit

from airflow_provider_taskhub.errors import ConfigurationError

SERVICES = ("blob", "queue", "table")
_EMULATOR_NAME = "devstoreaccount1"
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The documented account key of the emulator. It is the same on each machine, so it is no secret."""
_EMULATOR_PORTS = {"blob": 10000, "queue": 10001, "table": 10002}
_WAY_OUT = (
    "Pass the connection string shown under 'Access keys' of the storage account "
    "(DefaultEndpointsProtocol=https;AccountName=…;AccountKey=…;EndpointSuffix=…), one with SharedAccessSignature=…, "
    "or the account's address https://NAME.blob.core.windows.net."
)

Query: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKey:
    """The key of an account. It signs each request."""

    name: str
    key: bytes = field(repr=False)

    def authorization(
        self, service: str, *, method: str, path: str, query: Query, headers: Mapping[str, str], length: int
    ) -> str:
        """Return the ``Authorization`` header of Azure's Shared Key scheme.

        :param path: percent-encoded path of the request.
        :param query: query parameters of the request, not encoded.
        :param headers: all headers of the request, with names in lower case.
        :param length: length of the body in bytes.
        """
        sign = _table_text if service == "table" else _storage_text
        text = sign(self.name, method=method, path=path, query=query, headers=headers, length=length)
        digest = hmac.digest(self.key, text.encode(), "sha256")
        return f"SharedKey {self.name}:{base64.b64encode(digest).decode()}"


def _table_text(name: str, *, method: str, path: str, query: Query, headers: Mapping[str, str], length: int) -> str:
    comp = next((f"?comp={value}" for key, value in query if key == "comp"), "")
    return f"{method}\n\n{headers.get('content-type', '')}\n{headers['x-ms-date']}\n/{name}{path}{comp}"


def _storage_text(name: str, *, method: str, path: str, query: Query, headers: Mapping[str, str], length: int) -> str:
    # the lines of the string to sign, in Azure's order; a line is empty if TaskHub does not send the header
    known = [
        method,
        "",  # no header Content-Encoding
        "",  # no header Content-Language
        str(length) if length else "",
        "",  # no header Content-MD5
        headers.get("content-type", ""),
        "",  # no header Date: TaskHub sends x-ms-date
        "",  # no header If-Modified-Since
        headers.get("if-match", ""),
        headers.get("if-none-match", ""),
        "",  # no header If-Unmodified-Since
        "",  # no header Range
    ]
    known += [f"{key}:{headers[key]}" for key in sorted(headers) if key.startswith("x-ms-")]
    resource = f"/{name}{path}" + "".join(f"\n{key.lower()}:{value}" for key, value in sorted(query))
    return "\n".join([*known, resource])


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A shared access signature. It is added to the URL of each request."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Marks an account that uses ``DefaultAzureCredential``: managed identity, environment, or a developer's login."""


Credential: TypeAlias = SharedKey | Signature | Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A service's address: ``https://name.queue.core.windows.net``, or ``http://127.0.0.1:10001/devstoreaccount1``."""

    origin: str
    path: str = ""

    def __str__(self) -> str:
        return self.origin + self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A storage account: the addresses of its three services, and its credential."""

    endpoints: Mapping[str, Endpoint]
    credential: Credential

    def describe(self) -> str:
        """Return the address of the account's queue service. It names the account in texts, and contains no secret."""
        return str(self.endpoints["queue"])


def parse_account(connection: str) -> Account:
    """Return the account that a connection string or an address names.

    :raises ConfigurationError: if a part is missing or wrong. The error text names the part, but contains no secret.
    """
    text = connection.strip()
    if text.lower().startswith(("https://", "http://")):
        return _from_address(text)
    return _from_parts(_parts(text))


def encode_query(query: Query) -> str:
    """Return the query string ``name=value&…``, percent-encoded."""
    return "&".join(f"{quote(name, safe='$')}={quote(value, safe='')}" for name, value in query)


def _from_address(text: str) -> Account:
    try:
        url = urlsplit(text)
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise ConfigurationError(f"the storage account's address cannot be read: {error}. {_WAY_OUT}") from None
    labels = host.split(".")
    if len(labels) < 3 or labels[1] not in (*SERVICES, "dfs"):
        raise ConfigurationError(
            f"{host!r} is not a storage account's address: it must look like NAME.blob.core.windows.net. {_WAY_OUT}"
        )
    signed = "sig=" in url.query
    if url.scheme.lower() != "https" and not signed:
        raise ConfigurationError(
            f"the address of {host!r} must begin with https://: TaskHub sends tokens only encrypted"
        )
    suffix = ".".join(labels[2:]) + (f":{port}" if port else "")
    endpoints = {
        service: Endpoint(origin=f"{url.scheme.lower()}://{labels[0]}.{service}.{suffix}") for service in SERVICES
    }
    return Account(endpoints=endpoints, credential=Signature(token=url.query) if signed else Identity())


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(";"))):
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(
                "the storage connection is neither a connection string (Name=Value;…), an address (https://…) "
                f"nor a file (sqlite:///…). {_WAY_OUT}"
            )
        parts[name.strip().lower()] = value.strip()
    if not parts:
        raise ConfigurationError(f"the storage connection is empty. {_WAY_OUT}")
    return parts


def _from_parts(parts: Mapping[str, str]) -> Account:
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        return Account(
            endpoints={
                service: Endpoint(origin=f"http://127.0.0.1:{_EMULATOR_PORTS[service]}", path=f"/{_EMULATOR_NAME}")
                for service in SERVICES
            },
            credential=SharedKey(name=_EMULATOR_NAME, key=base64.b64decode(_EMULATOR_KEY)),
        )
    return Account(
        endpoints={service: _endpoint(parts, service) for service in SERVICES}, credential=_credential(parts)
    )


def _credential(parts: Mapping[str, str]) -> Credential:
    if token := parts.get("sharedaccesssignature"):
        return Signature(token=token.lstrip("?"))
    missing = [name for name in ("AccountName", "AccountKey") if not parts.get(name.lower())]
    if missing:
        raise ConfigurationError(
            f"the storage connection string lacks {' and '.join(missing)} (or SharedAccessSignature). {_WAY_OUT}"
        )
    try:
        key = base64.b64decode(parts["accountkey"], validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "AccountKey in the storage connection string is not Base64: it was cut off or changed when copied. "
            f"{_WAY_OUT}"
        ) from None
    return SharedKey(name=parts["accountname"], key=key)


def _endpoint(parts: Mapping[str, str], service: str) -> Endpoint:
    given = parts.get(f"{service}endpoint")
    if given is None:
        name = parts.get("accountname")
        if not name:
            raise ConfigurationError(
                f"the storage connection string lacks {service.capitalize()}Endpoint (or AccountName). {_WAY_OUT}"
            )
        scheme = parts.get("defaultendpointsprotocol", "https").lower()
        given = f"{scheme}://{name}.{service}.{parts.get('endpointsuffix', 'core.windows.net')}"
    try:
        url = urlsplit(given)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{service.capitalize()}Endpoint in the storage connection string is not an http(s) address. {_WAY_OUT}"
        )
    return Endpoint(origin=f"{url.scheme}://{url.netloc}", path=url.path.rstrip("/"))
