"""Tells Airflow which tasks the triggerer starts, and with which trigger.

Airflow reads two attributes of an operator for this when it serializes the DAG. They are descriptors here, because the
answer depends on the whole DAG, which is not known yet when the operator is created.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_taskhub.triggers.arguments import seconds, time_text
from airflow_provider_taskhub.triggers.dag_file import fingerprint

TRIGGER = "airflow_provider_taskhub.triggers.start.TaskHubStartTrigger"


class StartFromTrigger:
    """``BaseOperator.start_from_trigger``: whether the triggerer starts the task.

    A mapped task reads it at the class: its arguments never reach a trigger, so a worker starts it.
    """

    def __get__(self, operator: Any, owner: type) -> bool:
        # Airflow also reads it, several times, while it makes the operator: the answer is not known then, and to find
        # it would slow down the parse of the DAG file
        made = operator is not None and getattr(operator, "_BaseOperator__instantiated", False)
        return made and not operator.placement().start


class StartTriggerArguments:
    """``BaseOperator.start_trigger_args``: the trigger and its arguments; None: a worker starts the task."""

    def __get__(self, operator: Any, owner: type) -> Any:
        if operator is None or not operator.start_from_trigger:
            return None
        from airflow.triggers.base import StartTriggerArgs

        placement = operator.placement()
        dag_file = operator.dag.fileloc if operator.has_dag() else None
        return StartTriggerArgs(
            trigger_cls=TRIGGER,
            trigger_kwargs={
                "orchestrator": operator.orchestrator,
                "input": operator.input,
                "taskhub_conn_id": operator.taskhub_conn_id,
                "instance_id": operator.instance_id,
                "version": operator.version,
                "tags": operator.tags,
                "no_worker_timeout": seconds(operator.no_worker_timeout),
                "wait_for_completion": operator.wait_for_completion,
                "start_at": time_text(operator.start_at),
                "end_from_trigger": not placement.success,
                "fail_from_trigger": not placement.failure,
                "push_output": operator.do_xcom_push,
                "dag_file": dag_file,
                "dag_file_hash": fingerprint(dag_file),
            },
            next_method="execute_started",
        )
