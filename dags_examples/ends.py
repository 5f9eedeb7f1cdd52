"""A DAG that runs when an orchestration of the team "sales" has ended, also if no DAG has started it.

Any program may start one: ``taskhub instances start greetings --input '["Ada"]' --tag team=sales``. While it runs,
``taskhub worker --app first_app:app`` must run too.
"""

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_taskhub.triggers.events import TaskHubEventTrigger

trigger = TaskHubEventTrigger(tags={"team": "sales"}, statuses=["Completed", "Failed"], poll_interval=5)
sales = Asset("sales_orchestrations", watchers=[AssetWatcher(name="taskhub", trigger=trigger)])

with DAG(dag_id="ends_example", schedule=[sales]) as dag:

    @task
    def report(triggering_asset_events=None) -> None:
        for event in triggering_asset_events[sales]:
            end = event.extra["payload"]
            print(f"{end['orchestrator']}: {end['instance_id']} is {end['status']}")

    report()
