"""Start, watch and steer instances, and administer a hub, from Python code.

::

    async with Client.open(load_settings()) as client:
        state = await client.start("flights_delays", {"year": 2013})
        flight = client.instance(state.instance_id)
        ended = await flight.wait(timeout=timedelta(hours=1))
        print(ended.status, await flight.activities())
        print(await client.admin.workers())

:class:`Client` starts and lists instances, and has the short ways to one instance by its id. :class:`InstanceHandle`
(from :meth:`Client.instance`) has everything that concerns one instance. :class:`HubAdmin` (``client.admin``) has what
concerns the hub: partitions, workers, quarantine.
"""

from airflow_provider_taskhub.client.admin import HubAdmin
from airflow_provider_taskhub.client.client import Client
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.client.listing import InstancePage
from airflow_provider_taskhub.client.purging import PurgeResult
from airflow_provider_taskhub.engine.events import HistoryEvent, Status
from airflow_provider_taskhub.hub.history.failed_attempt import FailedAttempt
from airflow_provider_taskhub.hub.model import (
    ActivityRecord,
    HubInfo,
    InstanceState,
    Member,
    PartitionState,
    StartPolicy,
)
from airflow_provider_taskhub.hub.queues.quarantine import Quarantined
from airflow_provider_taskhub.hub.waiting.reasons import Why

__all__ = [
    "ActivityRecord",
    "Client",
    "FailedAttempt",
    "HistoryEvent",
    "HubAdmin",
    "HubInfo",
    "InstanceHandle",
    "InstancePage",
    "InstanceState",
    "Member",
    "PartitionState",
    "PurgeResult",
    "Quarantined",
    "StartPolicy",
    "Status",
    "Why",
]
