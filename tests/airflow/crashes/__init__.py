"""``make crashes``: something is done to a real Airflow at every stage of a wait, and a table says what became of it.

Three DAGs wait, because a task may be started and ended in different places: the triggerer starts and ends the task;
the triggerer starts it and a worker ends it; a worker starts it and the triggerer ends it. When something is done, each
DAG has a run at each stage:

* started: the instance has just been started;
* deferred: the task waits for the instance;
* firing: the event that lets the instance end has just been sent;
* ended: the task has succeeded.

After that, every instance ends as the task demands. No instance runs that no task waits for, none was started twice,
and none was terminated whose task nobody has killed.
"""
