"""Start, watch and control instances, and administer a hub, from Python code.

::

    async with Client.open(load_settings()) as client:
        state = await client.start("flights_delays", {"year": 2013})
        flight = client.instance(state.instance_id)
        ended = await flight.wait(timeout=timedelta(hours=1))
        print(ended.status, await flight.activities())
        print(await client.admin.workers())

:class:`Client` starts and lists instances. :class:`InstanceHandle` (from :meth:`Client.instance`) has every operation
on one instance; :class:`Client` offers the common ones too, with the instance id as a parameter. :class:`HubAdmin`
(``client.admin``) has the operations on the hub: partitions, workers, quarantine.
"""

from airflow_provider_taskhub.client.admin import HubAdmin
from airflow_provider_taskhub.client.client import Client
from airflow_provider_taskhub.client.handle import InstanceHandle
from airflow_provider_taskhub.client.listing import EtagPage, InstancePage
from airflow_provider_taskhub.client.purging import PurgeResult
from airflow_provider_taskhub.engine.events import HistoryEvent, Status
from airflow_provider_taskhub.hub.history.failed_attempt import FailedAttempt
from airflow_provider_taskhub.hub.history.pages import ChildPage, HistoryPage
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
from airflow_provider_taskhub.instance_limit import InstanceLimit
from airflow_provider_taskhub.intake_limit import IntakeLimit, IntakePolicy

__all__ = [
    "ActivityRecord",
    "ChildPage",
    "Client",
    "EtagPage",
    "FailedAttempt",
    "HistoryEvent",
    "HistoryPage",
    "HubAdmin",
    "HubInfo",
    "InstanceHandle",
    "InstanceLimit",
    "InstancePage",
    "InstanceState",
    "IntakeLimit",
    "IntakePolicy",
    "Member",
    "PartitionState",
    "PurgeResult",
    "Quarantined",
    "StartPolicy",
    "Status",
    "Why",
]
