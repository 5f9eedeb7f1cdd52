"""Bounds what a task returns: a large output stays in the hub, and the task returns a reference to it.

Airflow stores what a task returns (its XCom) in its database, and reads it whole for each task that uses it and for its
UI. The hub stores a large output once, compressed. ``TaskHubHook.output`` opens a reference.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowConfigException

from airflow_provider_taskhub.errors import InstanceNotFound

if TYPE_CHECKING:
    from airflow_provider_taskhub.client import Client
    from airflow_provider_taskhub.hub.model import InstanceState

log = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 256 * 1024
"""The largest output that a task returns whole, if Airflow's option ``[taskhub] max_output_bytes`` is not set."""
RUNNING_OUTPUT_BYTES = 16 * 1024
"""How much of its running activities' output a task's log takes in one reading, in bytes, if Airflow's option
``[taskhub] running_output_bytes`` is not set."""
_KEY = "taskhub_output"
"""The only key of a reference: a mapping with the fields of :class:`OutputReference`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReference:
    """Names an output that stays in the hub.

    :param taskhub_conn_id: the Airflow connection of the hub.
    :param instance_id: the instance.
    :param execution_id: id of the instance's run. If the id is started again, the new run has another one.
    :param size: size of the output as JSON, in bytes.
    """

    taskhub_conn_id: str
    instance_id: str
    execution_id: str
    size: int


def plain(text: str | None) -> Any:
    """Parse a JSON text and return its value. If there is no text (None), return None.

    A text that is not JSON, for example the output of a failed instance, is returned unchanged.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def stays_in_hub(state: InstanceState) -> bool:
    """Return whether the output is so large that the task returns a reference to it."""
    return bool(_size(state) > conf.getint("taskhub", "max_output_bytes", fallback=MAX_OUTPUT_BYTES))


def most_running_output() -> int:
    """Return how many bytes of its running activities' output a task's log takes in one reading; 0: it takes none.

    A value that is no number must not fail the tasks that wait, so the default replaces it.
    """
    try:
        return int(conf.getint("taskhub", "running_output_bytes", fallback=RUNNING_OUTPUT_BYTES))
    except AirflowConfigException as error:
        log.warning("[taskhub] running_output_bytes is not usable, %d is used: %s", RUNNING_OUTPUT_BYTES, error)
        return RUNNING_OUTPUT_BYTES


def _size(state: InstanceState) -> int:
    return len((state.output or "").encode())


def returned(state: InstanceState, taskhub_conn_id: str, *, whole: bool = False) -> Any:
    """Return what the task of a completed instance returns: its output, or a reference to a large output.

    :param state: the state of the instance, with its output.
    :param taskhub_conn_id: the Airflow connection of the hub.
    :param whole: True: return the output, however large it is.
    """
    if whole or not stays_in_hub(state):
        return plain(state.output)
    reference = OutputReference(
        taskhub_conn_id=taskhub_conn_id,
        instance_id=state.instance_id,
        execution_id=state.execution_id or "",
        size=_size(state),
    )
    return {_KEY: asdict(reference)}


def reference_in(value: Any) -> OutputReference | None:
    """Return the reference that a task has returned; None: the value is no reference."""
    if not isinstance(value, dict) or value.keys() != {_KEY}:
        return None
    try:
        return OutputReference(**value[_KEY])
    except TypeError:
        return None


async def read(client: Client, reference: OutputReference) -> Any:
    """Read the output that a reference names.

    :raises InstanceNotFound: if the hub has this output no longer.
    """
    state = await client.get(reference.instance_id)
    if state is None or state.execution_id != reference.execution_id or state.output is None:
        fate = "was purged" if state is None else "was started again"
        raise InstanceNotFound(
            f"the output of instance {reference.instance_id!r} is not in the hub any more: the instance {fate}. Clear "
            "the task that has returned the reference, to compute the output again"
        )
    return plain(state.output)
