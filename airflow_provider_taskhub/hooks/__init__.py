"""How Airflow's connections become TaskHub settings and clients."""
