"""The Airflow sensor that waits for an instance."""
