"""An app with one activity, ``spark_submit``, which submits a Spark application and waits for its end.

A worker takes it beside its own app: ``taskhub worker --app jobs:app --app airflow_provider_taskhub.spark_submit:app``.
An orchestrator calls it by its name, and so does a task of Airflow, which then needs no Airflow worker::

    TaskHubOperator(
        task_id="load",
        activity="spark_submit",
        input={"application": "/jobs/load.py", "application_args": ["{{ ds }}"], "deploy_mode": "cluster"},
    )

The work is done by ``SparkSubmitOperator`` of the package apache-airflow-providers-apache-spark. In cluster mode the
driver runs on the cluster and outlives this worker. So the id of the driver, application or pod is kept in the activity
record before anybody waits for it, and the next attempt after a death waits for the same application again. In client
mode the driver is a process of the executor and dies with it, so the next attempt submits the application again.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from airflow_provider_taskhub.activity import cancelled, check_cancelled, is_unwanted, progress, save_state, saved_state
from airflow_provider_taskhub.app import App
from airflow_provider_taskhub.errors import ConfigurationError, InputError, TaskHubError
from airflow_provider_taskhub.near_names import did_you_mean
from airflow_provider_taskhub.spark_connection import airflow_connection

__all__ = ["app", "spark_submit"]

app = App("spark_submit")

_OWN = frozenset({"self", "kwargs", "durable", "reconnect_on_retry", "yarn_rm_auth"})
"""Parameters of the operator that are no arguments of the activity."""
_POLLED = {"yarn": "yarn_track_via_rm_api", "k8s": "track_driver_via_k8s_api"}
"""By the beginning of the master, the parameter without which ``spark-submit`` itself waits for the end in cluster
mode. Then the application could not be found again after a death."""
_LOOK = 0.5
"""Seconds between two looks whether the activity was asked to stop."""
_PATIENCE = 300.0
"""Seconds for which a cluster that does not answer is asked for the status of an earlier application."""
_KILLS, _KILLS_LEFT = 6.0, 30.0
"""Seconds for which an application is killed again that the cluster does not report as ended: within the ten seconds
that a cancelled activity has, and in a call that only cleans up."""


class SparkJobFailed(TaskHubError):
    """A Spark application has failed, was killed, or is not known any more: one that an earlier attempt has submitted,
    or one whose pod on Kubernetes has vanished.
    """


@app.activity(name="spark_submit", record=True, standalone=True, clean_up=True)
def spark_submit(arguments: dict[str, Any]) -> str | None:
    """Submit a Spark application and wait for its end. If the activity is cancelled, so is the application. If only the
    worker ends, the application goes on in cluster mode, and the next attempt waits for it.

    :param arguments: parameters of ``SparkSubmitOperator``: ``application``, ``application_args``, ``conf``,
        ``deploy_mode``, ``conn_id`` and others. ``conn_id`` (``spark_default`` unless given) is an Airflow connection
        of the type Spark, which this worker has as the variable ``AIRFLOW_CONN_...``.
    :returns: the id of the driver on a standalone cluster, of the application on YARN, or of the pod on Kubernetes;
        None in client mode.
    :raises InputError: if an argument is wrong.
    :raises ConfigurationError: if the package, the connection or the program ``spark-submit`` is missing.
    :raises SparkJobFailed: if the application of an earlier attempt has not succeeded, or its pod has vanished.
    :raises airflow.exceptions.AirflowException: if the submission or the application fails.
    """
    operator = _operator(arguments)
    state = _State()
    context = {"task_state_store": state}

    if is_unwanted():  # from the beginning: nothing is submitted, and what a dead worker has left is killed
        job = _attach(operator, state)
        if job is not None and not _kill(operator, state, context, seconds=_KILLS_LEFT):
            raise SparkJobFailed(f"the cluster has not confirmed that Spark application {job} has ended")
        return None

    def work() -> None:
        _check_earlier(operator, state, context)
        type(operator).execute.__wrapped__(operator, context)

    # In a thread of its own: nothing ends the operator's wait for an application that must go on.
    running = _in_background(work)
    while not wait((running,), timeout=_LOOK).done:
        if not cancelled() or _is_submitting(operator, state):
            continue
        if is_unwanted():
            break
        _leave(operator)  # only this attempt must end: the next one waits for the application
        check_cancelled()
    if is_unwanted():  # perhaps between the submission and the next look
        _kill(operator, state, context)
        if not wait((running,), timeout=_LOOK).done:  # the cluster does not answer
            check_cancelled()
    error = running.exception()
    if error is not None:
        raise error
    check_cancelled()
    job = state.get(operator.external_id_key)
    if job is not None and operator._hook._should_track_driver_via_k8s_api():
        # The operator takes a pod that has vanished for one that it has deleted itself.
        _check_status(operator, str(job), operator.get_job_status(job, context))
    return None if job is None else str(job)


class _State:
    """What the operator uses as Airflow's task state store. It is kept in the activity record."""

    def get(self, key: str, default: Any = None) -> Any:
        return (saved_state() or {}).get(key, default)

    def set(self, key: str, value: Any, **_: object) -> None:
        save_state({**(saved_state() or {}), key: value})
        progress(message=f"{key}: {value}")


def _operator(arguments: Mapping[str, Any]) -> Any:
    try:
        from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"spark_submit needs the package {error.name}, which this worker does not have: "
            "pip install 'airflow-provider-taskhub[airflow]'"
        ) from None
    known = inspect.signature(SparkSubmitOperator.__init__).parameters.keys() - _OWN
    for name in sorted(arguments.keys() - known):
        hint = did_you_mean(name, known)
        raise InputError(f"spark_submit: {name!r} is no argument of SparkSubmitOperator{hint and ': ' + hint}")
    if not arguments.get("application"):
        raise InputError("spark_submit: give the argument 'application', the path of a .py or .jar file")
    given = dict(arguments)
    connection = airflow_connection(given.setdefault("conn_id", "spark_default"), "spark_submit")
    mode = given.get("deploy_mode") or connection.extra_dejson.get("deploy-mode")
    if mode not in (None, "client", "cluster"):
        raise InputError(f"spark_submit: 'deploy_mode' is {mode!r}: give 'client' or 'cluster'")
    _find(str(given.get("spark_binary") or connection.extra_dejson.get("spark-binary") or "spark-submit"))
    if mode == "cluster":
        master = f"{connection.conn_type} {connection.host}"
        given = {polled: True for kind, polled in _POLLED.items() if kind in master} | given
    return SparkSubmitOperator(task_id="spark_submit", durable=True, **given)


def _find(program: str) -> None:
    """Make sure that a program of Spark can be started by its name. A worker may run from a virtual environment that is
    not in its ``PATH``, so the folder of this Python counts, too.

    :raises ConfigurationError: if the program is not there.
    """
    if shutil.which(program) is not None:
        return
    beside = os.path.dirname(sys.executable)
    if shutil.which(program, path=beside) is None:
        raise ConfigurationError(
            f"spark_submit: this worker finds no program {program!r}: install Spark or pip install pyspark, and put "
            "the folder of the program into the worker's PATH"
        )
    os.environ["PATH"] = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))


def _check_earlier(operator: Any, state: _State, context: dict[str, Any]) -> None:
    """Raise an error if the application of an earlier attempt has ended without success. The operator would submit it
    again, but the retry policy of the call decides that.
    """
    job = _attach(operator, state)
    if job is None:
        return
    status = _status(operator, job, context)
    if not operator.is_job_active(status):
        _check_status(operator, f"{job}, which an earlier attempt has submitted,", status)


def _attach(operator: Any, state: _State) -> Any:
    """Make the operator know the application of an earlier attempt. Return its id; None: there is none."""
    job = state.get(operator.external_id_key)
    if job is None:
        return None
    operator._hook = hook = operator._hook or operator._get_hook()
    # Without its id, the operator could not kill the application before it waits for it.
    if hook._is_yarn_cluster_mode:
        hook._yarn_application_id = job
    elif hook._should_track_driver_via_k8s_api():
        hook._kubernetes_driver_pod = str(job).rpartition(":")[2]
    else:
        hook._driver_id = job
    return job


def _status(operator: Any, job: Any, context: dict[str, Any]) -> str:
    """Return the status of an application. The cluster may be starting too, so it is asked for some minutes.

    :raises SparkJobFailed: if the cluster has not answered for five minutes.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return str(operator.get_job_status(job, context))
        except Exception as error:
            if time.monotonic() > deadline:
                raise SparkJobFailed(
                    f"the cluster does not tell what became of Spark application {job}, which an earlier attempt has "
                    f"submitted ({type(error).__name__}: {error}). It may still run: look before you submit it again"
                ) from error
        for _ in range(10):
            check_cancelled()
            time.sleep(_LOOK)


def _check_status(operator: Any, job: str, status: str) -> None:
    if not operator.is_job_succeeded(status):
        raise SparkJobFailed(f"Spark application {job} is {status}")


def _in_background(work: Callable[[], None]) -> Future[None]:
    """Run a function in a daemon thread, with the context variables of this attempt."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:  # the thread of the activity raises it
            done.set_exception(error)

    threading.Thread(target=copy_context().run, args=(run,), name="spark_submit", daemon=True).start()
    return done


def _leave(operator: Any) -> None:
    """End the process ``spark-submit`` on this machine. In client mode the driver ends with it."""
    process = operator._hook._submit_sp
    if process is not None and process.poll() is None:
        process.kill()


def _is_submitting(operator: Any, state: _State) -> bool:
    """Return whether the cluster may have accepted an application whose id is not known yet. Only its id says what to
    kill."""
    hook = operator._hook
    if hook is None:
        return True
    if not (hook._should_track_driver_status or hook._is_yarn_cluster_mode or hook._should_track_driver_via_k8s_api()):
        return False
    ended = hook._submit_sp is not None and hook._submit_sp.poll() is not None
    return state.get(operator.external_id_key) is None and not ended


def _kill(operator: Any, state: _State, context: dict[str, Any], *, seconds: float | None = None) -> bool:
    """Kill the application, and again until the cluster says that it has ended.

    :param seconds: for how long; None: for less than the grace of an activity, so that its executor is not killed.
    :returns: False if the cluster has not said so in time.
    """
    deadline = time.monotonic() + (_KILLS if seconds is None else seconds)
    while True:
        job = state.get(operator.external_id_key)
        with suppress(Exception):  # the cluster may be away: the next try tells
            if job is not None and not operator.is_job_active(operator.get_job_status(job, context)):
                return True
        with suppress(Exception):
            operator.on_kill()
        if job is None:
            return True
        if time.monotonic() > deadline:
            print("the cluster has not confirmed that the application has ended", file=sys.stderr)
            return False
        time.sleep(_LOOK)
