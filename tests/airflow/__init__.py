"""The front: against a fake hub (values), and inside a real Airflow."""
