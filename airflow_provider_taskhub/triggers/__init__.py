"""The waiting side of operators and sensors, in Airflow's triggerer."""
