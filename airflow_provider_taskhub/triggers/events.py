"""The trigger of Airflow's asset watchers that fires when instances of a hub end.

An asset with such a watcher gets one asset event for each end, and DAGs that are scheduled on the asset run.

What is promised: no end is lost while no triggerer runs, and each end gives at least one event. Usually it gives
exactly one. After a restart of the triggerer, the ends of about the last interval may give a second one. An instance
that is purged or started again before the next listing gives none.

The watcher keeps in Airflow's ``asset_state_store``, under the key :data:`MEMORY_KEY`, up to which time of the store's
clock it has delivered everything, and what it has delivered shortly before. It stores this only when Airflow has stored
the events. The clocks of Airflow's machines and of workers play no part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_taskhub.clock import SYSTEM_CLOCK, Clock
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.hooks import identity
from airflow_provider_taskhub.hooks.at_parse import check_choice, check_name
from airflow_provider_taskhub.hooks.taskhub import DEFAULT_CONNECTION
from airflow_provider_taskhub.retries import Retries, retry

if TYPE_CHECKING:
    from airflow_provider_taskhub.client.ends import End
    from airflow_provider_taskhub.triggers.ends_stream import Delivered, EndsBatch, HubEnds

__all__ = ["TaskHubEventTrigger"]

MEMORY_KEY = "taskhub"
"""Key of ``asset_state_store`` under which the watcher keeps what it has delivered."""
FINAL_STATUSES = ("Completed", "Failed", "Terminated", "Canceled")
"""The statuses of instances that have ended. The engine has them too, but a DAG's parse must not load the engine."""
REMEMBER_EVERY = timedelta(minutes=10)
"""How often a watcher stores its progress while nothing ends."""
_CATCH_UP = Retries(after=(Exception,), tries=6, first=1.0)
"""How the first listing of a watcher is tried again. After the last try Airflow starts the trigger again."""


class TaskHubEventTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow is not followed by mypy
    """Fires when an instance of a hub ends, as the trigger of an ``AssetWatcher``.

    The payload of the event has ``hub``, ``instance_id``, ``orchestrator``, ``status`` and ``completed`` (ISO 8601, or
    None). If an Airflow task has started the instance, the payload also has ``dag_id``, ``run_id``, ``task_id`` and
    ``map_index``. It has no inputs, outputs and errors. Each argument that is given limits which instances count. A new
    watcher begins with the ends after its first start.

    :param taskhub_conn_id: connection of type ``taskhub``. Without such a connection, the environment and the settings
        file name the hub, and the embedded hub is the default.
    :param orchestrators: names of orchestrators; empty: all.
    :param statuses: final statuses, for example ``["Failed", "Terminated"]``; empty: all.
    :param tags: tags that the instance must have, with these values; None: no tags.
    :param dag_ids: DAGs of this or another Airflow whose tasks have started the instance; empty: all instances, also
        those that no DAG has started.
    :param poll_interval: a timedelta, or seconds: the time between two listings of the ended instances, at least 1 s.
        All watchers of a connection with the same interval share each listing.
    :raises InputError: while the DAG file is parsed, if an argument is wrong.
    """

    clock: Clock = SYSTEM_CLOCK

    def __init__(
        self,
        *,
        taskhub_conn_id: str = DEFAULT_CONNECTION,
        orchestrators: Sequence[str] = (),
        statuses: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
        dag_ids: Sequence[str] = (),
        poll_interval: timedelta | float = 10.0,
        **_of_other_versions: Any,
    ) -> None:
        super().__init__()
        self.taskhub_conn_id = taskhub_conn_id
        self.orchestrators = orchestrators
        self.statuses = statuses
        self.tags = tags
        self.dag_ids = dag_ids
        self.poll_interval = poll_interval.total_seconds() if isinstance(poll_interval, timedelta) else poll_interval
        if not _of_other_versions.get("checked"):
            self._check(_of_other_versions)

    def _check(self, unknown: Mapping[str, Any]) -> None:
        where = type(self).__name__
        for name in unknown:
            raise InputError(f"{where} has no argument {name!r}")
        check_name(where, "taskhub_conn_id", self.taskhub_conn_id, "give the id of a connection of type 'taskhub'")
        for parameter in ("orchestrators", "statuses", "dag_ids"):
            value = getattr(self, parameter)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise InputError(f"{where}: {parameter} is {value!r}: give a list of texts")
            for text in value:
                check_name(where, f"a text in {parameter}", text, "give a text that is not empty")
        for status in self.statuses:
            check_choice(where, "a name in statuses", status, FINAL_STATUSES)
        tags = {} if self.tags is None else self.tags
        if not isinstance(tags, Mapping) or not all(isinstance(text, str) for pair in tags.items() for text in pair):
            raise InputError(f"{where}: tags is {self.tags!r}: give a dict of texts by name")
        seconds = self.poll_interval
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds < float("inf"):
            raise InputError(f"{where}: poll_interval is {seconds!r}: give seconds, at least 1")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and the arguments from which Airflow creates the trigger again.

        ``checked`` says that the arguments are right: an error in the triggerer would end all its triggers.
        """
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "taskhub_conn_id": self.taskhub_conn_id,
            "orchestrators": list(self.orchestrators),
            "statuses": [status.capitalize() for status in self.statuses],
            "tags": dict(self.tags or {}),
            "dag_ids": list(self.dag_ids),
            "poll_interval": float(self.poll_interval),
            "checked": True,
        }

    def shared_stream_key(self) -> Hashable:
        """Return what the watchers have in common that share their listings."""
        return (
            f"{TaskHubEventTrigger.__module__}.{TaskHubEventTrigger.__qualname__}",
            self.taskhub_conn_id,
            self.poll_interval,
        )

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> HubEnds:
        """Return the reader of the hub for all watchers with the same key. Airflow calls this method."""
        from airflow_provider_taskhub.triggers.ends_stream import HubEnds

        return HubEnds(taskhub_conn_id=kwargs["taskhub_conn_id"], interval=kwargs["poll_interval"], clock=cls.clock)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the hub without other watchers. Airflow shares the listings instead, and does not call this method."""
        producer = self.create_shared_stream_producer(self.serialize()[1])

        async def batches() -> AsyncIterator[EndsBatch]:
            async for batch, _ in producer.open_stream():
                yield batch
                batch.settled.set()

        async for event in self.filter_shared_stream(batches()):
            yield event

    async def filter_shared_stream(self, shared_stream: AsyncIterator[EndsBatch]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each new end that this watcher wants. Airflow calls this method.

        :param shared_stream: the listings of the hub.
        """
        delivered: Delivered | None = None
        unsettled: deque[tuple[EndsBatch, dict[str, Any]]] = deque()
        saved: dict[str, Any] = {}
        async for batch in shared_stream:
            saved = await self._save_settled(unsettled, saved)
            missed: Sequence[End] = ()
            if delivered is None or delivered.place != batch.place:
                delivered, missed, saved = await self._begin(batch)
            for end in delivered.new([end for end in (*missed, *batch.ends) if self._wants(end)]):
                yield self._event(batch.hub, end)
            if batch.last:
                delivered.advance(batch.until)
                unsettled.append((batch, delivered.stored()))

    async def _save_settled(
        self, unsettled: deque[tuple[EndsBatch, dict[str, Any]]], saved: dict[str, Any]
    ) -> dict[str, Any]:
        """Store the progress up to the newest batch whose events Airflow has stored, if it is worth a request.

        :param unsettled: the batches, and the progress after each of them.
        :param saved: the progress that is stored.
        :returns: the progress that is stored now.
        """
        newest: dict[str, Any] | None = None
        while unsettled and unsettled[0][0].settled.is_set():
            newest = unsettled.popleft()[1]
        return saved if newest is None or not _worth(newest, saved) else await self._save(newest, saved)

    async def _save(self, progress: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
        """Store the progress. Return what is stored now: after an error, what was stored before."""
        try:
            if (memory := self._memory()) is not None:
                await memory.aset(MEMORY_KEY, progress)
        except Exception as error:  # the next batch stores it; until then a restart delivers more ends again
            self.log.warning("the progress of the watcher cannot be stored: %s: %s", type(error).__name__, error)
            return saved
        return progress

    async def _begin(self, batch: EndsBatch) -> tuple[Delivered, list[End], dict[str, Any]]:
        """Return what this watcher has delivered before, all ends since then, and the progress that is stored.

        A new watcher begins now, and stores this at once: else a restart would begin anew.
        """
        from airflow_provider_taskhub.triggers.ends_stream import OVERLAP, Delivered
        from airflow_provider_taskhub.triggers.shared_client import shared_client
        from airflow_provider_taskhub.triggers.shared_requests import shared_settings

        def failed(error: Exception, failures: int) -> None:
            self.log.warning("the watcher cannot begin, trying again: %s: %s", type(error).__name__, error)

        async def begin() -> tuple[Delivered, list[End], dict[str, Any]]:
            memory = self._memory()
            stored = None if memory is None else await memory.aget(MEMORY_KEY)
            if (delivered := Delivered.of(stored, batch.place)) is None:
                delivered = Delivered(batch.place, batch.until)
                return delivered, [], await self._save(delivered.stored(), {})
            settings = await shared_settings(self.taskhub_conn_id)
            async with shared_client(settings) as client:
                pages = [page async for page in client.ends.since(delivered.since + -OVERLAP)]
            return delivered, [end for page in pages for end in page], delivered.stored()

        return await retry(begin, _CATCH_UP, self.clock, failed=failed)

    def _memory(self) -> Any:
        """Return the state store of the watched asset; None: Airflow watches no asset with this trigger.

        Airflow uses one trigger for several assets if their watchers have equal triggers. The asset with the first name
        keeps the progress then.
        """
        stores = self.asset_state_store
        names = sorted(getattr(stores, "_by_name", {}))  # Airflow has no other way to the assets of a trigger
        return stores._by_name[names[0]] if names else None

    def _wants(self, end: End) -> bool:
        return (
            (not self.orchestrators or end.name in self.orchestrators)
            and (not self.statuses or str(end.status) in self.statuses)
            and (not self.dag_ids or end.tags.get(identity.DAG_TAG) in self.dag_ids)
            and all(end.tags.get(name) == value for name, value in (self.tags or {}).items())
        )

    def _event(self, hub: str, end: End) -> TriggerEvent:
        payload: dict[str, Any] = {
            "hub": hub,
            "instance_id": end.instance_id,
            "orchestrator": end.name,
            "status": str(end.status),
            "completed": end.completed.text() if end.completed else None,
        }
        if identity.DAG_TAG in end.tags:
            names = (identity.DAG_TAG, identity.RUN_TAG, identity.TASK_TAG, identity.MAP_TAG)
            payload |= {name.removeprefix("airflow."): end.tags.get(name) for name in names}
        return TriggerEvent(payload)


def _worth(progress: dict[str, Any], saved: dict[str, Any]) -> bool:
    """Return whether the progress is worth a request to Airflow: new ends, or much time since the last request."""
    from airflow_provider_taskhub.codec import Timestamp

    if not saved or progress["place"] != saved["place"]:
        return True
    known = {key for key, _ in saved["delivered"]}
    if any(key not in known for key, _ in progress["delivered"]):
        return True
    return Timestamp.parse(progress["since"]) - Timestamp.parse(saved["since"]) >= REMEMBER_EVERY
