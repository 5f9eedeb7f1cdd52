"""Who started an instance: the instance id and the tags that an Airflow task gives it.

Pure values, shared by operators (which write them), links and the page (which read them).

Instance ids are ``dag:task:run:gN`` (``dag:task[index]:run:gN`` for a mapped task). DAG and task ids hold no colon, so
a run id of Airflow's default pattern makes them unambiguous; any other gets a digest of all parts as well.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

DAG_TAG = "airflow.dag_id"
RUN_TAG = "airflow.run_id"
TASK_TAG = "airflow.task_id"
MAP_TAG = "airflow.map_index"
TRY_TAG = "airflow.try_number"
MAX_TRIES_TAG = "airflow.max_tries"
LOGICAL_DATE_TAG = "airflow.logical_date"
INTERVAL_START_TAG = "airflow.data_interval_start"
INTERVAL_END_TAG = "airflow.data_interval_end"
GENERATION_TAG = "taskhub.generation"
OWNER_TAG = "taskhub.owner"
"""Id of the task instance (new for every try) whose start this was: whoever cancels must still find its own."""
WATCH_TAG = "taskhub.watch"
"""The checkpoint that ends an instance with this tag leaves a hint in ``{Hub}Completions``."""
RESERVED = ("airflow.", "taskhub.")

UNMAPPED = -1
_LONGEST = 200
"""Characters of a readable id; longer ones are cut and get a digest. Azure's keys and blob names stay legal."""
_PLAIN_RUN = re.compile(r"[A-Za-z0-9_.~:+-]+", re.ASCII)
_LIKE_GENERATION = re.compile(r":g\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIds:
    """An Airflow task in a run, whatever its try. :param map_index: -1 for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    def instance_id(self, generation: int) -> str:
        """The id that this task gives its instance; the same for every try of one generation."""
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        readable = f"{self.dag_id}:{self.task_id}{index}:{self.run_id}"
        plain = _PLAIN_RUN.fullmatch(self.run_id) and not _LIKE_GENERATION.search(self.run_id)
        if not plain or len(readable) > _LONGEST:
            parts = "\0".join((self.dag_id, self.task_id, str(self.map_index), self.run_id))
            digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            readable = f"{re.sub(r'[^A-Za-z0-9_.~:+-]', '_', readable)[: _LONGEST - 17]}~{digest}"
        return f"{readable}:g{generation}"

    def started(self, tags: Mapping[str, str] | None) -> bool:
        """Whether an instance with these tags was started by this task in this run, in whichever try or generation."""
        mine = {DAG_TAG: self.dag_id, RUN_TAG: self.run_id, TASK_TAG: self.task_id, MAP_TAG: str(self.map_index)}
        return tags is not None and all(tags.get(name) == value for name, value in mine.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity(TaskIds):
    """One try of one Airflow task instance.

    :param owner: the task instance's UUID, new for every try.
    :param max_tries: as the scheduler stores it: it changes when a user clears the task.
    """

    try_number: int
    max_tries: int
    owner: str

    @classmethod
    def of(cls, ti: Any) -> Self:
        """Of the task instance in an operator's context."""
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
        """Tags by which the instance is found, filtered and cancelled."""
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
