"""Tokens of Microsoft Entra ID, from azure-identity's ``DefaultAzureCredential``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from airflow_provider_taskhub.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

SCOPE = "https://storage.azure.com/.default"
REFRESH_BEFORE = 300
"""Seconds before its end at which a token is replaced; tokens live for an hour or more."""


class Tokens:
    """The current token, fetched when needed and shared by all requests. An asynchronous context manager.

    :param credential: a token credential of azure-identity; None: ``DefaultAzureCredential``.
    :raises ConfigurationError: when azure-identity is not installed.
    """

    def __init__(self, credential: AsyncTokenCredential | None = None) -> None:
        self._credential = credential or _default_credential()
        self._token: AccessToken | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Tokens:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._credential.close()

    async def current(self) -> str:
        """A token that is good for the next minutes.

        :raises ConfigurationError: when no identity is found here; names the ways that were tried.
        """
        async with self._lock:
            # A token's end is a time of the wall clock by its nature; a wrong clock costs a refusal, never safety.
            if self._token is None or self._token.expires_on - time.time() < REFRESH_BEFORE:
                self._token = await self._fetch()
            return self._token.token

    async def _fetch(self) -> AccessToken:
        from azure.core.exceptions import ClientAuthenticationError

        try:
            return await self._credential.get_token(SCOPE)
        except ClientAuthenticationError as error:
            raise ConfigurationError(f"no identity for Azure Storage was found here: {error.message}") from None


def _default_credential() -> AsyncTokenCredential:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"an Azure account's address without a key needs the package {error.name!r}: "
            "pip install 'airflow-provider-taskhub[azure]'"
        ) from None
    return DefaultAzureCredential()
