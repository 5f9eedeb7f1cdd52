"""Connections: what is accepted, what is refused and how, and that no secret is ever shown."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.storage.azure.rest.account import Identity, SharedKey, Signature, parse_account
from airflow_provider_taskhub.storage.azure.store import AzureStore

KEY = base64.b64encode(b"a secret key of some length......").decode()
SECRETS = (KEY, KEY[:12], "topsecretsig")


def test_connection_string_with_key() -> None:
    account = parse_account(
        f"DefaultEndpointsProtocol=https;AccountName=flights;AccountKey={KEY};EndpointSuffix=core.windows.net"
    )
    assert {name: str(each) for name, each in account.endpoints.items()} == {
        "blob": "https://flights.blob.core.windows.net",
        "queue": "https://flights.queue.core.windows.net",
        "table": "https://flights.table.core.windows.net",
    }
    assert account.credential == SharedKey(name="flights", key=base64.b64decode(KEY))


def test_connection_string_with_endpoints_in_any_case_and_order() -> None:
    account = parse_account(
        f" queueendpoint=http://127.0.0.1:2/dev/;TABLEENDPOINT=http://127.0.0.1:3/dev;accountkey={KEY};"
        "BlobEndpoint=http://127.0.0.1:1/dev;AccountName=dev;"
    )
    assert str(account.endpoints["queue"]) == "http://127.0.0.1:2/dev"
    assert (account.endpoints["table"].origin, account.endpoints["table"].path) == ("http://127.0.0.1:3", "/dev")


def test_connection_string_with_signature() -> None:
    account = parse_account("AccountName=flights;SharedAccessSignature=?sv=2020-12-06&sig=topsecretsig")
    assert account.credential == Signature(token="sv=2020-12-06&sig=topsecretsig")


def test_the_development_storage_string_means_the_local_emulator() -> None:
    account = parse_account("UseDevelopmentStorage=true")
    assert str(account.endpoints["table"]) == "http://127.0.0.1:10002/devstoreaccount1"


@pytest.mark.parametrize("service", ["blob", "queue", "table", "dfs"])
def test_an_address_without_a_signature_uses_an_identity_for_all_services(service: str) -> None:
    account = parse_account(f"https://flights.{service}.core.windows.net/")
    assert isinstance(account.credential, Identity)
    assert str(account.endpoints["queue"]) == "https://flights.queue.core.windows.net"
    assert str(account.endpoints["blob"]) == "https://flights.blob.core.windows.net"


def test_an_address_with_a_signature_uses_the_signature() -> None:
    account = parse_account("https://flights.blob.core.windows.net/?sv=2020-12-06&sig=topsecretsig")
    assert isinstance(account.credential, Signature)


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        ("", "empty"),
        (";;", "empty"),
        (KEY, "neither"),
        ("AccountName=flights", "AccountKey"),
        (f"AccountKey={KEY}", "AccountName"),
        ("AccountName=flights;AccountKey=topsecretsig!", "Base64"),
        ("SharedAccessSignature=sig=topsecretsig", "BlobEndpoint"),
        (f"AccountName=f;AccountKey={KEY};QueueEndpoint=ftp://x", "QueueEndpoint"),
        (f"AccountName=f;AccountKey={KEY};TableEndpoint=http://h:notaport/x", "TableEndpoint"),
        ("http://flights.blob.core.windows.net", "https://"),
        ("https://example.org/data", "example.org"),
        ("https://[broken", "address"),
    ],
)
def test_wrong_connections_name_what_is_wrong_and_show_no_secret(connection: str, named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AzureStore(connection, timeout=timedelta(seconds=1))
    assert named in str(caught.value)
    assert "Pass the connection string" in str(caught.value) or "https://" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize(
    "connection",
    [
        f"AccountName=flights;AccountKey={KEY}",
        "AccountName=flights;SharedAccessSignature=sv=1&sig=topsecretsig",
        "https://flights.blob.core.windows.net/?sv=1&sig=topsecretsig",
    ],
)
def test_secrets_stand_in_no_repr(connection: str) -> None:
    store = AzureStore(connection, timeout=timedelta(seconds=1))
    shown = repr(store) + store.describe() + repr(parse_account(connection)) + str(parse_account(connection))
    assert not any(secret in shown for secret in (*SECRETS, str(base64.b64decode(KEY))))
    assert "flights" in store.describe()


def test_shared_key_signs_as_azure_documents() -> None:
    # The strings to sign of "Authorize with Shared Key", checked against hand-made ones by their signatures.
    import hashlib
    import hmac

    key = SharedKey(name="acct", key=b"k" * 32)
    headers = {"x-ms-date": "Fri, 26 Jun 2015 23:39:12 GMT", "x-ms-version": "2020-12-06", "content-type": "text/plain"}
    blob = (
        "PUT\n\n\n5\n\ntext/plain\n\n\n\n\n\n\nx-ms-date:Fri, 26 Jun 2015 23:39:12 GMT\nx-ms-version:2020-12-06\n"
        "/acct/box/name%20x\ncomp:appendblock\nrestype:container"
    )
    table = "PUT\n\ntext/plain\nFri, 26 Jun 2015 23:39:12 GMT\n/acct/box/name%20x?comp=appendblock"
    for service, text in (("blob", blob), ("queue", blob), ("table", table)):
        signed = key.authorization(
            service,
            method="PUT",
            path="/box/name%20x",
            query=[("restype", "container"), ("comp", "appendblock")],
            headers=headers,
            length=5,
        )
        digest = base64.b64encode(hmac.new(b"k" * 32, text.encode(), hashlib.sha256).digest()).decode()
        assert signed == f"SharedKey acct:{digest}"
