"""Create, delete and list tables through Microsoft's client. ``rest/rows`` reads and writes rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_taskhub.errors import NotFound
from airflow_provider_taskhub.storage.azure.sdk.clients import Ask, Clients, Hook

if TYPE_CHECKING:
    from azure.core.async_paging import AsyncItemPaged
    from azure.data.tables import TableItem


class TableService:
    """The operations on tables through azure-data-tables."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def create(self, name: str) -> bool:
        client = await self._clients.tables()
        ask = Ask(
            kind="admin",
            service="table",
            what=f"creation of table {name!r}",
            accept=frozenset({"TableAlreadyExists"}),
            creating=True,
        )
        made = await self._clients.call(ask, lambda hook: client.create_table(name, raw_request_hook=hook))
        return made is not None

    async def delete(self, name: str) -> None:
        client = await self._clients.tables()
        ask = Ask(kind="admin", service="table", what=f"deletion of table {name!r}")
        try:
            await self._clients.call(ask, lambda hook: client.delete_table(name, raw_request_hook=hook))
        except NotFound:
            return

    async def names(self, prefix: str) -> list[str]:
        client = await self._clients.tables()

        def items(hook: Hook) -> AsyncItemPaged[TableItem]:
            if not prefix:
                return client.list_tables(raw_request_hook=hook)
            # All names with the prefix are less than prefix + '{', because table names have only letters and digits,
            # and '{' follows 'z' in ASCII. Azure ignores the case of table names.
            return client.query_tables(
                "TableName ge @first and TableName lt @end",
                parameters={"first": prefix, "end": prefix + "{"},
                raw_request_hook=hook,
            )

        ask = Ask(kind="admin", service="table", what="list of tables", safe=True)
        return [table.name for table in await self._clients.all(ask, items)]
