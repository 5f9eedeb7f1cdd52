"""The page in a real Chromium, inside a real Airflow."""
