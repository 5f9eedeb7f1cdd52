"""A person approves in Airflow what an orchestration does next. The worker: ``taskhub worker --app approval_app:app``.

``asked`` waits until the orchestration awaits the event "approval". Then Airflow shows the question under "Required
actions". The answer is raised as the event.
"""

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG

from airflow_provider_taskhub.operators.control import TaskHubRaiseEventOperator
from airflow_provider_taskhub.operators.taskhub import TaskHubOperator
from airflow_provider_taskhub.sensors.taskhub import TaskHubSensor

with DAG(dag_id="approval", schedule=None):
    publication = "publication-{{ run_id }}"  # chosen here, so that every task can name the instance
    TaskHubOperator(task_id="publish", orchestrator="approved_publication", input="flights", instance_id=publication)
    counted = TaskHubSensor(task_id="counted", instance_id=publication, custom_status="custom_status.rows > 0")
    # the same with a function, which Airflow's triggerer must be able to import too
    enough = TaskHubSensor(task_id="enough", instance_id=publication, custom_status="approval_app:enough")
    asked = TaskHubSensor(task_id="asked", instance_id=publication, event_name="approval")
    decide = HITLOperator(task_id="decide", subject="Publish the table flights?", options=["Publish", "Reject"])
    tell = TaskHubRaiseEventOperator(task_id="tell", instance_id=publication, event_name="approval", data=decide.output)
    [counted, enough, asked] >> decide >> tell
