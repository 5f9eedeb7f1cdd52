"""TaskHub's page inside Airflow's UI."""
