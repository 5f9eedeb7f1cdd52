"""The program that ends Spark Connect sessions which dead executors have left: ``python -m …child.end_sessions``.

It is a process of its own, because the worker imports no pyspark, and the executor that had the sessions is dead. It
reads one JSON object from standard input, ``{"master": …, "sessions": […]}``, and writes one to standard output: for
each session, null if the server has confirmed its end, else the reason. The address is not an argument of the program,
because it may contain a token that other users of the machine could read.
"""

from __future__ import annotations

import json
import sys

from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.spark_connect import ConnectServer
from airflow_provider_taskhub.workers.executors.child.connect_control import end_session


def main() -> None:
    order = json.load(sys.stdin)
    server = ConnectServer.parse(order["master"])
    answers: dict[str, str | None] = {}
    for session in order["sessions"]:
        try:
            end_session(server, session)
            answers[session] = None
        except (ConfigurationError, ImportError) as error:
            answers[session] = str(error)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
