"""Notifiers: what Airflow calls when a task or a DAG run ends, or when a deadline is missed."""
