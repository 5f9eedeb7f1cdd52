"""The numbers that the documentation quotes are the numbers of the code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskhub.hub.formats.message_envelope import SPILL_BYTES as MESSAGE_SPILL
from airflow_provider_taskhub.hub.formats.payload_spill import SPILL_BYTES as COLUMN_SPILL
from airflow_provider_taskhub.hub.partitions.balance import HYSTERESIS
from airflow_provider_taskhub.hub.partitions.held_partitions import DRAIN
from airflow_provider_taskhub.hub.queues.pacing import FIRST_POLL
from airflow_provider_taskhub.hub.queues.quarantine import MAX_DELIVERIES, MAX_FAILURES
from airflow_provider_taskhub.operators.short_wait import SHORT_WAIT
from airflow_provider_taskhub.plugins.client_cache import FRESH
from airflow_provider_taskhub.plugins.index import MOST as MOST_INDEXED
from airflow_provider_taskhub.plugins.index import MOST_ERROR
from airflow_provider_taskhub.settings import (
    AZURE_LEASE,
    EMBEDDED_LEASE,
    LEASE_DRIFT,
    LEASE_MARGIN,
    LEAST_SLOTS,
    SPARK_MEMORY,
    Settings,
)
from airflow_provider_taskhub.storage.sqlite.file import RETRY
from airflow_provider_taskhub.storage.sqlite.process_wakeups import FALLBACK
from airflow_provider_taskhub.storage.sqlite.writer_thread import MAX_GROUP, MAX_HOLD, MAX_WAITING
from airflow_provider_taskhub.triggers.settling import SETTLE as TRIGGER_SETTLE
from airflow_provider_taskhub.triggers.sweep import EVERY as SWEEP_EVERY
from airflow_provider_taskhub.triggers.sweep import SETTLE as SWEEP_SETTLE
from airflow_provider_taskhub.triggers.task_end import LARGEST_OUTPUT
from airflow_provider_taskhub.triggers.taskhub import _AZURE_INTERVAL, _EMBEDDED_INTERVAL
from airflow_provider_taskhub.triggers.watcher import IN_TURN, MEMBERS_EVERY
from airflow_provider_taskhub.triggers.worker_wait import WORKER_END_WAIT
from airflow_provider_taskhub.workers.activities.heartbeat import _ANSWER
from airflow_provider_taskhub.workers.activities.processor import QUICK
from airflow_provider_taskhub.workers.activities.recorded import LOCAL_SPARK_PAUSE
from airflow_provider_taskhub.workers.activities.responses import OUTCOMES
from airflow_provider_taskhub.workers.executors.attempt_log import TAIL_LINES
from airflow_provider_taskhub.workers.executors.attempt_values import MAX_CRASHES, MAX_SHARED
from airflow_provider_taskhub.workers.executors.pool import MAX_LOG
from airflow_provider_taskhub.workers.executors.process import ExecutorTimes
from airflow_provider_taskhub.workers.orchestrations.watchdog import STUCK

DOCS = Path(__file__).parents[2] / "docs"
AZURE, LOCAL, TIMES, DEFAULT = AZURE_LEASE, EMBEDDED_LEASE, ExecutorTimes(), Settings.model_fields
WORDS = {1: "one", 2: "second", 3: "three", 5: "five"}
HOURS = {3600.0: "an hour"}
KIB, MIB = 1024, 1024 * 1024


def s(time: timedelta | float) -> str:
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    return f"{seconds:g} s"


PARTITIONS, HUB, MESSAGES = "concepts/partitions.md", "concepts/task-hub.md", "concepts/messages.md"
RECORDS, SPARK, AIRFLOW = "concepts/activity-records.md", "concepts/spark.md", "concepts/airflow.md"
PAGE = "how-to/page.md"
EMBEDDED, COMMIT = "concepts/embedded-store.md", "decisions/group-commit.md"
_ASKED = (_EMBEDDED_INTERVAL, _AZURE_INTERVAL)

CLAIMS = [
    (AIRFLOW, f"what the list needs of each, at most {MOST_INDEXED:,}"),
    (PAGE, f"The index has at most {MOST_INDEXED:,} instances"),
    (PAGE, f"in its first {MOST_ERROR} characters"),
    (PAGE, f"only what has changed, at most every {s(FRESH)}"),
    (PARTITIONS, f"| renew | {s(AZURE.renew)} | {s(LOCAL.renew)} |"),
    (PARTITIONS, f"| give up | {s(AZURE.give_up)} | {s(LOCAL.give_up)} |"),
    (PARTITIONS, f"| take | {s(AZURE.take)} | {s(LOCAL.take)} |"),
    (PARTITIONS, f"on Azure every {s(AZURE.scan)}, on SQLite every {s(LOCAL.scan)}"),
    (PARTITIONS, f"with at least {s(LEASE_MARGIN)} between them"),
    (PARTITIONS, f"{LEASE_DRIFT * 100:g} % of take"),
    (PARTITIONS, f"A handover lasts at most {s(DRAIN)}"),
    (PARTITIONS, {0.5: "differ by more than half of the mean"}[HYSTERESIS]),
    (HUB, f"The default is {DEFAULT['partitions'].default}, the largest number is 1,024"),
    (HUB, f"a message above {MESSAGE_SPILL // KIB} KiB"),
    (HUB, f"a text column of the history above {COLUMN_SPILL // KIB} KiB"),
    (MESSAGES, f"at most {DEFAULT['buffer'].default} messages and {DEFAULT['buffer_bytes'].default // MIB} MiB"),
    (MESSAGES, f"({s(AZURE.visibility)} on Azure, {s(LOCAL.visibility)} on SQLite)"),
    (MESSAGES, f"asks an empty queue after {FIRST_POLL * 1000:g} ms"),
    (MESSAGES, f"`max_polling` ({s(DEFAULT['max_polling'].default)})"),
    (MESSAGES, f"After {MAX_FAILURES} failures, or {MAX_DELIVERIES} deliveries"),
    (MESSAGES, f"does not come to an end within {s(STUCK)}"),
    (MESSAGES, {1.0: "took less than a second"}[QUICK]),
    ("concepts/replay.md", f"`session_idle` ({s(DEFAULT['session_idle'].default)})"),
    (RECORDS, f"every renewal interval ({s(AZURE.renew)} on Azure, {s(LOCAL.renew)} on SQLite)"),
    (RECORDS, f"for the take time ({s(AZURE.take)} on Azure, {s(LOCAL.take)} on SQLite)"),
    (RECORDS, f"for the give-up time ({s(AZURE.give_up)}, {s(LOCAL.give_up)})"),
    (RECORDS, f"After a grace time of {s(TIMES.grace)}"),
    (RECORDS, f"that has no answer after {s(_ANSWER)}"),
    (RECORDS, f"It stands still for {s(LOCAL_SPARK_PAUSE)} at most"),
    (RECORDS, f"tries again for up to {HOURS[OUTCOMES.within]}"),
    (SPARK, f"An attempt that loses a {WORDS[MAX_SHARED]} executor in company"),
    (SPARK, f"After {WORDS[MAX_CRASHES]} of them the activity fails"),
    (SPARK, f"no sign of life for {s(TIMES.silence)} is killed"),
    (SPARK, f"After {s(TIMES.grace)} the host kills the executor"),
    (SPARK, f"`executor_timeout` ({DEFAULT['executor_timeout'].default.seconds // 60} minutes)"),
    (SPARK, f"up to {MAX_LOG // MIB} MiB"),
    (SPARK, f"the last {TAIL_LINES} lines"),
    (SPARK, f"one for each core, at least {LEAST_SLOTS}, unless given"),
    (SPARK, f"at most one for each {SPARK_MEMORY // 1024**3} GiB of memory"),
    (AIRFLOW, f"waits for {s(SHORT_WAIT)} in its worker"),
    (AIRFLOW, f"it waits for {s(WORKER_END_WAIT)}, because the task would not come back sooner"),
    (AIRFLOW, f"(every {s(_ASKED[0])} on SQLite, every {s(_ASKED[1])} on Azure)"),
    (AIRFLOW, f"It reads {IN_TURN} of the waiting instances in turn"),
    (AIRFLOW, f"the list of workers every {s(MEMBERS_EVERY)}"),
    (AIRFLOW, f"larger than {LARGEST_OUTPUT // KIB} KiB"),
    *(
        (page, f"{s(TRIGGER_SETTLE)} after the start of its trigger at the earliest")
        for page in (AIRFLOW, "how-to/no-worker.md", "reference/behaviour.md", "decisions/airflow-only-schedules.md")
    ),
    (AIRFLOW, f"Every {s(SWEEP_EVERY)} it reads the watch rows"),
    (AIRFLOW, f"final or gone for at least {s(SWEEP_SETTLE)}"),
    (EMBEDDED, f"at most {MAX_GROUP} operations and is closed for more after {MAX_HOLD * 1000:g} ms"),
    (EMBEDDED, {1.0: "looks once a second anyway"}[FALLBACK]),
    (COMMIT, f"A group has at most {MAX_GROUP} operations"),
    (COMMIT, f"a queue with a bound ({MAX_WAITING:,} operations)"),
    (COMMIT, f"a random pause of {RETRY[0] * 1000:g} to {RETRY[1] * 1000:g} ms"),
]


@pytest.mark.parametrize(("page", "text"), CLAIMS)
def test_a_page_quotes_the_number_of_the_code(page: str, text: str) -> None:
    assert text in (DOCS / page).read_text(encoding="utf-8")
