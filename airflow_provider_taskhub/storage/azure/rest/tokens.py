"""Tokens of Microsoft Entra ID, from azure-identity's ``DefaultAzureCredential``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from airflow_provider_taskhub.errors import AccessDenied
from airflow_provider_taskhub.storage.packages import missing

if TYPE_CHECKING:
    from types import TracebackType

    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

SCOPE = "https://storage.azure.com/.default"
REFRESH_BEFORE = 300
"""Seconds before its end at which a token is replaced; tokens live for an hour or more."""


class Tokens:
    """The current token, fetched when needed and shared by all requests. An asynchronous context manager.

    Our own requests ask for :meth:`current`; Microsoft's clients take it as their credential, an
    ``AsyncTokenCredential``.

    :param credential: a token credential of azure-identity; None: ``DefaultAzureCredential``.
    :raises ConfigurationError: when azure-identity is not installed.
    """

    def __init__(self, credential: AsyncTokenCredential | None = None) -> None:
        self._credential = credential or _default_credential()
        self._token: AccessToken | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Tokens:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._credential.close()

    async def current(self) -> str:
        """A token that is good for the next minutes.

        :raises AccessDenied: when none can be had now; names the ways that were tried.
        """
        return (await self._usual()).token

    async def get_token(
        self,
        *scopes: str,
        claims: str | None = None,
        tenant_id: str | None = None,
        enable_cae: bool = False,
        **more: Any,
    ) -> AccessToken:
        """A token for one of Microsoft's clients.

        :param claims: with ``tenant_id``, what a refusal of the service asked for: then the usual token will not do.
        :raises AccessDenied: as :meth:`current`.
        """
        if claims is None and tenant_id is None:
            return await self._usual()
        return await self._fetch(*scopes, claims=claims, tenant_id=tenant_id, enable_cae=enable_cae, **more)

    async def _usual(self) -> AccessToken:
        async with self._lock:
            # A token's end is a time of the wall clock by its nature; a wrong clock costs a refusal, never safety.
            if self._token is None or self._token.expires_on - time.time() < REFRESH_BEFORE:
                self._token = await self._fetch(SCOPE)
            return self._token

    async def _fetch(self, *scopes: str, **more: Any) -> AccessToken:
        from azure.core.exceptions import AzureError

        try:
            return await self._credential.get_token(*scopes, **more)
        except Exception as error:  # each way to a token raises its own: AzureError, OSError, errors of JSON ...
            # only Azure's texts are known to be meant for people
            text = str(error.message) if isinstance(error, AzureError) else type(error).__name__
            tried = next(iter(text.splitlines()), "")
            raise AccessDenied(
                "no token for Azure Storage could be had here: sign in with `az login`, set AZURE_CLIENT_ID, "
                "AZURE_TENANT_ID and AZURE_CLIENT_SECRET, give the machine a managed identity, or use a connection "
                f"string with a key ({tried})"
            ) from None


def _default_credential() -> AsyncTokenCredential:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ModuleNotFoundError as error:
        raise missing(error.name, purpose="an Azure account's address without a key") from None
    return DefaultAzureCredential()
