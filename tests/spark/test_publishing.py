"""Output that appears once, written and read by a real Spark."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from airflow_provider_taskhub.workers.executors.attempt_values import ActivityOutcome
from airflow_provider_taskhub.workers.executors.pool import ExecutorPool
from tests.workers.conftest import request

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_spark_publishes_and_reads_partitions_of_several_attempts(
    pool: ExecutorPool, tmp_path: pathlib.Path
) -> None:
    target = str(tmp_path / "days")

    async def run(name: str, argument: Any, **more: Any) -> ActivityOutcome:
        return await pool.run(request(name, argument, spark=True, **more))

    async def value(name: str, argument: Any, **more: Any) -> Any:
        outcome = await run(name, argument, **more)
        assert outcome.failure is None, outcome.failure
        return json.loads(outcome.result or "")

    def call(days: list[int], factor: int, mode: str, *, partitions: bool = True) -> dict[str, Any]:
        return {"target": target, "days": days, "factor": factor, "mode": mode, "partitions": partitions}

    first = [[0, 2, 20], [0, 4, 40], [1, 1, 10], [1, 3, 30]]
    assert await value("publish_days", call([1, 2, 3, 4], 10, "overwrite"), action_id="k1") == first
    again = await value("publish_days", call([1, 2, 3, 4], 99, "append"), action_id="k1", attempt=2)
    assert again == first, "the call has published already"
    replaced = [[0, 2, 20], [0, 4, 400], [1, 1, 10], [1, 3, 300], [1, 5, 500]]
    assert await value("publish_days", call([3, 4, 5], 100, "overwrite_partitions"), action_id="k2") == replaced
    added = sorted([*replaced, [1, 3, 3]])
    assert await value("publish_days", call([3], 1, "append"), action_id="k3") == added
    assert await value("pruned", target) == [2, True]
    assert "Unable to infer schema" in await value("plain_read", target), "no half of the data, but an error"
    outcome = await run("publish_days", call([1], 1, "append", partitions=False), action_id="k4")
    assert outcome.failure is not None
    assert "have month, day and no partitions" in outcome.failure.error_message
    whole = [[1, 1, 1], [1, 7, 7]]
    assert await value("publish_days", call([1, 7], 1, "overwrite", partitions=False), action_id="k5") == whole
    places = sorted(path.name for path in (tmp_path / "days/_taskhub/data").iterdir())
    assert places == [f"taskhub_commit=k{number}-1" for number in (1, 2, 3, 5)], "earlier commits, and no orphan"
    paths, error, count = await value("empty", str(tmp_path / "empty"), action_id="k6")
    assert (paths, count) == ([], 0)
    assert "the published data have no rows and no files: pass schema=" in error
    columns = str(tmp_path / "columns")
    assert await value("publish_column", [columns, "a", "INT"], action_id="k7") == [["a", "id"], [{"id": 1, "a": 7}]]
    assert await value("publish_column", [columns, "b", "STRING"], action_id="k8") == [
        ["a", "b", "id"],
        [{"id": 1, "a": 7, "b": None}, {"id": 1, "a": None, "b": "7"}],
    ], "the columns of both attempts"
    assert "CANNOT_MERGE_SCHEMA" in str(await value("publish_column", [columns, "a", "BINARY"], action_id="k9"))
    refusal = await value("through_the_jvm", str(tmp_path / "hadoop"))
    assert "takes such a path for one of 'hdfs': write 'hdfs://…' or 'file://…'" in refusal
