"""Workloads against a real worker, on the embedded store and on Azurite: ``make bench``."""
