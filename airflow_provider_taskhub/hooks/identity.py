"""The instance id and the tags that an Airflow task gives to its instance.

The operator writes these values; the links and the page read them. No I/O.

Instance ids are ``dag:task:run:gN`` (``dag:task[index]:run:gN`` for a mapped task), where N is the generation of the
task. DAG ids and task ids contain no colon, so two tasks cannot get the same instance id if the run id has only the
characters of Airflow's default run ids. For any other run id a digest of all parts is added. The generation of a task
is a counter that rises when a user clears the task.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_taskhub.tags import DAG_TAG as DAG_TAG
from airflow_provider_taskhub.tags import OWN, OWNER_TAG, WATCH_TAG

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.watches import Watch

RUN_TAG = "airflow.run_id"
TASK_TAG = "airflow.task_id"
MAP_TAG = "airflow.map_index"
TRY_TAG = "airflow.try_number"
MAX_TRIES_TAG = "airflow.max_tries"
LOGICAL_DATE_TAG = "airflow.logical_date"
INTERVAL_START_TAG = "airflow.data_interval_start"
INTERVAL_END_TAG = "airflow.data_interval_end"
GENERATION_TAG = "taskhub.generation"
RESERVED = ("airflow.", OWN)
"""Beginnings of tag names that users may not use."""

UNMAPPED = -1
"""Map index of a task that is not mapped."""
_LONGEST = 200
"""The largest number of characters of an instance id before ``:gN``. A longer id is cut and gets a digest, so that
Azure accepts it in keys and blob names."""
_PLAIN_RUN = re.compile(r"[A-Za-z0-9_.~:+-]+", re.ASCII)
_LIKE_GENERATION = re.compile(r":g\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIds:
    """An Airflow task in a DAG run, without its try.

    :param dag_id: the task's DAG.
    :param run_id: the DAG run.
    :param task_id: the task.
    :param map_index: -1 for a task that is not mapped.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def instance_id(self, generation: int) -> str:
        """Return the instance id of this task. All tries of one generation have the same instance id.

        :param generation: the task's generation, which a clear of the task raises.
        """
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        readable = f"{self.dag_id}:{self.task_id}{index}:{self.run_id}"
        plain = _PLAIN_RUN.fullmatch(self.run_id) and not _LIKE_GENERATION.search(self.run_id)
        if not plain or len(readable) > _LONGEST:
            parts = "\0".join((self.dag_id, self.task_id, str(self.map_index), self.run_id))
            digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            readable = f"{re.sub(r'[^A-Za-z0-9_.~:+-]', '_', readable)[: _LONGEST - 17]}~{digest}"
        return f"{readable}:g{generation}"

    @classmethod
    def of_tags(cls, tags: Mapping[str, str] | None) -> TaskIds | None:
        """Return the task that has started an instance; None: no Airflow task did. :param tags: the instance's tags."""
        if tags is None or not all(tags.get(name) for name in (DAG_TAG, RUN_TAG, TASK_TAG)):
            return None
        index = int(tags.get(MAP_TAG, UNMAPPED))
        return cls(dag_id=tags[DAG_TAG], run_id=tags[RUN_TAG], task_id=tags[TASK_TAG], map_index=index)

    @staticmethod
    def successor(instance_id: str) -> str:
        """Return the instance id of the next generation. :param instance_id: what :meth:`instance_id` has returned."""
        beginning, _, generation = instance_id.rpartition("g")
        return f"{beginning}g{int(generation) + 1}"

    def started(self, tags: Mapping[str, str] | None) -> bool:
        """Return whether this task in this DAG run started an instance with these tags, in any try or generation.

        :param tags: the tags of the instance; None: it has no tags.
        """
        mine = {DAG_TAG: self.dag_id, RUN_TAG: self.run_id, TASK_TAG: self.task_id, MAP_TAG: str(self.map_index)}
        return tags is not None and all(tags.get(name) == value for name, value in mine.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity(TaskIds):
    """One try of one Airflow task instance.

    :param try_number: the number of the try, as Airflow counts it.
    :param max_tries: the value that the scheduler stores. It changes when a user clears the task.
    :param owner: the UUID of the task instance, new for every try.
    """

    try_number: int
    max_tries: int
    owner: str

    @classmethod
    def of(cls, ti: Any) -> Self:
        """Make the identity of a task instance. :param ti: the task instance from an operator's context."""
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=UNMAPPED if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            max_tries=ti.max_tries,
            owner=str(ti.id),
        )

    def tags(self, generation: int) -> dict[str, str]:
        """Return the tags of the instance, which name this task and try. :param generation: the task's generation."""
        return {
            DAG_TAG: self.dag_id,
            RUN_TAG: self.run_id,
            TASK_TAG: self.task_id,
            MAP_TAG: str(self.map_index),
            TRY_TAG: str(self.try_number),
            MAX_TRIES_TAG: str(self.max_tries),
            GENERATION_TAG: str(generation),
            OWNER_TAG: self.owner,
            WATCH_TAG: "1",
        }

    def watch(
        self, instance_id: str, *, deployment: str, owner: str, generation: int, cleared_continues: bool = False
    ) -> Watch:
        """Make the watch row of an instance: the row in the hub that names the task for which the instance runs.

        :param instance_id: the id of the instance.
        :param deployment: the name of this Airflow deployment.
        :param owner: the owner tag of the instance.
        :param generation: the generation of the task that has started the instance.
        :param cleared_continues: True: after a clear, the task waits for the same instance again.
        """
        from airflow_provider_taskhub.hub.watches import Watch

        return Watch(
            instance_id=instance_id,
            deployment=deployment,
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=self.task_id,
            map_index=self.map_index,
            owner=owner,
            generation=generation,
            waiter=self.owner,
            cleared_continues=cleared_continues,
        )
