"""The description of this provider for Airflow. Every Airflow process imports this module, so it must import fast."""

from __future__ import annotations

from typing import Any

_ROOT = "airflow_provider_taskhub"
_CONNECTION_FIELDS: dict[str, Any] = {
    "hub": {
        "label": "Hub",
        "description": "Name of the task hub: 3 to 45 letters and digits. The first character is a letter.",
        "schema": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9]{2,44}$", "minLength": 3, "maxLength": 45},
    },
    "storage": {
        "label": "Storage",
        "description": "embedded: one SQLite file, for one machine. azure: Azure Storage, or its emulator Azurite.",
        "schema": {"type": "string", "enum": ["embedded", "azure"], "default": "embedded"},
    },
    "path": {
        "label": "SQLite file",
        "description": "Embedded only: absolute path of the file. Empty: the default file of the machine.",
        "schema": {"type": ["string", "null"], "default": None},
    },
    "account_url": {
        "label": "Account address",
        "description": "Azure only: https://NAME.blob.core.windows.net. Without a secret, DefaultAzureCredential "
        "is used. Leave empty when the secret is a connection string.",
        "schema": {"type": ["string", "null"], "default": None},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in the form that Airflow's schema defines."""
    module = [{"integration-name": "TaskHub", "python-modules": []}]
    return {
        "package-name": "airflow-provider-taskhub",
        "name": "TaskHub",
        "description": "Durable orchestration of Spark pipelines, written as Airflow DAGs.",
        "versions": _versions(),
        "integrations": [{"integration-name": "TaskHub", "external-doc-url": "", "tags": ["service"]}],
        "hooks": _modules(module, "hooks"),
        "operators": [
            {**entry, "python-modules": [f"{_ROOT}.operators.{name}" for name in ("control", "repair", "taskhub")]}
            for entry in module
        ],
        "sensors": _modules(module, "sensors"),
        "triggers": [
            {**entry, "python-modules": [f"{_ROOT}.triggers.{name}" for name in ("events", "taskhub")]}
            for entry in module
        ],
        "notifications": [f"{_ROOT}.notifications.taskhub.TaskHubRaiseEventNotifier"],
        "task-decorators": [
            {"class-name": f"{_ROOT}.decorators.orchestration.orchestration_task", "name": "orchestration"},
            {"class-name": f"{_ROOT}.decorators.activity.activity_task", "name": "activity"},
        ],
        "connection-types": [
            {
                "connection-type": "taskhub",
                "hook-class-name": f"{_ROOT}.hooks.taskhub.TaskHubHook",
                "hook-name": "TaskHub",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "port"],
                    "relabeling": {"password": "Connection string, account key or SAS"},
                    "placeholders": {"password": "Azure only; empty for an embedded hub or a managed identity"},
                },
                "conn-fields": _CONNECTION_FIELDS,
            }
        ],
        "cli": [f"{_ROOT}.airflow_command.get_commands"],
        "extra-links": [f"{_ROOT}.links.taskhub.TaskHubInstanceLink"],
        "config": {
            "taskhub": {
                "description": "The TaskHub page inside Airflow's UI, and what Airflow's processes do in task hubs.",
                "options": {
                    "page_connections": {
                        "description": "Connections whose hubs the page offers, separated by commas; "
                        "the first is shown first. In these hubs the API server also ends instances that no task of "
                        "this Airflow waits for any more.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "taskhub_default, taskhub_reports",
                        "default": "taskhub_default",
                    },
                    "deployment": {
                        "description": "Name of this Airflow deployment, the same in all its processes. Needed where "
                        "several deployments share a hub and have the same [api] base_url, or where workers see "
                        "another [core] execution_api_server_url than the API server does.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "production",
                        "default": "",
                    },
                    "max_output_bytes": {
                        "description": "Size of the largest output that a task returns as its XCom, in bytes of JSON. "
                        "In place of a larger output the task returns a reference, which TaskHubHook.output opens.",
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": "1048576",
                        "default": "262144",
                    },
                    "running_output_bytes": {
                        "description": "How much of the output of its running activities a waiting task writes to its "
                        "log every 5 s, in bytes. Of more output the newest bytes are written. 0: none at all.",
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": "65536",
                        "default": "16384",
                    },
                    "on_retry": {
                        "description": "Default of on_retry of TaskHubOperator: rewind, restart or attach.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "attach",
                        "default": "rewind",
                    },
                    "on_clear": {
                        "description": "Default of on_clear of TaskHubOperator: rewind or restart.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "restart",
                        "default": "rewind",
                    },
                    "start_on": {
                        "description": "Default of start_on of operator and sensor: auto, trigger or worker.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "worker",
                        "default": "auto",
                    },
                    "complete_on": {
                        "description": "Default of complete_on of operator and sensor: auto, trigger or worker.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "worker",
                        "default": "auto",
                    },
                    "no_worker_timeout": {
                        "description": "Default of the parameter no_worker_timeout of TaskHubOperator, in seconds. "
                        "Empty: the setting no_worker_timeout of the triggerer.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "120",
                        "default": "",
                    },
                    "poll_interval": {
                        "description": "Default of the parameter poll_interval of operators and sensors: seconds "
                        "between two questions of a wait in an Airflow worker. Empty: 1 s on SQLite, 3 s on Azure.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "10",
                        "default": "",
                    },
                    "short_wait": {
                        "description": "Default of the parameter short_wait: seconds for which an "
                        "Airflow worker waits for the end of an instance before it defers. Empty: 30 s if a worker "
                        "must end the task, else 1.5 s, and 0 for a sensor.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "5",
                        "default": "",
                    },
                },
            }
        },
    }


def _versions() -> list[str]:
    from airflow_provider_taskhub import __version__

    return [__version__]


def _modules(template: list[dict[str, Any]], folder: str) -> list[dict[str, Any]]:
    return [{**entry, "python-modules": [f"{_ROOT}.{folder}.taskhub"]} for entry in template]
