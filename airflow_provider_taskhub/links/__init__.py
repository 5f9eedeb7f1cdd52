"""Links from Airflow's UI to the hub's page."""
