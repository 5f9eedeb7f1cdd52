"""The Airflow operator that runs an orchestration, and its parts."""
