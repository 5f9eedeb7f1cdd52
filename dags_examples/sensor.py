"""Three sensors that wait for one instance. They differ in what they hold while they wait.

The first one starts and ends in the triggerer: it holds no worker slot and starts no process.

Any program may start the instance: ``taskhub instances start greetings --id greetings-1 --input '["Ada"]'``. While it
runs, ``taskhub worker --app first_app:app`` must run too.
"""

from airflow.sdk import DAG

from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

with DAG(dag_id="sensor_example", schedule=None, params={"instance": "greetings-1"}) as dag:
    instance = "{{ params.instance }}"
    TaskHubSensor(task_id="in_the_triggerer", instance_id=instance)
    TaskHubSensor(task_id="in_the_worker", instance_id=instance, deferrable=False, poll_interval=5)
    TaskHubSensor(task_id="rescheduled", instance_id=instance, deferrable=False, mode="reschedule", poke_interval=30)
