"""Reports the data that an orchestration has read and written: as Airflow's asset events, and to OpenLineage.

Activities declare the data with ``activity.inlet`` and ``activity.outlet``. Their records keep the URIs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset, AssetAlias, conf

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.lineage import Lineage

log = logging.getLogger(__name__)

MAX_EVENTS = 1_000
"""How many asset events one task emits through one alias."""
_OBJECT_STORES = {"s3a": "s3", "s3n": "s3"} | {name: name for name in ("s3", "gs", "abfs", "abfss", "wasb", "wasbs")}
"""For each scheme of an object store, its scheme in OpenLineage. The name of a dataset there has no leading slash."""


def inject_parent_by_default() -> bool:
    """Return Airflow's option ``[openlineage] spark_inject_parent_job_info``, which all Spark operators share."""
    return bool(conf.getboolean("openlineage", "spark_inject_parent_job_info", fallback=False))


def parent_tags(context: Context) -> dict[str, str]:
    """Return the tags that name the Airflow task to OpenLineage in Spark, as the Spark provider names it.

    :returns: no tags if the OpenLineage provider is not installed. A warning in the log then says so.
    """
    from airflow.providers.common.compat.openlineage.utils.spark import (
        inject_parent_job_information_into_spark_properties,
    )

    return {
        name: str(value) for name, value in inject_parent_job_information_into_spark_properties({}, context).items()
    }


class LineageReporter:
    """Reads what the activities of the ended instance of a task have declared, and reports it."""

    def __init__(self) -> None:
        self._instance_id: str | None = None
        self._lineage: Lineage | None = None

    async def read(self, client: Client, instance_id: str, outlets: Sequence[Any]) -> None:
        """Note the instance that has ended, and read its data if the task has outlets.

        Without outlets nothing is read here: OpenLineage's listener asks later, if there is one.
        """
        self._instance_id, self._lineage = instance_id, None
        if outlets:
            self._lineage = await self._of(client)

    def emit(self, context: Context, outlets: Sequence[Any]) -> None:
        """Emit asset events for the data that the instance has written.

        Each outlet of the type ``AssetAlias`` gets one event for each URI. An outlet of the type ``Asset`` has an event
        anyway; its ``extra`` names the instance if the instance has written its URI.
        """
        if self._lineage is None:
            return
        events, extra = context["outlet_events"], {"taskhub_instance_id": self._instance_id}
        written = {asset.uri: asset for asset in map(Asset, self._lineage.outlets)}
        if len(written) > MAX_EVENTS:
            log.warning("the instance wrote %d assets: only the first %d get events", len(written), MAX_EVENTS)
        for outlet in outlets:
            if isinstance(outlet, AssetAlias):
                for asset in list(written.values())[:MAX_EVENTS]:
                    events[outlet].add(asset, extra=extra)
            elif isinstance(outlet, Asset) and outlet.uri in written:
                events[outlet].extra.update(extra)

    def facets(self, orchestrator: str, hook: Any) -> OperatorLineage:
        """Return the task's inputs, outputs and facets for OpenLineage. OpenLineage's listener asks for them.

        :param orchestrator: name of the orchestrator.
        :param hook: opens a client of the hub.
        """
        from airflow.providers.common.compat.openlineage.facet import Dataset
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.facet_v2 import external_query_run

        if self._instance_id is None:
            return OperatorLineage()
        if self._lineage is None:
            self._lineage = hook.run(self._of)
        return OperatorLineage(
            inputs=[Dataset(*dataset_of(uri)) for uri in self._lineage.inlets],
            outputs=[Dataset(*dataset_of(uri)) for uri in self._lineage.outlets],
            run_facets={
                "externalQuery": external_query_run.ExternalQueryRunFacet(
                    externalQueryId=self._instance_id, source=f"taskhub:{orchestrator}"
                )
            },
        )

    async def _of(self, client: Client) -> Lineage:
        assert self._instance_id is not None
        lineage, left_out = await client.instance(self._instance_id).lineage()
        if left_out:
            log.warning("the data of %d children is not reported: the family is too large", left_out)
        return lineage


def dataset_of(uri: str) -> tuple[str, str]:
    """Return the namespace and the name that OpenLineage gives to the dataset of a URI.

    Source: OpenLineage's naming conventions. A file has the namespace ``file`` and its path as its name. Data in an
    object store has the store as its namespace and its path without the leading slash as its name.
    """
    parts = urlsplit(uri)
    scheme, path = parts.scheme.lower(), parts.path.rstrip("/")
    if scheme == "file":
        return "file", path or "/"
    if (store := _OBJECT_STORES.get(scheme)) is not None:
        return f"{store}://{parts.netloc}", path.lstrip("/") or "/"
    if not parts.netloc:
        return scheme, path or "/"
    return f"{scheme}://{parts.netloc}", path or "/"
