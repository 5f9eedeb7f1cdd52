"""The numbers that the documentation quotes are the numbers of the code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_taskhub.hub.history import payloads
from airflow_provider_taskhub.hub.messages import envelope, prefetch, quarantine
from airflow_provider_taskhub.hub.partitions import balance, holding
from airflow_provider_taskhub.operators import taskhub as operator
from airflow_provider_taskhub.settings import AZURE_LEASE, EMBEDDED_LEASE, LEASE_DRIFT, LEASE_MARGIN, Settings
from airflow_provider_taskhub.storage.embedded import file, wake, writer
from airflow_provider_taskhub.triggers import ending, sweep, watcher
from airflow_provider_taskhub.triggers import taskhub as trigger
from airflow_provider_taskhub.workers import activities, episodes, executor, lanes, output, responses
from airflow_provider_taskhub.workers.process import ExecutorTimes

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
EMBEDDED, COMMIT = "concepts/embedded-store.md", "decisions/group-commit.md"
_ASKED = (trigger._EMBEDDED_INTERVAL, trigger._AZURE_INTERVAL)

CLAIMS = [
    (PARTITIONS, f"| renew | {s(AZURE.renew)} | {s(LOCAL.renew)} |"),
    (PARTITIONS, f"| give up | {s(AZURE.give_up)} | {s(LOCAL.give_up)} |"),
    (PARTITIONS, f"| take | {s(AZURE.take)} | {s(LOCAL.take)} |"),
    (PARTITIONS, f"on Azure every {s(AZURE.scan)}, on SQLite every {s(LOCAL.scan)}"),
    (PARTITIONS, f"with at least {s(LEASE_MARGIN)} between them"),
    (PARTITIONS, f"{LEASE_DRIFT * 100:g} % of take"),
    (PARTITIONS, f"A handover lasts at most {s(holding.DRAIN)}"),
    (PARTITIONS, {0.5: "differ by more than half of the mean"}[balance.HYSTERESIS]),
    (HUB, f"The default is {DEFAULT['partitions'].default}, the largest number is 1,024"),
    (HUB, f"a message above {envelope.SPILL_BYTES // KIB} KiB"),
    (HUB, f"a text column of the history above {payloads.SPILL_BYTES // KIB} KiB"),
    (MESSAGES, f"at most {DEFAULT['buffer'].default} messages and {DEFAULT['buffer_bytes'].default // MIB} MiB"),
    (MESSAGES, f"({s(AZURE.visibility)} on Azure, {s(LOCAL.visibility)} on SQLite)"),
    (MESSAGES, f"asks an empty queue after {prefetch.FIRST_POLL * 1000:g} ms"),
    (MESSAGES, f"`max_polling` ({s(DEFAULT['max_polling'].default)})"),
    (MESSAGES, f"After {quarantine.MAX_FAILURES} failures, or {quarantine.MAX_DELIVERIES} deliveries"),
    (MESSAGES, f"does not come to an end within {s(episodes.STUCK)}"),
    (MESSAGES, {1.0: "took less than a second"}[activities.QUICK]),
    ("concepts/replay.md", f"`session_idle` ({s(DEFAULT['session_idle'].default)})"),
    (RECORDS, f"every renewal interval ({s(AZURE.renew)} on Azure, {s(LOCAL.renew)} on SQLite)"),
    (RECORDS, f"for the take time ({s(AZURE.take)} on Azure, {s(LOCAL.take)} on SQLite)"),
    (RECORDS, f"for the give-up time ({s(AZURE.give_up)}, {s(LOCAL.give_up)})"),
    (RECORDS, f"After a grace time of {s(TIMES.grace)}"),
    (RECORDS, f"tries again for up to {HOURS[responses.OUTCOMES.within]}"),
    (SPARK, f"An attempt that loses a {WORDS[lanes.MAX_SHARED]} executor in company"),
    (SPARK, f"After {WORDS[lanes.MAX_CRASHES]} of them the activity fails"),
    (SPARK, f"no sign of life for {s(TIMES.silence)} is killed"),
    (SPARK, f"After {s(TIMES.grace)} the host kills the executor"),
    (SPARK, f"`executor_timeout` ({DEFAULT['executor_timeout'].default.seconds // 60} minutes)"),
    (SPARK, f"up to {executor.MAX_LOG // MIB} MiB"),
    (SPARK, f"the last {output.TAIL_LINES} lines"),
    (SPARK, f"`activities` attempts at once (default {DEFAULT['activities'].default})"),
    (AIRFLOW, f"waits for {s(operator.SHORT_WAIT)} in its worker"),
    (AIRFLOW, f"(every {s(_ASKED[0])} on SQLite, every {s(_ASKED[1])} on Azure)"),
    (AIRFLOW, f"It reads {watcher.IN_TURN} of the waiting instances in turn"),
    (AIRFLOW, f"the list of workers every {s(watcher.MEMBERS_EVERY)}"),
    (AIRFLOW, f"larger than {ending.LARGEST_OUTPUT // KIB} KiB"),
    (AIRFLOW, f"not before {s(trigger.SETTLE)} after the trigger began"),
    (AIRFLOW, f"Every {s(sweep.EVERY)} it reads the watch rows"),
    (AIRFLOW, f"final or gone for at least {s(sweep.SETTLE)}"),
    (EMBEDDED, f"at most {writer.MAX_GROUP} operations and is closed for more after {writer.MAX_HOLD * 1000:g} ms"),
    (EMBEDDED, {1.0: "looks once a second anyway"}[wake.FALLBACK]),
    (COMMIT, f"A group has at most {writer.MAX_GROUP} operations"),
    (COMMIT, f"a queue with a bound ({writer.MAX_WAITING:,} operations)"),
    (COMMIT, f"a random pause of {file.RETRY[0] * 1000:g} to {file.RETRY[1] * 1000:g} ms"),
]


@pytest.mark.parametrize(("page", "text"), CLAIMS)
def test_a_page_quotes_the_number_of_the_code(page: str, text: str) -> None:
    assert text in (DOCS / page).read_text(encoding="utf-8")
