"""Asset events for the data that activities declare, in a real Airflow: the DAGs of ``dags_examples/lineage.py``."""

from __future__ import annotations

from pathlib import Path

from tests.airflow.real import RealAirflow
from tests.waiting import until


def test_data_that_an_activity_declares_starts_the_dag_that_waits_for_it(real: RealAirflow, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be")
    run = real.trigger("word_count", folder=str(tmp_path))
    real.reaches("word_count", run, "success", task_id="count")
    written = (tmp_path / "words.txt").as_uri()

    def started() -> str | None:
        runs = real.get("/api/v2/dags/words_counted/dagRuns")["dag_runs"]
        return runs[0]["dag_run_id"] if runs else None

    reader = until("the event starts the other DAG", started)
    real.reaches("words_counted", reader, "success", task_id="tell")
    told = real.get(f"{real.path('words_counted', reader, 'tell')}/xcomEntries/return_value")["value"]
    assert told == [written]
    # Not before: while the run that an event has made is queued, Airflow's API cannot show the event.
    [event] = real.get("/api/v2/assets/events", source_dag_id="word_count")["asset_events"]
    assert (event["uri"], event["source_run_id"]) == (written, run)
    assert event["extra"]["taskhub_instance_id"] == f"word_count:count:{run}:g1"
