"""Fetches tokens of Microsoft Entra ID, from azure-identity's ``DefaultAzureCredential``."""

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
"""A token is replaced this many seconds before it expires. A token is valid for an hour or more."""


class Tokens:
    """Fetches the token that all requests of a store share, when one needs it. An asynchronous context manager.

    The requests of ``rest`` use :meth:`current`. Microsoft's clients use this object as their credential, an
    ``AsyncTokenCredential``.

    :param credential: token credential of azure-identity; None: ``DefaultAzureCredential``.
    :raises ConfigurationError: if azure-identity is not installed.
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
        """Return a token that is valid for at least the next five minutes.

        :raises AccessDenied: if no token can be fetched now. The error text says what was tried.
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
        """Return a token for one of Microsoft's clients.

        With ``claims`` or ``tenant_id`` a new token is fetched; otherwise the shared token is returned.

        :param claims: claims that the service has asked for when it refused a token; None: no claims.
        :param tenant_id: tenant that the service has asked for; None: no tenant.
        :raises AccessDenied: if no token can be fetched now.
        """
        if claims is None and tenant_id is None:
            return await self._usual()
        return await self._fetch(*scopes, claims=claims, tenant_id=tenant_id, enable_cae=enable_cae, **more)

    async def _usual(self) -> AccessToken:
        async with self._lock:
            # The time at which a token expires can only be compared with the wall clock. If the wall clock is wrong,
            # the service refuses the token, but no data is at risk.
            if self._token is None or self._token.expires_on - time.time() < REFRESH_BEFORE:
                self._token = await self._fetch(SCOPE)
            return self._token

    async def _fetch(self, *scopes: str, **more: Any) -> AccessToken:
        from azure.core.exceptions import AzureError

        try:
            return await self._credential.get_token(*scopes, **more)
        except Exception as error:  # each way to get a token has its own errors: AzureError, OSError, ...
            # only the text of an AzureError is written for people; others might contain secrets
            text = str(error.message) if isinstance(error, AzureError) else type(error).__name__
            tried = next(iter(text.splitlines()), "")
            raise AccessDenied(
                "cannot get a token for Azure Storage: sign in with `az login`, set AZURE_CLIENT_ID, "
                "AZURE_TENANT_ID and AZURE_CLIENT_SECRET, give the machine a managed identity, or use a connection "
                f"string with a key ({tried})"
            ) from None


def _default_credential() -> AsyncTokenCredential:
    try:
        from azure.identity.aio import DefaultAzureCredential
    except ModuleNotFoundError as error:
        raise missing(error.name, purpose="an Azure account's address without a key") from None
    return DefaultAzureCredential()
