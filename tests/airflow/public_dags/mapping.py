"""A task for each item of a list and of a result, as in Airflow's examples of dynamic task mapping."""

from airflow.sdk import DAG, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

with DAG(dag_id="mapping_a_list", schedule=None, tags=["example"]):

    @task.activity
    def add_one(number: int) -> int: ...

    @task.orchestration
    def add_up(numbers: list[int]) -> int: ...

    add_up(add_one.expand(number=[1, 2, 3]))
    # the same with the operator, and with a table of arguments
    TaskHubOperator.partial(task_id="rows", orchestrator="add").expand(input=[1, 2, 3])
    TaskHubOperator.partial(task_id="table", orchestrator="add").expand_kwargs(
        [{"input": 1, "version": "1"}, {"input": "{{ ds_nodash }}", "version": "2"}]
    )

with DAG(dag_id="mapping_a_result", schedule=None, tags=["example"]):
    numbers = TaskHubOperator(task_id="numbers", orchestrator="numbers")
    doubled = TaskHubOperator.partial(task_id="doubled", orchestrator="double").expand(input=numbers.output)
    TaskHubOperator.partial(task_id="plus_ten", orchestrator="add").expand(input=doubled.output)
    TaskHubOperator(task_id="pairs", orchestrator="pairs", input=numbers.output.zip(doubled.output))
