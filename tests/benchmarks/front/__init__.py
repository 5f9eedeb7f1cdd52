"""``make bench-airflow``: how fast Airflow's tasks are that run orchestrations, beside tasks that do nothing."""
