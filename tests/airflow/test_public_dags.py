"""Which tasks of the examples are started without a worker, and why the others are not.

The examples are those of ``dags_examples/``, and ten well-known public examples of Airflow and Astronomer, which
``public_dags/`` has rewritten for TaskHub. Airflow parses them, and no test runs the latter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

TRIGGERER = ""
AIRFLOWS_OWN = "a task of Airflow itself"
CONTROL = "an operator that controls instances and does not wait"
MAPPED_FUNCTION = "a mapped @task.orchestration or @task.activity"
OVER_RESULT = "the task is mapped over the result of another task"
NATIVE = "the triggerer cannot render templates as native objects"
NO_TRIGGERER = "deferrable is False: the task uses no triggerer"


def odd_input(what: str) -> str:
    return f"argument 'input' has {what}, which only a worker can resolve"


def unknown(template: str, name: str) -> str:
    return f"the triggerer cannot render the template {template!r}: it does not have {name}"


PUBLIC: dict[str, dict[str, str]] = {
    "assets": {
        "produces_orders.orders": TRIGGERER,
        "produces_prices.new_prices": TRIGGERER,
        "consumes_both.sales": unknown("{{ inlet_events }}", "inlet_events"),
        "consumes_either.checked": TRIGGERER,
        "largest_order.largest_order": AIRFLOWS_OWN,
    },
    "astronauts": {
        "astronauts.people": AIRFLOWS_OWN,
        "astronauts.greet": MAPPED_FUNCTION,
        "astronauts.number": TRIGGERER,
    },
    "branching": {
        "branching.choose": AIRFLOWS_OWN,
        "branching.full_load": TRIGGERER,
        "branching.delta_load": TRIGGERER,
        "branching.join": TRIGGERER,
    },
    "galaxies": {
        "galaxies.create": TRIGGERER,
        "galaxies.extract": TRIGGERER,
        "galaxies.transform": TRIGGERER,
        "galaxies.load": TRIGGERER,
        "galaxies.show": AIRFLOWS_OWN,
        "galaxies_loaded.count": TRIGGERER,
        "galaxies_loaded.who": unknown("{{ triggering_asset_events | list }}", "triggering_asset_events"),
    },
    "groups": {
        "groups.cluster": TRIGGERER,
        "groups.drop": TRIGGERER,
        "groups.section.work": TRIGGERER,
        "groups.section.inner.check": TRIGGERER,
        "groups.section__1.work": TRIGGERER,
        "groups.section__1.inner.check": TRIGGERER,
        "groups.month.load": odd_input("a value of type MappedArgument"),
        "groups.month.add_up": odd_input("the output of 'month.load', which is in a mapped task group"),
    },
    "mapping": {
        "mapping_a_list.add_one": MAPPED_FUNCTION,
        "mapping_a_list.add_up": odd_input("the outputs of the mapped task 'add_one'"),
        "mapping_a_list.rows": TRIGGERER,
        "mapping_a_list.table": TRIGGERER,
        "mapping_a_result.numbers": TRIGGERER,
        "mapping_a_result.doubled": OVER_RESULT,
        "mapping_a_result.plus_ten": OVER_RESULT,
        "mapping_a_result.pairs": odd_input("a value of type ZipXComArg"),
    },
    "nightly": {
        "nightly.is_workday": AIRFLOWS_OWN,
        "nightly.orders": "pool 'shop': Airflow counts only the tasks that a worker starts",
        "nightly.prices": TRIGGERER,
        "nightly.stock": unknown("{{ bucket }}/raw", "bucket") + "; on_execute_callback",
        "nightly.report": TRIGGERER,
        "nightly.alarm": TRIGGERER,
        "nightly.tidy": TRIGGERER,
        "nightly.latest_only": AIRFLOWS_OWN,
    },
    "params_form": {
        "params_form.names": AIRFLOWS_OWN,
        "params_form.languages": AIRFLOWS_OWN,
        "params_form.greet_in_english": OVER_RESULT,
        "params_form.greet_in_german": OVER_RESULT,
        "params_form.everybody": NATIVE,
        "params_form.last": TRIGGERER,
        "params_as_text.everybody": TRIGGERER,
        "params_as_text.from_a_variable": unknown("{{ var.value.get('greeting', 'Hello') }}", "var.value"),
    },
    "sensors": {
        "sensors.file_is_there": AIRFLOWS_OWN,
        "sensors.end": TRIGGERER,
        "sensors.gives_up": TRIGGERER,
        "sensors.gives_up_in_a_worker": NO_TRIGGERER,
        "sensors.rescheduled": NO_TRIGGERER,
        "sensors.half": TRIGGERER,
        "sensors.asked": TRIGGERER,
        "sensors.of_yesterday": unknown("load-{{ prev_start_date_success | ds }}", "prev_start_date_success"),
        "sensors.done": TRIGGERER,
    },
    "taskflow_etl": {
        "taskflow_etl.extract": TRIGGERER,
        "taskflow_etl.transform": TRIGGERER,
        "taskflow_etl.load": TRIGGERER,
        "taskflow_etl.report": unknown("{{ ti.xcom_pull(task_ids='transform', key='total') }}", "ti.xcom_pull"),
    },
}
"""By file, and by DAG and task, why a worker starts the task. Nothing: the triggerer starts it."""

OURS: dict[str, dict[str, str]] = {
    "approval": {
        "approval.publish": TRIGGERER,
        "approval.counted": TRIGGERER,
        "approval.enough": TRIGGERER,
        "approval.asked": TRIGGERER,
        "approval.decide": AIRFLOWS_OWN,
        "approval.tell": CONTROL,
    },
    "by_function": {"by_function.greetings": TRIGGERER},
    "control": {
        "control_events.load": TRIGGERER,
        "control_events.begun": TRIGGERER,
        "control_events.suspend": CONTROL,
        "control_events.ready": CONTROL,
        "control_events.resume": CONTROL,
        "control_rewind.report": TRIGGERER,
        "control_rewind.repair": AIRFLOWS_OWN,
        "control_rewind.again": CONTROL,
        "control_cleanup.stop": CONTROL,
        "control_cleanup.purge_one": CONTROL,
        "control_cleanup.purge_old": CONTROL,
    },
    "ends": {"ends_example.report": AIRFLOWS_OWN},
    "first": {"first.greetings": TRIGGERER},
    "flights_delays": {"flights_delays.delays": NATIVE},
    "lineage": {"word_count.count": TRIGGERER, "words_counted.tell": AIRFLOWS_OWN},
    "mapping": {"mapping.teams": TRIGGERER, "mapping.again": OVER_RESULT},
    "notify": {"notify_example.load": AIRFLOWS_OWN},
    "on_retry": {
        "on_retry.go_on": TRIGGERER,
        "on_retry.compute_anew": TRIGGERER,
        "on_retry.repaired_by_hand": TRIGGERER,
    },
    "outputs": {"outputs.rows": TRIGGERER, "outputs.count": TRIGGERER, "outputs.last": AIRFLOWS_OWN},
    "sensor": {
        "sensor_example.in_the_triggerer": TRIGGERER,
        "sensor_example.in_the_worker": NO_TRIGGERER,
        "sensor_example.rescheduled": NO_TRIGGERER,
    },
    "spark_rows": {"spark_rows.primes": MAPPED_FUNCTION, "spark_rows.total": AIRFLOWS_OWN},
    "taskflow": {
        "taskflow.months": AIRFLOWS_OWN,
        "taskflow.first": TRIGGERER,
        "taskflow.sales": MAPPED_FUNCTION,
        "taskflow.best": odd_input("the outputs of the mapped task 'sales'"),
    },
    "time_limits": {"time_limits.too_late": TRIGGERER, "time_limits.no_worker": TRIGGERER},
    "waiting": {
        "waiting.in_the_triggerer": TRIGGERER,
        "waiting.a_moment": "start_on='worker'",
        "waiting.in_the_worker": NO_TRIGGERER,
        "waiting.not_at_all": TRIGGERER,
        "waiting.begins_later": TRIGGERER,
    },
    "zero_slot": {
        "zero_slot.no_worker": TRIGGERER,
        "zero_slot.after_it": TRIGGERER,
        "zero_slot.rows": TRIGGERER,
        "zero_slot.ends_in_a_worker": TRIGGERER,
        "zero_slot.starts_in_a_worker": unknown("{{ dag_run.run_type.value }}", "dag_run.run_type"),
        "zero_slot.only_workers": "start_on='worker'",
    },
}


def why_a_worker(task: Any) -> str:
    if hasattr(task, "placement"):
        return "; ".join(task.placement().start)
    kind = getattr(task, "operator_class", type(task))  # a mapped task is made later
    if issubclass(kind, TaskHubOperator):
        return MAPPED_FUNCTION
    return CONTROL if kind.__module__.startswith("airflow_provider_taskhub.operators.") else AIRFLOWS_OWN


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of Airflow's parse
@pytest.mark.parametrize(
    ("folder", "found"),
    [(Path(__file__).parents[2] / "dags_examples", OURS), (Path(__file__).parent / "public_dags", PUBLIC)],
    ids=["ours", "public"],
)
def test_which_tasks_of_the_examples_the_triggerer_starts(
    folder: Path, found: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    bag = DagBag(dag_folder=folder)
    assert bag.import_errors == {}
    reasons: dict[str, dict[str, str]] = {}
    for dag in bag.dags.values():
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        for task in dag.task_dict.values():
            why = why_a_worker(task)
            reasons.setdefault(Path(dag.fileloc).stem, {})[f"{dag.dag_id}.{task.task_id}"] = why
            assert stored.get_task(task.task_id).start_from_trigger is (why == TRIGGERER), "what the scheduler reads"
    assert reasons == found
