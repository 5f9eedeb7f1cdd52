"""TaskHub's page inside Airflow's UI, and the sweep that runs in Airflow's API server."""
