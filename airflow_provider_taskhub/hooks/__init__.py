"""Turns Airflow connections into TaskHub settings and clients; names and tags shared by the Airflow modules."""
