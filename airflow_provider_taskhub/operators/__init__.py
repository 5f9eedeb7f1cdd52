"""Operators: what a DAG says to the hub."""
