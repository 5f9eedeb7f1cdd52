"""Spark servers for the demo, from PySpark's own package: a standalone cluster, and a Spark Connect server.

They use only this machine's loopback network, and ports that were free.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_taskhub.demo.ports import HOST, free_port
from airflow_provider_taskhub.errors import ConfigurationError

KINDS = ("local", "standalone", "connect")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkServer:
    """A Java process of Spark.

    :param name: its name, for people and for its log file.
    :param arguments: arguments of PySpark's program ``spark-class``.
    :param memory: its largest heap, such as ``256m``.
    :param ports: the ports that are open when it is ready.
    :param page: address of its web page.
    """

    name: str
    arguments: tuple[str, ...]
    memory: str
    ports: tuple[int, ...]
    page: str

    @property
    def command(self) -> Sequence[str]:
        return (str(_package() / "bin" / "spark-class"), *self.arguments)

    def environment(self, folder: Path) -> Mapping[str, str]:
        """Return the variables of the process. :param folder: where it writes."""
        return {
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": self.memory,
            "SPARK_WORKER_DIR": str(folder / "work"),
            "PYSPARK_PYTHON": sys.executable,
        }

    def is_ready(self) -> bool:
        """Return whether the process accepts connections."""
        return all(_open(port) for port in self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSetup:
    """Spark servers, and the settings by which a worker uses them.

    :param servers: the servers, in the order in which they start.
    :param master: the setting ``spark.master``.
    :param conf: the setting ``spark.conf``.
    """

    servers: tuple[SparkServer, ...]
    master: str
    conf: Mapping[str, str]

    def settings(self) -> Mapping[str, str]:
        """Return the settings as environment variables of a worker."""
        return {"TASKHUB_SPARK__MASTER": self.master, "TASKHUB_SPARK__CONF": json.dumps(dict(self.conf))}


def connect(folder: Path) -> SparkSetup:
    """Return a Spark Connect server whose Spark is local. :param folder: where it writes."""
    port, ui = free_port(), free_port()
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.ui.port": ui,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.python.task.killTimeout": "100ms",  # the server decides it for all sessions
    }
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    server = SparkServer(
        name="spark-connect",
        arguments=(
            "org.apache.spark.deploy.SparkSubmit",
            *("--master", "local[2]", *settings),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        ),
        memory="800m",
        ports=(ui, port),
        page=f"http://{HOST}:{ui}",
    )
    return SparkSetup(servers=(server,), master=f"sc://{HOST}:{port}", conf={})


def standalone(folder: Path) -> SparkSetup:
    """Return a standalone cluster: a master with its REST server, and two workers with one core each.

    :param folder: where the configuration of the master is written.
    """
    port, ui, rest = free_port(), free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "spark-master.conf"
    properties.write_text(f"spark.master.rest.enabled true\nspark.master.rest.port {rest}\n", encoding="utf-8")
    url = f"spark://{HOST}:{port}"
    master = SparkServer(
        name="spark-master",
        arguments=(
            "org.apache.spark.deploy.master.Master",
            *("--host", HOST, "--port", str(port), "--webui-port", str(ui), "--properties-file", str(properties)),
        ),
        memory="256m",
        ports=(port, ui, rest),
        page=f"http://{HOST}:{ui}",
    )
    conf = {
        # Each worker of the hub takes one core. Otherwise the first of them would take the whole cluster.
        "spark.cores.max": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
    }
    return SparkSetup(servers=(master, _worker(1, url), _worker(2, url)), master=url, conf=conf)


def _worker(number: int, master: str) -> SparkServer:
    ui = free_port()
    return SparkServer(
        name=f"spark-worker-{number}",
        arguments=(
            "org.apache.spark.deploy.worker.Worker",
            *("--host", HOST, "--webui-port", str(ui), "--cores", "1", "--memory", "700m", master),
        ),
        memory="256m",
        ports=(ui,),
        page=f"http://{HOST}:{ui}",
    )


def _open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def _package() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigurationError("the demo needs PySpark: run `make demo` in a checkout, which installs it")
    return Path(found.origin).parent
