"""The environment variables of executors: the worker's own, without those that give access to the hub.

User code prints its environment into logs that many people read, and hands it on to programs that it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from urllib.parse import quote, quote_plus

from airflow_provider_taskhub.settings import PREFIX

_KEPT = ("TASKHUB_HOME", "TASKHUB_DEMO_RUN")
"""TaskHub's own variables that stay: the folder for files of user code, and the mark that finds processes of a demo."""
_IDENTITY = ("AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD", "AZURE_PASSWORD")
"""With them ``DefaultAzureCredential`` gets access to a hub that is configured by its address."""
_SECRET_PARTS = ("accountkey", "sharedaccesssignature")


def child_environment(environ: Mapping[str, str], *, connection: str | None, withheld: Sequence[str]) -> dict[str, str]:
    """The variables that an executor gets of its worker's environment.

    Left out are TaskHub's settings, every variable whose value has the secret of the worker's connection in it (as
    ``AZURE_STORAGE_CONNECTION_STRING`` or ``AIRFLOW_CONN_…`` may), the secrets of the worker's Azure identity if the
    connection is an address, and the names in ``withheld``. Everything else stays: ``JAVA_HOME``, ``SPARK_…``, the
    user's own.

    :param connection: of the worker, None for the embedded hub.
    :param withheld: more names to leave out; ``*`` stands for any characters.
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
    """The secret parts of a connection string, or of an address with a SAS."""
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
