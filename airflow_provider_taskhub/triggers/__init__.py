"""The trigger with which operators and sensors wait for an instance in Airflow's triggerer, and its parts."""
