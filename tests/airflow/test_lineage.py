"""Data that activities declare: asset events, and what OpenLineage's listener gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_taskhub.engine.events import Status
from airflow_provider_taskhub.errors import InputError
from airflow_provider_taskhub.lineage import Lineage
from airflow_provider_taskhub.operators import lineage
from airflow_provider_taskhub.operators.lineage import dataset_of
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from tests.airflow.conftest import Task, Ti
from tests.airflow.fake import FakeHub

MakeTask = Callable[..., Task]
ALIAS = AssetAlias("written")
WRITTEN = Lineage(inlets=("s3://raw/2013",), outlets=("s3://clean/2013", "file:///data/daily"))


def finished(task: Task, hub: FakeHub, declared: Lineage, **context: Any) -> dict[str, Any]:
    """Run the task until its instance has completed; its context."""
    ti = Ti()
    deferred = task.start(ti)
    hub.lineages[deferred.trigger.instance_id] = (declared, 0)
    hub.end(deferred.trigger.instance_id, 7)
    given = {**task.context(ti), **context}
    task.context = lambda _ti: given  # type: ignore[method-assign]
    assert task.finish(ti) == 7
    return given


def test_an_alias_gets_an_event_for_each_written_uri(make_task: MakeTask, hub: FakeHub) -> None:
    task = make_task(outlets=[ALIAS, Asset("s3://clean/2013"), Asset("monthly")])
    events = OutletEventAccessors()
    finished(task, hub, WRITTEN, outlet_events=events)
    instance_id = task.deferred.trigger.instance_id
    emitted = events[ALIAS].asset_alias_events
    assert [event.dest_asset_key.uri for event in emitted] == ["s3://clean/2013", "file:///data/daily"]
    assert {event.extra["taskhub_instance_id"] for event in emitted} == {instance_id}
    assert events[Asset("s3://clean/2013")].extra == {"taskhub_instance_id": instance_id}
    assert events[Asset("monthly")].extra == {}, "the instance did not write it"


def test_one_task_emits_a_limited_number_of_events(
    make_task: MakeTask, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "MAX_EVENTS", 3)
    declared = Lineage(outlets=tuple(f"s3://clean/{number}" for number in range(5)))
    events = OutletEventAccessors()
    finished(make_task(outlets=[ALIAS]), hub, declared, outlet_events=events)
    assert len(events[ALIAS].asset_alias_events) == 3
    assert "the instance wrote 5 assets: only the first 3 get events" in caplog.text


def test_a_task_without_outlets_reads_nothing_for_them(make_task: MakeTask, hub: FakeHub) -> None:
    finished(make_task(), hub, WRITTEN)
    assert hub.requests["lineage"] == 0


def test_openlineage_gets_inputs_outputs_and_the_instance(make_task: MakeTask, hub: FakeHub) -> None:
    task = make_task()
    finished(task, hub, WRITTEN)
    found = DefaultExtractor(task.operator).extract_on_complete(Ti())
    assert found is not None
    assert [(one.namespace, one.name) for one in found.inputs] == [("s3://raw", "2013")]
    assert [(one.namespace, one.name) for one in found.outputs] == [("s3://clean", "2013"), ("file", "/data/daily")]
    facet = found.run_facets["externalQuery"]
    assert (facet.externalQueryId, facet.source) == (task.deferred.trigger.instance_id, "taskhub:flights_delays")
    assert hub.requests["lineage"] == 1


def test_openlineage_gets_what_a_failed_orchestration_has_written(make_task: MakeTask, hub: FakeHub) -> None:
    task, ti = make_task(), Ti()
    instance_id = task.start(ti).trigger.instance_id
    hub.lineages[instance_id] = (WRITTEN, 0)
    hub.fail(instance_id, "41 rows rejected")
    with pytest.raises(Exception, match="41 rows rejected"):
        task.finish(ti)
    assert hub.instances[instance_id].status is Status.FAILED
    found = DefaultExtractor(task.operator).extract_on_failure(ti)
    assert found is not None
    assert len(found.outputs) == 2


def test_a_task_that_knows_no_ended_instance_reports_nothing(make_task: MakeTask, hub: FakeHub) -> None:
    found = DefaultExtractor(make_task().operator).extract_on_complete(Ti())
    assert found is not None
    assert (found.inputs, found.outputs, hub.requests["lineage"]) == ([], [], 0)


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("file:///data/daily/", ("file", "/data/daily")),
        ("s3a://bucket/a/b", ("s3://bucket", "a/b")),
        ("gs://bucket", ("gs://bucket", "/")),
        ("abfss://c@account.dfs.core.windows.net/a", ("abfss://c@account.dfs.core.windows.net", "a")),
        ("hdfs://namenode:8020/user/daily", ("hdfs://namenode:8020", "/user/daily")),
        ("postgresql://db:5432/sales/public/daily", ("postgresql://db:5432", "/sales/public/daily")),
        ("dbfs:/mnt/daily", ("dbfs", "/mnt/daily")),
    ],
)
def test_datasets_have_the_names_that_openlineage_gives(uri: str, dataset: tuple[str, str]) -> None:
    assert dataset_of(uri) == dataset


PARENT = {"spark.openlineage.parentRunId": "8a", "spark.openlineage.parentJobName": "flights.delays"}


def test_the_parent_run_is_handed_on_in_tags(
    make_task: MakeTask, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "airflow.providers.common.compat.openlineage.utils.spark.inject_parent_job_information_into_spark_properties",
        lambda properties, context: {**properties, **PARENT},
    )
    task = make_task(openlineage_inject_parent_job_info=True, tags={"mine": "1"})
    tags = hub.instances[task.start(Ti()).trigger.instance_id].tags or {}
    assert {name: tags.get(name) for name in ("mine", *PARENT)} == {"mine": "1", **PARENT}
    plain = make_task(instance_id="plain")
    assert not PARENT.keys() & (hub.instances[plain.start(Ti()).trigger.instance_id].tags or {}).keys()


def test_airflows_option_of_all_spark_operators_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    with DAG("d", schedule=None):
        operator = TaskHubOperator(task_id="t", orchestrator="o")
    assert operator.placement().start == (
        "openlineage_inject_parent_job_info: only a worker knows the run that OpenLineage names",
    )


def test_a_value_that_is_no_flag_is_refused_at_parse() -> None:
    with pytest.raises(InputError, match="openlineage_inject_parent_job_info is 'yes'"):
        TaskHubOperator(task_id="t", orchestrator="o", openlineage_inject_parent_job_info="yes")
