"""A form of parameters, from which tasks are chosen and mapped, as in Airflow's example of the trigger form."""

from airflow.sdk import DAG, Param, task

from airflow_provider_taskhub.operators.taskhub import TaskHubOperator

PARAMS = {
    "names": Param(["Linda", "Martha", "Thomas"], type="array", title="Names to greet"),
    "english": Param(True, type="boolean"),
    "german": Param(False, type="boolean"),
}

with DAG(dag_id="params_form", schedule=None, params=PARAMS, render_template_as_native_obj=True, tags=["example"]):

    @task
    def names(params=None) -> list[str]:
        return params["names"]

    @task.branch
    def languages(params=None) -> list[str]:
        return [f"greet_in_{name}" for name in ("english", "german") if params[name]]

    listed, chosen = names(), languages()
    greetings = [
        TaskHubOperator.partial(task_id=f"greet_in_{name}", orchestrator=f"greet_{name}").expand(input=listed)
        for name in ("english", "german")
    ]
    everybody = TaskHubOperator(task_id="everybody", orchestrator="greetings", input="{{ params.names }}")
    last = TaskHubOperator(task_id="last", orchestrator="tell", input="greeted", trigger_rule="all_done")
    chosen >> [*greetings, everybody] >> last

with DAG(dag_id="params_as_text", schedule=None, params=PARAMS, tags=["example"]):
    text = "{% for name in params.names %}{{ name | title }}{{ ', ' if not loop.last }}{% endfor %}"
    TaskHubOperator(task_id="everybody", orchestrator="greetings", input=text)
    TaskHubOperator(task_id="from_a_variable", orchestrator="tell", input="{{ var.value.get('greeting', 'Hello') }}")
