"""Sensors: tasks that wait for the hub."""
