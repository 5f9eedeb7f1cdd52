"""Chooses the environment variables of executors: the worker's variables without those that give access to the hub.

User code can print its environment into logs that many people read, and can pass it to programs that it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import quote, quote_plus

from airflow_provider_taskhub.settings import PREFIX

_KEPT = ("TASKHUB_HOME", "TASKHUB_DEMO_RUN")
"""TaskHub's own variables that executors get too: TaskHub's folder, and a mark by which a demo finds its processes."""
_IDENTITY = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD")
"""Secrets by which ``DefaultAzureCredential`` gets access to a hub whose connection is only an account's address."""
_SECRET_PARTS = ("accountkey", "sharedaccesssignature")
"""Parts of an Azure Storage connection string whose values are secret."""


def child_environment(environ: Mapping[str, str], *, connection: str | None, withheld: Sequence[str]) -> dict[str, str]:
    """Return the variables of the worker's environment that an executor gets.

    These variables are omitted:

    - TaskHub's settings;
    - every variable whose value contains the secret of the worker's connection, for example
      ``AZURE_STORAGE_CONNECTION_STRING`` or ``AIRFLOW_CONN_…``;
    - the secrets of the worker's Azure identity, if the connection is an address;
    - the names in ``withheld``.

    All other variables stay, for example ``JAVA_HOME``, ``SPARK_…`` and the user's own.

    :param environ: the worker's environment.
    :param connection: the worker's connection to Azure Storage; None if the hub is in the embedded store.
    :param withheld: names of further variables to omit; ``*`` stands for any characters.
    """
    secrets = [form for secret in _secrets(connection) for form in (secret, quote(secret, safe=""), quote_plus(secret))]
    address = connection is not None and connection.lower().startswith(("https://", "http://"))

    def stays(name: str, value: str) -> bool:
        if name in _KEPT:
            return True
        if name.upper().startswith(PREFIX) or (address and name in _IDENTITY):
            return False
        return not any(fnmatchcase(name, pattern) for pattern in withheld) and not any(one in value for one in secrets)

    return {name: value for name, value in environ.items() if stays(name, value)}


def _secrets(connection: str | None) -> list[str]:
    """Return the secret parts of a connection string, or of an address with a SAS (shared access signature)."""
    found = []
    for part in (connection or "").split(";"):
        name, _, value = part.partition("=")
        if name.strip().lower() in _SECRET_PARTS:
            found.append(value.strip())
    _, _, query = (connection or "").partition("?")
    found.extend(pair.partition("=")[2] for pair in query.split("&") if pair.lower().startswith("sig="))
    for sas in tuple(found):
        found.extend(pair.partition("=")[2] for pair in sas.split("&") if pair.lower().startswith("sig="))
    return [secret for secret in dict.fromkeys(found) if secret]
